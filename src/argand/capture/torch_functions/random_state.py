"""The state of torch's own random number generators, set and read within the graph: seeds take effect in the program's
order, between the operations that draw.
"""

from __future__ import annotations

import torch

from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.sources import AttrSource, ConstSource
from argand.capture.facts.values.symbolic import SYMBOLIC
from argand.capture.torch_functions.torch_calls import all_of, handler, leaf, outside_effects
from argand.graph.operators.random_ops import STATE_OF_THE_CPU, random_ops

_CPU = torch.device("cpu")
_MOST = 1 << 62


@handler(torch.manual_seed)
def _manual_seed(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """The seed of every device."""
    given = [*args, *kwargs.values()]
    seed = given[0] if len(given) == 1 and set(kwargs) <= {"seed"} else None
    if type(seed) is not int and type(seed) not in SYMBOLIC:
        raise outside_effects(fn, "the seed is no plain number")
    if type(seed) is int and not -_MOST < seed < _MOST:
        raise outside_effects(fn, "the seed is very large")
    leaf(state, random_ops().set_seed, (seed,), {"device": _CPU})
    return state.load_source(AttrSource(ConstSource(torch), "default_generator"), torch.default_generator)


@handler(*all_of("get_rng_state random.get_rng_state"))
def _get_state(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    if args or kwargs:
        return leaf(state, fn, args, kwargs)  # raises
    return leaf(state, random_ops().rng_state, (), {"device": _CPU})


@handler(*all_of("set_rng_state random.set_rng_state"))
def _set_state(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    given = [*args, *kwargs.values()]
    tensor = given[0] if len(given) == 1 and set(kwargs) <= {"new_state"} else None
    if tensor is None or type(tensor) is not torch.Tensor:
        raise outside_effects(fn, "the state is no plain tensor")
    info = state.tensors.get(id(tensor))
    with torch._C.DisableTorchFunction():
        fits = tensor.dtype is torch.uint8 and tuple(tensor.shape) == (STATE_OF_THE_CPU,) and tensor.is_contiguous()
    if info is None or info.device != _CPU or not fits:
        raise outside_effects(fn, "the tensor holds no state")
    leaf(state, random_ops().set_rng_state, (tensor,), {})
    return None
