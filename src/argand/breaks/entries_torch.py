"""Breaks at torch's functions, objects and modes."""

from __future__ import annotations

from argand.breaks.page import Page

PAGES: tuple[Page, ...] = (
    Page(
        kind="part of torch that is not captured",
        what="A function of a part of torch is called that works beside graphs: communication that is no collective, "
        "data loading, export, tracing; or forward-mode gradients of what draws random numbers.",
        why="It talks to other processes, reads files, or captures programs itself.",
        before="""
        @argand.compile
        def f(x):
            layer = torch.fx.symbolic_trace(torch.nn.ReLU())
            return layer(x * 2)
        """,
        after="""
        layer = torch.fx.symbolic_trace(torch.nn.ReLU())

        @argand.compile
        def f(x):
            return layer(x * 2)
        """,
    ),
    Page(
        kind="torch function that cannot be observed",
        why="Capture sees torch's operations through such a mode, so this one would be missing in the graph.",
        what="A method of a tensor runs without telling torch's function modes, such as `x.set_(y)`.",
        before="""
        @argand.compile
        def f(x):
            y = x * 2
            y.set_(x + 1)
            return y
        """,
        after={"y.set_(x + 1)": "y.copy_(x + 1)"},
    ),
    Page(
        kind="torch function that is not known",
        what="A function of torch's C++ core is called that is no operation on tensors.",
        why="What it reads or changes inside torch is not known.",
        before="""
        @argand.compile
        def f(x):
            text = torch.__config__.parallel_info()
            return x * (len(text) > 0)

        print(f(torch.ones(3)))
        """,
        after={
            "def f(x):": "def f(x, text):",
            "text = torch.__config__.parallel_info()": "",
            "print(f(torch.ones(3)))": "print(f(torch.ones(3), torch.__config__.parallel_info()))",
        },
    ),
    Page(
        kind="torch object that is not known",
        why="Its call is native code that capture cannot look into.",
        what="A callable object of torch's is called whose code is not Python's, such as a scripted module.",
        before="""
        scripted = torch.jit.script(torch.nn.ReLU())

        @argand.compile
        def f(x):
            return scripted(x) + 1
        """,
        after={
            "scripted = torch.jit.script(torch.nn.ReLU())": "relu = torch.nn.ReLU()",
            "return scripted(x) + 1": "return relu(x) + 1",
        },
    ),
    Page(
        kind="torch function of an object",
        what="A torch function gets an object that has a `__torch_function__` of its own which its class has not.",
        why="torch asks the object, and what it answers may change from object to object.",
        before="""
        class Wrapped:
            pass

        wrapped = Wrapped()
        wrapped.__torch_function__ = lambda func, types, args=(), kwargs=None: 7

        @argand.compile
        def f(x, other):
            return other < x

        print(f(torch.ones(3), wrapped))
        """,
        after={
            "pass": "@classmethod\ndef __torch_function__(cls, func, types, args=(), kwargs=None):\n    return 7",
            "wrapped.__torch_function__ = lambda func, types, args=(), kwargs=None: 7": "",
        },
    ),
    Page(
        kind="torch function without an implementation",
        what="Every `__torch_function__` that torch asks returns NotImplemented.",
        why="Eager raises a TypeError here, which is left to torch.",
        before="""
        class Wrapped:
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                return NotImplemented

        wrapped = Wrapped()

        @argand.compile
        def f(x):
            try:
                return x + torch.sin(wrapped)
            except TypeError:
                return x
        """,
        after="""
        class Wrapped:
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                return torch.zeros(3)

        wrapped = Wrapped()

        @argand.compile
        def f(x):
            return x + torch.sin(wrapped)
        """,
    ),
    Page(
        kind="argument of a function that is called while capturing",
        what="A function marked with `assume_constant_result` gets a tensor that the graph computes, and it cannot"
        " be computed beforehand.",
        why="The function is called once, while capturing; it needs a real tensor then.",
        before="""
        @torch.compiler.assume_constant_result
        def largest(x):
            return float(x.max())

        @argand.compile
        def f(x):
            noise = torch.rand(3)
            return x * (largest(noise) < 2)
        """,
        after={"noise = torch.rand(3)": "return x * (largest(x) < 2)", "return x * (largest(noise) < 2)": ""},
        also=("data-dependent value",),
    ),
    Page(
        kind="recurrent layer of unusual arguments",
        what="`torch.lstm`, `torch.gru` or another recurrent function is called with arguments that torch.nn's "
        "layers never pass.",
        why="The size of its result is not known without running it.",
        before="""
        lstm = torch.nn.LSTM(2, 3)

        @argand.compile
        def f(x, h):
            return torch.lstm(x, (h, h), lstm._flat_weights, True, 1, 0.0, False, False, batch_first=False)[0]

        print(f(torch.ones(4, 1, 2), torch.zeros(1, 1, 3)).shape)
        """,
        after="""
        lstm = torch.nn.LSTM(2, 3)

        @argand.compile
        def f(x, h):
            return lstm(x, (h, h))[0]

        print(f(torch.ones(4, 1, 2), torch.zeros(1, 1, 3)).shape)
        """,
    ),
    Page(
        kind="composed function under autocast",
        what="Under autocast a function is called that is made of several operations, each of which autocast "
        "treats differently.",
        why="The type of its result follows from the operations inside.",
        before="""
        gru = torch.nn.GRU(2, 3)

        @argand.compile
        def f(x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return gru(x)[0]

        print(f(torch.ones(4, 1, 2)).shape)
        """,
        after="""
        gru = torch.nn.GRU(2, 3)

        @argand.compile
        def f(x):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
                return gru(x)[0]

        print(f(torch.ones(4, 1, 2)).shape)
        """,
        also=("modes left out of order",),
    ),
    Page(
        kind="mode entered before",
        what="After a graph break in a `with torch.inference_mode():` block, the block is left.",
        why="The mode was entered for real before the second graph, and only real code can leave it.",
        before="""
        @argand.compile
        def f(x):
            with torch.inference_mode():
                y = x * 2
                argand.graph_break()
            return y
        """,
        after={"argand.graph_break()": ""},
        also=("graph break on request",),
    ),
    Page(
        kind="mode left that was entered before",
        what="After a graph break, a block is left in which torch functions of subclasses are switched off.",
        why="It was entered for real before the second graph, and only real code can leave it.",
        unshown="It is a safeguard: no program is known that comes to it.",
    ),
    Page(
        kind="modes left out of order",
        what="A torch mode (`torch.autocast`, `torch.device`, `inference_mode`, a torch-function mode) is left "
        "that is not the last one entered in this graph, often after a graph break in its block.",
        why="The graph can only undo what it did last.",
        before="""
        @argand.compile
        def f(x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = x @ x
                argand.graph_break()
            return y

        print(f(torch.eye(3)))
        """,
        after={"argand.graph_break()": ""},
        also=("graph break on request",),
    ),
    Page(
        kind="torch-function modes disabled",
        what="`torch._C.DisableTorchFunction()` is entered while a torch-function mode is on.",
        why="It would switch off the mode, and with it what the program expects of the operations inside.",
        before="""
        def double(x):
            with torch.device("cpu"):
                with torch._C.DisableTorchFunction():
                    return x * 2

        @argand.compile
        def f(x):
            y = x + 1
            return double(y)
        """,
        after={"with torch._C.DisableTorchFunction():": "with torch._C.DisableTorchFunctionSubclass():"},
        also=("graph ends inside a torch-function mode",),
    ),
    Page(
        kind="graph ends inside a torch-function mode",
        what="The graph would end inside a `with` block that changes what torch functions do, such as `with "
        "torch.device(...)`.",
        why="The code after it would have to go on inside the block; the graph ends before the block instead.",
        before="""
        @argand.compile
        def f(x):
            y = x * 2
            with torch.device("cpu"):
                z = torch.ones(3)
                argand.graph_break()
            return y + z
        """,
        after={"argand.graph_break()": ""},
        also=("graph break on request", "modes left out of order"),
    ),
    Page(
        kind="graph ends where torch functions are disabled",
        what="The graph would end inside a `with torch._C.DisableTorchFunctionSubclass():` block.",
        why="The code after it would have to go on inside the block; the graph ends before the block instead.",
        before="""
        @argand.compile
        def f(x):
            y = x * 2
            with torch._C.DisableTorchFunctionSubclass():
                z = y + 1
                argand.graph_break()
            return y + z
        """,
        after={"argand.graph_break()": ""},
        also=(),
    ),
)
