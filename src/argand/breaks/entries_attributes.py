"""Breaks over attributes of classes, objects and modules."""

from __future__ import annotations

from argand.breaks.page import Page

PAGES: tuple[Page, ...] = (
    Page(
        kind="class attribute deleted",
        what="`del cls.name` for a class that existed before the call.",
        why="Other code sees the class change; the change would come when the graph has run, and not where it stands.",
        before="""
        class Scale:
            factor = 2

        @argand.compile
        def f(x):
            y = x * Scale.factor
            del Scale.factor
            return y
        """,
        after={"del Scale.factor": "Scale.factor = None"},
    ),
    Page(
        kind="attribute deleted",
        what="An attribute of a module (of the `import` kind) is deleted.",
        why="Other code sees the module change; the change would come when the graph has run, and not where it stands.",
        before="""
        import types

        settings = types.ModuleType("settings")
        settings.factor = 2

        @argand.compile
        def f(x):
            y = x * settings.factor
            del settings.factor
            return y
        """,
        after={"del settings.factor": "settings.factor = None"},
    ),
    Page(
        kind="attribute that raises",
        why="A guard reads the attribute at each call, and could not tell one error from another.",
        what="Reading an attribute that C code computes raises something other than AttributeError, as "
        "`cell_contents` of an empty cell does.",
        before="""
        def make():
            def read():
                return value

            return read.__closure__[0]
            value = 1

        cell = make()

        @argand.compile
        def f(x):
            try:
                return x * cell.cell_contents
            except ValueError:
                return x * 2
        """,
        after={"return read.__closure__[0]": "value = 1\nreturn read.__closure__[0]", "value = 1": ""},
    ),
    Page(
        kind="module attribute written",
        what="An attribute of a module is set whose class has a `__setattr__` of its own.",
        why="The module decides itself what becomes of the value.",
        unshown="It is a safeguard: no program is known that comes to it.",
    ),
    Page(
        kind="annotations made by asking for them",
        what="`module.__annotations__` is read, and the module has none.",
        why="Python then puts an empty dict into the module, which would be an effect of looking.",
        before="""
        import types

        settings = types.ModuleType("settings")

        @argand.compile
        def f(x):
            return x * (2 + len(settings.__annotations__))
        """,
        after="""
        import types

        settings = types.ModuleType("settings")

        @argand.compile
        def f(x):
            return x * (2 + len(vars(settings).get("__annotations__", ())))
        """,
    ),
    Page(
        kind="namespace that the class defines itself",
        what="An object is used whose class defines `__dict__` itself, for example as a property.",
        why="What the object really holds cannot be told from what it says.",
        before="""
        class Settings:
            def __init__(self):
                self.factor = 2

            @property
            def __dict__(self):
                return {}

        settings = Settings()

        @argand.compile
        def f(x):
            return x * settings.factor
        """,
        after={"def __dict__(self):": "def shown(self):"},
    ),
)
