"""What a node of autograd's tape holds, as far as it may be read: plain values for the key, tensors for the graph."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from argand._core.node_layout import dropout_flag, trains
from argand.engine.checkpoints import Late, Saved, checkpoint_of
from argand.quick_dataclasses import dataclass
from argand.runtime.tape.result_nodes import hands_on, is_own


class NotRecorded(Exception):
    """A backward that the engine itself runs, with the reason."""


PARTLY_READ = frozenset((
    "AsStridedBackward0", "AsStridedBackward0_copy", "AsStridedBackward1", "AsStridedScatterBackward0",
    "BlockDiagBackward0", "NativeDropoutBackward0", "ToDenseBackward0",
))  # fmt: skip
"""Nodes of torch's whose formulas depend on what they do not tell (`tests/engine/test_node_state.py` finds them)."""

_DROPOUT = "NativeDropoutBackward0"  # what it does not tell is read of its memory

DEVICES = ("cpu", "cuda")

_GENERATED = re.compile(r"Backward(Autograd[A-Za-z]+)?\d+(_copy)?$")
"""Names of the nodes that torch generates, which tell what they saved; others (CopySlices) do not. CopyBackwards knows
only what the gradient that it gives must be."""

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_EXACT = frozenset((int, str, bool, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format))
_WRAPPED = {torch.float64: torch.float16, torch.int64: torch.int8}
"""Dtypes that Python's numbers have as tensors -> a dtype that wins against such a number, but not against a tensor."""


@dataclass(frozen=True, slots=True)
class Reader:
    """How nodes of one class are read.

    Arguments:
        values: names of the attributes that are plain.
        tensors: (name, raw name) of saved tensors and lists of them.
        flag: where a node of dropout holds whether it trains; None for others.
    """

    values: tuple[str, ...]
    tensors: tuple[tuple[str, str], ...]
    flag: int | None = None

    def read(self, node: Any, saved: Saved) -> tuple[Any, ...]:
        """The part of the key that a node's values give; its tensors are added to `saved`.

        Raises:
            NotRecorded: something cannot be read without the program noticing.
            RuntimeError: as the engine, for tensors that are freed, or were written to.
        """
        facts = [value_fact(getattr(node, name)) for name in self.values]
        if self.flag is not None:
            facts.append(trains(node, self.flag))
        first = len(saved)
        for name, raw in self.tensors:
            held = getattr(node, raw)
            if held is not None and not isinstance(held, (list, tuple)) and held.unpack_hook is not None:
                if checkpoint_of(held) is not None:
                    facts.append(saved.add_late(Late(held, node, name)))
                    continue
            _check_unhooked(held)
            value = getattr(node, name)
            if isinstance(value, (list, tuple)):
                facts.append(tuple([one is not None for one in value]))
                saved += [one for one in value if one is not None]
            else:
                facts.append(value is not None)
                if value is not None:
                    saved.append(value)
        return (*facts, *tensor_facts([saved[at] for at in range(first, len(saved)) if at not in saved.late]))


def _check_unhooked(raw: Any) -> None:
    """Unpacking what a hook packed is the engine's to do: it may run the program's code, and only once."""
    for one in raw if isinstance(raw, (list, tuple)) else (raw,):
        if one is not None and one.unpack_hook is not None:
            raise NotRecorded("hooks on saved tensors (save_on_cpu) are active in its forward")


def value_fact(value: Any) -> Any:
    """A value that equals another one only where formulas cannot tell them apart.

    Raises:
        NotRecorded: the value is not plain.
    """
    kind = type(value)
    if kind in _EXACT:
        return value if kind is not bool else (bool, value)
    if kind in (float, complex):
        return (kind, repr(value))
    if kind in (tuple, list, torch.Size):
        return tuple([value_fact(one) for one in value])
    raise NotRecorded(f"a node holds a {kind.__name__}")


def tensor_facts(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """What a compiled graph was made for: metadata, which tensors are the same memory, values of Python's numbers."""
    facts: list[Any] = [tensor_fact(tensor) for tensor in tensors]
    if len(tensors) > 1:
        places = [tensor.data_ptr() for tensor in tensors]
        facts.append(tuple([places.index(place) for place in places]))
    return facts


def tensor_fact(tensor: torch.Tensor) -> Any:
    """Metadata of a saved tensor or a gradient.

    Raises:
        NotRecorded: it is of a kind that is not compiled.
    """
    if type(tensor) not in _PLAIN or tensor.layout is not torch.strided:
        raise NotRecorded("a tensor is sparse, or of a subclass")
    device = tensor.device
    if device.type not in DEVICES:
        raise NotRecorded(f"a tensor is on {device.type}")
    dtype = tensor.dtype
    if tensor.is_neg() or tensor._is_zerotensor() or (dtype.is_complex and tensor.is_conj()):
        raise NotRecorded("a tensor is a conjugated or negated view, or zeros without memory")
    shape = tensor.shape
    if device.type != "cpu":  # Python's numbers are on the CPU
        return (shape, tensor.stride(), dtype, device)
    return (shape, tensor.stride(), dtype) if shape else (dtype, number_of(tensor))


def number_of(tensor: torch.Tensor) -> Any:
    """The value of a tensor that stands for a number of Python's, with which formulas are recorded; None for others."""
    if tensor.dim() or tensor.device.type != "cpu":
        return None
    other = _WRAPPED.get(tensor.dtype)
    if other is not None and torch.result_type(_scalar(other), tensor) is not other:
        return None
    if other is None and tensor.dtype not in (torch.bool, torch.complex128):
        return None
    return value_fact(tensor.item())


@functools.cache
def _scalar(dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros((), dtype=dtype, device="cpu")


@functools.cache
def reader_of(kind: type) -> Reader | None:
    """How nodes of a class that torch generates are read; None where the class is another, or does not tell all."""
    name = kind.__name__
    flag = dropout_flag() if name == _DROPOUT else None
    generated = _GENERATED.search(name) is not None and (name not in PARTLY_READ or flag is not None)
    if getattr(torch._C._functions, name, None) is not kind or not (generated or name == "CopyBackwards"):
        return None
    names = [name for name in dir(kind) if name.startswith("_saved_")]
    raw = {name: f"_raw{name}" for name in names if hasattr(kind, f"_raw{name}")}
    return Reader(tuple([name for name in names if name not in raw]), tuple(raw.items()), flag)


# ---------------------------------------------------------------------- argand's own nodes


def moves_of(node: Any) -> Any:
    """What moves around the backward of a compiled graph; None where the node is another."""
    return getattr(node._forward_cls, "compiled_moves", None) if isinstance(node, torch._C._FunctionBase) else None


def read_compiled(node: Any, moves: Any, saved: Saved) -> tuple[Any, ...]:
    """As `Reader.read`, for the node of a compiled graph."""
    if node.left is not None:
        raise NotRecorded("some results of a compiled graph were differentiated before")
    if any(held is not None and held.set_since() for held in (node.handed, node.seen)):
        raise NotRecorded("the data of a compiled graph's result, or of what it wrote to, has been set")
    if node.reads is not None:
        node.reads.check()
    for one in node._raw_saved_tensors:
        _check_unhooked(one)
    kept = node.saved_tensors[:-1]  # the last stands for the call itself
    saved += kept
    return (moves, value_fact(node.numbers), *tensor_facts(kept))


Reading = Callable[[Any, Saved], tuple[Any, ...]]


def reading_of(node: Any) -> Reading | None:
    """How a node that is no leaf is read; None where it cannot be: it runs itself, with its gradients."""
    if isinstance(node, torch._C._FunctionBase):
        moves = moves_of(node)
        if moves is not None:
            return lambda one, saved: read_compiled(one, moves, saved)
        if hands_on(node):
            return lambda one, saved: ()
        return None
    reader = reader_of(node.__class__)
    return None if reader is None else reader.read


COMMUNICATES = "torch.distributed runs code of its own in the backward (FSDP)"


def communicates(code: Any) -> bool:
    """A hook or function of torch.distributed's: it looks at the run of the engine, and talks to the other ranks, in an
    order that must be theirs, whose engine may run what a graph computes here."""
    return str(getattr(code, "__module__", "")).startswith("torch.distributed.")


def check_opaque(node: Any, *, again: bool = False) -> None:
    """Refuse nodes that may not run without gradients after they have run with some.

    Arguments:
        again: it is the node of a compiled graph, and is called as a function of the program's is.

    Raises:
        NotRecorded: it is such a node.
    """
    kind = node.__class__
    if isinstance(node, torch._C._FunctionBase):
        if again and node.left is None:
            return
        if moves_of(node) is not None or is_own(node):
            raise NotRecorded("somebody looks at the gradient of a result of a compiled graph, or results hang apart")
        if communicates(getattr(kind, "_forward_cls", None)):
            raise NotRecorded(COMMUNICATES)
        return
    known = getattr(torch._C._functions, kind.__name__, None) is kind
    if not known or not (_GENERATED.search(kind.__name__) or kind.__name__ in ("CopySlices", "CopyBackwards")):
        raise NotRecorded(f"{node.name()} is not torch's")
    for name in dir(kind):
        if name.startswith("_raw_saved_"):
            _check_unhooked(getattr(node, name))
