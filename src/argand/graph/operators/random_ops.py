"""Random numbers as a pure function of a seed: the ops `argand::seed` and `argand::uniform`.

`seed()` draws 64 bits from torch's generator, so that `torch.manual_seed` rules compiled code too.
`uniform(seed, size)` gives element i the i-th output of a generator that starts at the seed, so that kernels compute
any element anywhere, and a backward gets the same numbers as its forward from the seed alone.
`set_seed`, `rng_state` and `set_rng_state` are `torch.manual_seed`, `torch.get_rng_state` and `torch.set_rng_state`,
in the graph's order.
`generator_draw(state, ...)` is a call of torch's that draws from a `torch.Generator` of the program's, as a function of
that generator's state: it returns what was drawn, and the state behind it. `seeded_state(seed)` is the state of a
generator that was seeded. `part_draw(tensors, call, start, end)` is a call that draws one process's part of what all
processes of a mesh draw together, `start` behind where the GPU's generator is, and leaves that `end` further.

The generator is SplitMix64: G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

import torch

from argand.graph.operators.registration import Functions, Operators
from argand.threads import bound

GAMMA = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed number
MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
MIX_2 = -7723592293110705685  # 0x94D049BB133111EB

T = TypeVar("T")


class Integers(Protocol[T]):
    """64-bit arithmetic that wraps around: what the generator is written in, for tensors and for loop bodies."""

    def constant(self, value: int) -> T: ...
    def add(self, a: T, b: T) -> T: ...
    def mul(self, a: T, b: T) -> T: ...
    def xor(self, a: T, b: T) -> T: ...
    def shift(self, a: T, bits: int) -> T: ...


def bits(ops: Integers[T], seed: T, index: T) -> T:
    """The top 53 bits of output `index` of the generator, as a number below 2**53."""
    state = ops.add(seed, ops.mul(ops.add(index, ops.constant(1)), ops.constant(GAMMA)))
    state = ops.mul(ops.xor(state, ops.shift(state, 30)), ops.constant(MIX_1))
    state = ops.mul(ops.xor(state, ops.shift(state, 27)), ops.constant(MIX_2))
    return ops.shift(ops.xor(state, ops.shift(state, 31)), 11)


class _TensorIntegers:
    """`Integers` on int64 tensors."""

    def constant(self, value: int) -> Any:
        return value

    def add(self, a: Any, b: Any) -> Any:
        return a + b

    def mul(self, a: Any, b: Any) -> Any:
        return a * b

    def xor(self, a: Any, b: Any) -> Any:
        return a ^ b

    def shift(self, a: Any, count: int) -> Any:
        return (a >> count) & ((1 << (64 - count)) - 1)


@functools.cache
def random_ops() -> Operators:
    """Defines the ops, once per process."""
    table: dict[str, Functions] = {
        "seed(*, Device device) -> Tensor": {"CompositeExplicitAutograd": _seed},
        "uniform(Tensor seed, SymInt[] size, *, ScalarType dtype) -> Tensor": {"CompositeExplicitAutograd": _uniform},
        "set_seed(SymInt seed, *, Device device) -> Tensor": {"CompositeExplicitAutograd": _set_seed},
        "rng_state(*, Device device) -> Tensor": {"CompositeExplicitAutograd": _rng_state},
        "set_rng_state(Tensor state) -> Tensor": {"CompositeExplicitAutograd": _set_rng_state},
        "seeded_state(SymInt seed, *, Device device) -> Tensor": {"CompositeExplicitAutograd": _seeded_state},
        "generator_draw(Tensor state, Tensor[] tensors, SymInt[] sizes, str call) -> (Tensor, Tensor)": {
            "CompositeExplicitAutograd": _generator_draw
        },
        "part_draw(Tensor[] tensors, str call, int start, int end) -> (Tensor, Tensor)": {
            "CompositeExplicitAutograd": _part_draw
        },
    }
    drawn = (torch.Tag.nondeterministic_seeded,)
    return Operators(table, dict.fromkeys(("seed", "set_seed", "rng_state", "set_rng_state", "part_draw"), drawn))


def draws_seed(func: object) -> bool:
    """Whether an operation is `seed()`."""
    schema = getattr(func, "_schema", None)
    return schema is not None and bool(schema.name == "argand::seed")


_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_source: ContextVar[Callable[[torch.device], torch.Tensor] | None] = ContextVar("argand_seeds", default=None)


def _seed(*, device: torch.device) -> torch.Tensor:
    if device.type == "meta":
        return torch.empty((), dtype=torch.int64, device=device)
    source = _source.get()
    return torch.randint(_LEAST, _MOST, (), dtype=torch.int64, device=device) if source is None else source(device)


STATE_OF_THE_CPU = torch.get_rng_state().numel()
"""Bytes of the state of the CPU's generator."""


def of_generators(func: object) -> bool:
    """Whether an operation sets or reads the state of generators."""
    ops = random_ops()
    states = ops.set_seed, ops.rng_state, ops.set_rng_state, ops.seeded_state
    return func in (*states, ops.generator_draw, ops.part_draw)


def _set_seed(seed: int, *, device: torch.device) -> torch.Tensor:
    if device.type != "meta":
        torch.manual_seed(seed)
    return torch.empty((), dtype=torch.uint8, device=device)


def _rng_state(*, device: torch.device) -> torch.Tensor:
    if device.type == "meta":
        return torch.empty((STATE_OF_THE_CPU,), dtype=torch.uint8, device=device)
    return torch.get_rng_state()


def _set_rng_state(state: torch.Tensor) -> torch.Tensor:
    if state.device.type != "meta":
        torch.set_rng_state(state)
    return torch.empty((), dtype=torch.uint8, device=state.device)


def _seeded_state(seed: int, *, device: torch.device) -> torch.Tensor:
    if device.type == "meta":
        return torch.empty((STATE_OF_THE_CPU,), dtype=torch.uint8, device=device)
    return torch.Generator().manual_seed(seed).get_state()


def _generator_draw(
    state: torch.Tensor, tensors: Sequence[torch.Tensor], sizes: Sequence[int], call: str
) -> tuple[torch.Tensor, torch.Tensor]:
    name, args, kwargs = _decoded(json.loads(call), tensors, sizes)
    place = {} if tensors else {"device": state.device}
    if state.device.type != "meta":
        place["generator"] = generator = torch.Generator()
        generator.set_state(state)
    drawn = _drawn(name, args, {**kwargs, **place})
    return drawn, torch.empty_like(state) if state.device.type == "meta" else generator.get_state()


def _drawn(name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    if not name.endswith("_"):
        return getattr(torch, name)(*args, **kwargs)
    blank = torch.empty_strided(args[0].size(), args[0].stride(), dtype=args[0].dtype, device=args[0].device)
    return getattr(blank, name)(*args[1:], **kwargs)  # it fills a tensor that lies in memory as the argument does


def _part_draw(tensors: Sequence[torch.Tensor], call: str, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
    name, args, kwargs = _decoded(json.loads(call), tensors, ())
    device = tensors[0].device
    if device.type == "meta":
        drawn = _drawn(name, args, kwargs)
    else:
        generator = torch.cuda.default_generators[device.index]
        begin = generator.get_offset()
        generator.set_offset(begin + start)
        try:
            drawn = _drawn(name, args, kwargs)
        finally:
            generator.set_offset(begin + end)
    return drawn if isinstance(drawn, tuple) else (drawn, torch.empty(0, dtype=torch.bool, device=device))


def encoded_call(name: str, args: object, kwargs: object, part: Callable[[object], object]) -> str:
    """The text that `generator_draw` takes.

    Arguments:
        part: what stands for an argument that is no number and no list: a dict of one item (`{"tensor": i}`,
            `{"size": i}`, `{"dtype": name}`), or a list of such and numbers.
    """

    def of(value: Any) -> object:
        if type(value) in (list, tuple, torch.Size):
            return [of(item) for item in value]
        if type(value) is dict:
            return {"named": {key: of(item) for key, item in value.items()}}
        return value if value is None or type(value) in (bool, int, float) else part(value)

    return json.dumps([name, of(args), of(kwargs)])


def _decoded(value: Any, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> Any:
    """The other way."""
    if type(value) is list:
        return [_decoded(item, tensors, sizes) for item in value]
    if type(value) is not dict:
        return value
    ((kind, key),) = value.items()
    if kind == "named":
        return {name: _decoded(item, tensors, sizes) for name, item in key.items()}
    return tensors[key] if kind == "tensor" else sizes[key] if kind == "size" else getattr(torch, key)


def seeds_from(source: Callable[[torch.device], torch.Tensor]) -> contextlib.AbstractContextManager[None]:
    """Inside, `seed()` draws nothing: it returns the tensor that `source` gives for the device."""
    return bound(_source, source)


def draw_seed(into: torch.Tensor) -> None:
    """Draw what `seed()` would have drawn."""
    into.random_(_LEAST, _MOST)


def _uniform(seed: torch.Tensor, size: Sequence[int], *, dtype: torch.dtype) -> torch.Tensor:
    if seed.device.type == "meta":
        return torch.empty(list(size), dtype=dtype, device="meta")
    count = 1
    for extent in size:
        count *= extent
    drawn: torch.Tensor = bits(_TensorIntegers(), seed, torch.arange(count, device=seed.device))
    return as_unit(drawn, dtype).reshape(list(size))


def as_unit(drawn: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """53 random bits as a number from 0 up to, not including, 1; float32 takes the top 24 of them."""
    if dtype is torch.float32:
        return (drawn >> 29).to(torch.float32) * 2.0**-24
    return drawn.to(torch.float64) * 2.0**-53
