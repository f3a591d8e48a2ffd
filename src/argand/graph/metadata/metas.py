"""Result metadata of ATen ops: torch's meta kernels, corrected where eager's CPU kernels lay results out otherwise."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from argand.errors import AutogradError
from argand.graph import compat
from argand.graph.metadata import layouts
from argand.graph.metadata.plain_results import plain_results
from argand.graph.metadata.specs import Spec, SpecTable
from argand.graph.metadata.strides import broadcast_shape, contiguous_strides
from argand.graph.operators.aten_names import of_aten
from argand.graph.plain_checks import with_plain_checks
from argand.graph.trees import leaves
from argand.interruptions import let_pass

aten = torch.ops.aten

_META = torch.device("meta")
_CPU = torch.device("cpu")
PROBE_LIMIT = 1 << 24
"""Elements above which an op is not tried out on real zeros: its layout may then not be known."""


class Many:
    """The results of an op with several: `items` holds a Spec per tensor, other things as they are."""

    __slots__ = ("device", "items", "kind", "metas")

    def __init__(self, kind: type, items: tuple[Any, ...], device: torch.device) -> None:
        self.kind = kind
        self.items = items
        self.device = device
        self.metas = kind(item.meta if item.__class__ is Spec else item for item in items)


def infer(table: SpecTable, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `func` makes: a Spec, `Many` for several results, or a plain value when no tensor comes out.

    Arguments:
        table: interns the result.
        args, kwargs: the call's, with a Spec in place of each tensor.

    Raises what the op itself raises on wrong arguments, and AutogradError when the result depends on data.
    """
    specs = _specs_in((args, tuple(kwargs.values())))
    device = logical_device(func, specs, kwargs)
    if _depends_on_data(func, specs, kwargs):
        raise AutogradError(
            f"the result of {func} depends on the values of its arguments, not only on their shapes",
            remedy="code around it can still be compiled: leave this operator out of the compiled function",
        )
    if kwargs.get("generator") is not None:
        raise AutogradError(f"{func} takes an explicit random generator")
    result = _elementwise(func, args, kwargs, specs)
    if result is None and device.type == "cpu":
        result = plain_results(func, args, kwargs)
    return _wrap(table, _make(func, args, kwargs, specs, device) if result is None else result, device)


def _elementwise(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], specs: list[Spec]) -> torch.Tensor | None:
    """The result of a pointwise op without its meta kernel, or None where that one must answer.

    Those kernels are Python that imports sympy when first used (0.3 s) and takes longer than all else here. The shape
    is the arguments' broadcast one; which dtype comes out is seen by running the op on one element of each argument.
    """
    if not specs or not layouts.is_elementwise(func) or func._schema.is_mutable:
        return None
    if compat.has_tag(func, "nondeterministic_seeded") or any(s.meta.is_conj() or s.meta.is_neg() for s in specs):
        return None
    shape = broadcast_shape([spec.size for spec in specs])
    if shape is None:
        return None
    settings = torch.get_default_dtype(), torch._C._is_any_autocast_enabled()
    try:
        dtype = _dtype_on_one(func, _kinds(args), tuple(kwargs), _kinds(tuple(kwargs.values())), settings)
    except TypeError:  # an argument that cannot be hashed
        return None
    if dtype is torch.Tensor:
        return None
    plain = torch.empty(shape, dtype=dtype, device=_META)
    result: torch.Tensor = layouts.elementwise(
        plain, func, _to_meta(args), {name: _to_meta(v) for name, v in kwargs.items()}
    )
    return result


def _kinds(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """What of the arguments decides the dtype of a pointwise result."""
    return tuple(map(_kind, values))


def _kind(value: Any) -> Any:
    if value.__class__ is Spec:
        return value.dtype, value.size == ()
    if isinstance(value, (int, float, complex)) and not isinstance(value, bool):
        return type(value)
    return type(value), value


@functools.lru_cache(maxsize=1 << 12)
def _dtype_on_one(func: Any, args: tuple[Any, ...], names: tuple[str, ...], values: tuple[Any, ...], _: object) -> Any:
    """The dtype that the op gives one element of each argument; `torch.Tensor` where that shows nothing.

    Arguments:
        args, names, values: kinds of the arguments, and of those given by name.
        _: what else of the thread's settings decides.
    """

    def one(kind: Any) -> Any:
        if kind.__class__ is type:
            return kind(1)
        kept, value = kind
        if kept.__class__ is torch.dtype:
            return torch.ones(() if value else (1,), dtype=kept, device=_CPU)
        return _CPU if isinstance(value, torch.device) else value

    try:
        one_result = func(*map(one, args), **dict(zip(names, map(one, values))))
    except Exception as error:  # what eager raises, or the meta kernel knows a dtype that no kernel of the CPU does
        let_pass(error)
        return torch.Tensor
    return one_result.dtype if isinstance(one_result, torch.Tensor) and one_result.numel() == 1 else torch.Tensor


def _make(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], specs: list[Spec], device: torch.device) -> Any:
    """The op's results as meta tensors, laid out as eager's on the logical device."""
    on_cpu = device.type == "cpu"
    if on_cpu and _needs_probe(func, args, specs):
        return _probe(func, args, kwargs, None)
    result = _run_on_meta(func, args, kwargs, not specs)
    if layouts.is_elementwise(func) and specs:
        return layouts.elementwise(result, func, _to_meta(args), {name: _to_meta(v) for name, v in kwargs.items()})
    fix = (layouts.RULES if on_cpu else layouts.DEVICE_RULES).get(func)
    if fix is not None:
        return fix(result, *_to_meta(args), **{name: _to_meta(value) for name, value in kwargs.items()})
    return result


_INDEXING = (aten.index.Tensor, aten._unsafe_index.Tensor)


def _needs_probe(func: Any, args: tuple[Any, ...], specs: list[Spec]) -> bool:
    if func is aten.convolution.default:
        unclear = layouts.convolution_is_unclear(args[0].meta, args[1].meta, bool(args[6]), args[8])
    elif func is aten.convolution_backward.default:
        unclear = specs[1].meta.dim() != 4 and any(spec.stride != contiguous_strides(spec.size) for spec in specs[:3])
    elif func in _INDEXING:  # the layout of no elements
        unclear = not specs[0].meta.numel() and specs[0].stride != contiguous_strides(specs[0].size)
    elif func in layouts.PROBED:
        unclear = func in layouts.ALWAYS_PROBED or any(spec.stride != contiguous_strides(spec.size) for spec in specs)
    else:
        return False
    return unclear and sum(spec.meta.numel() for spec in specs) <= PROBE_LIMIT


def _depends_on_data(func: Any, specs: list[Spec], kwargs: dict[str, Any]) -> bool:
    if func in _INDEXING:
        return any(spec.dtype in (torch.bool, torch.uint8) for spec in specs[1:])
    if kwargs.get("output_size") is not None:  # of repeat_interleave
        return False
    return compat.has_tag(func, "dynamic_output_shape") or compat.has_tag(func, "data_dependent_output")


def _wrap(table: SpecTable, result: Any, device: torch.device) -> Any:
    if isinstance(result, torch.Tensor):
        _check_layout(result)
        return table.of_meta(result, device)
    if isinstance(result, (tuple, list)) and any(isinstance(item, torch.Tensor) for item in result):
        for item in result:
            _check_layout(item)
        items = tuple(table.of_meta(i, device) if isinstance(i, torch.Tensor) else i for i in result)
        return Many(list if isinstance(result, list) else tuple, items, device)
    if isinstance(result, list) and not result:
        return Many(list, (), device)
    return result


def _check_layout(result: Any) -> None:
    if isinstance(result, torch.Tensor) and result.layout is not torch.strided:
        raise AutogradError(f"a tensor of layout {result.layout}", remedy="the graph that makes it runs eagerly")


def _run_on_meta(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], factory: bool) -> Any:
    meta_args = _to_meta(args)
    meta_kwargs = {name: _to_meta(value) for name, value in kwargs.items()}
    if "device" in meta_kwargs or (factory and any(argument.name == "device" for argument in func._schema.arguments)):
        meta_kwargs["device"] = _META
    meta_kwargs.pop("pin_memory", None)
    try:
        return with_plain_checks(func, meta_args, meta_kwargs)
    except NotImplementedError as error:
        return _probe(func, args, kwargs, error)


def _probe(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception | None) -> Any:
    """Metadata of an op without a (right) meta kernel: run it once on zeros."""
    specs = _specs_in((args, tuple(kwargs.values())))
    cheap = sum(spec.meta.numel() for spec in specs) <= PROBE_LIMIT
    if func.namespace != "aten" or not specs or not cheap:
        raise AutogradError(f"{func} has no meta kernel, so that its result's shape is not known") from error
    try:
        return func(*_to_zeros(args), **{name: _to_zeros(value) for name, value in kwargs.items()})
    except Exception as probe_error:
        raise AutogradError(f"{func} has no meta kernel, and cannot be tried out on zeros") from probe_error


def _specs_in(tree: Any) -> list[Spec]:
    return [leaf for leaf in leaves(tree) if leaf.__class__ is Spec]


def _to_meta(tree: Any) -> Any:
    if tree.__class__ is Spec:
        return tree.meta
    if isinstance(tree, (tuple, list)):
        return [_to_meta(item) for item in tree] if isinstance(tree, list) else tuple(_to_meta(item) for item in tree)
    return tree


def _to_zeros(tree: Any) -> Any:
    if tree.__class__ is Spec:
        return torch.empty_strided(tree.size, tree.stride, dtype=tree.dtype, device=_CPU).zero_()
    if isinstance(tree, (tuple, list)):
        return [_to_zeros(item) for item in tree]
    return _CPU if isinstance(tree, torch.device) else tree


# ---------------------------------------------------------------------- devices

_MIXED = frozenset(of_aten(
    "_to_copy copy index.Tensor _unsafe_index.Tensor index_put _unsafe_index_put _index_put_impl is_same_size "
    "repeat_interleave.self_Tensor"
))  # fmt: skip


def logical_device(
    func: Any, specs: Sequence[Any], kwargs: dict[str, Any], mixed: Callable[[Any, Any], torch.device] | None = None
) -> torch.device:
    """Where `func`'s result lives, whose tensors are what `specs` says (each has a `device`).

    Arguments:
        mixed: says it where they are on different devices; by default this raises as eager would.
    """
    explicit = kwargs.get("device")
    if explicit is not None:
        return indexed(explicit)
    if not specs:
        return _CPU
    first: torch.device = specs[0].device
    for spec in specs:
        if spec.device is not first and spec.device != first:
            return (mixed or _mixed_device)(func, specs)
    return first


def indexed(device: torch.device | str) -> torch.device:
    """A torch.device with its index filled in."""
    place = torch.device(device)
    if place.type == "cuda" and place.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return place


def _mixed_device(func: Any, specs: Sequence[Any]) -> torch.device:
    if func in _MIXED:
        return specs[0].device
    # A 0-d CPU tensor counts as a number beside tensors of another device.
    large = {spec.device for spec in specs if spec.size or spec.device.type != "cpu"}
    if len(large) == 1:
        return large.pop()
    names = ", ".join(sorted({str(spec.device) for spec in specs}))
    raise RuntimeError(f"{func} got tensors on different devices: {names}")
