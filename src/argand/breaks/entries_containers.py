"""Breaks over containers and their keys."""

from __future__ import annotations

from argand.breaks.page import Page

PAGES: tuple[Page, ...] = (
    Page(
        kind="container with very many elements",
        what="A list, dict or set from outside with more than 100,000 elements is used in a way that depends on "
        "all of them.",
        why="Each element would become a guard that every call checks.",
        before="""
        numbers = list(range(100_001))

        @argand.compile
        def f(x):
            return x * numbers.index(3)
        """,
        after={
            "numbers = list(range(100_001))": "numbers = torch.arange(100_001)",
            "return x * numbers.index(3)": "return x * (numbers == 3).int().argmax()",
        },
    ),
    Page(
        kind="dict key from outside",
        what="A dict from outside has a key that cannot be compared from call to call, such as a tuple with an "
        "object in it, or `nan`.",
        why="The guards must tell in the next call whether the dict still has the same keys in the same order.",
        before="""
        @argand.compile
        def f(x, table):
            return x * len(list(table))

        print(f(torch.ones(3), {float("nan"): 1}))
        """,
        after={'print(f(torch.ones(3), {float("nan"): 1}))': 'print(f(torch.ones(3), {"nan": 1}))'},
    ),
    Page(
        kind="set of objects from outside",
        what="A set from outside has elements that cannot be compared from call to call.",
        why="The guards must tell in the next call whether the set still has the same elements.",
        before="""
        @argand.compile
        def f(x, chosen):
            return x * len(list(chosen))

        print(f(torch.ones(3), {float("nan")}))
        """,
        after={'print(f(torch.ones(3), {float("nan")}))': 'print(f(torch.ones(3), {"nan"}))'},
    ),
    Page(
        kind="set whose order depends on its history",
        what="A set from outside is walked, and its order is not that of a new set with the same elements.",
        why="The order depends on what was added and removed before, which guards do not see.",
        before="""
        @argand.compile
        def f(x, numbers):
            for number in numbers:
                x = x * 2 + number
            return x

        numbers = {8, 1, 2}
        numbers.add(0)
        numbers.discard(8)
        print(f(torch.ones(3), numbers))
        """,
        after={"print(f(torch.ones(3), numbers))": "print(f(torch.ones(3), list(numbers)))"},
        also=("loop that goes on after a graph break",),
    ),
    Page(
        kind="deque with methods of its own",
        what="A class derived from `collections.deque` replaces `__len__`, `__getitem__` or `maxlen`, and one of "
        "its objects is used.",
        why="Reading its elements would run code of the program where capture needs to look at them first.",
        before="""
        import collections

        class Recent(collections.deque):
            def __len__(self):
                return 3

        @argand.compile
        def f(x, recent):
            return x + sum(list(recent))

        print(f(torch.ones(3), Recent([1, 2, 3])))
        """,
        after={"def __len__(self):": "pass", "return 3": ""},
    ),
    Page(
        kind="OrderedDict out of step",
        what="Methods of `dict` were called on an `OrderedDict`, which has other keys now than it knows of.",
        why="Walking it raises, or gives keys that are gone.",
        before="""
        import collections

        table = collections.OrderedDict(a=1, b=2)
        dict.pop(table, "a")

        @argand.compile
        def f(x):
            table["c"] = 3
            return x * len(table)
        """,
        after={'dict.pop(table, "a")': 'table.pop("a")'},
    ),
    Page(
        kind="key whose hash or equality changes",
        what="An object is a key of a dict or an element of a set, and the function changes what its `__hash__` or"
        " `__eq__` read.",
        why="The container found the key by what it read before; native code asks again and gets another answer "
        "than captured code.",
        before="""
        class Name:
            def __init__(self, text):
                self.text = text

            def __hash__(self):
                return 1

            def __eq__(self, other):
                return self.text == other.text

        a, b = Name("a"), Name("b")

        @argand.compile
        def f(x):
            table = {a: 1}
            b.text = "a"
            return x * table.get(b, 0)

        print(f(torch.ones(3)))
        """,
        after={
            'b.text = "a"': 'return x * table.get(Name("a"), 0)',
            "return x * table.get(b, 0)": "",
            "print(f(torch.ones(3)))": 'print(f(torch.ones(3)))\nb.text = "a"',
        },
    ),
)
