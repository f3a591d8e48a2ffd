"""Breaks around operations that may raise because of the values of their tensors."""

from __future__ import annotations

from argand.breaks.page import Page

PAGES: tuple[Page, ...] = (
    Page(
        kind="operation that may raise inside a try block",
        what="An operation that some values make raise (an index out of range, a singular matrix) stands in a "
        "`try` or `with` block, and the program did something before it that cannot be undone: a write to a large "
        "input whose values it had read.",
        why="The graph runs as one piece after the Python code around it, so the block would not see the error in "
        "time.",
        after="""
        @argand.compile
        def f(x, i):
            x.add_(1)
            return x[i.clamp(0, len(x) - 1)]

        print(f(torch.ones(300), torch.tensor([1])))
        """,
        before="""
        @argand.compile
        def f(x, i):
            x.add_(1)
            try:
                return x[i]
            except IndexError:
                return x

        print(f(torch.ones(300), torch.tensor([1])))
        """,
    ),
    Page(
        kind="effect before an operation that may raise",
        what="The program writes to a tensor of its caller's or changes an object, and then calls an operation "
        "that some values make raise.",
        why="The changes are made when the graph has run. If it raises, they would be lost, where eager has made them.",
        before="""
        class Log:
            pass

        log = Log()

        @argand.compile
        def f(x, i):
            log.first = x + 1
            x.add_(1)
            log.second = x[i]
            x.mul_(2)
            return x[i]

        print(f(torch.ones(300), torch.tensor([1])), log.first.sum(), log.second)
        """,
        after="""
        @argand.compile
        def f(x, i):
            first = x + 1
            second = first[i]
            x.copy_(first * 2)
            return x[i], first, second

        print(f(torch.ones(300), torch.tensor([1])))
        """,
    ),
    Page(
        kind="effect behind an operation that may raise inside a try block",
        what="In a `try` or `with` block an operation that some values make raise is followed by one that has an "
        "effect outside, such as a write to an input.",
        why="If the first raises, the second must not happen, and within one graph that cannot be told apart.",
        before="""
        @argand.compile
        def f(x, i):
            try:
                y = x[i]
                x.add_(1)
                return y
            except IndexError:
                return x

        print(f(torch.ones(300), torch.tensor([1])))
        """,
        after="""
        @argand.compile
        def f(x, i):
            y = x[i]
            x.add_(1)
            return y

        print(f(torch.ones(300), torch.tensor([1])))
        """,
    ),
    Page(
        kind="torch call raises an exception",
        what="A torch function raises for these arguments: sizes that do not fit, a wrong dtype.",
        why="Eager raises it too. The function runs eagerly in this call, so that the error is torch's own.",
        before="""
        @argand.compile
        def f(x, y):
            return x + y

        try:
            f(torch.ones(3), torch.ones(4))
        except RuntimeError as error:
            print(error)
        """,
        after="""
        @argand.compile
        def f(x, y):
            return x + y[: len(x)]

        print(f(torch.ones(3), torch.ones(4)))
        """,
    ),
    Page(
        kind="call that capture cannot evaluate",
        what="While the function was captured a call seemed to raise; when it ran, it did not.",
        why="The call answers differently from one time to the next, or looks at how it is called. From now on it "
        "runs by itself, between two graphs.",
        unshown="It takes several calls, of which one raises and a later one, by another way through the program, "
        "does not.",
    ),
)
