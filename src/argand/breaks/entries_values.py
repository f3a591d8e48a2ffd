"""Breaks over values that exist only when the program runs."""

from __future__ import annotations

from argand.breaks.page import Page

PAGES: tuple[Page, ...] = (
    Page(
        kind="data-dependent branch",
        what="An `if`, `while`, `and`, `or`, `not` or `assert` asks a tensor whether it is true.",
        why="The tensor has its value only when the graph runs, and the value decides which code comes next.",
        before="""
        @argand.compile
        def f(x):
            if x.sum() > 0:
                return x + 1
            return x - 1
        """,
        after="""
        @argand.compile
        def f(x):
            return torch.where(x.sum() > 0, x + 1, x - 1)
        """,
    ),
    Page(
        kind="data-dependent value",
        what="Python needs a number, a list, an address or another plain value out of a tensor.",
        why="The tensor has its values only when the graph runs.",
        before="""
        @argand.compile
        def f(x):
            largest = (x * 2).max()
            return [value / largest for value in x.tolist()]

        print(f(torch.ones(3)))
        """,
        after={
            "return [value / largest for value in x.tolist()]": "return x / largest",
            "print(f(torch.ones(3)))": "print(f(torch.ones(3)).unbind())",
        },
    ),
    Page(
        kind="data-dependent size",
        what="An operation follows on a tensor whose size depends on values, and the size of its result cannot be "
        "told from what is known.",
        why="Everything after it would have to be compiled for sizes about which nothing is known.",
        before="""
        @argand.compile
        def f(x):
            return x[x > 0].squeeze() + 1

        with argand.config.patch(capture_dynamic_output_shape_ops=True):
            print(f(torch.ones(3)))
        """,
        after={
            "return x[x > 0].squeeze() + 1": "return x[x > 0] + 1",
            "print(f(torch.ones(3)))": "print(f(torch.ones(3)).squeeze())",
        },
    ),
    Page(
        kind="dynamic output shape",
        what="An operation returns as many elements as the values of a tensor say: `x[mask]`, `torch.where(mask)`,"
        " `repeat_interleave` without `output_size`, `one_hot` without `num_classes`.",
        why="The size of the result is known only when the graph runs, and what follows is compiled for sizes.",
        before="""
        @argand.compile
        def f(x):
            return x[x > 0].sum()

        print(f(torch.tensor([-1.0, 2.0, 3.0])))
        """,
        after={"return x[x > 0].sum()": "return torch.where(x > 0, x, 0.0).sum()"},
    ),
    Page(
        kind="data-dependent text",
        what="A text that shows a tensor's values is used: its length, a part of it, as a key, or to compare.",
        why="The text exists only when the graph has run.",
        before="""
        @argand.compile
        def f(x):
            y = x * 2
            return y + len(f"{y}")

        print(f(torch.ones(3)))
        """,
        after={
            "y = x * 2": "return x * 2",
            'return y + len(f"{y}")': "",
            "print(f(torch.ones(3)))": 'y = f(torch.ones(3))\nprint(y + len(f"{y}"))',
        },
    ),
    Page(
        kind="value that is not known inspected",
        why="In its place argand has an object of its own, which has other attributes.",
        what="`dir()`, `__reduce_ex__` or another method that every object has looks at an object that exists only"
        " when the program runs, such as a generator that the function made.",
        before="""
        def numbers():
            yield 1

        @argand.compile
        def f(x):
            return x * 2 if "send" in dir(numbers()) else x
        """,
        after={'return x * 2 if "send" in dir(numbers()) else x': 'return x * 2 if hasattr(numbers(), "send") else x'},
    ),
    Page(
        kind="exception about a value that is not known",
        what="A call raises while it is captured, and its error names the type of a value that exists only when "
        "the program runs, such as a number that numpy computes.",
        why="In the value's place argand has an object of its own. Whether the call takes the real value, and what"
        " its error would say, shows when it runs.",
        before="""
        import numpy as np

        @argand.compile
        def f(x, a):
            return torch.add(x, 1, alpha=a.mean())

        print(f(torch.ones(3), np.ones(2)))
        """,
        after={"return torch.add(x, 1, alpha=a.mean())": "return x + torch.from_numpy(a).mean().to(x.dtype)"},
        needs=("numpy",),
    ),
    Page(
        kind="tensor state known only at run time",
        what="Something is asked of a tensor that torch keeps beside its values: its version counter, its hooks, "
        "whether it retains its gradient.",
        why="While the function is captured the tensor does not exist, so there is nothing to ask.",
        before="""
        @argand.compile
        def f(x):
            y = x * 2
            return y + y._version

        print(f(torch.ones(3)))
        """,
        after="""
        @argand.compile
        def f(x, version):
            return x * 2 + version

        print(f(torch.ones(3), 0))
        """,
    ),
    Page(
        kind="tensor flag of a result",
        what="`is_conj()`, `is_neg()` or `is_inference()` is asked of a result, and an input has that bit.",
        why="Whether a result carries the bit on is torch's own affair in each operation.",
        before="""
        @argand.compile
        def f(x):
            y = x.reshape(-1)
            return y.conj() if y.is_conj() else y

        print(f(torch.ones(2, 2, dtype=torch.complex64).conj()))
        """,
        after={"return y.conj() if y.is_conj() else y": "return y.conj() if x.is_conj() else y"},
    ),
    Page(
        kind="result of unknown size",
        what="A torch operation runs whose result's size and type nothing can tell before it runs: it has no meta "
        "implementation.",
        why="What follows is compiled for the sizes and types of its inputs.",
        before="""
        @torch.library.custom_op("argand_pages::twice", mutates_args=())
        def twice(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @argand.compile
        def f(x):
            return twice(x) + 1
        """,
        after="""
        @torch.library.custom_op("argand_pages::thrice", mutates_args=())
        def thrice(x: torch.Tensor) -> torch.Tensor:
            return x * 3

        @thrice.register_fake
        def _(x):
            return torch.empty_like(x)

        @argand.compile
        def f(x):
            return thrice(x) + 1
        """,
    ),
    Page(
        kind="scale that is a tensor",
        what="`torch._foreach_addcmul` or `_foreach_addcdiv`, which optimizers call, is given its scales as tensors.",
        why="torch reads the numbers out of the tensors on the way.",
        before="""
        @argand.compile
        def f(xs, ys):
            torch._foreach_addcmul_(xs, ys, ys, torch.tensor([2, 3]))
            return xs

        print(f([torch.ones(2), torch.ones(2)], [torch.ones(2), torch.ones(2)]))
        """,
        after={
            "torch._foreach_addcmul_(xs, ys, ys, torch.tensor([2, 3]))": "torch._foreach_addcmul_(xs, ys, ys, [2, 3])",
        },
    ),
    Page(
        kind="autograd graph inspected",
        what="`grad_fn`, or another part of autograd's graph, is read.",
        why="Autograd builds its graph when the compiled graph runs.",
        before="""
        @argand.compile
        def f(x):
            y = x * 2
            return y if y.grad_fn is None else y.detach()

        print(f(torch.ones(3, requires_grad=True)))
        """,
        after={"return y if y.grad_fn is None else y.detach()": "return y.detach() if y.requires_grad else y"},
    ),
    Page(
        kind="random number of Python's",
        what="Python's `random` is called, and the number decides something in Python.",
        why="Each call must draw a new number, and a graph would keep the one of the first call.",
        before="""
        import random

        @argand.compile
        def f(x):
            if random.random() < 0.5:
                return x + 1
            return x - 1

        print(f(torch.ones(3)))
        """,
        after={
            "def f(x):": "def f(x, up):",
            "if random.random() < 0.5:": "if up:",
            "print(f(torch.ones(3)))": "print(f(torch.ones(3), random.random() < 0.5))",
        },
    ),
    Page(
        kind="random number generator",
        what="A `torch.Generator` draws within a function that torch calls (a checkpoint, a transform), on another "
        "device than the CPU, or by a call that captured code does not know.",
        why="The state of a generator is a tensor of the graph, which a call that draws takes and gives anew; only the "
        "program's own code hands it on.",
        before="""
        from torch.utils.checkpoint import checkpoint

        @argand.compile
        def f(x, generator):
            return checkpoint(lambda x: x + torch.rand(3, generator=generator), x, use_reentrant=False)

        print(f(torch.ones(3), torch.Generator().manual_seed(1)))
        """,
        after="""
        from torch.utils.checkpoint import checkpoint

        @argand.compile
        def f(x, generator):
            noise = torch.rand(3, generator=generator)
            return checkpoint(lambda x: x + noise, x, use_reentrant=False)

        print(f(torch.ones(3), torch.Generator().manual_seed(1)))
        """,
    ),
    Page(
        kind="condition that changes by itself",
        what="Something that the program reads gives another value each time it is read.",
        why="The compiled code is right only while what was read stays the same, so it would never be right.",
        before="""
        import collections

        class Table(collections.OrderedDict):
            def __iter__(self):
                return iter(["k"])

        table = Table()
        dict.update(table, k=5)

        @argand.compile
        def f(x, table):
            return x * len(table | {"z": 1})

        print(f(torch.ones(3), table))
        """,
        after={"dict.update(table, k=5)": 'table["k"] = 5'},
    ),
    Page(
        kind="number too large",
        what="A Python number that varies is compared with one of more than 64 bits.",
        why="Conditions on numbers that vary are checked with 64 bits at each call.",
        before="""
        @argand.compile(dynamic=True)
        def f(x, n):
            return x + 1 if n < 2**70 else x

        print(f(torch.ones(3), 5))
        """,
        after={
            "def f(x, n):": "def f(x, small):",
            "return x + 1 if n < 2**70 else x": "return x + 1 if small else x",
            "print(f(torch.ones(3), 5))": "print(f(torch.ones(3), 5 < 2**70))",
        },
    ),
    Page(
        kind="tensor larger than memory",
        what="An operation's result is larger than the whole memory of its device.",
        why="Eager raises an error at once; a fused loop would never store the tensor, and run for hours instead.",
        before="""
        @argand.compile
        def f(x):
            try:
                return torch.zeros(2**50) + x
            except RuntimeError:
                return x

        print(f(torch.ones(())))
        """,
        after="""
        @argand.compile
        def f(x):
            return torch.zeros(1).expand(2**50)[:2] + x

        print(f(torch.ones(()))[:1].sum())
        """,
    ),
)
