"""Breaks at functions that are given functions."""

from __future__ import annotations

from argand.breaks.page import Page

PAGES: tuple[Page, ...] = (
    Page(
        kind="control flow operator",
        what="`torch.cond`, `torch.while_loop`, `scan` or `map` gets functions that do not fit: branches with "
        "different results, a loop that needs gradients, random numbers.",
        why="Both branches, or every round, must have the same form to become one operation of the graph.",
        before="""
        @argand.compile
        def f(x):
            return torch.cond(x.sum() > 0, lambda x: x + torch.rand(3), lambda x: x - 1, (x,))
        """,
        after="""
        @argand.compile
        def f(x):
            noise = torch.rand(3)
            return torch.cond(x.sum() > 0, lambda x: x + noise, lambda x: x - 1, (x,))
        """,
    ),
    Page(
        kind="flex_attention",
        what="`flex_attention` gets a `score_mod` or `mask_mod` that a graph of one score cannot hold, or tensors "
        "of mixed types under autocast.",
        why="The function is compiled into the attention's loop, score by score.",
        before="""
        from torch.nn.attention.flex_attention import flex_attention

        @argand.compile
        def f(q):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return flex_attention(q, q, q).shape

        print(f(torch.ones(1, 1, 4, 8)))
        """,
        after={"print(f(torch.ones(1, 1, 4, 8)))": "print(f(torch.ones(1, 1, 4, 8, dtype=torch.bfloat16)))"},
        also=("modes left out of order",),
    ),
    Page(
        kind="activation checkpoint",
        what="`torch.utils.checkpoint.checkpoint` is called with a `context_fn`, in its old form with a function that "
        "returns its argument, or with one that reads what is changed before the backward.",
        why="Recomputation in the graph follows the checkpoint's plain rules; what a context of the program's "
        "would do in the backward is not known. Eager calls the function again in the backward, which then finds "
        "what was changed.",
        before="""
        import contextlib

        from torch.utils.checkpoint import checkpoint

        def contexts():
            return contextlib.nullcontext(), contextlib.nullcontext()

        @argand.compile
        def f(x):
            return checkpoint(torch.sin, x, use_reentrant=False, context_fn=contexts)

        print(f(torch.ones(3, requires_grad=True)))
        """,
        after="""
        from torch.utils.checkpoint import checkpoint

        @argand.compile
        def f(x):
            return checkpoint(torch.sin, x, use_reentrant=False)

        print(f(torch.ones(3, requires_grad=True)))
        """,
    ),
    Page(
        kind="autograd.Function",
        what="A `torch.autograd.Function` is applied that uses what is not captured (`vjp`, `jvp`, "
        "`set_materialize_grads`, ...) or whose results or gradients have an unusual form.",
        why="Its forward and backward become graphs, which have plain tensors in and out.",
        before="""
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2, {"unit": 1}

            @staticmethod
            def backward(ctx, grad, other):
                return grad * 2

        @argand.compile
        def f(x):
            return Double.apply(x)[0] + 1

        print(f(torch.ones(3, requires_grad=True)))
        """,
        after={'return x * 2, {"unit": 1}': "return x * 2, 1"},
    ),
    Page(
        kind="autograd.Function returns its input",
        what="The forward of a `torch.autograd.Function` marks its input as written to (`mark_dirty`), or returns it, "
        "and the compiled function returns that result.",
        why="Autograd makes a view of such an input, with the function's backward; a graph that returned it would "
        "return a view without it. What is computed from it is captured.",
        before="""
        class Same(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x

            @staticmethod
            def backward(ctx, grad):
                return grad * 2

        @argand.compile
        def f(x):
            return Same.apply(x * 3)

        print(f(torch.ones(3, requires_grad=True)).detach())
        """,
        after={"return x": "return x.clone()"},
    ),
    Page(
        kind="function transform",
        what="A function given to `torch.vmap` or `torch.func` gets tensors on a GPU, and returns one that it "
        "makes on the CPU.",
        why="Its result is not on the device for which the function's graph is captured.",
        unshown="It needs a GPU.",
    ),
    Page(
        kind="vmap",
        what="`torch.vmap` is called with `in_dims` that do not fit the arguments.",
        why="Eager raises an error here, which is left to torch.",
        before="""
        @argand.compile
        def f(x):
            try:
                return torch.vmap(torch.sum, in_dims=5)(x)
            except ValueError:
                return x

        print(f(torch.ones(2, 3)))
        """,
        after="""
        @argand.compile
        def f(x):
            return torch.vmap(torch.sum, in_dims=1)(x)

        print(f(torch.ones(2, 3)))
        """,
    ),
    Page(
        kind="random numbers in a function transform",
        what="A function given to `torch.func.grad`, `vjp`, `jvp`, `jacrev` or `jacfwd` draws random numbers.",
        why="The transform runs the function in its own order, and may run it several times.",
        before="""
        @argand.compile
        def f(x):
            return torch.func.jvp(lambda x: x * torch.rand(3), (x,), (x,))[0]
        """,
        after="""
        @argand.compile
        def f(x):
            noise = torch.rand(3)
            return torch.func.jvp(lambda x: x * noise, (x,), (x,))[0]
        """,
    ),
    Page(
        kind="argument of a subgraph",
        what="A function of functions (`torch.cond`, `checkpoint`, `torch.func`, ...) passes its function an "
        "object that is no tensor or number, or gets one back.",
        why="What goes in and out becomes the inputs and results of a graph.",
        before="""
        class Scale:
            factor = 2

        @argand.compile
        def f(x):
            return torch.func.grad(lambda x, scale: (x * scale.factor).sum())(x, Scale())
        """,
        after="""
        class Scale:
            factor = 2

        @argand.compile
        def f(x):
            scale = Scale()
            return torch.func.grad(lambda x: (x * scale.factor).sum())(x)
        """,
    ),
    Page(
        kind="subclass in a subgraph",
        what="A function of functions (`torch.cond`, `torch.func`, ...) gets a tensor of a class of yours.",
        why="The function's graph has plain tensors only.",
        before="""
        class Named(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                return super().__torch_function__(func, types, args, kwargs)

        @argand.compile
        def f(x):
            return torch.func.grad(lambda x: (x * x).sum())(x)

        print(f(torch.ones(3).as_subclass(Named)).as_subclass(torch.Tensor))
        """,
        after="""
        class Named(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                return super().__torch_function__(func, types, args, kwargs)

        @argand.compile
        def f(x):
            return torch.func.grad(lambda x: (x * x).sum())(x.as_subclass(torch.Tensor))

        print(f(torch.ones(3).as_subclass(Named)).as_subclass(torch.Tensor))
        """,
    ),
    Page(
        kind="side effect in a subgraph",
        what="A function given to `torch.cond`, `checkpoint`, `torch.func` or the like changes an object outside "
        "of it.",
        why="How often and when the function runs is not up to the program.",
        before="""
        log = []

        def double(x):
            log.append("called")
            return (x * 2).sum()

        @argand.compile
        def f(x):
            return torch.func.grad(double)(x)

        print(f(torch.ones(3)), log)
        """,
        after={'log.append("called")': "", "def f(x):": 'def f(x):\n    log.append("called")'},
    ),
    Page(
        kind="write in a subgraph",
        what="A function given to `torch.cond`, `checkpoint`, `torch.func` or the like writes to a tensor from "
        "outside of it.",
        why="How often and when the function runs is not up to the program.",
        before="""
        from torch.utils.checkpoint import checkpoint

        total = torch.zeros(())

        def double(x):
            total.add_(1)
            return x * 2

        @argand.compile
        def f(x):
            return checkpoint(double, x, use_reentrant=False)

        print(f(torch.ones(3, requires_grad=True)), total)
        """,
        after={"total.add_(1)": "", "def f(x):": "def f(x):\n    total.add_(1)"},
    ),
    Page(
        kind="tensor leaves a subgraph",
        what="A tensor that was made in a function given to `torch.cond`, `checkpoint`, `torch.func` or the like "
        "is used outside without being its result.",
        why="Outside of the function's graph the tensor does not exist.",
        before="""
        from torch.utils.checkpoint import checkpoint

        @argand.compile
        def f(x):
            made = []

            def double(x):
                made.append(x + 1)
                return x * 2

            y = checkpoint(double, x, use_reentrant=False)
            return y + made[0]

        print(f(torch.ones(3, requires_grad=True)))
        """,
        after="""
        from torch.utils.checkpoint import checkpoint

        @argand.compile
        def f(x):
            def double(x):
                return x * 2, x + 1

            y, z = checkpoint(double, x, use_reentrant=False)
            return y + z

        print(f(torch.ones(3, requires_grad=True)))
        """,
    ),
)
