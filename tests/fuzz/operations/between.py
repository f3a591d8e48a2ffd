"""Random programs that write between a compiled forward and its backward.

    python tests/fuzz/operations/between.py [--count 300] [--seed 0] [--backends native,aot_eager] [--dynamic]

A function computes with a buffer, an input, a parameter and an activation, and writes to the buffer, whole, in parts and by
views. Then the program, which is not compiled, writes to these and to the results: noticed by autograd or not, averages,
clipping, other data; and differentiates, once or twice, with writes in between. Compared are results, gradients, what all
tensors hold and whether autograd refuses a write.
"""

from __future__ import annotations

import linecache
import random
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import seeds  # noqa: E402

import argand  # noqa: E402

VALUES = (
    "{e} * {e}", "{e} + {e}", "{e} @ {e}", "{e}.t() @ {e}", "{e}.sin()", "{e}.exp()", "{e}.sigmoid() * {e}", "{e}[0] * {e}", "{e}.relu()", "{e}.softmax(-1)", "{e}.detach() * {e}", "{e}[:, 1:2] * {e}",
    "F.linear({e}, {e})", "F.layer_norm({e}, (3,), {e}[0], {e}[1])", "F.gelu({e})", "{e}.view(-1).view(3, 3) * {e}", "torch.where({e} > 0, {e}, {e})", "{e}.clone() * {e}", "F.dropout({e}, 0.0) * {e}", "{e}.tanh().square()",
    "{e}.diagonal() * {e}", "torch.cat([{e}, {e}])[1:4] * {e}", "{e}.as_strided((3, 3), (1, 3)) * {e}", "{e}.expand(2, 3, 3).sum(0) * {e}", "torch.lerp({e}, {e}, 0.3)", "torch.addcmul({e}, {e}, {e})", "{e}.std(0) * {e}", "{e}.max(0)[0] * {e}",
)  # fmt: skip
INSIDE = (
    "b.mul_(2)", "b.add_({e}.detach())", "b.copy_({e}.detach())", "b[{s}].mul_(2)", "b[{s}] = {e}.detach()[{s}]", "b.t().add_(1)", "b.data.mul_(0.5)", "b.fill_(0.5)", "b.lerp_({e}.detach(), 0.1)", "b.view_as(b).sin_()", "b.zero_()",
    "b[{s}].copy_({e}.detach()[{s}])", "b.clamp_(-1, 1)", "x.add_(1)", "x.copy_(b)", "torch._foreach_copy_([b], [{e}.detach()])", "b.masked_fill_(b > 1, 0.3)", "b.detach().add_(1)", "h.mul_(2)", "h.relu_()", "h.t().mul_(p)", "h.copy_(p)", "h[0].add_(1)", "v0.mul_(2)",
)  # fmt: skip
WRITTEN = ("b", "b", "b", "x", "p", "p", "h", "r[0]", "r[-1]")
BETWEEN = (
    "{w}.data.mul_(3)", "{w}.data[{s}] = 2.0", "{w}.detach().add_(1)", "torch.no_grad()(lambda: {w}.mul_(2))()", "{w}.data = {w}.data * 1.5", "{w}.data.copy_({w}.data.flip(0))", "torch._foreach_mul_([{w}.data], 2)",
    "torch.no_grad()(lambda: {w}[{s}].zero_())()", "{w}.data.lerp_(p.data, 0.1)", "{w}.data.t().add_(1)", "torch.inference_mode()(lambda: {w}.data.mul_(2))()", "{w}.data = b.data", "{w}.data, p.data = p.data, {w}.data",
)  # fmt: skip
STEPS = (
    "{o}.backward()", "{o}.backward(retain_graph=True)", "torch.autograd.grad({o}, [p, q], allow_unused=True)", "g = torch.autograd.grad({o}, [p, q], retain_graph=True, allow_unused=True)", "p.grad = None", "x = x.add(1)", "p.data.sub_(0.1)",
)  # fmt: skip
LAYOUTS = ("dense", "turned", "strided", "part")


def program(seed: int) -> str:
    """The text of `f(x, b, p, h)`, and of `after(x, b, p, h, q, r)`."""
    rng = random.Random(seed)
    names = ["x", "b", "b", "p", "p", "h"]

    def filled(template: str) -> str:
        parts = template.split("{e}")
        text = "".join(part + rng.choice(names) for part in parts[:-1]) + parts[-1]
        fields = {
            "s": rng.choice(("0", "1:", "0, 1", ":, 0")), "w": rng.choice(WRITTEN), "o": rng.choice(("r[-1].sum()", "r[-1].sum()", "sum(o.sum() for o in r)")),
        }  # fmt: skip
        for name, field in fields.items():
            text = text.replace("{" + name + "}", field)
        return text

    lines = ["def f(x, b, p, h):"]
    for number in range(rng.randint(1, 4)):
        if rng.random() < 0.7:
            lines.append("    " + filled(rng.choice(INSIDE[: None if number else -1])))
        lines.append(f"    v{number} = {filled(rng.choice(VALUES))}")
        names += [f"v{number}"] * 2
    results = rng.sample([f"v{n}" for n in range(number + 1)], rng.randint(1, min(2, number + 1)))
    results[-1] += rng.choice((" + p", " * p"))
    lines += [f"    return [{', '.join(results)}]", "def after(x, b, p, h, q, r):"]
    for _ in range(rng.randint(1, 2)):
        lines += ["    " + filled(rng.choice(BETWEEN)) for _ in range(rng.choice((0, 1, 1, 2)))]
        lines.append("    " + filled(rng.choice(STEPS[1:4])))
        if rng.random() < 0.3:
            lines.append("    " + filled(rng.choice(STEPS)))
    return "\n".join([*lines, "    return None"]) + "\n"


def arguments(call: int, layout: str, size: int) -> list[torch.Tensor]:
    """Input, buffer, parameter, activation; the buffer lies in memory as `layout` says."""
    generator = torch.Generator().manual_seed(call)
    x, b, p, h = (torch.randn(size, size, generator=generator, dtype=torch.float64) for _ in range(4))
    if layout == "turned":
        b = b.t()
    elif layout == "strided":
        b = torch.cat([b, b], 1)[:, ::2]
    elif layout == "part":
        b = torch.cat([b, b])[size:]
    leaf = h.requires_grad_()
    return [x, b, torch.nn.Parameter(p), leaf * 1, leaf]


def loaded(text: str) -> dict[str, Any]:
    space: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    linecache.cache["<between>"] = (len(text), None, text.splitlines(True), "<between>")
    exec(compile(text, "<between>", "exec"), space)
    return space


def seen(f: Any, after: Any, call: int, layout: str) -> list[Any]:
    """What the program gives, and what it has done to tensors."""
    *given, leaf = arguments(call, layout, 3)
    try:
        results = f(*given)
    except Exception as error:
        return ["raised", type(error).__name__]
    shown: list[Any] = [one.detach().clone() for one in results]
    try:
        after(*given, leaf, results)
        shown.append("done")
    except RuntimeError as error:  # eager has given some leaves their gradients by then
        return [*shown, f"refused {'modified by an inplace' in str(error)}"]
    shown += [one.detach().clone() for one in (*given, *results)]
    return shown + [None if one.grad is None else one.grad.clone() for one in (given[2], leaf)]


def differing(want: list[Any], got: list[Any]) -> str | None:
    if "refused True" in got[-1:]:  # a graph that saves for several results refuses for all: never a wrong gradient
        return None
    for place, (one, other) in enumerate(zip(want, got)):
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            same = one.shape == other.shape and torch.allclose(one, other, rtol=1e-6, atol=1e-8, equal_nan=True)
        else:
            same = type(one) is type(other) and one == other
        if not same:
            return f"{place}: eager {one!r:.300}, compiled {other!r:.300}"
    return None


def difference(text: str, seed: int, backend: str, dynamic: bool | None = None) -> str | None:
    """How a compiled program differs, in calls of several layouts."""
    space = loaded(text)
    compiled = argand.compile(loaded(text)["f"], backend=backend, dynamic=dynamic)
    with seeds.calls():
        for call, layout in enumerate(random.Random(seed).sample(LAYOUTS, 2)):
            how = differing(*[seen(one, space["after"], call, layout) for one in (space["f"], compiled)])
            if how is not None:
                return f"call {call}, {layout}: {how}"
    return None


def main() -> int:
    options = seeds.parser(__doc__, 300, "native,aot_eager").parse_args()
    return seeds.run_programs(options, program, lambda *drawn: difference(*drawn, options.dynamic or None))


if __name__ == "__main__":
    sys.exit(main())
