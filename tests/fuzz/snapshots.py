"""What can be seen of a value, as plain data that is compared: types, contents, sharing, tensors' values and flags."""

from __future__ import annotations

import collections
import re
import types
from typing import Any

import numpy
import torch

_ADDRESS = re.compile(r"0x[0-9a-f]+|<world \d+>|object at \w+", re.IGNORECASE)
_DEPTH = 7


def text_of(text: str) -> str:
    """A text without addresses and names of files."""
    return _ADDRESS.sub("@", text)


def snapshot(value: Any, seen: dict[int, int] | None = None, depth: int = 0) -> Any:
    """A value as nested tuples; what is not known is its class's name and its text."""
    seen = {} if seen is None else seen
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        if type(value) is str:
            return ("str", text_of(value))
        if isinstance(value, int) and 2**36 < abs(value) < 2**48:
            return ("int", "like an address")  # the hash of an object that has none of its own
        base = next(c for c in (bool, int, float, complex, str, bytes, type(None)) if isinstance(value, c))
        return (type(value).__name__, base.__repr__(value), _own(value, seen, depth))
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
        return (type(value).__name__, getattr(value, "__qualname__", ""))
    if id(value) in seen:
        return ("seen", seen[id(value)])
    number = seen.setdefault(id(value), len(seen))
    seen[-len(seen)] = value  # alive as long as its number counts
    if depth > _DEPTH:
        return ("deep", type(value).__name__)
    if isinstance(value, torch.Tensor):
        return _tensor(value, number, seen, depth)
    if isinstance(value, numpy.ndarray):
        return (
            "array",
            number,
            str(value.dtype),
            value.shape,
            value.strides,
            text_of(repr(numpy.ndarray.tolist(value))),
            _own(value, seen, depth),
        )
    return _structure(value, seen, depth)


def _structure(value: Any, seen: dict[int, int], depth: int) -> Any:
    kind = type(value).__name__
    if isinstance(value, types.ModuleType):
        return ("module", value.__name__)
    for base in (list, tuple, collections.deque, set, frozenset, dict):
        if isinstance(value, base):
            if base is dict:
                inside: Any = [
                    (snapshot(k, seen, depth + 1), snapshot(v, seen, depth + 1)) for k, v in dict.items(value)
                ]
            else:
                inside = [snapshot(v, seen, depth + 1) for v in base.__iter__(value)]
            if base in (set, frozenset):
                inside.sort(key=repr)
            return (kind, inside, _own(value, seen, depth))
    if isinstance(value, BaseException):
        return (kind, snapshot(value.args, seen, depth + 1), _own(value, seen, depth))
    if type(value).__module__ == "fuzz_world" or isinstance(value, types.SimpleNamespace):
        return (kind, _own(value, seen, depth))
    try:
        return (kind, text_of(repr(value)))
    except Exception as error:
        return (kind, "repr raises", type(error).__name__)


def _own(value: Any, seen: dict[int, int], depth: int) -> Any:
    """Attributes of the object itself."""
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return ()
    if not own or not isinstance(own, dict) or depth > _DEPTH:
        return ()
    return [(str(name), snapshot(v, seen, depth + 1)) for name, v in own.items()]


def _tensor(value: torch.Tensor, number: int, seen: dict[int, int], depth: int) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        strides = value.stride() if value.layout == torch.strided else ()
        flags = (value.dtype, tuple(value.shape), strides, value.requires_grad, str(value.layout), value.is_inference())
        flags += (value.is_conj(), value.is_neg(), value.device.type, value.is_leaf)
        grad = snapshot(value.grad, seen, depth + 1) if value.is_leaf else None
        data = None if value.is_meta else value.detach().resolve_conj().resolve_neg().to_dense().clone()
    return ("tensor", type(value).__name__, number, flags, data, grad, _own(value, seen, depth))


def differing(a: Any, b: Any, path: str = "", tolerance: float = 1e-4) -> str | None:
    """None when two snapshots are equal, else the first place where they are not."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        equal = a.shape == b.shape and a.dtype == b.dtype
        if equal and (a.is_floating_point() or a.is_complex()):
            equal = torch.allclose(a, b, rtol=tolerance, atol=1e-5, equal_nan=True)
        elif equal:
            equal = torch.equal(a, b)
        return None if equal else f"{path}: eager {a.tolist()}, compiled {b.tolist()}"
    if isinstance(a, (list, tuple)) and type(a) is type(b) and len(a) == len(b):
        found = (differing(p, q, f"{path}.{i}", tolerance) for i, (p, q) in enumerate(zip(a, b)))
        return next((text for text in found if text is not None), None)
    return None if a == b else f"{path}: eager {a!r:.300}, compiled {b!r:.300}"
