"""Breaks over tensors and what is set on them."""

from __future__ import annotations

from argand.breaks.page import Page

PAGES: tuple[Page, ...] = (
    Page(
        kind="argument that a graph cannot hold",
        why="A graph holds tensors, numbers, strings, dtypes and containers of these.",
        what="An object of the program's, or a number of numpy's that torch reads in its own way, is passed to a "
        "torch function.",
        before="""
        import numpy as np

        @argand.compile
        def f(x):
            return torch.full((3,), np.complex64(2)) + x
        """,
        after="""
        @argand.compile
        def f(x):
            return torch.full((3,), complex(2)) + x
        """,
        needs=("numpy",),
    ),
    Page(
        kind="input that a graph cannot hold",
        what="An argument, or something that the function reads, is a tensor of a kind that cannot be an input of "
        "a graph, such as a sparse one.",
        why="Graphs are compiled for tensors that lie in memory by sizes and strides.",
        before="""
        weights = {"first": torch.eye(3).to_sparse()}

        @argand.compile
        def f(x):
            y = x + 1
            return weights["first"] @ y

        print(f(torch.ones(3, 2)))
        """,
        after={'weights = {"first": torch.eye(3).to_sparse()}': 'weights = {"first": torch.eye(3)}'},
        also=("argument cannot be captured",),
    ),
    Page(
        kind="argument cannot be captured",
        what="An argument or a local variable is of a kind that graphs cannot hold, and it is read before anything"
        " else could be compiled.",
        why="A graph can break at an operation, but not at the reading of a variable, so the function runs "
        "eagerly. The reason is told with it.",
        before="""
        @argand.compile
        def f(x, weight):
            return weight @ x

        print(f(torch.ones(3, 2), torch.eye(3).to_sparse()))
        """,
        after={"print(f(torch.ones(3, 2), torch.eye(3).to_sparse()))": "print(f(torch.ones(3, 2), torch.eye(3)))"},
    ),
    Page(
        kind="tensor of a class that graphs cannot hold",
        what="A tensor becomes one of a class with `__torch_dispatch__`, `__slots__` or similar, by `as_subclass` "
        "or an operation.",
        why="Such classes decide below torch's operations what happens, where no graph sees it.",
        before="""
        class Unit(torch.Tensor):
            __slots__ = ("name",)

        @argand.compile
        def f(x):
            y = x * 2
            return y.as_subclass(Unit)

        print(f(torch.ones(3)).as_subclass(torch.Tensor))
        """,
        after={'__slots__ = ("name",)': 'name = ""'},
        also=("argument cannot be captured",),
    ),
    Page(
        kind="tensor object made",
        what="A `Buffer`, a lazy `Parameter`, or a tensor of a class of yours, is made in a way that gives the program "
        "a new object with a state of its own.",
        why="The object must be a new one at each call, and lives on after the graph.",
        before="""
        @argand.compile
        def f(x):
            weight = torch.nn.Buffer(x * 2)
            return weight + 1

        print(f(torch.ones(3)))
        """,
        after={
            "weight = torch.nn.Buffer(x * 2)": "weight = x * 2",
            "print(f(torch.ones(3)))": "weight = torch.nn.Buffer(f(torch.ones(3)))\nprint(weight)",
        },
    ),
    Page(
        kind="tensor constructor",
        what="`torch.tensor(x)` or `new_tensor(x)` of a tensor copies its values.",
        why="torch reads the values one by one, and warns that this is not the way to copy.",
        before="""
        @argand.compile
        def f(x):
            return x.new_tensor(x * 2)
        """,
        after={"return x.new_tensor(x * 2)": "return (x * 2).clone().detach()"},
    ),
    Page(
        kind="tensor from foreign memory",
        why="Whoever owns the memory may change it at any time.",
        what="A tensor is made from memory that is not torch's, such as a file: `torch.from_file`.",
        before="""
        import tempfile

        file = tempfile.NamedTemporaryFile()
        file.write(bytes(12))
        file.flush()

        @argand.compile
        def f(x):
            return x + torch.from_file(file.name, size=3)

        print(f(torch.ones(3)))
        """,
        after={
            "def f(x):": "def f(x, y):",
            "return x + torch.from_file(file.name, size=3)": "return x + y",
            "print(f(torch.ones(3)))": "print(f(torch.ones(3), torch.from_file(file.name, size=3)))",
        },
    ),
    Page(
        kind="tensor of unknown origin",
        what="A torch function gets a tensor that capture did not see being made.",
        why="The graph would need it as an input, and there is no place in the program from which the next call "
        "could read it.",
        before="""
        @argand.compile
        def f(x):
            pair = torch.nested.nested_tensor([x, x])
            return pair.unbind()[0] + 1
        """,
        after={"pair = torch.nested.nested_tensor([x, x])": "pair = torch.stack([x, x])"},
        also=("argument cannot be captured",),
    ),
    Page(
        kind="tensors on different devices",
        what="An operation gets tensors on different devices.",
        why="torch refuses most of these and moves the values in some; which, is left to torch.",
        before="""
        @argand.compile
        def f(x, y):
            return x + y

        try:
            f(torch.ones(3), torch.ones(3, device="meta"))
        except RuntimeError:
            print("refused")
        """,
        after="""
        @argand.compile
        def f(x, y):
            return x + y

        f(torch.ones(3, device="meta"), torch.ones(3, device="meta"))
        print("refused")
        """,
    ),
    Page(
        kind="write to an expanded tensor",
        what="An in-place operation writes to a tensor several of whose elements are the same memory, such as the "
        "result of `expand`.",
        why="The result depends on the order in which elements are written; eager raises in most cases.",
        before="""
        @argand.compile
        def f(x):
            y = x.expand(3, 3)
            try:
                y.add_(1)
            except RuntimeError:
                pass
            return y * 2
        """,
        after="""
        @argand.compile
        def f(x):
            y = x.expand(3, 3).clone()
            y.add_(0)
            return y * 2
        """,
    ),
    Page(
        kind="size of a subclass changed in place",
        what="`transpose_`, `squeeze_`, `resize_` or the like changes the size of a tensor from outside whose "
        "class is yours.",
        why="The object must keep its identity, its class and its attributes, which no operation of a graph can do.",
        before="""
        class Named(torch.Tensor):
            pass

        @argand.compile
        def f(x):
            x.t_()
            return x * 2

        print(f(torch.ones(2, 3).as_subclass(Named)).as_subclass(torch.Tensor))
        """,
        after={"x.t_()": "return x.t() * 2", "return x * 2": ""},
    ),
    Page(
        kind="tensor attribute assignment",
        what="One of torch's own attributes of a tensor is set for which argand has no rule, such as `data`. `grad` is "
        "captured, but for tensors of subclasses.",
        why="Other code sees the tensor change, and what torch does with the value is not known to the graph.",
        before="""
        @argand.compile
        def f(x):
            y = x * 2
            x.data = y
            return y + 1

        print(f(torch.ones(3)))
        """,
        after={
            "x.data = y": "return y + 1, y",
            "return y + 1": "",
            "print(f(torch.ones(3)))": "x = torch.ones(3)\ny, x.data = f(x)\nprint(y)",
        },
    ),
    Page(
        kind="attribute of a tensor written",
        what="An attribute of a tensor is set after its `__dict__` was read as a whole.",
        why="The dict that was read is a copy, and would not show the new attribute.",
        before="""
        @argand.compile
        def f(x):
            attributes = x.__dict__
            x.unit = 3
            return x * (len(attributes) + x.unit)
        """,
        after={"attributes = x.__dict__": "attributes = {}"},
    ),
    Page(
        kind="attributes of a tensor looked at",
        what="The `__dict__` of a tensor from outside is read as a whole after attributes were set.",
        why="The attributes that were set are written to the tensor when the graph has run.",
        before="""
        @argand.compile
        def f(x):
            x.unit = 3
            attributes = vars(x)
            return x * (len(attributes) + x.unit)
        """,
        after={"attributes = vars(x)": 'attributes = [getattr(x, "unit")]'},
    ),
    Page(
        kind="autograd state of an input changed",
        what="`requires_grad_()`, `detach_()` or the like is called on a tensor that exists outside.",
        why="Other code sees the tensor change, and autograd records what follows in another way.",
        before="""
        @argand.compile
        def f(x):
            x.requires_grad_()
            return (x * 2).sum()

        print(f(torch.ones(3)))
        """,
        after={"x.requires_grad_()": "", "print(f(torch.ones(3)))": "print(f(torch.ones(3).requires_grad_()))"},
    ),
    Page(
        kind="legacy tensor type name",
        why="The name says device and dtype at once, in a way that torch has given up.",
        what='`x.type("torch.sparse.FloatTensor")` converts by the name of a tensor type that is not one of a '
        "plain CPU tensor.",
        before="""
        @argand.compile
        def f(x):
            return x.type("torch.sparse.FloatTensor")
        """,
        after={'return x.type("torch.sparse.FloatTensor")': "return x.to(torch.float64)"},
    ),
    Page(
        kind="hook on a tensor",
        what="`register_hook` is called on a tensor that exists outside, the hook's handle is used, or the hook "
        "returns something else than a gradient.",
        why="The hook belongs to the tensor, which lives on; the handle exists only when the graph has run.",
        before="""
        @argand.compile
        def f(x):
            x.register_hook(lambda grad: grad * 2)
            return (x * 3).sum()

        x = torch.ones(3, requires_grad=True)
        f(x).backward()
        print(x.grad)
        """,
        after={
            "x.register_hook(lambda grad: grad * 2)": "",
            "f(x).backward()": "x.register_hook(lambda grad: grad * 2)\nf(x).backward()",
        },
    ),
    Page(
        kind="gradient inside the graph",
        what="`backward()` or `torch.autograd.grad` is called for tensors whose history began outside the graph, or "
        "with options that are not captured.",
        why="The graph can only differentiate what is in it.",
        before="""
        @argand.compile
        def f(x, y):
            return torch.autograd.grad(y.sum(), x)[0] * 2

        x = torch.ones(3, requires_grad=True)
        print(f(x, x**2))
        """,
        after={"def f(x, y):": "def f(x):\n    y = x**2", "print(f(x, x**2))": "print(f(x))"},
    ),
)
