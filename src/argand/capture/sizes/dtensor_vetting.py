"""What operations on DTensors do while their stand-ins are computed: nothing that only running tensors can tell."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from argand import errors
from argand.capture.facts.classify import awaits
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.values.tensor_info import TensorInfo
from argand.graph import compat, dtensors, wrappers
from argand.graph.dtensors import DTensor, MaskBuffer, is_sharded
from argand.graph.operators.collectives import NAMESPACES, STARTS
from argand.graph.trees import mapped

_FIRST_AND_LAST = frozenset(("argmax", "argmin", "max", "min"))
_CONVOLUTIONS = frozenset(("convolution", "convolution_backward"))


def refused(what: str, why: str, remedy: str = "Use the local tensor") -> errors.GraphBreak:
    """The break for what is not done with DTensors, or others that are made of parts, in a graph."""
    return errors.graph_break(
        kind="part of torch that is not captured",
        context=what,
        explanation=f"{what}: {why}.",
        hints=(f"{remedy}, or call it outside the compiled function.",),
    )


class Vetting(compat.DispatchMode):
    """Refuses operations that do more than what their stand-ins tell: draw numbers, look at data, send anything."""

    def __init__(self, name: str, laid_out: bool = True, inside: bool = True) -> None:
        super().__init__()
        self.name, self.laid_out, self.inside = name, laid_out, inside
        self.draws = False

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, types: Iterable[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        if dtensors.fakes():
            return func(*args, **(kwargs or {}))
        if any(is_sharded(cls) or awaits(cls) for cls in types):
            self._vet(func, args, kwargs or {})
            return NotImplemented
        if compat.is_random(func) and not self.draws:
            raise refused(self.name, "it draws random numbers where a class decides what is drawn")
        if any(cls in wrappers.KNOWN for cls in types):
            return NotImplemented
        if compat.communicates(func) and not _is_functional(func):
            raise refused(self.name, f"it calls {func}")
        if _wraps(func):
            return args[0]
        return func(*args, **(kwargs or {}))

    def _vet(self, func: torch._ops.OpOverload, args: Args, kwargs: Kwargs) -> None:
        sharded = [value for value in args if is_sharded(type(value))]
        if compat.is_random(func):
            together = not self.inside and kwargs.get("generator") is None and dtensors.draws_together(func, sharded[0])
            if not together and not all(dtensors.draws_alone(tensor) for tensor in sharded):
                raise refused(self.name, "what processes with GPUs draw together is known only when the program runs")
            self.draws = True
        own = func in dtensors.own_rules_of_dtensor()
        if own and not (self.laid_out and _is_local(func, sharded, args, kwargs)):
            raise refused(self.name, f"{func} has a rule of its own, which may communicate")


def _is_local(func: torch._ops.OpOverload, sharded: list[DTensor], args: Args, kwargs: Kwargs) -> bool:
    """Whether the rule that an operator has of its own sends nothing, or what functional collectives send."""
    name = func._schema.name.partition("::")[2]
    first, dim = sharded[0], args[1] if len(args) > 1 else kwargs.get("dim")
    if name in _FIRST_AND_LAST:
        cut = [place for place in first.placements if not place.is_replicate()]
        return not cut or (type(dim) is int and not any(place.is_shard(dim % max(first.dim(), 1)) for place in cut))
    if name in _CONVOLUTIONS:
        whole = all(place.is_replicate() for each in sharded[1:] for place in each.placements)
        return whole and all(place.is_replicate() or place.is_shard(0) for place in first.placements)
    return dtensors.is_rule_of_losses(func)


def _is_functional(func: torch._ops.OpOverload) -> bool:
    namespace, _, name = func._schema.name.partition("::")
    return namespace in NAMESPACES and (name in STARTS or name in ("wait_tensor", "_wrap_tensor_autograd"))


def _wraps(func: torch._ops.OpOverload) -> bool:
    return bool(func._schema.name == "_c10d_functional::_wrap_tensor_autograd")


# ---------------------------------------------------------------------- autocast


def types_on_fakes(func: Function, args: Args, kwargs: Kwargs, infos: list[TensorInfo]) -> list[object]:
    """`types_of` what a call gives, as torch's fake tensors tell, on the devices of the tensors that it is given."""
    devices = {id(info.tensor): info.device for info in infos}

    def faked(value: DTensor) -> DTensor:
        if not isinstance(value, torch.Tensor):
            return value
        local: torch.Tensor = getattr(value, "_local_tensor", value)
        fake = torch.empty_strided(local.shape, local.stride(), dtype=local.dtype, device=devices[id(value)])
        return dtensors.with_spec(fake, value._spec, False) if is_sharded(type(value)) else fake

    try:
        with torch._C.DisableTorchFunction(), torch.no_grad(), dtensors.tracing_draws(), FakeTensorMode():
            result = func(*mapped(args, faked), **mapped(kwargs, faked))
    except BaseException:
        dtensors.forget_masks(lambda mask: isinstance(mask, FakeTensor))
        raise
    mapped(result, _without_masks)
    return types_of(result)


def mask_buffers(value: DTensor) -> list[MaskBuffer]:
    """Where placements of a DTensor keep which rows other processes have; one object serves many DTensors."""
    places = value._spec.placements if is_sharded(type(value)) else ()
    return [place.mask_buffer for place in places if hasattr(place, "mask_buffer")]


def _without_masks(value: object) -> None:
    for buffer in mask_buffers(value):
        buffer.data, buffer.refcount = None, 0


def types_of(result: object) -> list[object]:
    """Type, size and layout of each result."""
    told: list[object] = []

    def tell(value: DTensor) -> None:
        if isinstance(value, torch.Tensor):
            told.append((value.dtype, value.shape, getattr(value, "placements", None)))

    mapped(result, tell)
    return told
