"""Breaks where capture itself comes to an end."""

from __future__ import annotations

from argand.breaks.page import Page

PAGES: tuple[Page, ...] = (
    Page(
        kind="unsupported Python construct",
        what="An instruction of Python is met that argand does not interpret, such as an `async` construct or a "
        "`type` statement.",
        why="It is rare in programs that compute with tensors, or bound to an event loop.",
        before="""
        @argand.compile
        def f(x):
            type Number = int | float
            return x * 2
        """,
        after={"@argand.compile": "type Number = int | float\n\n\n@argand.compile", "type Number = int | float": ""},
        since=(3, 12),
    ),
    Page(
        kind="inlining too deep",
        what="Python functions call each other more deeply than `argand.config.inline_limit` (600) allows.",
        why="Capture inlines every call, and uses the interpreter's own stack for it.",
        before="""
        def power(x, n):
            return x if n == 0 else power(x * 1.0, n - 1)

        @argand.compile
        def f(x):
            return power(x, 30)

        with argand.config.patch(inline_limit=20):
            print(f(torch.ones(3)))
        """,
        after={"return x if n == 0 else power(x * 1.0, n - 1)": "for _ in range(n):\n    x = x * 1.0\nreturn x"},
        also=(),
    ),
    Page(
        kind="loop too long",
        what="Loops of the function run more than 200,000 rounds.",
        why="Capture unrolls loops: each round's operations become part of the graph.",
        before="""
        @argand.compile
        def f(x):
            for n in range(210_000):
                x = x + 1 if n % 9000 == 0 else x
            return x
        """,
        after={
            "@argand.compile": "def add(x):\n    return x + 1\n\n\n@argand.compile",
            "for n in range(210_000):": "for _ in range(0, 210_000, 9000):\n    x = add(x)",
            "x = x + 1 if n % 9000 == 0 else x": "",
        },
    ),
    Page(
        kind="long stretch of plain Python",
        what="10,000 rounds of loops and calls go by without an operation on a tensor.",
        why="Interpreting them to capture costs more than compiling could save.",
        before="""
        @argand.compile
        def f(x):
            total = 0
            for n in range(20_000):
                total += n
            return x * total

        print(f(torch.ones(3)))
        """,
        after="""
        @argand.compile
        def f(x, total):
            return x * total

        print(f(torch.ones(3), sum(range(20_000))))
        """,
    ),
    Page(
        kind="capture takes too long",
        what="Capturing the function takes more CPU time than `argand.config.capture_time_limit` (10 s).",
        why="The function does a great deal in Python; a first call that takes minutes helps nobody.",
        before="""
        @argand.compile
        def f(x):
            for _ in range(2000):
                x = x + 1
            return x

        with argand.config.patch(capture_time_limit=0.02):
            print(f(torch.ones(3)))
        """,
        after="""
        @argand.compile
        def add(x):
            return x + 1

        x = torch.ones(3)
        with argand.config.patch(capture_time_limit=0.02):
            for _ in range(2000):
                x = add(x)
        print(x)
        """,
        also=("loop that goes on after a graph break",),
    ),
    Page(
        kind="too many restarts",
        what="The function breaks the graph in more than about 90 places that are found one after another.",
        why="Each such break in an inlined call makes capture begin again.",
        unshown="It takes more than 90 breaks, each found in a further attempt.",
    ),
    Page(
        kind="frame looked at",
        what="The graph breaks in a function that asks for its own frame or variables: `locals()`, "
        "`sys._getframe()`, `eval()`.",
        why="After a break the rest of the function goes on in another frame, which has other variables.",
        before="""
        @argand.compile
        def f(x):
            y = x * 2
            argand.graph_break()
            return y + len(locals())
        """,
        after={"argand.graph_break()": 'return y + len(("x", "y"))', "return y + len(locals())": ""},
    ),
    Page(
        kind="program not repeatable",
        what="Capturing the function twice took different ways through it.",
        why="Where the graph is to break is found in the first run and used in the second.",
        unshown="It is a safeguard: no program is known that comes to it.",
    ),
    Page(
        kind="value cannot be rebuilt",
        why="The code after the graph needs that very object, with the state that it has.",
        what="An object that was made in captured code is needed after the graph and cannot be made again: a "
        "generator that has begun, the manager of an open `with` block, an object of C code.",
        before="""
        @argand.compile
        def f(x):
            rest = (n for n in (1, 2, 3))
            return x * next(rest), rest

        y, rest = f(torch.ones(3))
        print(y, list(rest))
        """,
        after={
            "rest = (n for n in (1, 2, 3))": "first, *rest = (n for n in (1, 2, 3))",
            "return x * next(rest), rest": "return x * first, rest",
        },
        also=("iterator from before a graph break",),
    ),
    Page(
        kind="compiling failed",
        what="The backend raised while it compiled a graph, and `argand.config.suppress_errors` is set.",
        why="The function runs eagerly instead of failing.",
        before="""
        def broken(graph, inputs):
            raise ValueError("no kernels today")

        @argand.compile(backend=broken)
        def f(x):
            return x * 2

        with argand.config.patch(suppress_errors=True):
            print(f(torch.ones(3)))
        """,
        after={
            "def broken(graph, inputs):": "def working(graph, inputs):",
            'raise ValueError("no kernels today")': "return graph.forward",
            "@argand.compile(backend=broken)": "@argand.compile(backend=working)",
        },
    ),
    Page(
        kind="error inside argand",
        what="Capture failed in a way that it never should.",
        why="It is a bug in argand, not in the program. The function runs eagerly.",
        unshown="There would be a bug to show; known ones are mended.",
    ),
)
