"""Tensors that wrap others (`graph.wrappers`): their stand-ins wrap stand-ins of the parts, so that what operations on
them give is the class's own answer. The parts are inputs and results of the graph like any tensor."""

from __future__ import annotations

import enum
import functools
import inspect
import os
import types
from collections.abc import Callable

import torch
from torch import fx

from argand._core import _C
from argand.capture.facts.classify import is_plain_tensor
from argand.capture.facts.handlers import Args, Kwargs
from argand.capture.facts.interfaces import CaptureState, GraphBuilder
from argand.capture.facts.kinds import is_a, namespace
from argand.capture.facts.sources import AttrSource, Source
from argand.capture.metadata import metadata
from argand.capture.sizes import dtensors
from argand.capture.sizes.dtensor_vetting import refused
from argand.errors import AutogradError
from argand.graph import wrappers
from argand.graph.wrappers import Layout

_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device, torch.Size, torch.layout)


_TORCH = os.path.dirname(torch.__file__) + os.sep


def _why_not(tensor: torch.Tensor, layout: Layout) -> str:
    """Why a wrapper from outside cannot be in a graph; "" where it can."""
    held = namespace(tensor) or {}
    for name in layout.names:
        part = held.get(name)
        if part is None or type(part) is not torch.Tensor or not is_plain_tensor(part) or part.requires_grad:
            return f"its part {name} is no plain tensor"
        if tensor.requires_grad and (part.shape != tensor.shape or part.dtype is not tensor.dtype):
            return "a gradient of it is recorded, which may look otherwise than its parts"
    if not _comparable(layout.context):
        return "what it holds besides tensors is not known to be comparable"
    if torch._C._is_any_autocast_enabled():
        return "what autocast does with tensors without data is not what it does with wrappers"
    try:
        layout.whole(*wrappers.parts_of(tensor, layout))
    except AutogradError as error:
        return str(error)
    return ""


def _comparable(context: object, depth: int = 0) -> bool:
    """Whether `==` of what a wrapper holds besides tensors tells all: plain values, in containers or dataclasses."""
    if type(context) in _PLAIN or is_a(context, enum.Enum):
        return True
    if depth > 8:
        return False
    if type(context) in (tuple, list):
        return all(_comparable(item, depth + 1) for item in context)  # type: ignore[attr-defined]
    if type(context) is dict:
        return all(_comparable(item, depth + 1) for pair in context.items() for item in pair)
    fields = getattr(type(context), "__dataclass_fields__", None)
    if fields is None or not all(each.compare for each in fields.values()):
        return False
    return all(_comparable(getattr(context, name), depth + 1) for name in fields)


def stays(state: CaptureState, value: object) -> bool:
    """Whether an argument that no graph holds is an object from outside which nothing changes; it is guarded by which
    one it is."""
    source = state.source_of(value)
    if source is None or type(value) in (*_PLAIN, tuple) or not _unchanging(value):
        return False
    state.guards.add(source, "id", value)
    return True


def _unchanging(value: object) -> bool:
    """Plain values, members of enumerations, and named tuples and frozen dataclasses of such."""
    if type(value) in _PLAIN or is_a(value, enum.Enum):
        return True
    if is_a(value, tuple):
        return all(_unchanging(item) for item in tuple.__iter__(value))
    parameters = getattr(type(value), "__dataclass_params__", None)
    return parameters is not None and parameters.frozen and all(_unchanging(item) for item in vars(value).values())


def new_input(state: CaptureState, source: Source, real: torch.Tensor) -> torch.Tensor:
    """The stand-in of a wrapper that existed before the frame."""
    with torch._C.DisableTorchFunction():
        try:
            layout = wrappers.layout_of(real)
            why = _why_not(real, layout)
        except AttributeError:  # within its `__init__`
            why = "it does not have its parts yet"
    if why:
        raise refused(f"{source.friendly()}: {type(real).__name__}", why)
    builder = state.graph
    state.interpreter.note_class(type(real))
    state.guards.add(source, "tensor", *_C.tensor_guard_args(real))
    wrappers.KNOWN.add(type(real))
    if real.requires_grad:
        return _with_gradients(state, source, real, layout)
    check = functools.partial(wrappers.laid_out, layout)
    state.guards.add(None, "python", check, [source], label="TENSOR_SUBCLASS_MATCH", shown=False)
    parts = [
        state.load_source(AttrSource(source, name), part)
        for name, part in zip(layout.names, wrappers.parts_of(real, layout))
    ]
    infos = [state.tensor_info(part) for part in parts]
    if any(info.dynamic is not None for info in infos):
        dtensors.with_constants(builder, type(real).__name__)
    with torch._C.DisableTorchFunction():
        stand_in = layout.whole(*parts)
    node = builder.root.call_function(layout.whole, tuple([info.node for info in infos]))
    dtensors.stands_for(builder, stand_in, node, real.device, source, real)
    return stand_in


def count_writes(builder: GraphBuilder) -> None:
    """Wrappers from outside without gradients, of which a graph that records some gets the parts: it gets others, over
    the same memory, by which it notices writes to the wrappers. Called at the end of a capture."""
    if not dtensors.records(builder):
        return
    for info in list(builder.tensors.values()):
        if info.source and type(info.tensor) in wrappers.KNOWN and info.real is not None:
            if isinstance(layout := getattr(info.node.target, "__self__", None), Layout):
                entry = wrappers.Entry(layout)
                info.node.target = entry.entered
                info.node.args = tuple(_apart(builder, info.source, info.real, entry))


def _apart(builder: GraphBuilder, source: Source, real: torch.Tensor, entry: wrappers.Entry) -> list[fx.Node]:
    """The inputs that are parts of a wrapper, which a call takes apart when it begins."""
    with torch._C.DisableTorchFunction(), torch.enable_grad():
        taken = entry.taken(real)
    infos = [builder.tensors[id(builder.new_input(source, part))] for part in taken]
    for number, info in enumerate(infos):
        info.real = real
        info.node.meta["edge"] = wrappers.PartEdge(entry, number)
    return [info.node for info in infos]


def _with_gradients(state: CaptureState, source: Source, real: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The stand-in of a wrapper of which gradients are recorded: the graph gets its parts with their way back to it."""
    builder = state.graph
    parts = wrappers.parts_of(real, layout)
    entry = wrappers.Entry(layout)
    check = functools.partial(wrappers.laid_out_with, layout, wrappers.kinds(parts), real.is_leaf)
    state.guards.add(None, "python", check, [source], label="TENSOR_SUBCLASS_MATCH", shown=False)
    nodes = _apart(builder, source, real, entry)
    with torch._C.DisableTorchFunction(), torch.enable_grad():
        plain = [metadata.stand_in(part) for part in parts]
        stand_in = layout.whole(*plain).requires_grad_()
        if not real.is_leaf:
            stand_in = stand_in.view_as(stand_in)
    if "_is_param" in vars(real):
        stand_in._is_param = True
    node = builder.root.call_function(entry.entered, tuple(nodes))
    dtensors.stands_for(builder, stand_in, node, real.device, source, real)
    dtensors.note_parts(builder, stand_in, real.device)
    return stand_in


# ---------------------------------------------------------------------- made in captured code


def new_wrapper(state: CaptureState, cls: type, args: Args, kwargs: Kwargs) -> object:
    """`cls(*args, **kwargs)` of a class that wraps its arguments; NotImplemented where it may do more than that.

    Its code runs on stand-ins; the graph puts the same parts together as `__tensor_unflatten__` does.
    """
    values = (*args, *kwargs.values())
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    plain = all(isinstance(value, torch.Tensor) or _comparable(value) for value in values)
    if (
        not tensors
        or not plain
        or state.graph.scopes
        or not (_only_wraps(cls, "__new__") and _only_wraps(cls, "__init__"))
    ):
        return NotImplemented
    builder = state.graph
    infos = [builder.tensors.get(id(tensor)) for tensor in tensors]
    if any(info is None or info.dynamic is not None or info.tensor.requires_grad for info in infos):
        return NotImplemented
    whole = dtensors.computed(cls.__name__, cls, args, kwargs)
    assert isinstance(whole, torch.Tensor)
    with torch._C.DisableTorchFunction():
        layout = wrappers.layout_of(whole)
        parts = wrappers.parts_of(whole, layout)
        again = layout.whole(*parts)
    same = _comparable(layout.context) and _alike(vars(whole), vars(again)) and not whole.requires_grad
    own = [info for info in infos if info is not None and any(info.tensor is part for part in parts)]
    if not same or len({id(part) for part in parts} & {id(info.tensor) for info in own}) < len(parts):
        return NotImplemented
    wrappers.KNOWN.add(cls)
    nodes = tuple([builder.node_of(builder.tensors[id(part)]) for part in parts])
    node = builder.graph.call_function(layout.whole, nodes)
    builder.annotate(node)
    builder.sharded = True
    return builder.register(whole, node, builder.tensors[id(parts[0])].device)


def _alike(one: dict[str, object], other: dict[str, object]) -> bool:
    """Whether two wrappers of the same parts hold the same."""
    if one.keys() != other.keys():
        return False
    return all(
        value is other[name] or (_comparable(value) and type(value) is type(other[name]) and value == other[name])
        for name, value in one.items()
    )


def _decorated(method: types.FunctionType) -> object:
    """What a decorator of torch's made a function of: `disable`, or that which marks constructors for torch.export."""
    path = method.__code__.co_filename
    if path.startswith(_TORCH) and "__wrapped__" in vars(method):
        return vars(method)["__wrapped__"]
    marks = path.startswith(_TORCH + "_export" + os.sep)
    cells = method.__closure__ or ()
    return cells[0].cell_contents if marks and len(cells) == 1 else None


def _only_wraps(cls: type, name: str) -> bool:
    """Whether a method that makes instances reads nothing of the program's but what it is given."""
    method = inspect.getattr_static(cls, name)
    method = method.__func__ if isinstance(method, staticmethod | classmethod) else method
    while type(method) is types.FunctionType and (inner := _decorated(method)) is not None:
        method = inner
    if type(method) is not types.FunctionType:
        return False
    names = method.__code__.co_names
    own = {name for base in cls.__mro__[: cls.__mro__.index(torch.Tensor)] for name in vars(base)}
    read = [method.__globals__[each] for each in names if each in method.__globals__]
    read += [cell.cell_contents for cell in method.__closure__ or ()]
    return all(value is torch or value in cls.__mro__ for value in read) and not own.intersection(names) - {
        "__init__",
        "__new__",
    }


def outputs(builder: GraphBuilder, tensor: torch.Tensor) -> tuple[Callable[..., object], list[torch.Tensor]]:
    """(what makes a result of its parts, the stand-ins of the parts that the graph gives)."""
    with torch._C.DisableTorchFunction():
        layout = wrappers.layout_of(tensor)
        if not dtensors.records(builder):
            return layout.whole, wrappers.parts_of(tensor, layout)
        known = builder.local_parts.get(id(tensor))
        if known is None:
            parts = dtensors.record(builder, wrappers.left, wrappers.left, (tensor,), {})
            assert isinstance(parts, tuple)
            known = builder.local_parts[id(tensor)] = list(parts)
        return functools.partial(wrappers.wrapped, layout), known
