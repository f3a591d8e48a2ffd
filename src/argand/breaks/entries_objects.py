"""Breaks over objects and classes."""

from __future__ import annotations

from argand.breaks.page import Page

PAGES: tuple[Page, ...] = (
    Page(
        kind="class definition",
        what="A class is defined whose metaclass has an `mro()` of its own, or whose bases define "
        "`__init_subclass__` in a way that cannot be put off.",
        why="Making the class runs code of the program from within native code.",
        before="""
        class Meta(type):
            def mro(cls):
                return super().mro()

        @argand.compile
        def f(x):
            class Scale(metaclass=Meta):
                factor = 2

            return x * Scale.factor
        """,
        after="""
        class Meta(type):
            def mro(cls):
                return super().mro()

        class Scale(metaclass=Meta):
            factor = 2

        @argand.compile
        def f(x):
            return x * Scale.factor
        """,
        also=("call of native code that is not known",),
    ),
    Page(
        kind="class under construction",
        what="The `mro()` of a metaclass, which runs while a class is made, looks at that class.",
        why="The class has no bases yet by which attributes could be looked up.",
        before="""
        @argand.compile
        def named(x, cls):
            return x * len(cls.__name__)

        class Meta(type):
            def mro(cls):
                print(named(torch.ones(3), cls))
                return type.mro(cls)

        class Scale(metaclass=Meta):
            pass
        """,
        after="""
        @argand.compile
        def named(x, cls):
            return x * len(cls.__name__)

        class Meta(type):
            def mro(cls):
                return type.mro(cls)

        class Scale(metaclass=Meta):
            pass

        print(named(torch.ones(3), Scale))
        """,
    ),
    Page(
        kind="class of an object changed",
        what="`obj.__class__ = ...` for an object that existed before the call.",
        why="Everything that was guarded about the object would be about its former class.",
        before="""
        class Small:
            factor = 2

        class Large:
            factor = 3

        scale = Small()

        @argand.compile
        def f(x):
            scale.__class__ = Large
            return x * scale.factor
        """,
        after="""
        class Small:
            factor = 2

        class Large:
            factor = 3

        scale = Small()

        @argand.compile
        def f(x):
            return x * scale.factor

        scale.__class__ = Large
        """,
    ),
    Page(
        kind="class that changes too often",
        what="A class was changed so often that Python gives it no version number any more.",
        why="The version number is how a guard tells that a class is as it was.",
        unshown="It takes more changes of one class than Python has version numbers for: 1,000 since Python 3.13.",
    ),
    Page(
        kind="class that its metaclass compares or reads",
        what="A class is used whose metaclass has an `__eq__`, `__hash__` or `__getattribute__` of its own.",
        why="Whatever looks at the class would run that code, argand's guards too.",
        before="""
        class Meta(type):
            def __eq__(cls, other):
                return cls is other

            def __hash__(cls):
                return 1

        class Scale(metaclass=Meta):
            factor = 2

        @argand.compile
        def f(x):
            return x * Scale.factor
        """,
        after="""
        class Meta(type):
            pass

        class Scale(metaclass=Meta):
            factor = 2

        @argand.compile
        def f(x):
            return x * Scale.factor
        """,
        also=("argument cannot be captured",),
    ),
    Page(
        kind="instance check of a protocol",
        what="`isinstance` of a `typing.Protocol`, or of another class that looks at the object, cannot be "
        "answered without running code of the program.",
        why="The check reads attributes of the object, which may be properties, or were changed in captured code.",
        before="""
        from typing import Protocol, runtime_checkable

        @runtime_checkable
        class Sized(Protocol):
            size: int

        class Box:
            pass

        box = Box()

        @argand.compile
        def f(x):
            box.size = 3
            return x * 2 if isinstance(box, Sized) else x
        """,
        after="""
        class Box:
            pass

        box = Box()

        @argand.compile
        def f(x):
            box.size = 3
            return x * 2 if hasattr(box, "size") else x
        """,
    ),
    Page(
        kind="copying an object",
        why="What the copy takes over is read by native code.",
        what="`copy.copy`, `copy.deepcopy` or `pickle` is used on an object that says in an unusual way how it is "
        "copied (`__getnewargs_ex__`), or that C code holds more of.",
        before="""
        import copy

        class Scale:
            def __new__(cls, *, factor):
                made = object.__new__(cls)
                made.factor = factor
                return made

            def __getnewargs_ex__(self):
                return (), {"factor": self.factor}

        scale = Scale(factor=2)

        @argand.compile
        def f(x):
            return x * copy.copy(scale).factor
        """,
        after="""
        import copy

        class Scale:
            def __init__(self, *, factor):
                self.factor = factor

        scale = Scale(factor=2)

        @argand.compile
        def f(x):
            return x * copy.copy(scale).factor
        """,
    ),
    Page(
        kind="object with a finalizer",
        what="An object is made whose class has a `__del__`.",
        why="`__del__` must run when eager's object dies, and exactly once; a captured object lives and dies at "
        "other times.",
        before="""
        class Handle:
            def __del__(self):
                pass

        @argand.compile
        def f(x):
            handle = Handle()
            return x * 2
        """,
        after={"def __del__(self):": "def close(self):", "return x * 2": "y = x * 2\nhandle.close()\nreturn y"},
    ),
    Page(
        kind="object dropped",
        what="An object from outside with a `__del__`, or a generator with a `finally`, is overwritten or taken "
        "out of where it was kept.",
        why="It may die there and run its code, which belongs at that place and not behind the graph.",
        before="""
        class Handle:
            def __del__(self):
                pass

        holder = [Handle()]

        @argand.compile
        def f(x):
            holder.clear()
            return x * 2

        print(f(torch.ones(3)))
        """,
        after={"holder.clear()": "", "print(f(torch.ones(3)))": "print(f(torch.ones(3)))\nholder.clear()"},
    ),
)
