"""Breaks at numpy."""

from __future__ import annotations

from argand.breaks.page import Page

PAGES: tuple[Page, ...] = (
    Page(
        kind="call of numpy",
        what="A function or operation of numpy is called that has no counterpart among torch's functions, or is "
        "used in a way that differs.",
        why="Captured numpy runs as torch operations, so that it can be compiled with the rest; each must give "
        "exactly numpy's result.",
        before="""
        import numpy as np

        @argand.compile
        def f(x):
            y = x.numpy() * 2
            return torch.from_numpy(np.unwrap(y))

        print(f(torch.ones(3)))
        """,
        after={
            "y = x.numpy() * 2": "return x * 2",
            "return torch.from_numpy(np.unwrap(y))": "",
            "print(f(torch.ones(3)))": "print(torch.from_numpy(np.unwrap(f(torch.ones(3)).numpy())))",
        },
        needs=("numpy",),
    ),
    Page(
        kind="numpy array from outside",
        why="Its elements would be read without a guard that sees them change.",
        needs=("numpy",),
        what="A numpy array that existed before the call is formatted, or used in another way that needs the array"
        " itself.",
        before="""
        import numpy as np

        names = np.array(["one", "two"])

        @argand.compile
        def f(x):
            return x * len(f"{names}")

        print(f(torch.ones(3)))
        """,
        after={
            "def f(x):": "def f(x, text):",
            'return x * len(f"{names}")': "return x * len(text)",
            "print(f(torch.ones(3)))": 'print(f(torch.ones(3), f"{names}"))',
        },
    ),
    Page(
        kind="numpy on values from outside",
        what="A numpy function gets a value that is neither an array it can follow nor a constant.",
        why="What the function reads of it would be read without a guard.",
        needs=("numpy",),
        unshown="It is a safeguard: no program is known that comes to it.",
    ),
    Page(
        kind="numpy arrays that share memory",
        what="The function writes to a numpy array whose memory another array or tensor among its inputs shares.",
        why="In a graph each input has values of its own, and the write would not show in the other.",
        before="""
        import numpy as np

        @argand.compile
        def f(a, b):
            a += 1
            return torch.from_numpy(a * b)

        array = np.ones(3)
        print(f(array, array[:]))
        """,
        after={"def f(a, b):": "def f(a):\n    b = a[:]", "print(f(array, array[:]))": "print(f(array))"},
        needs=("numpy",),
    ),
    Page(
        kind="numpy's error settings",
        what="The function computes with numpy where `numpy.seterr` or `numpy.errstate` asks for more than a warning.",
        why="What a graph computes raises no error of numpy's and calls nobody.",
        before="""
        import numpy as np

        @argand.compile
        def f(a):
            return np.log(a) + 1

        with np.errstate(divide="raise"):
            print(f(np.ones(3)))
        """,
        after="""
        import numpy as np

        @argand.compile
        def f(a):
            return np.log(a) + 1

        with np.errstate(divide="ignore"):
            result = f(np.ones(3))
        if not np.isfinite(result).all():
            raise FloatingPointError("a number that is not finite")
        print(result)
        """,
        needs=("numpy",),
    ),
)
