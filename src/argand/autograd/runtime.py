"""Runtime wrapper: a callable for the functional graph becomes one for the user's call.

Straight-line Python is generated per program: pick the graph's inputs out of the call's arguments, run, write mutated
inputs back, rebuild aliases, return the user's structure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from argand.errors import InternalError
from argand.graph import compat
from argand.graph.program import AtenProgram, OutputSpec

GraphCallable = Callable[..., Any]


def wrap(program: AtenProgram, run: GraphCallable, *, boxed: bool = False) -> Callable[..., Any]:
    """A callable for the user's arguments.

    Arguments:
        program: the traced program.
        run: takes the graph's inputs (one tensor per placeholder) positionally, or as one list when `boxed`, and
            returns the graph's outputs as a tuple or list.
    """
    return compile_wrapper(*wrapper_source(program, run, boxed=boxed))


def compile_wrapper(source: str, names: dict[str, Any]) -> Callable[..., Any]:
    """The function `call` that `source` defines."""
    namespace = dict(names)
    exec(compile(source, "<argand runtime wrapper>", "exec"), namespace)
    return namespace["call"]


def wrapper_source(program: AtenProgram, run: GraphCallable, *, boxed: bool = False) -> tuple[str, dict[str, Any]]:
    """The wrapper's text and the objects that it names."""
    names: dict[str, Any] = {"run": run, "as_strided": torch.as_strided, "no_grad": torch.no_grad}
    lines = ["def call(*args):"]
    inputs: list[str] = []
    for position, spec in enumerate(program.inputs):
        if spec.kind == "arg":
            inputs.append(f"args[{spec.index}]")
        else:
            names[f"c{position}"] = program.constants[spec.name]
            inputs.append(f"c{position}")
    used = sorted({m.input for m in program.mutations} | {o.index for o in program.outputs if "input" in o.kind})
    for position in used:
        lines.append(f"    i{position} = {inputs[position]}")
        inputs[position] = f"i{position}"
    passed = f"[{', '.join(inputs)}]" if boxed else ", ".join(inputs)
    names["autocast_active"], names["disabled_autocast"] = compat.autocast_active, compat.disabled_autocast
    lines.append("    if autocast_active():")
    lines.append("        guard = disabled_autocast()")  # the casts are in the graph already
    lines.append("        try:")
    lines.append(f"            out = run({passed})")
    lines.append("        finally:")
    lines.append("            del guard")
    lines.append("    else:")
    lines.append(f"        out = run({passed})")
    lines += _mutation_lines(program)
    leaves = [_leaf(program, position, spec, lines, names) for position, spec in enumerate(program.outputs)]
    lines.append(f"    return {_structure(program, leaves, names)}")
    return "\n".join(lines) + "\n", names


def _mutation_lines(program: AtenProgram) -> list[str]:
    if not program.mutations:
        return []
    lines = ["    with no_grad():"]
    lines += [f"        i{m.input}.copy_(out[{m.output}])" for m in program.mutations]
    return lines


def _leaf(program: AtenProgram, position: int, spec: OutputSpec, lines: list[str], names: dict[str, Any]) -> str:
    if spec.kind == "constant":
        if spec.value is None or type(spec.value) in (int, bool, str):
            return repr(spec.value)
        names[f"v{position}"] = spec.value
        return f"v{position}"
    base = f"i{spec.index}" if "input" in spec.kind else f"out[{spec.index}]"
    if spec.view is None:
        return base
    view = spec.view
    if view.chain:
        text = base
        for step, (func, args) in enumerate(view.chain):
            names[f"f{position}_{step}"], names[f"a{position}_{step}"] = func, args
            text = f"f{position}_{step}({text}, *a{position}_{step})"
        return text
    lines.append(f"    b{position} = {base}")
    if spec.kind == "alias_of_output":
        # Strides are numbers: on a base laid out otherwise they would show other elements.
        want = _base_strides(program, spec.index)
        lines.append(f"    if b{position}.stride() != {want}:")
        lines.append(f"        raise layout_error({spec.index}, b{position}.stride(), {want})")
        names["layout_error"] = layout_error
    offset = f"b{position}.storage_offset()" + (f" + {view.offset}" if view.offset else "")
    return f"as_strided(b{position}, {view.size}, {view.stride}, {offset})"


def _base_strides(program: AtenProgram, index: int) -> tuple[int, ...]:
    """Strides that the graph promises for one of its results."""
    results: Any = program.output_node.args[0]
    return tuple(results[index].meta["val"].stride())


def layout_error(index: int, have: tuple[int, ...], want: tuple[int, ...]) -> InternalError:
    """A result that other results are views of came out in another layout than the graph says."""
    return InternalError(f"result {index} of a graph has strides {have}, not {want}: its views cannot be rebuilt")


def _structure(program: AtenProgram, leaves: list[str], names: dict[str, Any]) -> str:
    tree = program.out_tree
    if tree is None:
        return leaves[0]
    if tree.type in (tuple, list) and all(child.is_leaf() for child in tree.children()):
        inner = ", ".join(leaves)
        if tree.type is list:
            return f"[{inner}]"
        return f"({inner},)" if leaves else "()"
    if tree.type is torch.Size:
        names["Size"] = torch.Size
        return f"Size([{', '.join(leaves)}])"
    names["unflatten"], names["tree"] = compat.tree_unflatten, tree
    return f"unflatten([{', '.join(leaves)}], tree)"
