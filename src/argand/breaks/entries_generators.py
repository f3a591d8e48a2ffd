"""Breaks over generators and exceptions."""

from __future__ import annotations

from argand.breaks.page import Page

PAGES: tuple[Page, ...] = (
    Page(
        kind="generator as root",
        what="The compiled function is itself a generator, or a generator runs that nothing compiled iterates over.",
        why="A generator stops and goes on between calls, which one graph per call cannot do.",
        unshown="A generator function that is compiled runs eagerly without a word; only tools that capture a "
        "function by itself meet this.",
    ),
    Page(
        kind="async function",
        what="A coroutine or an asynchronous generator is made.",
        why="An event loop decides when it goes on, between the instructions of the program.",
        before="""
        import asyncio

        async def doubled(x):
            return x * 2

        @argand.compile
        def f(x):
            y = x + 1
            return doubled(y)

        print(asyncio.run(f(torch.ones(3))))
        """,
        after="""
        import asyncio

        @argand.compile
        def f(x):
            return (x + 1) * 2

        async def main(x):
            return f(x)

        print(asyncio.run(main(torch.ones(3))))
        """,
    ),
    Page(
        kind="generator dropped",
        why="Letting go of the generator runs these blocks, at that place.",
        what="A loop over a generator from outside is left early, and the generator has `finally` or `with` blocks.",
        before="""
        def numbers():
            try:
                yield from range(3)
            finally:
                pass

        @argand.compile
        def f(x, numbers):
            for n in numbers:
                if n == 1:
                    break
            return x * 2

        print(f(torch.ones(3), numbers()))
        """,
        after={
            "def f(x, numbers):": "def f(x):",
            "for n in numbers:": "for n in numbers():",
            "print(f(torch.ones(3), numbers()))": "print(f(torch.ones(3)))",
        },
        also=("iterator from outside", "iterator from before a graph break"),
    ),
    Page(
        kind="generator held by a traceback",
        what="An exception leaves a function that has begun to iterate over a generator.",
        why="The exception's traceback keeps the generator alive in eager; captured code has no tracebacks.",
        before="""
        def numbers():
            yield from range(3)

        def first():
            it = numbers()
            next(it)
            raise ValueError("no more")

        @argand.compile
        def f(x):
            try:
                first()
            except ValueError:
                return x * 2
        """,
        after={"next(it)": "try:\n    next(it)\nfinally:\n    it.close()"},
    ),
    Page(
        kind="exception in an abandoned generator",
        what="A generator that nothing refers to any more raises when Python closes it.",
        why="Python writes such an exception to the terminal and goes on, which must happen at each call.",
        before="""
        import sys

        def numbers():
            try:
                yield 1
            finally:
                raise ValueError("closed")

        @argand.compile
        def f(x):
            n = next(numbers())
            return x * n

        sys.unraisablehook = lambda info: sys.stdout.write("ignored ")
        print(f(torch.ones(3)))
        sys.unraisablehook = sys.__unraisablehook__
        """,
        after={
            "n = next(numbers())": "it = numbers()\nn = next(it)\ntry:\n    it.close()\nexcept ValueError:\n    pass",
            'sys.unraisablehook = lambda info: sys.stdout.write("ignored ")': "sys.unraisablehook = print",
        },
        also=("call of a library that is not captured",),
    ),
    Page(
        kind="frame of a generator",
        what="`gi_frame` of a generator is read.",
        why="A captured generator has no frame of Python's.",
        before="""
        def numbers():
            yield 1

        @argand.compile
        def f(x):
            it = numbers()
            return x * 2 if it.gi_frame is not None else x
        """,
        after={"return x * 2 if it.gi_frame is not None else x": "return x * 2 if not it.gi_running else x"},
    ),
    Page(
        kind="raise of an exception from outside",
        what="An exception object that existed before the call is raised.",
        why="Raising changes the object: its traceback and its context are set.",
        before="""
        @argand.compile
        def f(x, error):
            try:
                raise error
            except ValueError:
                return x * 2

        print(f(torch.ones(3), ValueError("kept")))
        """,
        after={"raise error": 'raise ValueError("new") from error'},
    ),
    Page(
        kind="exception from outside",
        what="An exception object that existed before the call is changed: by `__init__`, `with_traceback`, "
        "`add_note`.",
        why="Native code keeps its fields, and the change would come when the graph has run.",
        before="""
        @argand.compile
        def f(x, error):
            error.__init__("other")
            return x * 2

        error = ValueError("kept")
        print(f(torch.ones(3), error), error)
        """,
        after={
            "def f(x, error):": "def f(x):",
            'error.__init__("other")': "",
            "print(f(torch.ones(3), error), error)": 'error.__init__("other")\nprint(f(torch.ones(3)), error)',
        },
    ),
    Page(
        kind="exception state from outside",
        what="`sys.exc_info()` or `sys.exception()` asks for an exception that the caller is handling.",
        why="Which one that is depends on the caller, not on anything that is passed in.",
        before="""
        import sys

        @argand.compile
        def f(x):
            return x * 2 if sys.exc_info()[0] is KeyError else x

        try:
            raise KeyError
        except KeyError:
            print(f(torch.ones(3)))
        """,
        after={
            "def f(x):": "def f(x, kind):",
            "return x * 2 if sys.exc_info()[0] is KeyError else x": "return x * 2 if kind is KeyError else x",
            "print(f(torch.ones(3)))": "print(f(torch.ones(3), sys.exc_info()[0]))",
        },
    ),
    Page(
        kind="traceback inspected",
        what="An attribute of a traceback is read, such as `tb_lineno` or `tb_frame`.",
        why="An exception that was raised in captured code has no stack trace yet.",
        before="""
        def lineno(traceback):
            return traceback.tb_lineno

        @argand.compile
        def f(x, traceback):
            return x * (lineno(traceback) > 0)

        try:
            raise ValueError
        except ValueError as error:
            print(f(torch.ones(3), error.__traceback__))
        """,
        after={
            "def f(x, traceback):": "def f(x, line):",
            "return x * (lineno(traceback) > 0)": "return x * (line > 0)",
            "print(f(torch.ones(3), error.__traceback__))": "print(f(torch.ones(3), lineno(error.__traceback__)))",
        },
    ),
    Page(
        kind="graph break inside an except block",
        what="The graph breaks in an `except` or `finally` block, and which exception is handled there depends on "
        "the function's caller.",
        why="What comes after the break goes on in a function of its own, which must handle the same exceptions again.",
        unshown="It is a safeguard: no program is known that comes to it.",
    ),
)
