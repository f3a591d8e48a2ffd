"""Random chains of operations on nested tensors of the jagged layout, against eager.

    python -m tests.capture.torch_functions.nested.chains --count 300 --backend native

A chain is compiled once and called with batches whose pieces have other lengths, and with nested tensors that share
their offsets or do not. Results, what they know of the lengths of their pieces, errors and gradients are compared.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import argand

WIDTH = 8
Chain = Callable[..., list[Any]]


def nested(lengths: tuple[int, ...], seed: int, *, gradient: bool = False, offsets: Any = None) -> torch.Tensor:
    """A nested tensor of pieces of these lengths; with `offsets` of the same raggedness as others with these."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(sum(lengths), WIDTH, generator=generator)
    if offsets is None:
        offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
    return torch.nested.nested_tensor_from_jagged(values.requires_grad_(gradient), offsets)


def known(lengths: tuple[int, ...], seed: int, *, gradient: bool = False) -> torch.Tensor:
    """One that knows its longest and shortest piece."""
    generator = torch.Generator().manual_seed(seed)
    pieces = [torch.randn(length, WIDTH, generator=generator) for length in lengths]
    return torch.nested.nested_tensor(pieces, layout=torch.jagged, requires_grad=gradient)


UNARY: dict[str, Callable[[Any, Any], Any]] = {
    "relu": lambda x, w: x.relu(),
    "sin": lambda x, w: torch.sin(x),
    "neg": lambda x, w: -x,
    "scale": lambda x, w: x * 2 + 1.5,
    "reflected": lambda x, w: 1.5 - x,
    "gelu": lambda x, w: F.gelu(x),
    "sigmoid": lambda x, w: x.sigmoid(),
    "norm": lambda x, w: F.layer_norm(x, (x.size(-1),)),
    "linear": lambda x, w: F.linear(x, w[: x.size(-1), : x.size(-1)]),
    "matmul": lambda x, w: x @ w[: x.size(-1), : x.size(-1)],
    "softmax": lambda x, w: x.softmax(-1),
    "log_softmax": lambda x, w: F.log_softmax(x, dim=-1),
    "transpose": lambda x, w: x.transpose(1, 2),
    "unflatten": lambda x, w: x.unflatten(-1, (2, -1)),
    "flatten": lambda x, w: x.flatten(-2),
    "view": lambda x, w: x.view(x.size(0), -1, 2, x.size(-1) // 2),
    "reshape": lambda x, w: x.reshape(x.size(0), x.size(1), x.size(-1) // 2, 2),
    "chunk": lambda x, w: x.chunk(2, dim=-1)[1],
    "split": lambda x, w: x.split(3, dim=-1)[0],
    "slice": lambda x, w: x[..., :5],
    "select": lambda x, w: x.select(-1, 0),
    "row": lambda x, w: x + w[0, : x.size(-1)],
    "each": lambda x, w: x * torch.arange(float(x.size(0))).view(-1, 1, 1),
    "sum": lambda x, w: x.sum(-1, keepdim=True),
    "mean": lambda x, w: x.mean(dim=-1),
    "amax": lambda x, w: x.amax(dim=-1),
    "unsqueeze": lambda x, w: x.unsqueeze(-1),
    "squeeze": lambda x, w: x.squeeze(-1),
    "clone": lambda x, w: x.clone(),
    "contiguous": lambda x, w: x.contiguous(),
    "double": lambda x, w: x.to(torch.float64).to(torch.float32),
    "detach": lambda x, w: x.detach() + x,
    "fill": lambda x, w: x.masked_fill(x > 0.3, 0.25),
    "where": lambda x, w: torch.where(x > 0, x, x * 0.1),
    "dropout": lambda x, w: F.dropout(x, 0.5, training=False),
    "again": lambda x, w: torch.nested.nested_tensor_from_jagged(x.values() * 0.5, x.offsets()),
    "like": lambda x, w: torch.ones_like(x) + x,
    "in place": lambda x, w: x.clone().mul_(0.5),
    "width": lambda x, w: x * (2 if x.size(-1) > 4 else 3),
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y,
    "cat": lambda x, y: torch.cat([x, y], dim=-1),
    "same": lambda x, y: x * (2 if x.size(1) == y.size(1) else 3),
    "choose": lambda x, y: torch.where(x > y, x, y),
}
LAST: dict[str, Callable[[Any], Any]] = {
    "whole": lambda x: x,
    "values": lambda x: x.values(),
    "padded": lambda x: x.to_padded_tensor(0.5),
    "total": lambda x: x.sum(),
    "average": lambda x: x.mean(),
    "ragged sum": lambda x: x.sum(dim=1),
    "ragged mean": lambda x: x.mean(dim=1),
    "ragged amax": lambda x: x.amax(dim=1),
    "ragged softmax": lambda x: x.softmax(dim=1),
    "shape": lambda x: (x.size(0), x.dim(), x.size(-1) if x.size(-1) != x.size(1) else 0, x.is_nested, x.shape),
    "attention": lambda x: F.scaled_dot_product_attention(*[_heads(each) for each in (x, x * 0.5, x + 1)]),
    "offsets": lambda x: (x.offsets().diff(), x.lengths()),
}


def _heads(x: Any) -> Any:
    return x.unflatten(-1, (2, -1)).transpose(1, 2)


def chain(seed: int) -> Chain:
    """A random program over nested tensors `x`, `y` and weights `w`."""
    choose = random.Random(seed)
    steps: list[tuple[str, Any, int, int]] = []
    for _ in range(choose.randint(1, 5)):
        table = BINARY if choose.random() < 0.25 else UNARY
        name = choose.choice([*table])
        steps.append((name, table[name], choose.randrange(1 << 16), choose.randrange(1 << 16)))
    ends = [LAST[choose.choice([*LAST])] for _ in range(choose.randint(1, 2))]

    def run(x: Any, y: Any, w: Any) -> list[Any]:
        made = [x, y]
        for name, step, first, second in steps:
            if name in BINARY:
                made.append(step(made[first % len(made)], made[second % len(made)]))
            else:
                made.append(step(made[max(first % len(made), second % len(made))], w))
        return [end(made[-1]) for end in ends]

    run.__name__ = " > ".join(name for name, *_ in steps)
    return run


# ---------------------------------------------------------------------- comparing


def _flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return _flat([*value.values()])
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _flat(item)]
    return [value]


def difference(expected: Any, given: Any, lengths: bool = True) -> str:
    """What two results differ in, also in what they know of lengths; "" where they agree."""
    left, right = _flat(expected), _flat(given)
    if len(left) != len(right):
        return f"{len(left)} results, {len(right)}"
    for a, b in zip(left, right):
        if type(a) is not type(b):
            return f"{type(a)} is {type(b)}"
        if not isinstance(a, torch.Tensor):
            if not isinstance(a, torch.SymInt) and a != b:
                return f"{a} is {b}"
            continue
        if (a.dtype, a.requires_grad, a.is_nested, a.dim()) != (b.dtype, b.requires_grad, b.is_nested, b.dim()):
            return (
                f"{a.dtype, a.requires_grad, a.is_nested, a.dim()} is {b.dtype, b.requires_grad, b.is_nested, b.dim()}"
            )
        if a.is_nested and (found := _nested_difference(a, b, lengths)):
            return found
        a, b = (_plain(each) for each in (a, b))
        if a.shape != b.shape or not torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True):
            return f"{tuple(a.shape)}: {a} is {tuple(b.shape)}: {b}"
    return ""


def _plain(tensor: Any) -> torch.Tensor:
    if not tensor.is_nested:
        return tensor
    return tensor._values if tensor._values.is_inference() else tensor.values()  # which cannot be asked of these


def _nested_difference(a: Any, b: Any, lengths: bool) -> str:
    plain = [[size for size in each.shape if type(size) is int] for each in (a, b)]
    cached = [{key: len(value) for key, value in each._metadata_cache.items()} for each in (a, b)]
    if a._ragged_idx != b._ragged_idx or plain[0] != plain[1] or not torch.equal(a.offsets(), b.offsets()):
        return f"shape {a.shape} is {b.shape}"
    return "" if cached[0] == cached[1] or not lengths else f"known lengths {cached[0]} are {cached[1]}"


def outcome(run: Chain, *args: Any) -> tuple[Any, Any]:
    """(results, or the error), and gradients, or why there are none."""
    try:
        results = run(*args)
    except Exception as error:
        return f"{type(error).__name__}: {re.sub('j[0-9]+', 'j', str(error))}", ()
    taped = [each for each in _flat(results) if isinstance(each, torch.Tensor) and each.requires_grad]
    if not taped:
        return results, ()
    loss = sum((each.values() if each.is_nested else each).square().mean() for each in taped)
    try:
        wanted = [each for each in args if each.requires_grad]
        return results, torch.autograd.grad(loss, wanted, allow_unused=True)
    except (RuntimeError, NotImplementedError, ValueError, AssertionError, IndexError) as error:
        return results, error


def batches(seed: int, gradient: bool) -> list[tuple[Any, Any]]:
    """Pairs of nested tensors of which some share offsets, with pieces of various lengths."""
    choose = random.Random(seed * 7 + 1)
    pairs = []
    shared = choose.random() < 0.7
    told = choose.random() < 0.4
    for number in range(4):
        lengths = tuple(choose.randint(1, 6) for _ in range(3))
        if number == 3:
            shared = not shared
        make = known if told else nested
        x = make(lengths, number, gradient=gradient)
        y = nested(lengths, 10 + number, gradient=gradient, offsets=x.offsets() if shared else None)
        pairs.append((x, y))
    return pairs


def check(seed: int, backend: str, gradient: bool) -> list[str]:
    """How a chain differs from eager."""
    run = chain(seed)
    argand.reset()
    compiled = argand.compile(run, backend=backend)
    differences = []
    for number, ((x, y), (a, b)) in enumerate(zip(batches(seed, gradient), batches(seed, gradient))):
        weights = torch.linspace(-1, 1, WIDTH * 4 * WIDTH * 4).view(WIDTH * 4, -1)
        expected, gradients = outcome(run, x, y, weights.clone().requires_grad_(gradient))
        given, compiled_gradients = outcome(compiled, a, b, weights.clone().requires_grad_(gradient))
        where = f"seed {seed} ({run.__name__}), batch {number}"
        if found := difference(expected, given):
            differences.append(f"{where}: {found}")
        elif isinstance(gradients, Exception):
            continue  # eager's nested tensors have no derivative of it
        elif isinstance(compiled_gradients, Exception):
            differences.append(f"{where}: gradients raise {compiled_gradients!r}")
        elif found := difference(gradients, compiled_gradients, lengths=False):
            differences.append(f"{where}: gradients: {found}")
        for name in ("min_seqlen", "max_seqlen"):
            if (name in x._metadata_cache) != (name in a._metadata_cache):
                differences.append(f"{where}: the argument knows {a._metadata_cache}, and {x._metadata_cache} in eager")
    return differences


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--backend", default="eager")
    options = parser.parse_args()
    wrong = 0
    for seed in range(options.first, options.first + options.count):
        for gradient in (False, True):
            for line in check(seed, options.backend, gradient):
                wrong += 1
                print(f"{'with' if gradient else 'without'} gradients, {line}"[:600], flush=True)
    print(f"{options.count} chains, {wrong} differences")


if __name__ == "__main__":
    main()
