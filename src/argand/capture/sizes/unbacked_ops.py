"""Operations that make unbacked symbols: values of tensors as numbers, and results whose size depends on data.

Captured where `config.capture_scalar_outputs` or `config.capture_dynamic_output_shape_ops` asks for it, and under
fullgraph=True; elsewhere, and inside subgraphs, every function here answers NotImplemented.
"""

from __future__ import annotations

from typing import Any

import torch

from argand.capture.facts import compat
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import Dynamics, GraphBuilder, Unbacked
from argand.capture.facts.values.symbolic import SYMBOLIC, SymbolicBool, SymbolicInt
from argand.capture.facts.values.tensor_info import Dynamic, TensorInfo
from argand.capture.metadata import data_errors, metadata
from argand.capture.metadata.call_targets import target_of
from argand.capture.sizes import symbolic_tensors
from argand.capture.sizes import unbacked as unbacked_symbols
from argand.capture.sizes.symbolic_policy import dynamics_of
from argand.capture.sizes.unbacked_calls import stand_ins
from argand.graph.sizes.expr import Sym
from argand.graph.sizes.relations import Relation, Value

_T = torch.Tensor
_Spec = tuple[list[Any], torch.dtype, bool]  # sizes, dtype, whether it has gradients
_LONG = torch.int64


def of(builder: GraphBuilder) -> Unbacked:
    """The unbacked symbols of the capture, made when the first is needed."""
    dynamics = dynamics_of(builder.state)
    if dynamics.unbacked is None:
        dynamics.unbacked = unbacked_symbols.Unbacked(dynamics)
    return dynamics.unbacked


def _wanted(builder: GraphBuilder, numbers: bool) -> bool:
    state = builder.state
    return (state.data_numbers if numbers else state.data_sizes) and builder.graph is builder.root


# ---------------------------------------------------------------------- numbers


def item(builder: GraphBuilder, tensor: Any, *, unseen: bool = False) -> Any:
    """`tensor.item()` as a symbolic number; NotImplemented where that is not wanted or not possible.

    Arguments:
        unseen: the program does not get the number, only the operation that asked for it does.
    """
    info = builder.tensors.get(id(tensor))
    dtype = tensor.dtype
    wanted = _wanted(builder, True) or (unseen and builder.graph is builder.root)
    if info is None or not wanted or dtype is torch.bool or dtype.is_complex:
        return NotImplemented
    if tensor.dim() and (info.dynamic is not None or tensor.numel() != 1):
        return NotImplemented
    unbacked = of(builder)
    key = ("item", id(tensor), len(builder.writing))
    number = unbacked.memo.get(key)
    if number is None:
        node = compat.new_node(builder.graph, "call_method", "item", (builder.node_of(info),), {})
        builder.annotate(node)
        builder.calls += 1
        low = 0 if not dtype.is_signed else None
        kind = "float" if dtype.is_floating_point else "int"
        words = f"the value that {info.node.name}.item() reads"
        sym = unbacked.new(words, low=low, kind=kind)
        unbacked.origins[sym].node = node
        dynamics = unbacked.dynamics
        node.meta.update(expr=sym, unbacked=(sym,), example_value=dynamics.table.hints[sym])
        number = unbacked.memo[key] = dynamics.wrap(sym, dynamics.table.hints[sym])
    return number


def read(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """`item` and `tolist`."""
    with torch._C.DisableTorchFunction():
        return (tolist if func.__name__ == "tolist" else item)(builder, args[0])


def tolist(builder: GraphBuilder, tensor: Any) -> Any:
    """`tensor.tolist()` as (nested) lists of symbolic numbers."""
    info = builder.tensors.get(id(tensor))
    if info is None or info.dynamic is not None or tensor.numel() > 256 or not _wanted(builder, True):
        return NotImplemented
    if tensor.dtype is torch.bool or tensor.dtype.is_complex:
        return NotImplemented
    if tensor.dim() == 0:
        return item(builder, tensor)
    rows = builder.call(_T.unbind, (tensor, 0), {})
    return [tolist(builder, row) for row in rows]


# ---------------------------------------------------------------------- results of unknown size


def _sizes(builder: GraphBuilder, tensor: Any) -> list[Any]:
    info = builder.tensors.get(id(tensor))
    if info is not None and info.dynamic is not None:
        return [symbolic_tensors.plain(size) for size in info.dynamic.sizes]
    return list(tensor.shape)


def _count(builder: GraphBuilder, words: str, key: Any, low: int = 0) -> Any:
    """The symbol for a size; the same one for the same question."""
    unbacked = of(builder)
    known = None if key is None else (*key, len(builder.writing))
    count = unbacked.memo.get(known) if known is not None else None
    if count is None:
        count = unbacked.new(words, low=low)
        if known is not None:
            unbacked.memo[known] = count
    return count


def _numel(builder: GraphBuilder, tensor: Any) -> Any:
    total: Any = 1
    for size in _sizes(builder, tensor):
        if size is None:
            return None
        total = size * total
    return total


def _bound(builder: GraphBuilder, sym: Sym, most: Any) -> None:
    if most is not None:
        of(builder).learn(Relation("le", sym, most))


def _record_result(
    builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs, specs: list[_Spec], many: Any, fits: bool = False
) -> Any:
    """Record the call; its results are as `specs` say.

    Arguments:
        many: makes the result from the list of stand-ins (tuple, a named tuple, ...); None: the only one.
        fits: eager takes such arguments, which are results of others.
    """
    unbacked = of(builder)
    infos: list[TensorInfo] = []
    node_args = tuple([builder.to_node(arg, infos) for arg in args])
    node_kwargs = {key: builder.to_node(value, infos) for key, value in kwargs.items()}
    device = metadata.logical_device(func, infos, kwargs)
    tensors, others = [], []
    for sizes, dtype, grad in specs:
        strides = (1, sizes[0]) if func in _TRANSPOSED and len(sizes) == 2 else None
        stand_in, siblings = stand_ins(unbacked, sizes, dtype, grad and torch.is_grad_enabled(), strides)
        tensors.append(stand_in)
        others.append(siblings)
    whole = tensors[0] if many is None else many(tensors)
    if not fits:
        metadata.try_out(func, args, kwargs, infos, whole)
    result = builder.finish_call(target_of(_IN_GRAPHS.get(func, func)), node_args, node_kwargs, whole, device, False)
    for stand_in, siblings in zip(tensors, others):
        symbolic_tensors.note(builder, stand_in, siblings)
    return result


def nonzero(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """`nonzero`, `argwhere`, and `where` with one argument."""
    tensor = args[0] if args else kwargs.get("input", kwargs.get("condition"))
    if not isinstance(tensor, _T) or not _wanted(builder, False):
        return NotImplemented
    name = getattr(func, "__name__", "")
    in_columns = name == "where" or kwargs.get("as_tuple", args[1] if len(args) > 1 else False)
    if "out" in kwargs or (in_columns and name != "where" and "as_tuple" not in kwargs):
        return NotImplemented
    rank = tensor.dim()
    count = _count(builder, f"the count of nonzero elements of {_name(builder, tensor)}", ("nonzero", id(tensor)))
    _bound(builder, count, _numel(builder, tensor))
    if in_columns:
        return _record_result(builder, func, args, kwargs, [([count], _LONG, False)] * max(rank, 1), tuple)
    return _record_result(builder, func, args, kwargs, [([count, rank], _LONG, False)], None)


def _name(builder: GraphBuilder, tensor: Any) -> str:
    info = builder.tensors.get(id(tensor))
    return "a tensor" if info is None else info.source.friendly() if info.source is not None else info.node.name


def masked_select(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """`x.masked_select(mask)`."""
    if len(args) != 2 or kwargs or not _wanted(builder, False) or args[1].dtype is not torch.bool:
        return NotImplemented
    tensor, mask = args
    same = tensor.shape == mask.shape and _sizes(builder, tensor) == _sizes(builder, mask)
    key = ("nonzero", id(mask)) if same else None
    count = _count(builder, f"the count of elements that {_name(builder, mask)} selects", key)
    return _record_result(builder, func, args, kwargs, [([count], tensor.dtype, tensor.requires_grad)], None)


_UNIQUE: dict[Any, tuple[str, ...]] = {
    torch._unique2: ("sorted", "return_inverse", "return_counts"),
    torch._VF.unique_dim: ("dim", "sorted", "return_inverse", "return_counts"),
    torch._VF.unique_consecutive: ("return_inverse", "return_counts", "dim"),
}
"""Torch's own functions behind `unique`: their parameters; they always return three tensors."""


def unique_dim(*args: object, **kwargs: object) -> object:
    """As a graph calls it: `torch._VF` is no module."""
    return torch._VF.unique_dim(*args, **kwargs)


def unique_consecutive(*args: object, **kwargs: object) -> object:
    """As a graph calls it."""
    return torch._VF.unique_consecutive(*args, **kwargs)


_IN_GRAPHS = {torch._VF.unique_dim: unique_dim, torch._VF.unique_consecutive: unique_consecutive}


def unique(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """`unique` and `unique_consecutive`."""
    names = _UNIQUE.get(func)
    if names is None:
        name = getattr(func, "__name__", "")
        names = ("return_inverse", "return_counts", "dim") if name == "unique_consecutive" else (
            "sorted", "return_inverse", "return_counts", "dim")  # fmt: skip
    given = dict(zip(names, args[1:])) | kwargs
    if not _wanted(builder, False) or not args or set(given) - set(names):
        return NotImplemented
    tensor, dim = args[0], given.get("dim")
    sizes = _sizes(builder, tensor)
    if None in sizes or (dim is not None and (type(dim) is not int or not -len(sizes) <= dim < len(sizes))):
        return NotImplemented
    known = all(type(size) is int and size > 0 for size in sizes)
    if dim is not None and not known:
        return NotImplemented  # what is empty in some dims is refused at times
    count = _count(builder, f"the count of different values in {_name(builder, tensor)}", None, low=int(known))
    _bound(builder, count, _numel(builder, tensor) if dim is None else sizes[dim])
    values = [count] if dim is None else [count if d == dim % len(sizes) else size for d, size in enumerate(sizes)]
    specs: list[_Spec] = [(values, tensor.dtype, tensor.requires_grad)]
    all_three = func in _UNIQUE
    if given.get("return_inverse", False) or (all_three and dim is not None):
        specs.append((sizes if dim is None else [sizes[dim]], _LONG, False))
    elif all_three:
        specs.append(([0], _LONG, False))
    if given.get("return_counts", False) or (all_three and dim is not None):
        specs.append(([count], _LONG, False))
    elif all_three:
        specs.append(([0], _LONG, False))
    return _record_result(builder, func, args, kwargs, specs, tuple if len(specs) > 1 else None)


def bincount(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """`bincount(x, weights=None, minlength=0)`."""
    given = dict(zip(("weights", "minlength"), args[1:])) | kwargs
    least, weights = given.get("minlength", 0), given.get("weights")
    if not _wanted(builder, False) or not args or type(least) is not int or least < 0:
        return NotImplemented
    dtype = _LONG if weights is None else torch.float32 if weights.dtype is torch.float32 else torch.float64
    count = _count(builder, f"one more than the greatest value in {_name(builder, args[0])}", None, low=least)
    return _record_result(builder, func, args, kwargs, [([count], dtype, False)], None)


def repeat_interleave(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """`repeat_interleave` with a tensor of repeats."""
    given = dict(zip(("input", "repeats", "dim"), args)) | kwargs
    if not _wanted(builder, False) or set(given) - {"input", "repeats", "dim"}:
        return NotImplemented
    tensor: Any = given.get("input", given.get("repeats"))
    words = "the sum of the repeats of repeat_interleave"
    if "input" not in given or "repeats" not in given:
        count = _count(builder, words, None)
        return _record_result(builder, func, args, kwargs, [([count], tensor.dtype, False)], None)
    dim, sizes = given.get("dim"), _sizes(builder, tensor)
    if None in sizes or (dim is not None and (type(dim) is not int or not -len(sizes) <= dim < len(sizes))):
        return NotImplemented
    count = _count(builder, words, None)
    repeated = [count] if dim is None else [count if d == dim % len(sizes) else size for d, size in enumerate(sizes)]
    return _record_result(builder, func, args, kwargs, [(repeated, tensor.dtype, tensor.requires_grad)], None)


def one_hot(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """`one_hot(x)`: as many classes as the greatest value says."""
    sizes = _sizes(builder, args[0])
    if not _wanted(builder, False) or None in sizes:
        return NotImplemented
    count = _count(builder, f"one more than the greatest value in {_name(builder, args[0])}", None)
    return _record_result(builder, func, args, kwargs, [([*sizes, count], _LONG, False)], None)


# ---------------------------------------------------------------------- packed sequences


def _on_cpu(builder: GraphBuilder, tensor: object) -> bool:
    info = builder.tensors.get(id(tensor))
    return info is not None and info.device.type == "cpu" and not torch.is_autocast_enabled("cpu")


def pack(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    """`_pack_padded_sequence(input, lengths, batch_first)`: as many rows as all lengths together, and how many there
    are of each step, which of the first are all sequences."""
    if kwargs or len(args) != 3 or not _wanted(builder, False) or not all(_on_cpu(builder, each) for each in args[:2]):
        return NotImplemented
    padded, _, batch_first = args
    sizes = _sizes(builder, padded)
    if len(sizes) < 2 or None in sizes:
        return NotImplemented
    rows = _count(builder, "the sum of the lengths of packed sequences", None, low=1)
    steps = _count(builder, "the length of the longest packed sequence", None, low=1)
    _bound(builder, rows, sizes[0] * sizes[1])
    _bound(builder, steps, sizes[1 if batch_first else 0])
    specs = [([rows, *sizes[2:]], padded.dtype, padded.requires_grad), ([steps], _LONG, False)]
    data, counts = _record_result(builder, func, args, kwargs, specs, tuple)
    number = symbolic_tensors.dim_number(builder, builder.tensors[id(padded)], 0 if batch_first else 1)
    builder.tensors[id(counts)].node.meta["sequences"] = number
    return data, counts


def sequences(builder: GraphBuilder, counts: object) -> int | SymbolicInt | None:
    """How many sequences were packed, of the tensor that counts the rows of each step; None where it is not known."""
    info = builder.tensors.get(id(counts))
    if info is None or any(info.node is written.node for written in builder.mutated.values()):
        return None
    number: int | SymbolicInt | None = info.node.meta.get("sequences")
    return number


def recurrent(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    """`lstm`, `gru`, ... of packed data: (data, counts, states, weights, biases, layers, dropout, train, both)."""
    if kwargs or len(args) != 9 or not isinstance(args[3], list | tuple) or not _wanted(builder, False):
        return NotImplemented
    data, states = args[0], args[2] if isinstance(args[2], list | tuple) else (args[2],)
    known = [_sizes(builder, each) for each in (data, *states)]
    if not _on_cpu(builder, data) or any(None in sizes for sizes in known) or sequences(builder, args[1]) is None:
        return NotImplemented
    grad = any(each.requires_grad for each in (data, *states, *args[3]))
    specs = [([known[0][0], known[1][-1] * (2 if args[8] else 1)], data.dtype, grad)]
    specs += [(sizes, data.dtype, grad) for sizes in known[1:]]
    return _record_result(builder, func, args, kwargs, specs, tuple, fits=True)


def pad(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    """`_pad_packed_sequence(data, counts, batch_first, value, length)`."""
    if kwargs or len(args) != 5 or not _wanted(builder, False):
        return NotImplemented
    data, counts, batch_first, _, length = args
    batch, rest = sequences(builder, counts), _sizes(builder, data)[1:]
    if batch is None or None in rest or not _on_cpu(builder, data):
        return NotImplemented
    shape = [expr_of(batch), expr_of(length)]
    specs = [([*(shape if batch_first else shape[::-1]), *rest], data.dtype, data.requires_grad)]
    return _record_result(builder, func, args, kwargs, [*specs, (shape[:1], _LONG, False)], tuple, fits=True)


_TRANSPOSED = frozenset((torch.nonzero, torch.argwhere, _T.nonzero, _T.argwhere))


# ---------------------------------------------------------------------- calls with other stand-ins


def temporary(builder: GraphBuilder, sizes: list[Value], like: Any, dtype: torch.dtype | None = None) -> Any:
    """A stand-in that only metadata are computed with, made of `like`."""
    unbacked = of(builder)
    info = builder.tensors[id(like)]
    dtype = dtype or like.dtype
    stand_in, siblings = stand_ins(unbacked, sizes, dtype, like.requires_grad and dtype is like.dtype)
    builder.tensors[id(stand_in)] = TensorInfo(stand_in, info.node, info.device, dynamic=Dynamic(siblings, sizes))
    return stand_in


def record(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs, meta_args: Any) -> Any:
    """Record a call whose metadata are those of the call with `meta_args`, which stand for the keywords too."""
    infos: list[TensorInfo] = []
    node_args = tuple([builder.to_node(arg, infos) for arg in args])
    node_kwargs = {key: builder.to_node(value, infos) for key, value in kwargs.items()}
    device = metadata.logical_device(func, infos, kwargs)
    stand_in, siblings = builder.compute_dynamic(func, args, kwargs, infos, device, meta_args, {})
    result = builder.finish_call(target_of(func), node_args, node_kwargs, stand_in, device, False)
    return symbolic_tensors.attach(builder, result, siblings)


def split(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """`split` by a list of symbolic sizes: torch raises where they do not add up."""
    given = dict(zip(("self", "sizes", "dim"), args))
    for key, value in kwargs.items():
        given[
            "sizes" if key.startswith("split") or key == "indices_or_sections" else "dim" if key == "dim" else key
        ] = value
    sizes, dim = given.get("sizes"), given.get("dim", 0)
    if set(given) - {"self", "sizes", "dim"} or type(sizes) not in (list, tuple) or type(dim) is not int:
        return NotImplemented
    tensor, dynamics = given["self"], builder.dynamics
    whole = _sizes(builder, tensor)
    varying = [size.expr for size in sizes if type(size) in SYMBOLIC]  # type: ignore[union-attr]
    if dynamics is None or not varying or not -len(whole) <= dim < len(whole):
        return NotImplemented
    unbacked = dynamics.unbacked
    if unbacked is None or not unbacked.among(*varying):
        if whole[dim] is not None and all(type(size) in (int, SymbolicInt) for size in sizes):  # type: ignore[union-attr]
            size = dynamics.wrap(whole[dim], tensor.shape[dim])
            _add_up(dynamics, sizes, size)  # type: ignore[arg-type]
        return NotImplemented
    total: Any = sum(expr_of(size) for size in sizes)  # type: ignore[union-attr]
    for size in sizes:  # type: ignore[union-attr]
        unbacked.learn(Relation("ge", expr_of(size), 0))
    whole[dim % len(whole)] = total
    return record(builder, func, args, kwargs, (temporary(builder, whole, tensor), sizes, dim))


def _add_up(dynamics: Dynamics, sizes: list[int], whole: int) -> None:
    """Guard that sizes are those of the parts of a whole: at probes where they are not, torch would raise.

    A part that varies is two or more, if none is less: what is left for the others is said of each, as probes are
    chosen one by one.
    """
    least = 0 if any(getattr(size, "hint", 2) < 2 for size in sizes) else 2
    if not dynamics.compare("eq", sum(sizes), whole):
        return
    for others, size in zip(reversed(range(len(sizes))), sizes):
        whole = whole - size
        left = getattr(whole, "hint", whole)
        dynamics.compare("ge", size, 0)
        dynamics.compare("ge", whole, least * others if left >= least * others else 0)


def narrow(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """`narrow` with symbolic bounds: torch raises where they are out of range."""
    unbacked = _unbacked(builder)
    if unbacked is None or len(args) != 4 or kwargs or type(args[1]) is not int:
        return NotImplemented
    tensor, dim, start, length = args
    whole = _sizes(builder, tensor)
    if isinstance(start, _T) or not unbacked.among(
        expr_of(start), expr_of(length), *[s for s in whole if s is not None]
    ):
        return NotImplemented
    if not -len(whole) <= dim < len(whole) or None in whole:
        return NotImplemented
    unbacked.learn(Relation("ge", expr_of(length), 0))
    whole[dim % len(whole)] = expr_of(length)
    return record(builder, func, args, kwargs, (temporary(builder, whole, tensor), dim, 0, length))


def select(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """`select` at a symbolic index."""
    unbacked = _unbacked(builder)
    if unbacked is None or len(args) != 3 or kwargs or type(args[2]) not in SYMBOLIC:
        return NotImplemented
    if not unbacked.among(args[2].expr):
        return NotImplemented
    return record(builder, func, args, kwargs, (args[0], args[1], 0))


def _unbacked(builder: GraphBuilder) -> Unbacked | None:
    return None if builder.dynamics is None else builder.dynamics.unbacked


def expr_of(value: Any) -> Any:
    """A number as an expression or plain."""
    return value.expr if type(value) in SYMBOLIC else value


# ---------------------------------------------------------------------- checks


def check(builder: GraphBuilder, condition: Any) -> Any:
    """`torch._check(condition)`: the condition is known from here on. Returns its node."""
    if type(condition) is not SymbolicBool:
        return NotImplemented
    node = builder.number_node(condition)
    of(builder).learn(condition.relation)
    return node


def assertion(builder: GraphBuilder, condition: Any, message: Args) -> bool:
    """An `assert` becomes an operation."""
    if builder.graph is not builder.root:
        return False
    data_errors.raises(builder, "assert")
    builder.effect(hold, (check(builder, condition), *message))
    return True


def hold(holds: bool, *message: Any) -> None:
    """`assert` as a graph calls it."""
    if not holds:
        raise AssertionError(*message)


def checked(holds: bool, text: str | None) -> None:
    """`torch._check` as a graph calls it."""
    torch._check(holds, None if text is None else lambda: text)
