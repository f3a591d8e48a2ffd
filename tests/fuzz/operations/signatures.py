"""Calls of torch's functions with keyword arguments in all combinations, by their schemas, against eager.

Each overload of each operator that torch, Tensor, linalg, special, fft and nn.functional offer is called with random
arguments of the types that its schema says (dims that are negative, tuples, empty or none, `out=`, `dtype=`, memory
formats, other layouts, sizes of 0 and 1, 0-d tensors); of what eager allows, a graph of many calls must give the same
values, dtypes, sizes, strides and objects, and share memory with the same arguments.

    python tests/fuzz/operations/signatures.py --count 400 --only 'sum|std'
"""

from __future__ import annotations

import argparse
import functools
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

import argand

Tensor = torch.Tensor
ROOMS = {"linalg_": torch.linalg, "special_": torch.special, "fft_": torch.fft}
DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.bool, torch.float16, torch.bfloat16, torch.uint8, torch.complex64)  # fmt: skip
SHAPES = ((3, 4), (3, 4), (4, 4), (2, 3, 4), (2, 3, 4, 5), (4,), (), (0, 3), (1, 4), (3, 1), (1,), (2, 1, 3))
FORMATS = (torch.preserve_format, torch.contiguous_format, torch.channels_last)
CHANGING = re.compile(
    r"rand|dropout|normal|like$|fbgemm|resize|rrelu|^set|data|requires_grad|name|refine|sparse|quant|cudnn|miopen|mkldn|nested"
    r"|jagged|storage|^_|^is_|lstm|gru|rnn|unsafe|from_file|stft|pin_memory|cuda|svd|eig|^lu|_lu|^qr|_qr|cholesky|solve"
    r"|lstsq|householder|ormqr|orgqr|geqrf|pinv|^det|_det|slogdet|backward|batch_norm|attention|embedding|conv|_copy$"
    r"|(^|_)(bernoulli_?|multinomial|poisson|binomial|exponential_?|cauchy_?|geometric_?|uniform_?|empty|retain|csr|csc|bsr"
    r"|bsc|fake|symint|ctc|record|item|numpy|dense|chalf|swap|lobpcg|ldl|rank|cond|inverse|inv|unique|nonzero|argwhere"
    r"|histogram|result|promote|segment|coalesce|values|indices|crow|detach|sym|native|grid|generator|fractional|pdist|unpool)($|_)"
    r"|^range|masked_select|can_cast|as_strided|triangular|choose|group_norm|instance_norm|^matrix_exp|alias|lift|share"
)
"""Names of what is random, asks the data, or whose outputs eager determines up to signs; and of what has sweeps of its own."""


def shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype)[6:]}{tuple(value.shape)}{value.stride()}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(shown, value))}]"
    return repr(value)


def tensor(chooser: random.Random, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    generator = torch.Generator().manual_seed(chooser.randrange(1 << 30))
    if dtype is torch.bool:
        made = torch.rand(shape, generator=generator) > 0.5
    elif dtype.is_floating_point or dtype.is_complex:
        made = torch.randn(shape, dtype=dtype if dtype.itemsize > 2 else torch.float32, generator=generator).to(dtype)
    else:
        made = torch.randint(0 if dtype is torch.uint8 else -4, 5, shape, dtype=dtype, generator=generator)
    way = chooser.random()
    if len(shape) >= 2 and way < 0.2:
        return made.mT.contiguous().mT
    if len(shape) == 4 and way < 0.5:
        return made.contiguous(memory_format=torch.channels_last)
    if len(shape) >= 1 and way < 0.3:
        return torch.stack([made, made], -1)[..., 0]
    if len(shape) >= 2 and way < 0.35:
        return made[:1].expand(shape)
    return made


class Drawn:
    """Arguments for one call."""

    def __init__(self, chooser: random.Random) -> None:
        self.chooser = chooser
        self.shape = chooser.choice(SHAPES)
        self.dtype = chooser.choice(DTYPES[:3]) if chooser.random() < 0.6 else chooser.choice(DTYPES)

    def dim(self) -> int:
        rank = max(len(self.shape), 1)
        return self.chooser.randrange(-rank, rank)

    def tensor(self) -> Tensor:
        way = self.chooser.random()
        shape, dtype = self.shape, self.dtype
        if way < 0.1:
            shape = ()
        elif way < 0.25 and shape:
            shape = tuple(
                [1 if self.chooser.random() < 0.4 else n for n in shape[self.chooser.randrange(len(shape)) :]]
            )
        if self.chooser.random() < 0.15:
            dtype = self.chooser.choice(DTYPES)
        return tensor(self.chooser, dtype, shape)

    def index(self) -> Tensor:
        return torch.tensor([self.chooser.randrange(2) for _ in range(self.chooser.choice((1, 2, 3)))])

    def value(self, kind: str, name: str) -> Any:
        pick = self.chooser.choice
        if kind == "Tensor":
            return self.index() if name in ("index", "indices") else self.tensor()
        if kind in ("List[Tensor]", "List[Optional[Tensor]]"):
            one = self.tensor()
            return [one, *[tensor(self.chooser, self.dtype, tuple(one.shape)) for _ in range(pick((0, 1, 2)))]]
        if kind in ("int", "SymInt"):
            return (
                self.dim()
                if "dim" in name or "axis" in name or name in ("start_dim", "end_dim")
                else pick((0, 1, 2, 3, -1))
            )
        if kind in ("List[int]", "List[SymInt]"):
            if "dim" in name or "axis" in name:
                return [self.dim() for _ in range(pick((0, 1, 1, 2)))]
            return pick(([1], [2, 3], [1, 2], [-1], [4, 3], [3, 4], [1, 1], [0, 1], []))
        if kind in ("number", "Scalar", "float"):
            return pick((0, 1, 2, -1, 0.5, 2.5, -1.5, True)) if kind != "float" else pick((0.0, 0.5, 1.0, 2.0, -1.0))
        if kind == "bool":
            return self.chooser.random() < 0.5
        if kind == "str":
            return pick(
                (
                    "floor",
                    "trunc",
                    "none",
                    "constant",
                    "sum",
                    "mean",
                    "reflect",
                    "ortho",
                    "forward",
                    "linear",
                    "amax",
                    "prod",
                    "fro",
                    "nuc",
                    "tanh",
                )
            )
        return NotImplemented


def typed(argument: Any) -> tuple[str, bool]:
    """The type of an argument, and whether it may be None."""
    text = str(argument.type)
    optional = text.startswith("Optional[")
    return (text[len("Optional[") : -1] if optional else text), optional


SPECIAL = {"dtype": DTYPES, "memory_format": FORMATS, "layout": (torch.strided,), "device": ("cpu",), "pin_memory": (False,), "generator": (None,)}  # fmt: skip


def drawn(schema: Any, chooser: random.Random) -> tuple[list[Any], dict[str, Any]] | None:
    """Arguments of a schema, as the program writes them; None where one is of a type that is not known here."""
    draw = Drawn(chooser)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    named = False
    for argument in schema.arguments:
        kind, optional = typed(argument)
        if argument.is_out:
            continue
        if argument.name in SPECIAL or kind in ("ScalarType", "MemoryFormat", "Layout", "Device"):
            if chooser.random() < 0.5 or argument.name not in SPECIAL:
                named = True
                continue
            value: Any = chooser.choice(SPECIAL[argument.name])
        elif argument.has_default_value() and chooser.random() < 0.5:
            named = True
            continue
        elif optional and chooser.random() < 0.2:
            value = None
        else:
            value = draw.value(kind, argument.name)
            if value is NotImplemented:
                if optional or argument.has_default_value():
                    named = True
                    continue
                return None
        if named or argument.kwarg_only or (args and argument.has_default_value() and chooser.random() < 0.3):
            named = True
            kwargs[argument.name] = value
        else:
            args.append(value)
    return args, kwargs


@functools.cache
def functions() -> list[tuple[str, Callable[..., Any], Any]]:
    """(name, function of torch's, schema) of all overloads."""
    listed = []
    names = {full[6:].partition(".")[0] for full in torch._C._dispatch_get_all_op_names() if full.startswith("aten::")}
    for name in sorted(names):
        if CHANGING.search(name):
            continue
        packet = getattr(torch.ops.aten, name, None)
        if not isinstance(packet, torch._ops.OpOverloadPacket):
            continue
        room = next((prefix for prefix in ROOMS if name.startswith(prefix)), "")
        owner: Any = ROOMS.get(room, torch)
        short = name.removeprefix(room)
        homes = [
            getattr(home, short, None)
            for home in (owner, torch.nn.functional, Tensor)
            if home is not Tensor or not room
        ]
        callables = [each for each in homes if callable(each) and not isinstance(each, type)]
        for each in packet.overloads():
            schema = getattr(packet, each)._schema
            if "Dimname" in str(schema) or not schema.arguments or "Stream" in str(schema):
                continue
            for function in callables[: 2 if not name.endswith("_") else 1]:
                listed.append((f"{name}.{each}", function, schema))
    return listed


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return error


Call = tuple[str, Callable[..., Any], list[Any], dict[str, Any]]


def leaves(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return [leaf for item in value for leaf in leaves(item)]
    return [value] if not isinstance(value, dict) else leaves(list(value.values()))


def copied(value: Any) -> Any:
    """An own copy of the tensors among arguments, laid out as they are."""
    if isinstance(value, Tensor):
        size = 1 + sum((n - 1) * step for n, step in zip(value.shape, value.stride())) if value.numel() else 0
        return value.as_strided((size,), (1,)).clone().as_strided(value.shape, value.stride())
    if isinstance(value, tuple | list):
        return type(value)(copied(item) for item in value)
    return {key: copied(item) for key, item in value.items()} if isinstance(value, dict) else value


def calls(chooser: random.Random, name: str, function: Any, schema: Any, count: int) -> Iterator[Call]:
    """Calls that eager allows."""
    for _ in range(count):
        arguments = drawn(schema, chooser)
        if arguments is None:
            return
        args, kwargs = arguments
        if any(argument.is_out for argument in schema.arguments):
            plain = outcome(lambda: function(*copied(args), **copied(kwargs)))
            if isinstance(plain, Exception):
                continue
            outs = tuple(
                [
                    torch.empty_like(t) if chooser.random() < 0.5 else torch.empty(0, dtype=t.dtype)
                    for t in leaves(plain)
                    if isinstance(t, Tensor)
                ]
            )
            kwargs["out"] = outs if len(outs) != 1 else outs[0]
        first = outcome(lambda: function(*copied(args), **copied(kwargs)))
        if not isinstance(first, Exception) and any(isinstance(leaf, Tensor) for leaf in leaves(first)):
            yield (
                f"{name}({', '.join([*map(shown, args), *(f'{k}={shown(v)}' for k, v in kwargs.items())])})",
                function,
                args,
                kwargs,
            )


def described(result: Any, given: list[Tensor]) -> list[Any]:
    told: list[Any] = []
    for leaf in leaves(result):
        if not isinstance(leaf, Tensor):
            told.append(leaf)
            continue
        memory = leaf.untyped_storage().data_ptr() if leaf.numel() else -1
        shared = [leaf is one or memory == one.untyped_storage().data_ptr() for one in given if one.numel()]
        same = [leaf is one for one in given]
        told.append(
            (
                leaf.dtype,
                tuple(leaf.shape),
                leaf.stride() if leaf.numel() else (),
                leaf.is_conj(),
                leaf.is_neg(),
                names(leaf),
                shared,
                same,
            )
        )
    return told


def names(tensor: Tensor) -> tuple[str, ...]:
    """Of its dimensions: some functions of torch below 2.12 give them."""
    given = getattr(tensor, "names", ())
    return given if any(given) else ()


def close(got: Any, want: Any) -> bool:
    for one, other in zip(leaves(got), leaves(want), strict=True):
        one, other = (t.rename(None) if isinstance(t, Tensor) and names(t) else t for t in (one, other))
        if isinstance(other, Tensor):
            narrow = other.dtype in (torch.float16, torch.bfloat16)
            rtol, atol = (2e-2, 2e-2) if narrow else (1e-4, 1e-5)
            if not torch.allclose(
                one.to(torch.complex128), other.to(torch.complex128), rtol=rtol, atol=atol, equal_nan=True
            ):
                return False
    return True


def compared(batch: list[Call], backend: str, dynamic: bool | None) -> list[str]:
    """What differs in one graph of these calls."""

    def program(arguments: list[Any]) -> list[Any]:
        return [function(*args, **kwargs) for (_, function, _, _), (args, kwargs) in zip(batch, arguments)]

    mine, theirs = ([copied([args, kwargs]) for _, _, args, kwargs in batch] for _ in range(2))
    want = program(theirs)
    got = outcome(lambda: argand.compile(program, backend=backend, dynamic=dynamic)(mine))
    argand.reset()
    if isinstance(got, Exception):
        if len(batch) == 1:
            return [f"{batch[0][0]}: raises {type(got).__name__}: {str(got)[:300]}"]
        half = len(batch) // 2
        return compared(batch[:half], backend, dynamic) + compared(batch[half:], backend, dynamic)
    told = []
    for (name, *_), one, other, ours, others in zip(batch, got, want, mine, theirs):
        given, before = ([t for t in leaves(each) if isinstance(t, Tensor)] for each in (ours, others))
        left, right = described([one, given], given), described([other, before], before)
        if left != right:
            told.append(f"{name}:\n    eager {right[: len(leaves(other))]}\n    got   {left[: len(leaves(other))]}")
        elif type(one) is not type(other) or not close([one, given], [other, before]):
            told.append(f"{name}: values {str(one)[:200]} eager {str(other)[:200]}")
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=40, help="graphs")
    parser.add_argument("--size", type=int, default=30, help="calls of one graph")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--backend", default="native")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    argand.config.log_level = 40
    chosen = [each for each in functions() if re.search(options.only, each[0])]
    print(f"{len(chosen)} functions", flush=True)
    bad = 0
    for seed in range(options.seed, options.seed + options.count):
        for text in differences(seed, options.size, options.backend, chosen):
            bad += 1
            print(f"seed {seed}: {text}", flush=True)
    print(f"{options.count} graphs, {bad} differences")
    return bool(bad)


def differences(seed: int, size: int, backend: str, chosen: list[Any]) -> list[str]:
    """What differs in the graph of a seed."""
    chooser = random.Random(seed)
    batch: list[Call] = []
    for _ in range(20 * size):
        batch += list(calls(chooser, *chooser.choice(chosen), 3))[:1]
        if len(batch) >= size:
            break
    return compared(batch, backend, chooser.choice((None, None, True)))


if __name__ == "__main__":
    sys.exit(main())
