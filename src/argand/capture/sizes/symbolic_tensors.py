"""Tensors whose sizes vary: the stand-in at the call's own sizes has siblings at the probes' sizes.

A torch call that involves one is computed for all of them; what differs between the results is fitted
(graph/sizes/symbols.py) and becomes an expression.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch

from argand.capture.facts.handlers import Args, Kwargs
from argand.capture.facts.interfaces import Dynamics, GraphBuilder
from argand.capture.facts.values.symbolic import SYMBOLIC, SymbolicNumber, SymbolicSize, holds_symbols, size_of
from argand.capture.facts.values.tensor_info import Dynamic, TensorInfo
from argand.capture.metadata import memory
from argand.graph import compat
from argand.graph.metadata.strides import is_dense, memory_order
from argand.graph.sizes.expr import Const, Expr, Sym
from argand.graph.sizes.layout_relations import layout_relations
from argand.graph.sizes.relations import Relation
from argand.graph.trees import rebuilt, tensors_of

PROBED = (3, 4)  # the assignments that siblings stand for: the rough ones
_AT = (0, *PROBED)
_META = torch.device("meta")
_Tensor = torch.Tensor


UNFITTED = Dynamic((), [])
"""Of a stand-in that somebody made of dynamic ones without computing it at the probes."""


def doubt(info: TensorInfo) -> None:
    """A new stand-in: what its sizes depend on is not known unless `note` says so."""
    for node in info.node.all_input_nodes:
        of_several = not isinstance(node.meta.get("example_value"), _Tensor)  # else of a tensor, which is known
        sources = node.all_input_nodes if of_several and info.node.target is operator.getitem else ()
        if any("sizes" in n.meta or "expr" in n.meta for n in (node, *sources)):
            info.dynamic = UNFITTED
            return


def on_data(builder: GraphBuilder, info: TensorInfo) -> bool:
    """Whether a stand-in's sizes depend on data."""
    unbacked = builder.dynamics.unbacked if builder.dynamics is not None else None
    sizes = info.dynamic.sizes if info.dynamic is not None else ()
    return unbacked is not None and bool(unbacked.among(*[size for size in sizes if size is not None]))


def passed_on(
    builder: GraphBuilder, info: TensorInfo, result: torch.Tensor, make: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """What is known of the sizes of a tensor in or outside of a subgraph holds for what was made of it on the other
    side."""
    if builder.dynamics is None:
        return
    _settled(builder, info)
    with torch._C.DisableTorchFunction():
        siblings = [result] * len(PROBED) if info.dynamic is None else [make(each) for each in info.dynamic.siblings]
        note(builder, result, tuple(siblings))


def alike(builder: GraphBuilder, one: torch.Tensor, other: torch.Tensor, *, strides: bool = False) -> bool:
    """Whether two stand-ins have the same size, and the same strides, now and at the probes.

    Raises:
        Restart: only now: the sizes are constants.
    """
    pairs = zip(at_probes(builder, one), at_probes(builder, other))
    with torch._C.DisableTorchFunction():
        now, *probed = [a.shape == b.shape and (not strides or a.stride() == b.stride()) for a, b in pairs]
    if now and not all(probed):
        give_up(builder, _dynamics(builder).table.symbols)
    return now


def at_probes(builder: GraphBuilder, tensor: torch.Tensor) -> list[torch.Tensor]:
    """A stand-in and its siblings."""
    info = builder.state.tensor_info(tensor)
    if info.dynamic is None:
        return [tensor] * (1 + len(PROBED))
    _settled(builder, info)
    return [tensor, *info.dynamic.siblings]


def _settled(builder: GraphBuilder, info: TensorInfo) -> None:
    if info.dynamic is UNFITTED:
        give_up(builder, _dynamics(builder).table.symbols)


def _dynamics(builder: GraphBuilder) -> Dynamics:
    assert builder.dynamics is not None
    return builder.dynamics


# ---------------------------------------------------------------------- inputs


def input_siblings(dynamics: Dynamics, real: torch.Tensor, sizes: list[object], strides: list[Any]) -> Dynamic:
    """The siblings of a graph input."""
    siblings = tuple([empty(dynamics, sizes, strides, real.dtype, dynamics.table.assignments[i]) for i in PROBED])
    return Dynamic(siblings, sizes, strides)


def empty(dynamics: Dynamics, sizes: Any, strides: Any, dtype: torch.dtype, assignment: Any) -> torch.Tensor:
    """A stand-in whose sizes and strides are these expressions at an assignment of their symbols."""
    evaluate = dynamics.table.evaluate
    return torch.empty_strided(
        [int(evaluate(s, assignment)) for s in sizes], [int(evaluate(s, assignment)) for s in strides],
        dtype=dtype, device=_META,
    )  # fmt: skip


# ---------------------------------------------------------------------- calls


def involved(builder: GraphBuilder, infos: list[TensorInfo], args: Args, kwargs: Kwargs) -> bool:
    """Whether a call depends on symbols."""
    for info in infos:
        if info.dynamic is not None:
            _settled(builder, info)
            return True
    return holds_symbols(args) or (bool(kwargs) and holds_symbols(kwargs))


def at(builder: GraphBuilder, value: Any, index: int) -> Any:
    """An argument as it is at the hint (0) or at the probe of sibling `index`."""
    cls = value.__class__ if not isinstance(value, _Tensor) else _Tensor
    if cls is _Tensor:
        if index == 0:
            return value
        info = builder.tensors.get(id(value))
        return value if info is None or info.dynamic is None else info.dynamic.siblings[index - 1]
    real = type(value)
    if real in SYMBOLIC:
        return value.hint if index == 0 else value.dynamics.table.vector(value.expr)[_AT[index]]
    if real is SymbolicSize:
        return torch.Size([at(builder, item, index) for item in tuple.__iter__(value)])
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return real(*[at(builder, item, index) for item in value])
    return rebuilt(value, lambda item: at(builder, item, index))


def attach(builder: GraphBuilder, meta: Any, siblings: list[Any]) -> object:
    """Note the siblings of every tensor in a result; numbers that vary become symbolic. Returns the result."""
    dynamics = _dynamics(builder)
    if isinstance(meta, _Tensor):
        note(builder, meta, tuple(siblings))
        return meta
    if isinstance(meta, torch.Size):
        return size_of([attach(builder, part, [s[i] for s in siblings]) for i, part in enumerate(meta)])
    if isinstance(meta, tuple | list):
        parts = [attach(builder, part, [s[i] for s in siblings]) for i, part in enumerate(meta)]
        return meta if all(a is b for a, b in zip(parts, meta)) else type(meta)(parts)
    if type(meta) is int and any(sibling != meta for sibling in siblings):
        expr = dynamics.table.fit((meta, *siblings), at=_AT)
        if expr is None:
            give_up(builder, dynamics.table.symbols)
        return number(dynamics, expr, meta)
    if type(meta) is float and any(sibling != meta for sibling in siblings):
        give_up(builder, dynamics.table.symbols)
    return meta


def note(builder: GraphBuilder, meta: torch.Tensor, siblings: tuple[torch.Tensor, ...]) -> None:
    """`meta` is, at the probes, `siblings`."""
    info = builder.tensors.get(id(meta))
    if info is None:
        return
    shape = meta.shape
    sizes: list[Any] = []
    varies = False
    for i, size in enumerate(shape):
        values = (size, *[s.shape[i] for s in siblings])
        if all(value == size for value in values):
            sizes.append(size)
        else:
            varies = True
            sizes.append(_dynamics(builder).table.fit(values, at=_AT))
    if not varies and all(s.stride() == meta.stride() for s in siblings):
        info.dynamic = None
        return
    if not all(sibling.is_contiguous() for sibling in siblings):
        _guard_degenerate(builder, sizes, meta)
    info.dynamic = Dynamic(siblings, sizes)
    info.node.meta["sizes"] = tuple(sizes)
    unbacked = _dynamics(builder).unbacked
    if unbacked is not None:
        unbacked.found_in(info.node, sizes)
    for size in sizes:
        if isinstance(size, Expr) and (unbacked is None or not unbacked.among(size)):
            _dynamics(builder).require(Relation("ge", size, 0))  # else eager raises, perhaps within a try
    memory.guard_size(builder, info)
    _guard_layout(builder, info)


def _guard_layout(builder: GraphBuilder, info: TensorInfo) -> None:
    """A view that is not laid out by its sizes alone stays so: which of its dimensions lies outside of which.

    Raises:
        Restart: it does not at the probes.
    """
    assert info.dynamic is not None
    size, stride = tuple(info.tensor.shape), info.tensor.stride()
    order = memory_order(size, stride)
    if is_dense(size, stride):
        layouts = [(tuple(sibling.shape), sibling.stride()) for sibling in info.dynamic.siblings]
        if all(is_dense(*layout) and memory_order(*layout) == order for layout in layouts):
            return
    dynamics, strides = _dynamics(builder), strides_of(builder, info)
    if None in (*info.dynamic.sizes, *strides):
        return
    for relation in layout_relations(info.dynamic.sizes, strides, size, stride):
        if dynamics.unbacked is not None and dynamics.unbacked.among(relation):
            continue
        if relation.op == "ne":
            info.dynamic.unmerged.append(relation)
        else:
            dynamics.require(relation)


def guard_unmerged(builder: GraphBuilder, info: TensorInfo) -> None:
    """Something asks which dims of a view could be one: it stays so.

    Raises:
        Restart: it does not at the probes.
    """
    if info.dynamic is not None:
        for relation in info.dynamic.unmerged:
            _dynamics(builder).require(relation)


def _guard_degenerate(builder: GraphBuilder, sizes: list[object], meta: torch.Tensor) -> None:
    """Whether a tensor is contiguous does not depend on dims of size 0 and 1.

    Raises:
        Restart: a size is one of them now, and not at the probes.
    """
    dynamics = _dynamics(builder)
    for expr, size in zip(sizes, meta.shape):
        if not isinstance(expr, Expr) or isinstance(expr, Sym):
            continue
        if dynamics.unbacked is not None and dynamics.unbacked.among(expr):
            continue
        _rely(dynamics, expr)
        dynamics.require(Relation("ge", expr, 2) if size > 1 else Relation("eq", expr, size))


def strides_of(builder: GraphBuilder, info: TensorInfo) -> list[Any]:
    """The strides of a stand-in as expressions; None among them where nothing fits."""
    dynamic = info.dynamic
    if dynamic is None:
        return list(info.tensor.stride())
    if dynamic.strides is None:
        fit = _dynamics(builder).table.fit
        step: Any = 1
        contiguous: list[object] = []
        for size in reversed(dynamic.sizes):
            contiguous.append(step)
            step = None if size is None or step is None else step * size
        contiguous.reverse()
        for expr in contiguous:
            if isinstance(expr, Expr):
                _dynamics(builder).table.know(expr)
        dynamic.strides = []
        for i, stride in enumerate(info.tensor.stride()):
            stride_expr = fit((stride, *[s.stride()[i] for s in dynamic.siblings]), at=_AT)
            dynamic.strides.append(stride_expr.value if isinstance(stride_expr, Const) else stride_expr)
    return dynamic.strides


def number(dynamics: Dynamics, expr: object, hint: int) -> object:
    """A size or stride as the program sees it, which relies on it."""
    _rely(dynamics, expr)
    return dynamics.wrap(expr, hint)


def _rely(dynamics: Dynamics, expr: object) -> None:
    """Guard what the fitter took for granted: that what it divides is divided exactly.

    Raises:
        Restart: a probe does not meet it.
    """
    if isinstance(expr, Expr) and expr.has_divmod:
        for condition in list(dynamics.table.fitter.conditions):
            dynamics.require(condition)


def plain(value: Any) -> Any:
    """A constant expression as an int."""
    return value.value if isinstance(value, Const) else value


def dim_number(builder: GraphBuilder, info: TensorInfo, dim: int) -> Any:
    """The size of a dim as the program sees it."""
    dynamic = info.dynamic
    size = info.tensor.shape[dim]
    if dynamic is None:
        return size
    expr = dynamic.sizes[dim]
    if expr is None:
        give_up(builder, _dynamics(builder).table.symbols)
    return number(_dynamics(builder), expr, size)


def give_up(builder: GraphBuilder, symbols: Any) -> NoReturn:
    """Make constants of all input symbols among these."""
    dynamics = _dynamics(builder)
    if dynamics.unbacked is not None and dynamics.unbacked.among(*symbols):
        raise dynamics.unbacked.unfitted("this operation", *symbols)
    inputs = [sym for sym in symbols if sym in dynamics.places and sym in dynamics.table.hints]
    dynamics.give_up(inputs, Relation("eq", inputs[0], dynamics.table.hints[inputs[0]]))


def give_up_tensor(builder: GraphBuilder, info: TensorInfo) -> None:
    """Make constants of the sizes of a tensor."""
    table = _dynamics(builder).table
    sizes = info.dynamic.sizes if info.dynamic is not None else ()
    symbols = {sym for size in sizes for sym in table.inputs(size)}
    give_up(builder, symbols or table.symbols)


def give_up_numbers(builder: GraphBuilder, numbers: Iterable[SymbolicNumber]) -> NoReturn:
    """Make constants of numbers."""
    table = _dynamics(builder).table
    give_up(builder, {symbol for number in numbers for symbol in table.inputs(number.expr)})


# ---------------------------------------------------------------------- answers without a node


def constant(builder: GraphBuilder, func: Any, args: Args, kwargs: Kwargs) -> object:
    """What a stand-in answers about its sizes; NotImplemented for other questions and for static tensors."""
    info = builder.tensors.get(id(args[0])) if args else None
    if info is None or info.dynamic is None:
        return NotImplemented
    _settled(builder, info)
    name = getattr(func, "__name__", "")
    if name == "__get__":
        name = func.__self__.__name__
    answer = _ANSWERS.get(name)
    return NotImplemented if answer is None else answer(builder, info, args[1:], kwargs)


def shape(builder: GraphBuilder, info: TensorInfo) -> Any:
    return size_of([dim_number(builder, info, d) for d in range(info.tensor.dim())])


def _size(builder: GraphBuilder, info: TensorInfo, args: Args, kwargs: Kwargs) -> object:
    dim = args[0] if args else kwargs.get("dim")
    if dim is None:
        return shape(builder, info)
    if type(dim) is not int or not -info.tensor.dim() <= dim < info.tensor.dim():
        return NotImplemented
    return dim_number(builder, info, dim % info.tensor.dim())


def _numel(builder: GraphBuilder, info: TensorInfo, args: Args, kwargs: Kwargs) -> Any:
    total: object = 1
    for d in range(info.tensor.dim()):
        total = total * dim_number(builder, info, d)
    return total


def _stride(builder: GraphBuilder, info: TensorInfo, args: Args, kwargs: Kwargs) -> object:
    _refuse_layout(builder, info, "stride")
    strides = strides_of(builder, info)
    if any(item is None for item in strides):
        give_up(builder, _dynamics(builder).table.symbols)
    wrapped = [number(_dynamics(builder), e, h) for e, h in zip(strides, info.tensor.stride())]
    dim = args[0] if args else kwargs.get("dim")
    if dim is None:
        return tuple(wrapped)
    return wrapped[dim] if -len(wrapped) <= dim < len(wrapped) else NotImplemented


def _agree(name: str) -> Any:
    def answer(builder: GraphBuilder, info: TensorInfo, args: Args, kwargs: Kwargs) -> object:
        value = getattr(info.tensor, name)(*args, **kwargs)
        guard_unmerged(builder, info)
        if args or kwargs or value is not True:  # of another memory format: that of one channel is that of many
            if None in info.dynamic.sizes:  # type: ignore[union-attr]
                give_up(builder, _dynamics(builder).table.symbols)
            _guard_degenerate(builder, info.dynamic.sizes, info.tensor)  # type: ignore[union-attr]
        _refuse_layout(builder, info, name, value)
        if any(getattr(s, name)(*args, **kwargs) != value for s in info.dynamic.siblings):  # type: ignore[union-attr]
            give_up(builder, _dynamics(builder).table.symbols)
        return value

    return answer


def _refuse_layout(builder: GraphBuilder, info: TensorInfo, name: str, answer: object = None) -> None:
    """Strides of sizes 0 and 1 follow no formula: only what is contiguous for large sizes is so for all."""
    unbacked = _dynamics(builder).unbacked
    if unbacked is not None and info.dynamic is not None and answer is not True:
        if unbacked.among(*[size for size in info.dynamic.sizes if size is not None]):
            raise unbacked.unfitted(f"Tensor.{name}", *info.dynamic.sizes)


def _length(builder: GraphBuilder, info: TensorInfo, args: Args, kwargs: Kwargs) -> Any:
    number = dim_number(builder, info, 0)
    return number.number() if type(number) in SYMBOLIC else number


def _bytes(builder: GraphBuilder, info: TensorInfo, args: Args, kwargs: Kwargs) -> Any:
    return _numel(builder, info, args, kwargs) * info.tensor.element_size()


_ANSWERS: dict[str, Callable[..., Any]] = {
    "shape": lambda builder, info, args, kwargs: shape(builder, info),
    "size": _size, "numel": _numel, "nelement": _numel, "stride": _stride, "nbytes": _bytes,
    "is_contiguous": _agree("is_contiguous"), "__len__": _length, "dim_order": _agree("dim_order"),
}  # fmt: skip


def same_structure(a: object, b: object) -> bool:
    """Whether two results differ in numbers only."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dim() == b.dim() and a.dtype is b.dtype
    if isinstance(a, torch.Size):
        return isinstance(b, torch.Size) and len(a) == len(b)
    if isinstance(a, tuple | list):
        return type(a) is type(b) and len(a) == len(b) and all(map(same_structure, a, b))
    if type(a) in (int, float):
        return type(a) is type(b)
    return type(a) is type(b) and bool(a == b)


def memory_of(result: object, arguments: object) -> list[int | None]:
    """Of each tensor of a result the argument that it is (from 0 on) or that it shares memory with (from -1 down)."""
    tensors = tensors_of(arguments)
    given = {id(tensor): i for i, tensor in enumerate(tensors)}
    with torch._C.DisableTorchFunction():
        places = {compat.storage_address(tensor): ~i for i, tensor in enumerate(tensors)}
        return [given.get(id(each), places.get(compat.storage_address(each))) for each in tensors_of(result)]
