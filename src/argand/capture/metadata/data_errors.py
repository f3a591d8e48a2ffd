"""Operations that raise because of the values they meet, inside code of the program that would notice.

The graph runs as a whole, before the instructions around it: an IndexError of an embedding inside it would not reach
the `try` in which the program wrote the call. When a graph raises that has done nothing yet, the frame's own code runs
instead, from its beginning (rerun.py). Where that cannot be, as the graph writes to what exists outside, an operation
that may raise inside a `try` is no part of a graph: it runs where it stands.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
from collections.abc import Callable

import torch
from torch import fx

from argand import errors
from argand.bytecode.instruction import ExceptionHandler, Instruction
from argand.capture.facts.frames import Frame
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import GraphBuilder
from argand.capture.facts.kinds import is_a, module_of
from argand.capture.facts.name_tables import words
from argand.capture.facts.values.tensor_info import Cost, Deferred, TensorInfo
from argand.capture.metadata import metadata, repeatable_writes
from argand.capture.metadata.meta_tensors import needs_grad
from argand.graph.compat import storage_address
from argand.graph.operators import data_checks
from argand.graph.operators.collectives import starts
from argand.graph.trees import tensors_of

RAISED: tuple[type[Exception], ...] = (IndexError, RuntimeError, AssertionError)
"""What torch's operations raise because of values."""
_NEVER_RAISED = (NotImplementedError, RecursionError)


_ALWAYS = frozenset(
    words(
        """
    gaussian_nll_loss cross_entropy adaptive_max_pool2d bernoulli bernoulli_ multinomial poisson binomial normal
    histogramdd max_unpool1d bucketize lu svd_lowrank pca_lowrank lobpcg istft complex polar tensor_split
    _assert_async _functional_assert_async _validate_sparse_coo_tensor_args
    fractional_max_pool2d fractional_max_pool3d pack_padded_sequence
    """
    )
)
"""Besides those of ATen's operations that have the same names."""
_INTEGERS = frozenset(
    words(
        """
    floor_divide floor_divide_ remainder remainder_ fmod fmod_ __floordiv__ __rfloordiv__ __ifloordiv__ __mod__
    __rmod__ __imod__ div div_ divide divide_ pow pow_ __pow__ __rpow__ __ipow__ float_power
    """
    )
)
_OF_TORCH = ("torch", "_operator")
_GRADIENTS = frozenset(("autograd_grad", "autograd_backward"))
_INDEXING = frozenset(("__getitem__", "__setitem__"))
_OF_AUTOGRAD = (torch.Tensor.requires_grad_, torch.Tensor.detach_)
"""They change what autograd knows of a tensor, which the graph has made, and no memory."""


@functools.lru_cache(maxsize=8192)
def kind(func: Function) -> str:
    """ "always", "integers", "index", "foreign" or "" (only shapes and dtypes decide whether it raises)."""
    name = getattr(func, "__name__", "")
    if isinstance(func, torch._ops.OpOverload):
        name = func._schema.name.partition("::")[2]
        if func.namespace not in ("aten", "prims", "prim"):
            return "foreign"
    elif isinstance(func, torch._ops.OpOverloadPacket):
        name = func.__name__
        if not func._qualified_op_name.startswith(("aten::", "prims::", "prim::")):
            return "foreign"
    elif name not in _GRADIENTS and not str(getattr(func, "__module__", None) or "torch").startswith(_OF_TORCH):
        return "foreign"
    if name in _ALWAYS or data_checks.raises_on_data(name):
        return "always"
    if name in _INDEXING:
        return "index"
    return "integers" if name in _INTEGERS else ""


def may_raise(func: Function, args: Args, infos: list[TensorInfo]) -> bool:
    """Whether what the tensors hold can make this call raise."""
    data_kind = kind(func)
    if data_kind == "index":
        fills = len(args) > 2 and not isinstance(args[2], torch.Tensor) and _masks_fit(args[1], infos)
        return _holds_tensor(args[1], infos, masks=not fills) or _out_of_range(args[1], infos[0] if infos else None)
    if data_kind == "integers":
        return all(not (info.tensor.dtype.is_floating_point or info.tensor.dtype.is_complex) for info in infos)
    return bool(data_kind)


def _holds_tensor(key: object, infos: list[TensorInfo], *, masks: bool) -> bool:
    """A tensor of positions that may not be there, or (with `masks`) of truth values, whose number decides how many
    values are wanted."""
    if isinstance(key, torch.Tensor):
        return (masks or key.dtype not in (torch.bool, torch.uint8)) and not _known_within(key, infos)
    return isinstance(key, tuple | list) and any(_holds_tensor(item, infos, masks=masks) for item in key)


def _masks_fit(key: object, infos: list[TensorInfo]) -> bool:
    """Whether a mask that is the whole key, as most are, has the sizes of the dimensions that it selects in."""
    if not isinstance(key, torch.Tensor):
        return False
    sizes = [info.tensor.shape if info.dynamic is None else info.dynamic.sizes for info in infos[:2]]
    return len(sizes) == 2 and tuple(sizes[0][: len(sizes[1])]) == tuple(sizes[1])


def _known_within(key: torch.Tensor, infos: list[TensorInfo]) -> bool:
    """Whether all positions are known, and each dimension of the tensor has them."""
    info = next((info for info in infos[1:] if info.tensor is key), None)
    held = None if info is None else info.constant
    if key.dtype is not torch.int64 or held is None or (type(held) is Deferred and held.cost is not Cost.NOTHING):
        return False
    with torch._C.DisableTorchFunction():
        value = held.get() if type(held) is Deferred else held
        return isinstance(value, torch.Tensor) and not _out_of_range(value.flatten().tolist(), infos[0])


def _out_of_range(key: object, info: TensorInfo | None, listed: bool = False) -> bool:
    """Whether a list of positions in a key may hold one that not every dimension of the tensor has."""
    if isinstance(key, tuple | list):
        return any(_out_of_range(item, info, listed or isinstance(key, list)) for item in key)
    if isinstance(key, range):  # a list of positions by another name
        return True
    if not listed or isinstance(key, bool) or not isinstance(key, int | float):
        return False
    shortest = min(info.tensor.shape, default=0) if info is not None and info.dynamic is None else 0
    return not -shortest <= key < shortest


def check(builder: GraphBuilder, func: Function, args: Args, infos: list[TensorInfo]) -> None:
    """Note a call that may raise because of values, or end the graph before it.

    Raises:
        GraphBreak: the program's instructions stand in a `try` or `with` that would be told of the error, and the frame
            cannot be run again once the graph has raised.
    """
    if kind(func) == "foreign":
        builder.on_data.foreign = True
        if starts(func):  # another rank would take a second one for its next
            changes_outside(builder, _name(func))
        elif not _only_returns(func):
            if isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket) or builder.on_data.noticed:
                changes_outside(builder, _name(func))
            builder.on_data.opaque = True
    if may_raise(func, args, infos) or _keeps_inference_tensors(infos):
        raises(builder, _name(func))


def _keeps_inference_tensors(infos: list[TensorInfo]) -> bool:
    """Whether eager's autograd may have to keep a tensor of inference mode for the backward, which it refuses."""
    if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        return False
    with torch._C.DisableTorchFunction():
        return any(
            info.tensor.is_inference() or (info.real is not None and info.real.is_inference()) for info in infos
        ) and any(info.tensor.requires_grad for info in infos)


def _only_returns(func: Function) -> bool:
    """A custom operator whose schema says that all it does is return tensors."""
    if isinstance(func, torch._ops.OpOverloadPacket):
        return all(_only_returns(getattr(func, name)) for name in func.overloads())
    return isinstance(func, torch._ops.OpOverload) and not func._schema.is_mutable and bool(func._schema.returns)


def raises(builder: GraphBuilder, name: str) -> None:
    """An operation that values can make raise becomes part of the graph. Raises GraphBreak as `check` does."""
    on_data = builder.on_data
    on_data.possible = True
    on_data.late = on_data.late or on_data.outside or bool(on_data.saved or on_data.undone)
    noticed = _any_notices(builder)
    if noticed:
        if on_data.split or on_data.outside or on_data.opaque:
            raise errors.graph_break(kind="operation that may raise inside a try block", context=name)
        on_data.noticed = True
    last = next(iter(reversed(builder.root.nodes)), builder.root._root)
    points = None if on_data.known is None else on_data.points
    if points is not None and not points.add(last) and on_data.outside and on_data.may_split:
        raise _effects_lost(name)
    if builder.graph is builder.root:
        on_data.behind.append((last, noticed))


def keep(builder: GraphBuilder, outputs: list[object]) -> list[torch.Tensor]:
    """Keep operations that may raise in the graph, also those whose results nobody needs.

    Arguments:
        outputs: the stand-ins that the graph returns.

    Returns results that it must return too, lest the backend drop an operation whose error the program would notice.
    """
    points = builder.on_data.points
    if points is not None:
        points.settle()
    markers = [
        (marker.next, noticed) for marker, noticed in builder.on_data.behind if marker.next.op.startswith("call_")
    ]
    if not markers:
        return []
    builder.kept.update(node for node, _ in markers)
    todo = [builder.tensors[id(value)].node for value in outputs if id(value) in builder.tensors]
    todo += (*builder.writing, *builder.effectful)
    reached: set[fx.Node] = set()
    while todo:
        node = todo.pop()
        if node not in reached:
            reached.add(node)
            todo += node.all_input_nodes
    return [value for node, noticed in markers if noticed and node not in reached for value in _result(builder, node)]


def _result(builder: GraphBuilder, node: fx.Node) -> list[torch.Tensor]:
    """A stand-in that cannot be had without an operation."""
    value = node.meta.get("example_value")
    items = value if isinstance(value, tuple | list) else (value,)
    return [item for item in items if id(item) in builder.tensors][:1]


def rerun_on_error(builder: GraphBuilder) -> bool:
    """The graph is to raise where the program may: whether the frame's own code then runs instead."""
    on_data = builder.on_data
    if on_data.known is None or on_data.outside or on_data.opaque or on_data.split:
        return False
    on_data.possible = on_data.noticed = True
    return True


def written(builder: GraphBuilder, info: TensorInfo, func: Function | None = None, args: Args = ()) -> None:
    """The graph writes to a tensor, by this call. Raises GraphBreak as `check` and `changes_outside` do."""
    if func in _OF_AUTOGRAD:
        return
    if _may_overlap(builder, info, func, args):
        raises(builder, _name(func))
    refusable = _may_be_refused(builder, info, args)
    if (builder.on_data.outside and not refusable) or not _exists_outside(builder, info):
        return
    if refusable:
        raises(builder, _name(func))
    if builder.on_data.outside:
        return
    if not repeatable_writes.repeatable(builder, info, func, args):
        changes_outside(builder, "an input that is written to", effects=False)


def _may_be_refused(builder: GraphBuilder, info: TensorInfo, args: Args) -> bool:
    """Whether eager may refuse a write for what an input is to autograd, which guards do not ask.

    It may be a view of a leaf, one of several views that one operation made, a view made while grad mode was off, or a
    tensor of inference mode.
    """
    if torch.is_inference_mode_enabled():
        return False
    with torch._C.DisableTorchFunction():
        if needs_grad(info.tensor, *args):
            builder.on_data.gained = builder.on_data.gained or _gains(builder, info)
            return True
        if builder.on_data.gained and torch.is_grad_enabled():  # the tensor may be a view of what requires them by now
            return True
        if info.source is None:
            return builder.memories.inference
        return isinstance(info.real, torch.Tensor) and info.real.is_inference()


def _gains(builder: GraphBuilder, info: TensorInfo) -> bool:
    """Whether a write that autograd records may make tensors from outside require gradients, that did not so far."""
    owners = builder.memories.inputs.get(storage_address(info.tensor), [])
    known = owners and all(isinstance(owner.real, torch.Tensor) and owner.real.requires_grad for owner in owners)
    return not known and _exists_outside(builder, info)


def _may_overlap(builder: GraphBuilder, info: TensorInfo, func: Function | None, args: Args) -> bool:
    """Whether eager may refuse a write because it reads memory that it writes to.

    Stand-ins do not refuse it, and guards do not ask how inputs lie to each other: where these may, do not in the call
    at hand, and nothing in the program would be told of it, they are taken to lie apart.
    """
    read = [arg for given in args for arg in (given if isinstance(given, tuple | list) else (given,))]
    if any(arg is info.tensor for arg in read):  # once as what is written to; a second time it is read (`x[None] = x`)
        read.pop(next(place for place, arg in enumerate(read) if arg is info.tensor))
    others = [builder.tensors[id(arg)] for arg in read if id(arg) in builder.tensors]
    if not others:
        return False
    with torch._C.DisableTorchFunction():
        memory, place = storage_address(info.tensor), _place(info.tensor)
        moves = _name(func).startswith(_MOVING) or info.dynamic is not None  # not from each element to itself
        for other in others:
            if storage_address(other.tensor) == memory and (moves or _place(other.tensor) != place):
                return True
        if not _exists_outside(builder, info):
            return False
        behind = [other for other in others if _exists_outside(builder, other)]
        mine = _memory_outside(builder, info)
        shared = mine is not None and any(_memory_outside(builder, other) == mine for other in behind)
        return bool(behind) and (shared or _any_notices(builder))


_MOVING = ("__setitem__", "index_", "scatter", "masked_scatter", "put_")
"""Operations that write to places which are computed."""


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.storage_offset(), tensor.shape, tensor.stride()


def resizes(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs, shapes: object) -> bool:
    """Whether a call has given its `out` another size, which nothing puts back where that is from outside.

    Arguments:
        shapes: those of `out` before the call.

    Raises:
        GraphBreak: as `changes_outside` and `metadata.is_resized` do.
    """
    if not metadata.is_resized(func, args, kwargs, shapes):
        return False
    given = [builder.tensors[id(tensor)] for tensor in tensors_of(kwargs["out"]) if id(tensor) in builder.tensors]
    if any(_exists_outside(builder, info) for info in given):
        changes_outside(builder, "an input that is given another size")
    return True


def changes_outside(builder: GraphBuilder, name: str, *, effects: bool = True) -> None:
    """The graph is to do something that must not be done twice.

    Arguments:
        effects: it is done where it stands. A backend that writes to inputs at its end says so when it raises.

    Raises:
        GraphBreak: behind an operation whose error the program would notice.
    """
    builder.on_data.outside = True
    builder.on_data.effects = builder.on_data.effects or effects
    if builder.on_data.noticed:
        raise errors.graph_break(kind="effect behind an operation that may raise inside a try block", context=name)
    points = None if builder.on_data.known is None else builder.on_data.points
    if points is not None and points.lost and builder.on_data.may_split:
        raise _effects_lost(name)


def _effects_lost(name: str) -> errors.GraphBreak:
    return errors.graph_break(kind="effect before an operation that may raise", context=name)


def _name(func: Function | None) -> str:
    return "a write to an input" if func is None else str(getattr(func, "__name__", func))


def _exists_outside(builder: GraphBuilder, info: TensorInfo) -> bool:
    """Whether a stand-in's memory may be that of an input or of a tensor that the graph holds."""
    if info.source is not None or info.node.op not in ("call_function", "call_method"):
        return True
    with torch._C.DisableTorchFunction():
        return builder.memories.is_outside(storage_address(info.tensor))


def _memory_outside(builder: GraphBuilder, info: TensorInfo) -> int | None:
    """The storage of the input in whose memory a stand-in lies, in the call at hand; None if there is none."""
    return builder.memories.outside.get(storage_address(info.tensor)) or None


def _any_notices(builder: GraphBuilder) -> bool:
    """Whether code of the program around this place is told of an exception."""
    return any(_noticed(frame, builder.state.is_outer) for frame in builder.state.interpreter.frames)


def _noticed(frame: Frame, is_outer: Callable[[object], bool]) -> bool:
    handler = frame.instruction.handler
    while handler is not None:
        if handler.target.opname == "PUSH_EXC_INFO" and _catches(frame, handler, is_outer):
            return True
        handler = handler.target.handler
    return False


def _catches(frame: Frame, handler: ExceptionHandler, is_outer: Callable[[object], bool]) -> bool:
    instructions = frame.program.instructions
    at = frame.program.index[handler.target] + 1
    if instructions[at].opname == "WITH_EXCEPT_START":
        at = handler.depth - 1
        return not 0 <= at < len(frame.stack) or manager_is_told(frame.stack[at], is_outer)
    if instructions[at].opname != "POP_TOP" and _clause(frame, at)[0] is None:
        return not _in_library(frame.globals)  # a `finally`: torch's own undo what has not been done yet
    while True:
        classes, after = _clause(frame, at)
        if classes is None:
            return True
        if any(_may_match(cls) for cls in classes):
            return True
        following = after.target
        if following is None:
            return True
        if following.opname == "RERAISE":
            return False
        at = frame.program.index[following]


def _in_library(globals_: dict[str, object]) -> bool:
    return str(globals_.get("__name__", "")).startswith(("torch.", "argand.", "contextlib"))


def _clause(frame: Frame, at: int) -> tuple[list[object] | None, Instruction]:
    """The classes of the except clause that begins at `at` (None: not known) and the jump to the next one."""
    names: list[object] = []
    instructions = frame.program.instructions
    while True:
        inst = instructions[at]
        at += 1
        if inst.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            name = inst.argval[0] if isinstance(inst.argval, tuple) else inst.argval
            names.append(frame.globals.get(name, vars(builtins).get(name)))
        elif inst.opname == "CHECK_EXC_MATCH":
            return names, instructions[at]
        elif inst.opname != "BUILD_TUPLE":
            return None, inst


def _may_match(cls: object) -> bool:
    if not is_a(cls, type) or not issubclass(cls, BaseException):
        return True
    if issubclass(cls, _NEVER_RAISED):
        return False
    return any(issubclass(raised, cls) or issubclass(cls, raised) for raised in RAISED)


def manager_is_told(leave: object, is_outer: Callable[[object], bool] | None = None) -> bool:
    """Whether a `with`, given its manager's bound `__exit__`, is one of the program's own, or contextlib.suppress.

    Arguments:
        is_outer: whether the manager was made outside. One that does its work when it is made, which no graph puts
            back, is to be left then.
    """
    manager = getattr(leave, "__self__", None)
    cls = type(manager)
    if is_a(manager, contextlib._GeneratorContextManager):
        inner = getattr(manager.gen, "_frame", None)  # of a TracedGenerator: suspended at its yield
        if inner is None:
            frame = getattr(manager.gen, "gi_frame", None)
            return frame is None or not _in_library(frame.f_globals)
        return inner.instruction is not None and _noticed(inner, is_outer or _nothing_is)
    if cls is contextlib.nullcontext:
        return False
    if is_outer is not None and cls in _work_when_made() and is_outer(manager):
        return True
    return not module_of(cls).startswith(("torch", "argand"))


@functools.cache
def _work_when_made() -> frozenset[type]:
    """Torch's managers that change its state before they are entered."""
    names = ("set_grad_enabled", "set_multithreading_enabled", "_force_original_view_tracking", "set_detect_anomaly")
    places = (torch.autograd.grad_mode, torch.autograd.anomaly_mode)
    return frozenset(
        [vars(place)[name] for place in places for name in names if isinstance(vars(place).get(name), type)]
    )


def _nothing_is(value: object) -> bool:
    return False
