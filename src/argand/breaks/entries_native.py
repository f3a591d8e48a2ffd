"""Breaks at native code, which reads and changes what no guard sees."""

from __future__ import annotations

from argand.breaks.page import Page

PAGES: tuple[Page, ...] = (
    Page(
        kind="call of native code that is not known",
        what="A function written in C or C++ is called of which argand does not know what it reads or changes.",
        why="It may look at any object and do anything, unseen by guards and by the graph.",
        before="""
        import resource

        @argand.compile
        def f(x):
            y = x * 2
            used = resource.getrusage(resource.RUSAGE_SELF)
            return y + (used.ru_maxrss > 0)

        print(f(torch.ones(3)))
        """,
        after="""
        import resource

        @argand.compile
        def f(x, memory):
            return x * 2 + (memory > 0)

        print(f(torch.ones(3), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
        """,
    ),
    Page(
        kind="call of a library that is not captured",
        what="A function of the standard library is called whose purpose is outside the program: clocks, files,"
        " processes, sockets, threads, tests, the interpreter's own state.",
        why="Each call must act on the world again; a graph only computes.",
        before="""
        import time

        @argand.compile
        def f(x):
            y = x * 2
            now = time.time()
            return y + (now > 0)

        print(f(torch.ones(3)))
        """,
        after="""
        import time

        @argand.compile
        def f(x, now):
            return x * 2 + (now > 0)

        print(f(torch.ones(3), time.time()))
        """,
    ),
    Page(
        kind="native object from outside",
        what="An object that existed before the call, whose class is written in C, is handed to native code.",
        why="The native code reads the object past every guard, so a change of it would go unnoticed in the next call.",
        before="""
        import functools

        increase = functools.partial(int.__add__, 1)

        @argand.compile
        def f(x):
            return x * 2 + sum(map(functools.partial(increase), [1, 2]))
        """,
        after="""
        def increase(n):
            return 1 + n

        @argand.compile
        def f(x):
            return x * 2 + sum(map(increase, [1, 2]))
        """,
    ),
    Page(
        kind="iterator from outside",
        what="An iterator that existed before the call is advanced.",
        why="An iterator is used up as it is read, and its state cannot be looked at without changing it.",
        before="""
        @argand.compile
        def f(x, numbers):
            return x * next(numbers)

        print(f(torch.ones(3), iter([1, 2, 3])))
        """,
        after={
            "def f(x, numbers):": "def f(x, number):",
            "return x * next(numbers)": "return x * number",
            "print(f(torch.ones(3), iter([1, 2, 3])))": "print(f(torch.ones(3), next(iter([1, 2, 3]))))",
        },
    ),
    Page(
        kind="iterator from before a graph break",
        what="An iterator that the function made before its graph broke is advanced behind the break.",
        why="Python has run a part of the function: for what is captured next, the iterator comes from outside, and "
        "its state cannot be looked at without changing it.",
        before="""
        @argand.compile
        def f(x):
            factors = (n + 1 for n in range(2))
            print("begin")
            return x * sum(factors)

        print(f(torch.ones(3)))
        """,
        after={'print("begin")': "", "print(f(torch.ones(3)))": 'print("begin")\nprint(f(torch.ones(3)))'},
        also=("print",),
    ),
    Page(
        kind="native object from before a graph break",
        what="An object of C code that the function made before its graph broke is used behind the break.",
        why="For what is captured next it comes from outside, and C code would read it past every guard.",
        unshown="Most uses of such objects end the graph as calls of native code that is not known (AG0034).",
    ),
    Page(
        kind="loop that goes on after a graph break",
        what="The graph broke in a loop or a comprehension. Python runs the loop itself from there on, and "
        "compiles each round's body. After 1,000 rounds without an operation on a tensor the rest of the function "
        "runs as it is written; what it calls is still compiled. A loop of an installed package (but torch's) runs as "
        "it is written at once.",
        why="The loop's iterator is in use when the graph ends, and goes on living beside the graphs.",
        before="""
        @argand.compile
        def f(x):
            for factor in (2, 3, 4):
                x = x * factor
                print("multiplied")
            return x

        print(f(torch.ones(3)))
        """,
        after={
            'print("multiplied")': "",
            "print(f(torch.ones(3)))": 'print("multiplied\\nmultiplied\\nmultiplied")\nprint(f(torch.ones(3)))',
        },
        also=("print",),
    ),
    Page(
        kind="end of a comprehension",
        what="A comprehension ends in which the graph broke.",
        why="Python runs the comprehension itself, and its end stands in the middle of an instruction that no "
        "graph can begin in.",
        unshown="It is a safeguard: no program is known that comes to it.",
    ),
    Page(
        kind="Python object used by native code",
        what="Native code gets an object with methods written in Python, which it would call: a class of yours "
        "derived from `list`, or elements with `__eq__`, `__lt__` or `__hash__`.",
        why="What native code calls is not interpreted, so no guard and no graph would know of it.",
        before="""
        class Sizes(list):
            def __getitem__(self, i):
                return list.__getitem__(self, i) + 0

        @argand.compile
        def f(x, sizes):
            return x.reshape(sizes)

        print(f(torch.ones(6), Sizes([2, 3])))
        """,
        after={"return x.reshape(sizes)": "return x.reshape([sizes[0], sizes[1]])"},
    ),
    Page(
        kind="native code that calls Python",
        what="An attribute of a type parameter or type alias is read, which Python evaluates at the first reading.",
        why="The evaluation runs code of the program from within native code, which does not see what captured "
        "code wrote.",
        before="""
        scope = {}
        exec("type Number = int | float", scope)

        @argand.compile
        def f(x):
            alias = scope["Number"]
            return x * 2 if alias.__value__ == int | float else x
        """,
        after="""
        scope = {}
        exec("type Number = int | float", scope)
        value = scope["Number"].__value__

        @argand.compile
        def f(x):
            return x * 2 if value == int | float else x
        """,
        since=(3, 12),
    ),
    Page(
        kind="native code that warns",
        what="Native code gives a warning, for example that a way of calling it is deprecated.",
        why="A warning names the line of the program that caused it, at every call, and in a graph there is no "
        "such line.",
        before="""
        class Whole:
            def __int__(self):
                return True

        @argand.compile
        def f(x):
            return x * int(Whole())
        """,
        after={"return True": "return 1"},
    ),
    Page(
        kind="native descriptor used by hand",
        what="The `__get__` of a descriptor that C code implements is called directly, or through another name "
        "than its own.",
        why="It reads an object from outside in a way that no guard can follow.",
        unshown="It is a safeguard: no program is known that comes to it.",
    ),
    Page(
        kind="native attribute written",
        what="An attribute is set that native code keeps, such as the `__code__` or `__defaults__` of a function.",
        why="The native code checks or converts what it is given, and may refuse it.",
        before="""
        def scale(x, factor=2):
            return x * factor

        @argand.compile
        def f(x):
            scale.__defaults__ = (3,)
            return scale(x)
        """,
        after={"scale.__defaults__ = (3,)": "return scale(x, 3)", "return scale(x)": ""},
    ),
    Page(
        kind="lru_cache statistics",
        what="`cache_info()` or `cache_clear()` of a function under `functools.lru_cache` is called, or the function "
        "itself where the program asks for its `cache_info()`: such calls are left to the cache, which counts them.",
        why="Captured code runs the function behind the cache and leaves the cache itself alone; guards ask the cache, "
        "which counts that too: what a program that asks elsewhere, outside of compiled code, is told of calls in it "
        "is not what eager counts.",
        before="""
        import functools

        @functools.lru_cache
        def factor(n):
            return n + 1

        @argand.compile
        def f(x):
            y = x * factor(1)
            factor.cache_clear()
            return y

        print(f(torch.ones(3)))
        """,
        after="""
        import functools

        @functools.lru_cache
        def factor(n):
            return n + 1

        @argand.compile
        def f(x):
            return x * factor(1)

        print(f(torch.ones(3)))
        factor.cache_clear()
        """,
    ),
    Page(
        kind="cached function that reads what can change",
        what="A function under `functools.lru_cache`, which has no result for its arguments yet, reads what the "
        "compiled function changed before the call, has effects, or gets tensors.",
        why="Eager keeps what the function gave the first time, whatever has changed since; code compiled now "
        "would give what it gives now.",
        before="""
        import functools

        table = {"calls": 0, "factor": 2.0}

        @functools.lru_cache
        def total(n):
            return [n * table["factor"]]

        @argand.compile
        def f(x):
            table["calls"] += 1
            return x * total(3)[0]
        """,
        after="""
        table = {"calls": 0, "factor": 2.0}

        def total(n, factor):
            return [n * factor]

        @argand.compile
        def f(x):
            table["calls"] += 1
            return x * total(3, table["factor"])[0]
        """,
    ),
    Page(
        kind="cached function with another wrapped one",
        what="The attribute `__wrapped__` of a function under `functools.lru_cache` was replaced.",
        why="The cache calls the function that it was made with, which Python code cannot see any more.",
        before="""
        import functools

        @functools.lru_cache
        def factor(n):
            return n + 1

        factor.__wrapped__ = lambda n: n

        @argand.compile
        def f(x):
            return x * factor(1)
        """,
        after={"factor.__wrapped__ = lambda n: n": ""},
    ),
    Page(
        kind="decimal arithmetic",
        what="Numbers of `decimal.Decimal` are added, multiplied or otherwise computed with.",
        why="The result is rounded as the thread's decimal context says, which guards do not see.",
        before="""
        from decimal import Decimal

        @argand.compile
        def f(x, price):
            return x * float(price * 2)

        print(f(torch.ones(3), Decimal("1.5")))
        """,
        after={"return x * float(price * 2)": "return x * float(price) * 2"},
    ),
)
