"""Functions of torch.distributed.tensor: how DTensors are made, laid out anew and taken apart is recorded.

Meshes and placements are constants of the graph. What a DTensor says of itself is what its stand-in says.
"""

from __future__ import annotations

import contextlib
import sys

import torch

from argand.capture.facts.classify import is_constant
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.kinds import is_a
from argand.capture.facts.sources import ConstSource
from argand.capture.facts.values.symbolic import SYMBOLIC, SymbolicSize
from argand.capture.sizes import dtensors
from argand.capture.sizes.dtensor_vetting import refused
from argand.capture.torch_functions.torch_calls import CODES, Handler, enter_late
from argand.graph.dtensors import Asked, is_sharded

_LITERALS = (type(None), bool, int, float, str, torch.dtype, torch.Size)


def _constant(state: CaptureState, name: str, value: object) -> object:
    """A value of the program's that a graph can hold."""
    if type(value) is SymbolicSize or type(value) in SYMBOLIC:
        dtensors.with_constants(state.graph, name)
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        return type(value)([_constant(state, name, item) for item in value])
    if type(value) in _LITERALS:
        return value
    module = sys.modules["torch.distributed.tensor"]
    if is_a(value, module.DeviceMesh):
        dtensors.pin_mesh(state, value)
        return value
    if is_a(value, module.placement_types.Placement) and is_constant(value):
        return value
    raise refused(name, f"a {type(value).__name__} is none of its usual arguments")


def _operation(name: str, dtensor: bool) -> Handler:
    """A function whose first argument is a tensor, and the others constants."""

    def record(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
        tensor = args[0] if args else None
        if not state.interpreter.is_tensor(tensor) or is_sharded(type(tensor)) is not dtensor:
            return NotImplemented
        rest = tuple(_constant(state, name, state.deep_resolve(value)) for value in args[1:])
        named = {key: _constant(state, name, state.deep_resolve(value)) for key, value in kwargs.items()}
        if name == "from_local" and (named.get("run_check") or (len(rest) > 2 and rest[2])):
            raise refused(name, "run_check=True talks to the other processes")
        state.graph.state.interpreter.note_class(sys.modules["torch.distributed.tensor"].DTensor)
        operation = Asked(fn, name, rest, named)
        with torch._C.DisableTorchFunction():
            return dtensors.record(state.graph, operation, operation, (tensor,), {})

    return record


def _answer(name: str) -> Handler:
    """What a DTensor says of how it is laid out."""

    def read(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
        (tensor,) = args
        if not is_sharded(type(tensor)):
            return NotImplemented
        if name == "placements" and not state.tensor_info(tensor).laid_out:
            raise dtensors.unknown_layout(name)
        answer = getattr(tensor._spec, name)
        return state.load_source(ConstSource(answer), answer)

    return read


def _placement(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """A placement that captured code makes."""
    if not all(type(value) in (int, str) for value in (*args, *kwargs.values())):
        return NotImplemented
    return state.interpreter.unread(fn, *args, **kwargs)


def _of_placement(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """What a placement says of itself, which never changes."""
    plain = all(type(value) in (int, str, type(None)) for value in (*args[1:], *kwargs.values()))
    return fn(*args, **kwargs) if args and plain and is_constant(args[0]) else NotImplemented


def _of_mesh(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """What a mesh says of itself, which never changes, or of this process's place in it; some of its dimensions."""
    mesh = args[0] if args else None
    if not is_a(mesh, sys.modules["torch.distributed.device_mesh"].DeviceMesh):
        return NotImplemented
    rest = [*args[1:], *kwargs.values()]
    if not all(value is None or type(value) in (int, str, type(mesh)) or _are_names(value) for value in rest):
        return NotImplemented
    for each in (mesh, *rest):
        if type(each) is type(mesh):
            dtensors.pin_mesh(state, each)
    if fn.__name__ == "__getitem__":
        state.interpreter.pin(mesh)  # equal ones need not have had the same dimensions flattened
    with torch._C.DisableTorchFunction():  # a mesh computes with tensors
        answer = fn(*args, **kwargs)
        if type(answer) is torch.Tensor:
            return state.graph.constant(answer)
    if answer is None or type(answer) in (int, bool, str, tuple, list):
        return answer
    return state.load_source(ConstSource(answer), answer)


def _are_names(value: object) -> bool:
    return type(value) is tuple and all(type(item) is str for item in value)


_QUESTIONS = (
    "ndim shape size mesh device_type mesh_dim_names get_rank get_local_rank get_coordinate get_group __getitem__ "
    "__eq__"
)

enter_late({
    "_C._distributed.is_shard _C._distributed.is_replicate _C._distributed.is_partial": _of_placement,
    " ".join(f"distributed.device_mesh.{name}" for name in _QUESTIONS.split()): _of_mesh,
    "distributed.tensor._api.from_local": _operation("from_local", dtensor=False),
    "distributed.tensor._api.to_local": _operation("to_local", dtensor=True),
    "distributed.tensor._api.redistribute": _operation("redistribute", dtensor=True),
    "distributed.tensor._api.full_tensor": _operation("full_tensor", dtensor=True),
    "distributed.tensor._api.placements": _answer("placements"),
    "distributed.tensor._api.device_mesh": _answer("mesh"),
    "distributed.tensor.placement_types.Shard distributed.tensor.placement_types.Replicate "
    "distributed.tensor.placement_types.Partial": _placement,
})  # fmt: skip


def _context(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """A generator of DTensor's that sets a flag, as a context manager."""
    manager = contextlib._GeneratorContextManager
    return state.interpreter.call(manager, (vars(fn)["__wrapped__"], args, kwargs))


enter_late({"distributed.tensor.experimental.implicit_replication": _context})


def _interpreted(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """The hooks that `distribute_module` puts up, which call those of the program, or of parallel layers; functions of
    local tensors."""
    return NotImplemented


for _name in (
    "_api.py:distribute_module.<locals>.<lambda>",
    "_func_map.py:local_map",
    "__init__.py:implicit_replication",
    "_dispatch.py:OpDispatcher._allow_implicit_replication",
):
    CODES[_name] = _interpreted
