"""ATen graphs as plain data, and back: a backward that a process which traced nothing may still have to compile."""

from __future__ import annotations

import functools
import marshal
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx

from argand.graph.nodes import literals
from argand.graph.nodes.codec import NoText, pack, unpack
from argand.graph.nodes.program import AtenProgram, InputSpec, TensorSpec
from argand.graph.origin import NodeOrigin
from argand.graph.sizes.expr import Expr, Sym
from argand.graph.sizes.symbolic import Scalar, SymbolicTensor

Encoded = bytes
_FORMAT: Final = 0
"""Of `marshal`: the text of the same graph is the same in all processes, which later formats do not promise."""
_NAMED: Final = (torch.dtype, torch.layout, torch.memory_format)
_HOME: Final = "it is traced by each process"


def encode_program(program: AtenProgram) -> Encoded:
    """A graph of torch's operators, with its inputs and numbers; outputs and mutations are not told of.

    Raises:
        NoText: it holds something that only this process knows.
    """
    numbers = {node: number for number, node in enumerate(program.graph.nodes)}
    nodes = []
    known: dict[tuple[int, int], Any] = {}  # metadata of results, which many nodes share
    for node in program.graph.nodes:
        target = _target(node)
        args: tuple[Any, ...] | None = _packed((node.args, node.kwargs), numbers)
        if node.op == "get_attr":
            held = program.constants.get(str(target))
            args = None if held is None else literals.packed(held)
        if args is None:
            raise NoText(f"the graph holds the tensor {target}", remedy=_HOME)
        meta = None
        if node.op != "output":
            value, device = node.meta["val"], node.meta.get("device")
            meta = known.get((id(value), id(device)))
            if meta is None:
                meta = known[id(value), id(device)] = (_packed_value(value), _packed(device, {}))
        nodes.append((node.op, node.name, target, args, meta))
    if any(scalar.names for scalar in program.scalars):
        raise NoText("a size is computed from an object", remedy=_HOME)
    content = {
        "nodes": tuple(nodes),
        "inputs": tuple([(spec.name, spec.kind, spec.index, _packed_spec(spec.spec)) for spec in program.inputs]),
        "scalars": tuple([(s.sym.name, s.sym.minimum, s.source, s.is_float, float(s.hint)) for s in program.scalars]),
        "taken": tuple(sorted(program.taken)),
        "count": program.num_args,
    }
    return marshal.dumps(content, _FORMAT)


def _target(node: fx.Node) -> Any:
    if node.op in ("placeholder", "output", "get_attr"):
        return node.target
    if node.op == "call_function" and node.target is operator.getitem:
        return "getitem"
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        raise NoText(f"the graph holds {node.target}", remedy=_HOME)
    return _names(node.target)


@functools.lru_cache(maxsize=1 << 12)
def _names(target: torch._ops.OpOverload) -> tuple[str, str, str]:
    return target.namespace, target._schema.name.partition("::")[2], target._overloadname


def _packed(value: Any, numbers: Mapping[fx.Node, int]) -> tuple[Any, ...]:
    return pack(value, numbers, _packed_leaf)


def _packed_leaf(value: Any) -> tuple[Any, ...]:
    if isinstance(value, torch.device):
        return ("device", value.type, value.index)
    if isinstance(value, _NAMED):
        return ("torch", str(value).removeprefix("torch."))
    if isinstance(value, Expr):
        return _packed_expr(value)
    if isinstance(value, torch.Size):
        return _packed(tuple(value), {})
    raise NoText(f"the graph holds a {type(value).__name__}", remedy=_HOME)


def _packed_expr(value: Expr) -> tuple[Any, ...]:
    """An expression by its text, which is Python."""
    symbols = tuple(sorted([(sym.name, sym.minimum) for sym in value.free if isinstance(sym, Sym)]))
    packed = ("expr", str(value), symbols)
    if len(symbols) != len(value.free) or _unpacked(packed, ()) != value:
        raise NoText("a size has no text", remedy=_HOME)
    return packed


def _packed_value(value: Any) -> tuple[Any, ...]:
    """Metadata of a result."""
    if isinstance(value, SymbolicTensor):
        shape, strides = _packed(tuple(value.shape), {}), _packed(tuple(value.strides), {})
        example = (tuple(value.example.shape), tuple(value.example.stride()))
        return ("symbolic", shape, strides, _packed(value.offset, {}), _packed(value.dtype, {}), example)
    if isinstance(value, torch.Tensor):
        layout = (tuple(value.shape), tuple(value.stride()), value.storage_offset())
        return ("tensor", layout, _packed(value.dtype, {}))
    if isinstance(value, tuple | list):
        return ("list" if isinstance(value, list) else "tuple", tuple([_packed_value(item) for item in value]))
    return _packed(value, {})


def _packed_spec(spec: TensorSpec) -> tuple[Any, ...]:
    parts = (tuple(spec.size), tuple(spec.stride), spec.offset, spec.dtype, spec.device, spec.requires_grad)
    return _packed(parts, {})


def decode_program(encoded: Encoded) -> AtenProgram:
    """The program again."""
    content = marshal.loads(encoded)
    graph = fx.Graph()
    nodes: list[fx.Node] = []
    constants: dict[str, torch.Tensor] = {}
    for op, name, target, packed, meta in content["nodes"]:
        args, kwargs = ((), {}) if op == "get_attr" else _unpacked(packed, nodes)
        if op == "get_attr":
            constants[target] = literals.unpacked(*packed)
            node = graph.create_node(op, target, (), {}, name)
        elif op == "output":
            node = graph.output(args[0])
        elif op == "placeholder":
            node = graph.create_node(op, target, args, kwargs, name)
        else:
            node = graph.create_node(op, _function(target), args, kwargs, name)
        if meta is None:
            node.meta["val"] = tuple([given.meta["val"] for given in args[0]])
        else:
            node.meta.update(val=_value(meta[0]), origin=NodeOrigin())
            if (device := _unpacked(meta[1], ())) is not None:  # numbers have none
                node.meta["device"] = device
        nodes.append(node)
    inputs = [
        InputSpec(name, kind, index, TensorSpec(*_unpacked(spec, ()))) for name, kind, index, spec in content["inputs"]
    ]
    program = AtenProgram(graph, inputs, [], [], constants, None, content["count"], kind="backward")
    program.scalars = [
        Scalar(Sym(name, minimum), source, is_float, hint)
        for name, minimum, source, is_float, hint in content["scalars"]
    ]
    program.taken = frozenset(content["taken"])
    return program


def _function(target: Any) -> Any:
    if target == "getitem":
        return operator.getitem
    namespace, name, overload = target
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


def _unpacked(packed: tuple[Any, ...], nodes: Sequence[fx.Node]) -> Any:
    return unpack(packed, nodes, _unpacked_leaf)


def _unpacked_leaf(packed: tuple[Any, ...]) -> Any:
    kind, held = packed[0], packed[1]
    if kind == "device":
        return torch.device(held) if packed[2] is None else torch.device(held, packed[2])
    if kind == "torch":
        return getattr(torch, held)
    return eval(held, {"__builtins__": {}}, {name: Sym(name, minimum) for name, minimum in packed[2]})


def _value(packed: tuple[Any, ...]) -> Any:
    if packed[0] == "tensor":
        (size, stride, offset), dtype = packed[1], _unpacked(packed[2], ())
        tensor = torch.empty_strided(size, stride, dtype=dtype, device="meta")
        return tensor if not offset else tensor.as_strided(size, stride, offset)
    if packed[0] == "symbolic":
        shape, strides, offset, dtype = (_unpacked(part, ()) for part in packed[1:5])
        example = torch.empty_strided(*packed[5], dtype=dtype, device="meta")
        return SymbolicTensor(example, shape, strides, offset)
    if packed[0] in ("tuple", "list"):
        items = [_value(item) for item in packed[1]]
        return items if packed[0] == "list" else tuple(items)
    return _unpacked(packed, ())
