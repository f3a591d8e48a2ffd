"""Random programs whose sizes, layouts and numbers vary from call to call, against eager.

Views by numbers and sizes, writes through them, branches and loops over what varies and over data, and reads of all that
depends: each program is compiled once and called with sizes from 0 on, transposed, cut, strided and expanded tensors, of
other dtypes, in an order that is drawn. Compared are values, dtypes, sizes, strides, offsets, who shares memory with
whom, versions of arguments, errors, and what the program itself asks of layouts.

    python tests/fuzz/operations/varying.py --count 200 --backends native,aot_eager
"""

from __future__ import annotations

import linecache
import random
import sys
from pathlib import Path
from typing import Any

import torch

import argand

sys.path.insert(0, str(Path(__file__).parents[1]))

import seeds

Tensor = torch.Tensor
NUMBERS = ("k", "n", "m", "2", "1", "3", "n // 2", "n - 1", "n - k", "k % 3 + 1", "min(n, k)", "max(m - k, 1)", "m // 2 + 1", "-k", "n * m // 4", "abs(k - 3)", "n % 4", "(n + 1) // 2", "k + 1", "m - 2", "-n", "-1", "0", "len(x)", "x.numel() // 3", "max(n, m)", "k * 2", "n % k if k else 1")  # fmt: skip
VIEWS = (
    "{v}[:{a}]", "{v}[{a}:]", "{v}[{a}:{b}]", "{v}[:, :{a}]", "{v}[..., {a}:]", "{v}[::{s}]", "{v}[{a}]", "{v}.narrow(0, {a}, {b})", "{v}.narrow(-1, {a}, {b})", "{v}.unfold(0, {a}, {s})", "{v}.unfold(-1, {a}, 1)",
    "{v}.view({a}, -1)", "{v}.reshape({a}, -1)", "{v}.reshape(-1)", "{v}.flatten()", "{v}.as_strided((abs({a}), abs({b})), ({c}, 1))", "{v}.as_strided((abs({a}), 2), ({b}, {c}))", "{v}.as_strided((2, abs({a})), (1, {b}))", "{v}.t()", "{v}.transpose(0, -1)",
    "{v}.expand(abs({a}), *{v}.shape)", "{v}[:1].expand(abs({a}), *{v}.shape[1:])", "{v}.diagonal()", "{v}.diagonal({a})", "{v}.split({s})[{i}]", "{v}.chunk({s})[{i}]", "{v}.tensor_split({s})[{i}]", "{v}.unsqueeze(0)", "{v}.squeeze()", "{v}.squeeze(0)",
    "{v}.unflatten(0, ({s}, -1))", "{v}.contiguous()", "{v}.movedim(0, -1)", "{v}.mT", "{v}.select(-1, {a})", "{v}.detach()", "{v}.view(-1)[{a}:]", "{v}[:, {a}]", "{v}.to({v}.dtype)", "{v}.view(-1)[: {a} * {s}].view({a}, {s})", "{v}.swapaxes(0, -1)",
)  # fmt: skip
VALUES = (
    "{v} * 2", "{v} + {w}", "{v} - {a}", "{v}.clone()", "{v} * 1", "{v}.repeat({s}, 1)", "{v}.roll({a}, 0)", "torch.nn.functional.pad({v}, ({s}, {s}))", "{v}.tril({a})", "{v}.cumsum(0)", "{v}.sum(0)", "{v}.sum(-1, keepdim=True)", "{v}.flip(0)",
    "torch.cat([{v}, {v}])", "torch.stack([{v}, {v}], -1)", "{v}.sort(0)[0]", "{v}.topk({s}, 0)[0]", "{v}.amax(0)", "{v}.mean(dtype=torch.float64)", "{v}.float() @ {v}.float().mT", "torch.arange({a})", "torch.zeros({a}, {s})", "{v}.new_ones({v}.shape)",
    "torch.where({v} > {a}, {v}, 0)", "{v}.clamp(max={a})", "{v}.repeat_interleave({s}, 0)", "{v}.index_select(0, torch.arange({v}.shape[0] - 1, -1, -1))", "torch.empty_like({v}).fill_({a})", "{v}.softmax(0, dtype=torch.float32)", "{v}.diff(dim=0)", "{v} / {s}",
    "{v}.to(torch.float64)", "{v}.clone(memory_format=torch.contiguous_format)", "{v}.gather(0, torch.zeros_like({v}, dtype=torch.int64))", "{v}.tile({s})", "torch.full_like({v}, {a})", "{v}.max(0)[1]", "{v}.argsort(0, stable=True)", "{v}.rot90()", "{v}.mul({a}).add({w})",
)  # fmt: skip
WRITES = (
    "{v}.mul_(2)", "{v}.add_({a})", "{v}[:{a}] = {b}", "{v}[{a}:].zero_()", "{v}.copy_({w}.clone())", "{v}[...] = {a}", "{v}[{a}] = {b}", "{v}.t().add_(1)", "{v}[::{s}] *= 3", "{v} += {w}.clone()", "{v}[:, :{a}].fill_({b})", "{v}.view(-1)[{a}:].sub_(1)", "{v}[{v} > {a}] = 0",
    "{v}.diagonal().fill_({a})", "{v}.narrow(0, {a}, {b}).neg_()", "{v}.clamp_(max={a})", "{v}.index_fill_(0, torch.tensor([0]), {a})", "torch.add({v}, {a}, out={v})", "{v}.transpose(0, -1)[{a}:].mul_(-1)",
)  # fmt: skip
ASKED = ("tuple({v}.shape)", "{v}.stride()", "{v}.is_contiguous()", "{v}.storage_offset()", "{v}.numel()", "{v}.dim()", "{v}.size(-1)", "{v}.data_ptr() == x.data_ptr()", "{v}.dtype")  # fmt: skip
CHOICES = ("n > {a}", "k % 2 == 0", "{v}.shape[0] > {a}", "{v}.is_contiguous()", "float({v}.sum()) > {a}", "{v}.numel() > 4", "n == m", "k > 2 and n < 6", "{v}.dim() == 2", "bool(({v} > {a}).any())", "n * k > m", "{v}.stride(-1) == 1")  # fmt: skip


def program(seed: int) -> str:
    rng = random.Random(seed)
    names = ["x", "y"]

    def filled(template: str) -> str:
        number = lambda: rng.choice(NUMBERS)  # noqa: E731
        return template.format(v=rng.choice(names[-3:] if rng.random() < 0.6 else names), w=rng.choice(names), a=number(), b=number(), c=number(), s=rng.choice(("1", "2", "3", "k", "max(k, 1)")), i=rng.choice(("0", "-1", "1")))  # fmt: skip

    def statement() -> list[str]:
        way = rng.random()
        if way < 0.6:
            expression = filled(rng.choice(VIEWS if way < 0.4 else VALUES))
            names.append(f"v{len(names)}")
            return [f"{names[-1]} = {expression}", f"out.append({names[-1]})"]
        if way < 0.85:
            return [filled(rng.choice(WRITES))]
        return [f"out.append({filled(rng.choice(ASKED))})"]

    lines = ["n = x.shape[0]", "m = x.shape[-1]"]
    for _ in range(rng.randint(4, 8)):
        way = rng.random()
        if way < 0.15:
            lines += [
                f"if {filled(rng.choice(CHOICES))}:",
                *(f"    {filled(rng.choice(WRITES))}" for _ in range(2)),
                "else:",
                f"    {filled(rng.choice(WRITES))}",
            ]
        elif way < 0.22:
            lines += [
                "for i in range(min(k, 3)):",
                f"    out.append({filled(rng.choice(VIEWS))})",
                f"    {filled(rng.choice(WRITES))}",
            ]
        else:
            part = statement()
            lines += (
                part
                if rng.random() < 0.6
                else [
                    "try:",
                    *(f"    {line}" for line in part),
                    "except (RuntimeError, IndexError, ValueError) as error:",
                    "    out.append(type(error).__name__)",
                    *([f"    {names[-1]} = x"] if "=" in part[0] and part[0].startswith(names[-1] + " =") else []),
                ]
            )
    return "\n".join(["def f(x, y, k):", "    out = []", *(f"    {line}" for line in lines), "    return out, x, y"])


def arguments(rng: random.Random) -> list[Any]:
    """Tensors of one kind of call."""
    n, m, k = (
        rng.choice((2, 3, 4, 5, 6, 8, 3, 4, 1, 0)),
        rng.choice((2, 3, 4, 5, 7, 8, 1)),
        rng.choice((1, 2, 3, 4, 5, 2, 3, 0)),
    )
    dtype = rng.choice((torch.float32,) * 5 + (torch.int64, torch.float64))

    def tensor(way: float) -> Tensor:
        plain = torch.arange(float(n * m)).reshape(n, m).sub(3).to(dtype)
        if way < 0.15:
            return plain.t().contiguous().t()
        if way < 0.25:
            return torch.cat([plain, plain], 1)[:, :m]
        if way < 0.32:
            return torch.cat([plain, plain])[n:]
        return torch.stack([plain, plain], -1)[..., 0] if way < 0.38 else plain

    ways = rng.random(), rng.random()
    x = tensor(ways[0])
    return [x, x if ways[1] < 0.1 else x[:1] if ways[1] < 0.15 else tensor(rng.random()), k]


def seen(fn: Any, seed: int, exact: bool = True) -> Any:
    """What a call does. `exact`: strides of sizes of one, which aot_eager lays out in its own way, count, too."""
    x, y, k = arguments(random.Random(seed))
    tensors = [x, y]
    versions = [t._version for t in tensors]
    try:
        results = fn(x, y, k)
    except Exception as error:
        return ["raised", type(error).__name__, x.tolist(), y.tolist()]
    told: list[Any] = []

    def tell(value: Any) -> None:
        if isinstance(value, list | tuple):
            for item in value:
                tell(item)
        elif isinstance(value, Tensor):
            memory = (
                [t.untyped_storage().data_ptr() == value.untyped_storage().data_ptr() for t in tensors]
                if value.numel()
                else []
            )
            same = [t is value for t in tensors]
            tensors.append(value)
            stride = value.stride() if value.numel() else ()
            stride = tuple([step for n, step in zip(value.shape, stride) if exact or n > 1])
            told.append(
                [
                    tuple(value.shape),
                    stride,
                    value.storage_offset() if value.numel() else 0,
                    value.dtype,
                    memory,
                    same,
                    value,
                ]
            )
        else:
            told.append(value)

    tell(results)
    for part in told:
        if isinstance(part, list) and isinstance(part[-1], Tensor):
            part[-1] = [
                round(number, 3) if isinstance(number, float) and number == number else str(number)
                for number in part[-1].flatten().tolist()
            ]
    return [*told, [t._version - old for t, old in zip((x, y), versions)]]


def loaded(text: str) -> Any:
    space: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    linecache.cache["<varying>"] = (len(text), None, text.splitlines(True), "<varying>")
    exec(compile(text, "<varying>", "exec"), space)
    return space["f"]


def first_difference(want: Any, got: Any, path: str = "") -> str | None:
    if isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
        return next(
            (how for i, pair in enumerate(zip(want, got)) if (how := first_difference(*pair, f"{path}/{i}"))), None
        )
    if isinstance(want, float) and isinstance(got, float) and abs(want - got) <= 2e-3 * max(1, abs(want)):
        return None
    return None if want == got and type(want) is type(got) else f"{path}: eager {want!r:.300}, compiled {got!r:.300}"


def difference(text: str, seed: int, backend: str) -> str | None:
    """How the compiled program differs in calls with other sizes."""
    eager, fn = loaded(text), argand.compile(loaded(text), backend=backend, dynamic=(None, True, None)[seed % 3])
    with seeds.calls():
        for call in range(6):
            drawn = 1000 * seed + call
            how = first_difference(*[seen(one, drawn, backend != "aot_eager") for one in (eager, fn)])
            if how is not None:
                x, y, k = arguments(random.Random(drawn))
                return f"call {call} (x {tuple(x.shape)} {x.stride()} {x.dtype}, y {tuple(y.shape)} {y.stride()}, k={k}): {how}"
    return None


def main() -> int:
    return seeds.run_programs(seeds.parser(__doc__, 200, "native").parse_args(), program, difference)


if __name__ == "__main__":
    sys.exit(main())
