"""A text that is equal for two ATen programs that compute the same from tensors of the same layouts."""

from __future__ import annotations

import contextlib
import operator
from typing import Any

import torch
from torch import fx

from argand.backends.targets import devices_in, target_of
from argand.graph import compat
from argand.graph.nodes import literals
from argand.graph.nodes.program import AtenProgram
from argand.graph.operators.namespaces import OWN_OPERATIONS
from argand.graph.sizes.expr import Expr
from argand.graph.sizes.symbolic import SymbolicTensor
from argand.graph.trees import leaves
from argand.outcomes import operators
from argand.outcomes.reads import Unknown
from argand.runtime.kernels import convolutions, products


def graph_key(program: AtenProgram) -> str | None:
    """Structure and metadata of a program; None when it holds large constants, which are compared by
    nothing cheap."""
    numbers: dict[fx.Node, int] = {}
    kinds: dict[int, str] = {}  # of results, which many nodes share
    names: dict[int, str] = {}  # of operations
    parts = [surroundings(program)]
    left_out = told_by_layers(program)
    for number, node in enumerate(program.graph.nodes):
        numbers[node] = number
        if node in left_out:
            continue
        if node.op == "get_attr":
            content = literals.packed(program.constants[str(node.target)])
            if content is None:
                return None
            parts.append(f"{number}={content}")
            continue
        function, args, kwargs, meta = node.target, node.args, node.kwargs, node.meta
        target = node.op if node.op != "call_function" else names.get(id(function))
        if target is None:
            target = names[id(function)] = _name(function)
        given = f"{_text(args, numbers)},{_text(kwargs, numbers) if kwargs else '{}'}"
        value = meta.get("val")
        kind = kinds.get(id(value))
        if kind is None:
            kind = kinds[id(value)] = _meta(value)
        parts.append(f"{number}={target}({given}){kind}{meta.get('device')}")
    if (run := program.layers) is not None:
        position = {spec.name: number for number, spec in enumerate(program.inputs)}
        parts.append(
            f"layers {run.begin} {run.length} {run.count} {[list(map(position.get, row)) for row in run.given]}"
        )
    return "\n".join(parts)


def _name(function: Any) -> str:
    """Of an operation, with what an operator of a library's is made of, where that is known."""
    if type(function) is torch._ops.OpOverload and function.namespace not in OWN_OPERATIONS:
        with contextlib.suppress(Unknown):
            return f"{function} {operators.identity(function)}"
    return str(function)


def told_by_layers(program: AtenProgram) -> set[fx.Node]:
    """Calls that do what those of the layer before do, by the program's own account: all but the first two layers'."""
    run = program.layers
    if run is None:
        return set()
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    return set(calls[run.begin + 2 * run.length : run.begin + run.count * run.length])


def surroundings(program: AtenProgram) -> str:
    """What a program's key tells besides its nodes."""
    parts = [f"threads {torch.get_num_threads()}, {products.key()}, {convolutions.key()}"]
    parts += [f"{device}: {target_of(device)}" for device in devices_in(program)]
    parts.append(f"deterministic {compat.deterministic()[0]}")
    parts.append(str([(spec.kind, spec.index) for spec in program.outputs]))
    parts.append(str(sorted(program.handed_over)))
    parts.append(str([(scalar.sym.name, scalar.sym.minimum, scalar.is_float) for scalar in program.scalars]))
    parts.append(str([(m.input, m.output, m.differentiable) for m in program.mutations]))
    parts.append(str(sorted(program.kept)))
    parts.append(f"arrivals {program.arrivals} {sorted(program.taken)}" if program.arrivals else "")
    parts.append(f"{program.kind} bases {[p for p, spec in enumerate(program.inputs) if spec.kind == 'base']}")
    return "\n".join(parts)


_NUMBERS = (bool, int, float, complex, Expr)
_PLAIN = (*_NUMBERS, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


def undescribed(program: AtenProgram) -> str:
    """What `graph_key` tells of in words that only this process understands; "" when another process would too."""
    for target in compat.targets_of(program.graph):
        if target is not operator.getitem:
            if not isinstance(target, torch._ops.OpOverload):
                return f"{target} is no operator"
            if target.namespace not in OWN_OPERATIONS:
                try:
                    operators.identity(target)
                except Unknown as error:
                    return str(error)
    left_out = told_by_layers(program)
    for node in program.graph.nodes:
        if node in left_out:
            continue
        given = node.args if not node.kwargs else (*node.args, *node.kwargs.values())
        if _DESCRIBED.issuperset(map(type, given)):
            continue
        for value in given:
            if type(value) in _ROWS and _DESCRIBED.issuperset(map(type, value)):
                continue
            for leaf in leaves(value):
                if not isinstance(leaf, (fx.Node, *_PLAIN)):
                    return f"an argument of {node.target} is a {type(leaf).__name__}"
    return ""


_DESCRIBED = frozenset((fx.Node, *_PLAIN))
_ROWS = (tuple, list, fx.immutable_collections.immutable_list)


def _text(value: Any, numbers: dict[fx.Node, int]) -> str:
    cls = type(value)
    if cls is fx.Node:
        return f"%{numbers[value]}"
    if issubclass(cls, (tuple, list)):
        return f"({','.join([_text(item, numbers) for item in value])})"
    if issubclass(cls, dict):
        return f"{{{','.join([f'{k}:{_text(v, numbers)}' for k, v in value.items()])}}}"
    return f"{cls.__name__} {value!r}"


def _meta(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)}{value.stride()}{value.dtype}"
    if isinstance(value, SymbolicTensor):
        return f"{tuple(value.shape)}{value.stride()}{value.dtype}"
    if isinstance(value, (tuple, list)):
        return f"({','.join([_meta(item) for item in value])})"
    return str(value)
