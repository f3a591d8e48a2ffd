"""Breaks at what acts on the world outside of the function, and those that the program asks for."""

from __future__ import annotations

from argand.breaks.page import Page

PAGES: tuple[Page, ...] = (
    Page(
        kind="print",
        what="`print` is called.",
        why="Each call must write; a graph only computes.",
        before="""
        @argand.compile
        def f(x):
            y = x * 2
            print("doubled")
            return y + 1

        print(f(torch.ones(3)))
        """,
        after="""
        @argand.compile
        def f(x):
            return x * 2 + 1

        print("doubled")
        print(f(torch.ones(3)))
        """,
    ),
    Page(
        kind="input or output",
        what="A file is opened, the terminal is read, or the debugger is entered.",
        why="Each call must do it again; a graph only computes.",
        before="""
        import os

        @argand.compile
        def f(x):
            file = open(os.devnull)
            return x * 2, file

        print(f(torch.ones(3))[0])
        """,
        after={
            "file = open(os.devnull)": "return x * 2",
            "return x * 2, file": "",
            "print(f(torch.ones(3))[0])": "with open(os.devnull) as file:\n    print(f(torch.ones(3)))",
        },
    ),
    Page(
        kind="dynamic code",
        what="`exec`, `eval` or `compile` runs code that is made while the program runs.",
        why="The code may differ at each call, and may read any variable.",
        before="""
        @argand.compile
        def f(x):
            y = x * 2
            code = compile("1 + 1", "<text>", "eval")
            return y + (code is not None)
        """,
        after="""
        code = compile("1 + 1", "<text>", "eval")

        @argand.compile
        def f(x):
            return x * 2 + (code is not None)
        """,
    ),
    Page(
        kind="lock",
        what="A lock that existed before the call is taken or let go.",
        why="Other threads wait for it while the program runs, not while it is captured.",
        before="""
        import threading

        lock = threading.Lock()

        @argand.compile
        def f(x):
            with lock:
                return x * 2

        print(f(torch.ones(3)))
        """,
        after={
            "with lock:": "return x * 2",
            "return x * 2": "",
            "print(f(torch.ones(3)))": "with lock:\n    print(f(torch.ones(3)))",
        },
    ),
    Page(
        kind="change of the stance",
        what="`argand.set_stance` or `torch.compiler.set_stance` is called in compiled code.",
        why="It changes what every compiled function does from there on.",
        before="""
        @argand.compile
        def f(x):
            with argand.set_stance("default"):
                return x * 2

        print(f(torch.ones(3)))
        """,
        after={
            'with argand.set_stance("default"):': "return x * 2",
            "return x * 2": "",
            "print(f(torch.ones(3)))": 'with argand.set_stance("default"):\n    print(f(torch.ones(3)))',
        },
    ),
    Page(
        kind="graph break on request",
        what="The program calls `argand.graph_break()`.",
        why="It asks for the graph to end there.",
        before="""
        @argand.compile
        def f(x):
            y = x * 2
            argand.graph_break()
            return y + 1
        """,
        after={"y = x * 2": "return x * 2 + 1", "argand.graph_break()": "", "return y + 1": ""},
    ),
    Page(
        kind="call of a function that is not to be compiled",
        what="A function marked with `argand.disable` or `torch.compiler.disable` is called.",
        why="The mark says that it runs eagerly; the graph ends before it and a new one begins after it.",
        before="""
        @argand.disable(reason="it talks to a server")
        def fetch(x):
            return x + 1

        @argand.compile
        def f(x):
            return fetch(x * 2) * 3
        """,
        after={'@argand.disable(reason="it talks to a server")': ""},
    ),
    Page(
        kind="torch function with outside effects",
        what="A torch function is called that changes or reads something of torch's as a whole: numbers of threads, "
        "files, profilers, the time, seeds that are not numbers.",
        why="Each call must do it again; a graph only computes.",
        before="""
        @argand.compile
        def f(x):
            torch.set_num_threads(2)
            return x + 1
        """,
        after="""
        @argand.compile
        def f(x):
            return x + 1

        torch.set_num_threads(2)
        """,
    ),
    Page(
        kind="import hook",
        what="A module is imported while `builtins.__import__` is replaced by a function of somebody's.",
        why="Importing then runs that function, which may do anything.",
        before="""
        import builtins

        def hook(*args):
            return builtins.__import__(*args)

        space = {"__builtins__": {**vars(builtins), "__import__": hook}, "__name__": "plugin"}
        exec("def f(x):\\n    import math\\n    return x * math.pi", space)
        print(argand.compile(space["f"])(torch.ones(3)))
        """,
        after="""
        import builtins

        def hook(*args):
            return builtins.__import__(*args)

        space = {"__builtins__": {**vars(builtins), "__import__": hook}, "__name__": "plugin"}
        exec("import math\\ndef f(x):\\n    return x * math.pi", space)
        print(argand.compile(space["f"])(torch.ones(3)))
        """,
    ),
    Page(
        kind="import of an object that is no module",
        what="An import gives something that is no module, or that does not stand in `sys.modules` under its name.",
        why="Whether the next call's import gives the same cannot be checked.",
        before="""
        import importlib
        import sys
        import types

        sys.modules["shop"] = types.ModuleType("shop")
        sys.modules["shop.prices"] = types.SimpleNamespace(factor=3)

        @argand.compile
        def f(x):
            return x * importlib.import_module(".prices", "shop").factor
        """,
        after="""
        import importlib
        import sys
        import types

        sys.modules["shop"] = types.ModuleType("shop")
        sys.modules["shop.prices"] = types.SimpleNamespace(factor=3)
        prices = importlib.import_module(".prices", "shop")

        @argand.compile
        def f(x):
            return x * prices.factor
        """,
    ),
    Page(
        kind="table of imported modules",
        what="`sys.modules` is changed, or looked through as a whole.",
        why="Other threads and any import change it too, so what was found would not hold until the next call.",
        before="""
        import sys

        @argand.compile
        def f(x):
            return x * 2 if "math" in list(sys.modules) else x
        """,
        after={'return x * 2 if "math" in list(sys.modules) else x': 'return x * 2 if "math" in sys.modules else x'},
    ),
    Page(
        kind="globals written as a dict",
        what="The globals are written both through the dict that `globals()` returns and by their names.",
        why="Writes are held back until the graph has run, and the two kinds do not know of each other.",
        before="""
        calls = 0

        @argand.compile
        def f(x):
            global calls
            calls = calls + 1
            globals()["calls"] += 1
            return x * 2

        print(f(torch.ones(3)), calls)
        """,
        after={"calls = calls + 1": "calls = calls + 2", 'globals()["calls"] += 1': ""},
    ),
)
