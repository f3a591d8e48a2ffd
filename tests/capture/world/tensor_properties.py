"""Every attribute and method without arguments of a tensor, on inputs that differ in one property: compiled against eager.

    python -m tests.capture.world.tensor_properties            # all of them (minutes)
    python -m tests.capture.world.tensor_properties --only is_ # names that contain the text

A program that reads one thing is called with a plain tensor, with one that differs, and with the plain one again.
"""

from __future__ import annotations

import argparse
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tests.capture import table

import argand


def _leaf(**kwargs: Any) -> torch.Tensor:
    return torch.tensor([[4.0, -2.0], [3.0, 0.5]], **kwargs)


def _with_grad() -> torch.Tensor:
    x = _leaf(requires_grad=True)
    x.grad = torch.ones(2, 2)
    return x


def _with_hook() -> torch.Tensor:
    x = _leaf(requires_grad=True)
    x.register_hook(lambda g: g * 2)
    return x


def _retaining() -> torch.Tensor:
    x = _leaf(requires_grad=True) * 1
    x.retain_grad()
    return x


def _named() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _leaf().refine_names("N", "C")


def _inference() -> torch.Tensor:
    with torch.inference_mode():
        return _leaf()


def _with_attribute() -> torch.Tensor:
    x = _leaf()
    x.tag = 3.0  # type: ignore[attr-defined]
    return x


def _written() -> torch.Tensor:
    x = _leaf()
    x.mul_(1.0)
    return x


class Sub(torch.Tensor):
    """A subclass that adds nothing."""


VARIANTS: dict[str, Callable[[], torch.Tensor]] = {
    "float64": lambda: _leaf(dtype=torch.float64),
    "int": lambda: _leaf().to(torch.int64),
    "bool": lambda: _leaf() > 1,
    "half": lambda: _leaf(dtype=torch.float16),
    "complex": lambda: _leaf(dtype=torch.complex64),
    "conjugate": lambda: _leaf(dtype=torch.complex64).conj(),
    "negative": lambda: torch.complex(_leaf(), _leaf()).conj().imag,
    "shape": lambda: torch.ones(3, 2),
    "one dimension": lambda: torch.ones(4),
    "no dimension": lambda: torch.tensor(2.0),
    "empty": lambda: torch.ones(0, 2),
    "transposed": lambda: _leaf().t(),
    "offset": lambda: torch.arange(8.0)[4:].view(2, 2),
    "channels": lambda: torch.ones(2, 2, 2, 2).to(memory_format=torch.channels_last),
    "requires grad": lambda: _leaf(requires_grad=True),
    "grad": _with_grad,
    "not a leaf": lambda: _leaf(requires_grad=True) * 1,
    "another node": lambda: _leaf(requires_grad=True) + 0,
    "hook": _with_hook,
    "retains grad": _retaining,
    "inference": _inference,
    "attribute": _with_attribute,
    "written": _written,
    "parameter": lambda: torch.nn.Parameter(_leaf()),
    "frozen parameter": lambda: torch.nn.Parameter(_leaf(), requires_grad=False),
    "buffer": lambda: torch.nn.Buffer(_leaf()),
    "subclass": lambda: _leaf().as_subclass(Sub),
    "shared": lambda: _leaf().share_memory_(),
    "other values": lambda: torch.tensor([[1.0, 0.0], [7.0, 9.0]]),
    "other memory": _leaf,
    "sparse": lambda: _leaf().to_sparse(),
    "meta": lambda: torch.ones(2, 2, device="meta"),
}
if hasattr(torch.Tensor, "refine_names"):  # until torch 2.12
    VARIANTS["named"] = _named
"""What an input may be, beside a plain leaf of float32."""

_UNREPEATABLE = frozenset(
    "__dict__ __dir__ __reduce__ __reduce_ex__ __sizeof__ __repr__ __str__ __hash__ __deepcopy__ __iter__ __init__ cuda xpu ipu hpu mtia "
    "bernoulli to_mkldnn share_memory_ backward pin_memory storage _typed_storage untyped_storage __del__ __weakref__ "
    "__delattr__ _make_subclass module_load __init_subclass__ __new__ __class_getitem__ __subclasshook__ __getstate__ "
    "__dlpack__ __dlpack_device__ volatile detach_".split()
)
"""Answers that differ from one call to the next in eager too, or change the tensor."""
_EXTRA = (
    "isinstance(x, torch.FloatTensor)", "isinstance(x, torch.DoubleTensor)", "isinstance(x, torch.BoolTensor)",
    "isinstance(x, torch.LongTensor)", "isinstance(x, torch.HalfTensor)", "isinstance(x, torch.cuda.FloatTensor)",
    "isinstance(x, torch.sparse.FloatTensor)", "isinstance(x, (torch.IntTensor, torch.FloatTensor))", "x.type()",
    "x.type() == 'torch.FloatTensor'", "isinstance(x, torch.nn.Parameter)", "isinstance(x, torch.nn.Buffer)", "type(x) is torch.Tensor",
    "type(x).__name__", "torch.is_floating_point(x)", "torch.is_complex(x)", "torch.is_conj(x)", "torch.is_neg(x)",
    "torch.is_inference(x)", "torch.is_tensor(x)", "torch.is_nonzero(x.sum())", "torch.numel(x)", "getattr(x, 'tag', 1.0)", "hasattr(x, 'tag')",
    "vars(x).get('tag', 2)", "x.grad is None", "x.grad_fn is None", "x.grad_fn.name() if x.grad_fn is not None else 0", "x.is_contiguous(memory_format=torch.channels_last)",
    "len(x)", "x.untyped_storage().nbytes()", "x.untyped_storage().size()", "x.storage_offset()", "x.data_ptr() % 2", "x.data_ptr() == x.detach().data_ptr()",
    "x.get_device()", "x.is_shared()", "x.is_pinned()", "x._backward_hooks is None", "x._version", "x._is_view()", "x._base is None", "x.dim_order()",
    "torch._C._functions is None", "x.stride(0) if x.dim() else 0", "x.size(-1) if x.dim() else 0", "x.dtype.is_floating_point", "x.dtype.itemsize", "str(x.dtype)",
    "str(x.device)", "x.device.type", "x.is_set_to(x)", "torch.can_cast(x.dtype, torch.int32)", "torch.result_type(x, 1.0)", "x.layout is torch.strided",
    "torch.overrides.has_torch_function((x,))", "torch.overrides.is_tensor_like(x)", "x.names", "x.has_names()", "x.requires_grad", "x.retains_grad", "x.is_leaf",
    "x.nbytes", "x.itemsize", "x.element_size()", "hash(x) == hash(x)", "id(x) == id(x)", "x.__class__ is torch.Tensor", "bool((x == x).all()) if x.dtype else 0",
)  # fmt: skip


def reads() -> list[str]:
    """Expressions of `x`."""
    found = list(_EXTRA)
    for name in dir(torch.Tensor):
        if (
            name in _UNREPEATABLE
            or (name.endswith("_") and not name.endswith("__"))
            or name.startswith(("cauchy", "random"))
        ):
            continue
        value = getattr(torch.Tensor, name)
        found.append(f"x.{name}()" if callable(value) and not isinstance(value, type) else f"x.{name}")
    return found


def shown(value: Any) -> Any:
    """What can be compared of a result."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.device.type == "meta" or value.is_quantized:
            return (type(value), value.dtype, tuple(value.shape), value.layout)
        flags = (
            value.requires_grad,
            value.is_leaf,
            value.is_conj(),
            value.is_neg(),
            value.is_inference(),
            getattr(value, "names", None),
        )
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            held = value.detach().as_subclass(torch.Tensor)
            held = (held.rename(None) if hasattr(held, "rename") else held).tolist()
        return (type(value), value.dtype, tuple(value.shape), value.stride() if value.numel() else 0, flags, repr(held))
    if isinstance(value, tuple | list):
        return (type(value).__name__, [shown(item) for item in value])
    if isinstance(value, dict):
        return (type(value), {key: shown(item) for key, item in value.items()})
    if value is None or isinstance(
        value, bool | int | float | complex | str | torch.dtype | torch.device | torch.Size | type
    ):
        return (type(value), repr(value))
    return type(value)


def answer(call: Callable[..., Any], x: torch.Tensor) -> Any:
    try:
        return shown(call(x))
    except Exception as e:
        return type(e)


def program_of(read: str) -> Callable[..., Any]:
    space: dict[str, Any] = {"torch": torch, "__name__": "tensor_properties"}
    exec(f"def program(x):\n    y = torch.ones(2) + 1\n    return y, {read}", space)
    program = space["program"]
    assert isinstance(program, types.FunctionType)
    return program


def differs(read: str, variant: str, backend: str = "eager") -> str | None:
    """Runs one pair: None, or what was different."""
    argand.reset()
    compiled = argand.compile(program := program_of(read), backend=backend)
    plain = _leaf()
    other = VARIANTS[variant]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step, x in (("plain", plain), (variant, other), ("plain again", plain)):
            want = answer(program, x)
            got = answer(compiled, x)
            if want != got:
                return f"{read} | {variant} | {step}: {got} is not {want}"
    return None


def combinations(only: str = "") -> Iterator[tuple[str, str]]:
    for read in reads():
        if only in read:
            for variant in VARIANTS:
                yield read, variant


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--variant", default="")
    parser.add_argument("--share", type=int, default=1)
    parser.add_argument("--backend", default="eager")
    options = parser.parse_args()
    table.run(
        combinations(options.only),
        lambda read, variant: options.variant in variant,
        lambda *combination: differs(*combination, options.backend),
        options.share,
    )


if __name__ == "__main__":
    main()
