"""Random programs of autograd's own state: what requires gradients, leaves, versions, hooks, functions with a backward, modes.

    python tests/autograd/training/tape_programs.py [--count 500] [--seed 0] [--backends eager] [--no-reduce]

A program differentiates in the middle, detaches, sets data and gradients, writes in place, registers hooks, nests modes of
torch, saves by hooks, checkpoints, transforms functions, breaks the graph and catches what autograd refuses. Compared are
results and arguments (values, sizes, strides, what autograd says of them, versions, gradients, which share memory), errors,
and what a backward through the results gives.
"""

from __future__ import annotations

import linecache
import math
import random
import re
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "fuzz"))

import seeds  # noqa: E402

import argand  # noqa: E402

PRELUDE = """
import torch, argand, contextlib
import torch.utils.checkpoint as cp
from torch.func import vmap, grad, jvp, vjp
Function = torch.autograd.Function
class Scaled(Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x); ctx.k = k; return x * k
    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return g * ctx.k + x * 0, None
class Dirty(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x); x.mul_(2); return x
    @staticmethod
    def backward(ctx, g): return g * 2
class Plain(Function):
    @staticmethod
    def forward(ctx, x):
        a = x * 2; b = x.sign(); ctx.mark_non_differentiable(b); ctx.set_materialize_grads(False); ctx.save_for_backward(a, x)
        return a, b
    @staticmethod
    def backward(ctx, ga, gb):
        a, x = ctx.saved_tensors
        return None if ga is None else ga * a
class Two(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y); return x * y, x + y, x.detach() * 0
    @staticmethod
    def backward(ctx, g1, g2, g3):
        x, y = ctx.saved_tensors
        return (g1 * y + g2 if ctx.needs_input_grad[0] else None), (g1 * x + g2 if ctx.needs_input_grad[1] else None)
class Setup(Function):
    @staticmethod
    def forward(x): return x.exp(), x.clone()
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output[0]); ctx.set_materialize_grads(False)
    @staticmethod
    def backward(ctx, g, h):
        e, = ctx.saved_tensors
        r = 0
        if g is not None: r = r + g * e
        if h is not None: r = r + h
        return r
class Ident(Function):
    @staticmethod
    def forward(ctx, x): return x.view_as(x)
    @staticmethod
    def backward(ctx, g): return -g
"""

VALUES = (
    "{e}", "({e} * {e})", "({e} + {e})", "({e} - 0.5 * {e})", "{e}.sin()", "{e}.detach()", "{e}.clone()", "{e}.exp().clamp(max=3)", "{e}.t()", "{e}.view(-1).view(2, 2)", "{e}.relu()", "({e} @ {e})", "{e}.data",
    "Scaled.apply({e}, 2)", "Scaled.apply({e}, n)", "Plain.apply({e})[{i}]", "Two.apply({e}, {e})[{j}]", "Setup.apply({e})[{i}]", "Ident.apply({e})", "Dirty.apply({e}.clone())", "{e}.expand(2, 2)", "torch.where({e} > 0, {e}, {e})",
    "cp.checkpoint(lambda q: (q * {v}).sin(), {e}, use_reentrant=False)", "cp.checkpoint(lambda q: (q * 2).sin(), {e}, use_reentrant=True)", "vmap(lambda q: q.sin() * q)({e})", "grad(lambda q: (q ** 3).sum())({e})", "jvp(torch.sin, ({e},), ({e},))[1]",
    "{e}.softmax(-1)", "{e}.unbind(0)[0].expand(2, 2)", "{e}.cumsum(0)", "{e}[0:1].expand(2, 2)", "torch.nn.functional.dropout({e}, 0.0)", "{e}.masked_fill({e} > 0.5, 0.1)", "{e}.detach().requires_grad_()", "{e}.abs().sqrt().add(0.1)",
)  # fmt: skip
WRITES = (
    "{v}.mul_(2)", "{v}.add_(1)", "{v}.sin_()", "{v}.zero_()", "{v}.copy_({e})", "{v}.add_({e})", "{v}.t_()", "{v}.detach_()", "{v}.requires_grad_()", "{v}.requires_grad_(False)", "{v}.clamp_(-1, 1)", "{v}.data.mul_(2)", "{v}.data.add_(1)", "{v}.data.copy_({e})",
    "{v}[{s}] = 1.0", "{v}[{s}] = {e}.sum()", "{v}.data = {e}", "x.data = {e}", "p.data = {e}", "{v}.requires_grad = True", "{v}.requires_grad = False", "n += 1", "torch.Tensor.set_(y, {e}.detach())",
)  # fmt: skip
# Torch crashes where a hook is registered at a view whose history it has yet to make anew, and its gradient is not kept:
# `grad_fn` makes it.
GRADIENTS = (
    "{e}.sum().backward()", "{e}.sum().backward(retain_graph=True)", "{e}.sum().backward(create_graph=True)", "{e}.sum().backward(inputs=[x, p])", "{l}.grad = None", "{l}.grad = {e}.detach()", "{l}.grad = torch.ones(2, 2)", "out.append({v}.grad)",
    "if p.grad is not None: p.grad.zero_()", "if p.grad is not None: p.grad.mul_(2)", "if p.grad is not None: p.data.add_(p.grad)", "if p.grad is not None: p.grad = None",
    "{v}.grad_fn; {v}.register_hook(lambda g: g * 2)", "{v}.grad_fn; {v}.register_hook(lambda g: out.append(g.sum()))", "{v}.grad_fn; {v}.register_hook(lambda g: out.append(1))", "{v}.grad_fn; {v}.retain_grad()", "{l}.register_post_accumulate_grad_hook(lambda t: out.append(t.grad.sum()))",
    "out.append(torch.autograd.grad({e}.sum(), {w}, {o})[0])",
)  # fmt: skip
QUESTIONS = (
    "{v}.grad_fn is None", "torch.is_grad_enabled()", "{v}.is_inference()", "{v}.grad is None", "{v}.retains_grad", "{v}.requires_grad", "{v}.is_leaf", "{v}._base is {e}", "{v}.data_ptr() == x.data_ptr()",
)  # fmt: skip
VIEWS = (
    ".view(4)[1:3].expand(2, 2)",
    ".detach()",
    ".data",
    ".view_as({v})",
    "[0].expand(2, 2)",
    ".unsqueeze(0).squeeze(0)",
)
MODES = (
    "torch.no_grad()", "torch.enable_grad()", "torch.inference_mode()", "torch.set_grad_enabled(n > 1)", "torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t)", "contextlib.nullcontext()", "torch.autograd.set_detect_anomaly(False)",
    "torch.autograd.graph.save_on_cpu()", 'torch.autograd.graph.disable_saved_tensors_hooks("no")', "torch.autograd.graph.allow_mutation_on_saved_tensors()", "torch.autograd.forward_ad.dual_level()",
)  # fmt: skip
OPTIONS = (
    "", "retain_graph=True", "create_graph=True", "allow_unused=True", "create_graph=True, allow_unused=True", "materialize_grads=True, allow_unused=True",
)  # fmt: skip
VARIANTS = 7
"""Kinds of arguments, `arguments` says which."""


class Writer:
    """Draws a program's text."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.lines, self.names, self.count = rng, [], ["x", "y", "p"], 0

    def value(self, depth: int = 2) -> str:
        return self.filled(self.rng.choice(VALUES), depth - 1) if depth else self.rng.choice(self.names)

    def filled(self, template: str, depth: int = 1) -> str:
        choose = self.rng.choice
        parts = template.split("{e}")
        text = "".join(part + self.value(depth) for part in parts[:-1]) + parts[-1]
        fields = {
            "v": choose(self.names), "l": choose("xp"), "w": choose(("x", "p", "(x, p)")), "o": choose(OPTIONS), "i": choose("01"),
            "j": choose("012"), "s": choose(("0", "0:1", "0, 1", ":, 0")),
        }  # fmt: skip
        for name, field in fields.items():
            text = text.replace("{" + name + "}", field)
        return text

    def define(self, depth: int, value: str) -> None:
        """A new name; below the top it may never be bound, so its value is noted."""
        self.count += 1
        name = f"v{self.count}"
        self.lines.append(f"{'    ' * depth}{name} = {value}")
        if depth == 1:
            self.names.append(name)
        else:
            self.lines.append(f"{'    ' * depth}out.append({name})")

    def block(self, depth: int, level: int) -> None:
        for _ in range(self.rng.choice((1, 1, 2))):
            self.statement(depth, level)

    def statement(self, depth: int = 1, level: int = 2) -> None:
        rng, indent = self.rng, "    " * depth
        kind = rng.randrange(24 if level else 18)
        if kind < 5:
            self.define(depth, self.value())
        elif kind < 10:
            self.lines.append(indent + self.filled(rng.choice(WRITES)))
        elif kind < 14:
            self.lines.append(indent + self.filled(rng.choice(GRADIENTS)))
        elif kind == 14:
            asked = ", ".join(self.filled(question, 0) for question in rng.sample(QUESTIONS, 3))
            self.lines.append(f"{indent}out.append(({asked}))")
        elif kind == 15:
            self.define(depth, self.filled("{v}" + rng.choice(VIEWS)))
        elif kind == 16:
            self.define(depth, self.filled("torch.nn.Parameter({e})"))
        elif kind == 17:
            self.lines.append(f"{indent}argand.graph_break()")
        elif kind < 21:
            self.lines.append(f"{indent}with {rng.choice(MODES)}:")
            self.block(depth + 1, level - 1)
        elif kind < 23:
            self.lines.append(f"{indent}try:")
            self.block(depth + 1, level - 1)
            self.lines += [f"{indent}except RuntimeError as error:", f"{indent}    out.append(str(error)[:60])"]
            if rng.random() < 0.4:
                self.lines += [f"{indent}finally:", f"{indent}    out.append('finally')"]
        else:
            self.lines.append(f"{indent}if {rng.choice(self.names)}.sum() > 0:")
            self.statement(depth + 1, 0)


def program(seed: int) -> str:
    """The text of `f(x, y, p, n)`."""
    writer = Writer(random.Random(seed))
    for _ in range(writer.rng.randint(2, 7)):
        writer.statement()
    results = writer.rng.sample(writer.names, 3)
    return (
        "\n".join(["def f(x, y, p, n):", "    out = []", *writer.lines, f"    return out, {', '.join(results)}"]) + "\n"
    )


def arguments(call: int, variant: int) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(call)
    x, y, p = (torch.randn(2, 2, generator=g) for _ in range(3))
    p = torch.nn.Parameter(p, requires_grad=variant != 4)
    if variant == 5:
        x = x.t()
    if variant in (1, 2, 5):
        x.requires_grad_()
    if variant == 2:
        x = x * 1
    if variant == 3:
        y = x.view(2, 2)
    if variant == 6:
        p.grad = torch.ones(2, 2)
    return [x, y, p]


class Described:
    """Tensors as plain data: of one call, so that equal numbers stand for the same object or memory.

    Arguments:
        exact: how often each was written to, and whether autograd calls it a view, count; compiled graphs write once.
    """

    def __init__(self, exact: bool = True) -> None:
        self.exact = exact
        self.numbers: dict[object, int] = {}
        self.alive: list[torch.Tensor] = []

    def number(self, key: object) -> int:
        return self.numbers.setdefault(key, len(self.numbers))

    def of(self, value: Any, gradient: bool = False) -> Any:
        if isinstance(value, torch.Tensor):
            with torch.no_grad():
                return self._tensor(value, gradient)
        if isinstance(value, list | tuple):
            return [self.of(item) for item in value]
        return repr(value)

    def _tensor(self, value: torch.Tensor, gradient: bool) -> Any:
        self.alive.append(value)
        numbers = [math.nan if each != each else round(each, 4) for each in value.detach().flatten().tolist()]
        try:
            held = (value.is_leaf or value.retains_grad) and value.grad is not None
        except RuntimeError as error:  # a view whose history has to be made anew, and may not
            return str(error)[:60]
        # how often the engine added to a gradient in its place is its own affair
        version = None if value.is_inference() or gradient or not self.exact else value._version
        view = self.exact and value._is_view()
        return [
            self.number(id(value)), self.number(("memory", value.untyped_storage().data_ptr())), value.storage_offset(), type(value).__name__, value.dtype,
            tuple(value.shape), value.stride(), value.requires_grad, value.is_leaf, view, version, numbers, self.of(value.grad, True) if held else None,
        ]  # fmt: skip


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in tensors(item)] if isinstance(value, list | tuple) else []


def seen(fn: Any, call: int, variant: int, number: int, exact: bool = True) -> Any:
    """All that a caller can see of a call, and of a backward through its results."""
    described, given = Described(exact), arguments(call, variant)
    torch.manual_seed(0)
    try:
        result = fn(*given, number)
    except Exception as error:
        return ["raised", type(error).__name__, str(error).split("\n")[0][:100], described.of(given)]
    shown = ["returned", described.of(given), described.of(result)]
    roots = [tensor for tensor in tensors(result) if tensor.requires_grad and tensor.dtype.is_floating_point]
    try:
        if roots:
            sum(tensor.sum() for tensor in roots).backward()
        return [*shown, described.of(given), described.of(result)]
    except Exception as error:
        return [*shown, type(error).__name__, str(error).split("\n")[0][:60]]


def differing(want: Any, got: Any, path: str = "") -> str | None:
    if isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
        return next((how for i, pair in enumerate(zip(want, got)) if (how := differing(*pair, f"{path}/{i}"))), None)
    if isinstance(want, float) and isinstance(got, float):
        same = want == got or (want != want and got != got) or abs(want - got) <= 2e-3 * max(1, abs(want))
    else:
        same = want == got
    return None if same else f"{path}: eager {want!r:.400}, compiled {got!r:.400}"


def loaded(text: str) -> Any:
    space: dict[str, Any] = {}
    exec(compile(PRELUDE, "<prelude>", "exec"), space)
    linecache.cache["<tape>"] = (len(text), None, text.splitlines(True), "<tape>")
    exec(compile(text, "<tape>", "exec"), space)
    return space["f"]


def asked(text: str) -> str:
    """The program that asks each tensor for its history before it writes to it."""
    return re.sub(r"^( +)([a-z]\w*)(\.\w+_\(|\[.*\] = )", r"\1\2.grad_fn; \2\3", text, flags=re.MULTILINE)


def difference(text: str, seed: int, backend: str) -> str | None:
    """How the compiled program differs in three calls with arguments of other kinds.

    Eager takes a view whose history it has yet to make anew for a leaf, and refuses to write to it, unless somebody,
    argand say, has asked for the history before.
    """
    rng = random.Random(seed)
    eager, fn = loaded(text), argand.compile(loaded(text), backend=backend)
    with seeds.calls():
        for call in range(3):
            drawn = (call, rng.randrange(VARIANTS), rng.choice((1, 2, 2)))
            want, got = [seen(one, *drawn, backend == "eager") for one in (eager, fn)]
            how = differing(want, got)
            if how is not None and "a leaf Variable that requires grad" in str(want):
                how = differing(seen(loaded(asked(text)), *drawn, backend == "eager"), got)
            if how is not None:
                return f"call {drawn}: {how}"
    return None


def main() -> int:
    return seeds.run_programs(seeds.parser(__doc__, 500, "eager").parse_args(), program, difference)


if __name__ == "__main__":
    sys.exit(main())
