"""Runtime wrapper: a callable for the functional graph becomes one for the user's call.

Straight-line Python is generated per program: pick the graph's inputs out of the call's arguments, run, write mutated
inputs back, rebuild aliases, return the user's structure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from argand.autograd.recording.bases import base_tensor
from argand.autograd.recording.leaves import maker_lines, needs_data
from argand.errors import InternalError, say_unwritten
from argand.graph import compat
from argand.graph.nodes.program import AtenProgram, MutationSpec, OutputSpec
from argand.graph.sizes.expr import Expr
from argand.graph.version_counters import record_write, refuses_recorded_writes, refuses_writes
from argand.runtime.recipes import compile_wrapper

GraphCallable = Callable[..., Any]


def wrap(
    program: AtenProgram,
    run: GraphCallable,
    *,
    boxed: bool = False,
    otherwise: GraphCallable | None = None,
    with_grad: GraphCallable | None = None,
    untaped: bool = False,
    told: Mapping[int, torch.dtype | None] | None = None,
    writes: bool = False,
    written: Sequence[MutationSpec] | None = None,
) -> Callable[..., Any]:
    """A callable for the user's arguments.

    Arguments:
        program: the traced program.
        run: takes the graph's inputs (one tensor per placeholder) positionally, or as one list when `boxed`, and
            returns the graph's outputs as a tuple or list.
        otherwise: called with the user's arguments when they do not meet the program's conditions.
        with_grad: called with the user's arguments where gradients are recorded.
        untaped: no gradient is recorded of what `run` does, whatever the inputs are.
        told: leaves by position that must ask for gradients of these dtypes.
        writes: `run` writes to inputs itself, besides what the program says.
        written: all that is written to, where the program does not say it.
    """
    names: dict[str, Any] = {"run": run, "as_strided": torch.as_strided, "no_grad": torch.no_grad}
    names["written_in_place"], names["record_write"] = compat.written_in_place, record_write
    lines = ["def call(*args):"]
    if with_grad is not None:
        names["with_grad"], names["is_grad_enabled"] = with_grad, torch.is_grad_enabled
        lines += ["    if is_grad_enabled():", "        return with_grad(*args)"]
    lines += _scalar_lines(program, names, otherwise)
    inputs = _input_texts(program, names)
    written = program.mutations if written is None else written
    lines += _unlike_lines(program, inputs, names, otherwise, told or {}, written)
    inputs, views = _with_bases(program, inputs, names, otherwise)
    lines += views
    for position in _used_behind(program):
        lines.append(f"    i{position} = {inputs[position]}")
        inputs[position] = f"i{position}"
    lines += maker_lines(program, names, inputs)
    passed = ", ".join(inputs)
    if boxed:  # only `run` holds what it is given: it may let go early
        lines += [f"    inputs = [{passed}]", "    del args"]
        passed = "inputs"
    running = f"out = run({passed})"
    if untaped and any(spec.spec.requires_grad for spec in program.inputs):
        running = f"with no_grad(): {running}"
    lines += _running_lines(running, names, tells=program.writes and not writes)
    lines += _mutation_lines(program, writes or bool(program.leaves))
    lines += _result_lines(program, names)
    return compile_wrapper("\n".join(lines) + "\n", names)


def _input_texts(program: AtenProgram, names: dict[str, Any]) -> list[str]:
    """How the wrapper names each input."""
    texts: list[str] = []
    for position, spec in enumerate(program.inputs):
        if spec.kind == "arg":
            texts.append(f"args[{spec.index}]")
        elif spec.kind in ("scalar", "base", "leaf"):
            texts.append(spec.name)
        else:
            names[f"c{position}"] = program.constants[spec.name]
            texts.append(f"c{position}")
    return texts


def _used_behind(program: AtenProgram) -> list[int]:
    """The inputs, by position, that the wrapper needs when the graph has run."""
    raised = {position for base in program.bases for position in base.written}
    seen = [*program.outputs, *[leaf.data for leaf in program.leaves if leaf.data is not None]]
    used = {m.input for m in program.mutations} | {o.index for o in seen if "input" in o.kind} | raised
    return sorted(used - {leaf.input for leaf in program.leaves})


def _result_lines(program: AtenProgram, names: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for leaf in program.leaves:
        if leaf.data is not None and needs_data(leaf.data):
            data = _leaf(program, f"leaf{leaf.input}", leaf.data, lines, names)
            lines.append(f"    i{leaf.input}.data = {data}")
    viewed = {output.of for output in program.outputs}
    leaves = [""] * len(program.outputs)
    for position, output in sorted(enumerate(program.outputs), key=lambda item: item[1].of >= 0):
        leaves[position] = _leaf(program, str(position), output, lines, names)
        if position in viewed:
            lines.append(f"    r{position} = {leaves[position]}")
            leaves[position] = f"r{position}"
    return [*lines, f"    return {_structure(program, leaves, names)}"]


def _running_lines(running: str, names: dict[str, Any], tells: bool) -> list[str]:
    """`tells`: an error says that nothing was written yet; `run` that writes itself says so itself."""
    names["autocast_active"], names["disabled_autocast"] = compat.autocast_active, compat.disabled_autocast
    names["say_unwritten"] = say_unwritten
    lines = ["    if autocast_active():", "        guard = disabled_autocast()"]  # the casts are in the graph already
    lines += ["        try:", f"            {running}", "        finally:", "            del guard"]
    lines += ["    else:", f"        {running}"]
    return ["    try:", *(f"    {line}" for line in lines), *_TELLING] if tells else lines


_TELLING = ("    except Exception as error:", "        say_unwritten(error)", "        raise")


def _scalar_lines(program: AtenProgram, names: dict[str, Any], otherwise: GraphCallable | None) -> list[str]:
    """Sizes that the program is computed with are read, and checked against what it was compiled for."""
    lines = []
    for scalar in program.scalars:
        lines.append(f"    {scalar.sym.name} = {scalar.source}")
        names.update(scalar.names)
    if program.conditions:
        if otherwise is None:
            raise InternalError("a program with conditions needs somebody to call when they do not hold")
        names["otherwise"] = otherwise
        tests = " and ".join(str(condition) for condition in program.conditions)
        lines += [f"    if not ({tests}):", "        return otherwise(*args)"]
    return lines


def _unlike_lines(
    program: AtenProgram,
    inputs: list[str],
    names: dict[str, Any],
    otherwise: GraphCallable | None,
    told: Mapping[int, torch.dtype | None],
    written: Sequence[MutationSpec],
) -> list[str]:
    """What autograd is to do for inputs as it is not done around the graph has `otherwise` called."""
    recorded = [m.input for m in program.mutations if m.differentiable]
    tests = [f"{inputs[position]}.retains_grad" for position in recorded]  # of the new value
    tests += [f"{inputs[position]}.grad_dtype is not asked{position}" for position in told]
    # eager refuses at the first write, before anything else is written
    tests += [
        f"refuses_recorded_writes({inputs[m.input]})"
        for m in program.mutations
        if m.held or (m.differentiable and program.inputs[m.input].spec.requires_grad)
    ]
    seen = {output.index for output in program.outputs if output.kind == "alias_of_input"}
    unrecorded = [m.input for m in written if m.raises and not m.differentiable]
    tests += [
        f"(is_grad_enabled() and refuses_writes({inputs[position]}))"  # autograd refuses to know it from then on
        for position in unrecorded
        if program.inputs[position].spec.requires_grad and (program.kind == "forward" or position in seen)
    ]
    if otherwise is None or not tests:
        return []
    names |= {
        "otherwise": otherwise,
        "refuses_recorded_writes": refuses_recorded_writes,
        "refuses_writes": refuses_writes,
        "is_grad_enabled": torch.is_grad_enabled,
        **{f"asked{position}": dtype for position, dtype in told.items()},
    }
    return [f"    if {' or '.join(tests)}:", "        return otherwise(*args)"]


def _with_bases(
    program: AtenProgram, inputs: list[str], names: dict[str, Any], otherwise: GraphCallable | None
) -> tuple[list[str], list[str]]:
    """The graph's inputs, with names for the bases, and the lines that make these."""
    if not program.bases:
        return inputs, []
    if otherwise is None:
        raise InternalError("a program with bases needs somebody to call when inputs share memory in another way")
    names["otherwise"], names["base_tensor"] = otherwise, base_tensor
    lines, given = [], list(inputs)
    for position, spec in enumerate(program.inputs):
        if spec.kind != "base":
            continue
        base = program.bases[spec.index]
        members = ", ".join(inputs[member] for member in base.members)
        given[position] = f"base{spec.index}"
        lines.append(f"    base{spec.index} = base_tensor(({members},), {base.offsets}, {base.start}, {base.length})")
        lines += [f"    if base{spec.index} is None:", "        return otherwise(*args)"]
    return given, lines


def _mutation_lines(program: AtenProgram, wrote: bool) -> list[str]:
    """`wrote`: inputs may have been written to before."""
    if not program.mutations:
        return []
    plain = [m for m in program.mutations if not m.differentiable]
    lines = ["    with no_grad():"] if plain else []
    for m in plain:  # a kernel may have stored the new values in the input already
        target = f"i{m.input}.data" if m.unseen else f"i{m.input}"
        lines += [f"        if out[{m.output}] is not i{m.input}:", f"            {target}.copy_(out[{m.output}])"]
    raised = [f"i{position}" for base in program.bases for position in base.written] if plain else []
    raised += [f"i{m.input}" for m in plain for _ in range(m.raises - 1)]
    if raised:
        lines.append(f"    written_in_place([{', '.join(raised)}])")
    pairs = ", ".join(f"(i{m.input}, out[{m.output}])" for m in plain if not m.unseen)
    if pairs:
        lines.append(f"    written_in_place([i for i, o in ({pairs},) if i is o])")
    recorded = [m for m in program.mutations if m.differentiable]
    calls = ["record_write(i{}, out[{}])" if m.held else "i{}.copy_(out[{}])" for m in recorded]
    copies = [f"    {call.format(m.input, m.output)}" for call, m in zip(calls, recorded)]
    if copies and not (plain or wrote):  # autograd refuses it before it writes
        copies[:1] = ["    try:", f"    {copies[0]}", *_TELLING]
    lines += copies
    again = [f"i{m.input}" for m in recorded if not m.held for _ in range(m.raises - 1)]
    return lines + ([f"    written_in_place([{', '.join(again)}])"] if again else [])


def _leaf(program: AtenProgram, position: str, spec: OutputSpec, lines: list[str], names: dict[str, Any]) -> str:
    if spec.kind == "constant":
        if spec.value is None or type(spec.value) in (int, bool, str) or isinstance(spec.value, Expr):
            return repr(spec.value)
        names[f"v{position}"] = spec.value
        return f"v{position}"
    base = f"i{spec.index}" if "input" in spec.kind else f"out[{spec.index}]"
    base = f"r{spec.of}" if spec.of >= 0 else base
    if spec.view is None:
        return base
    base = f"{base}.unsqueeze(0).unbind()[0]" if spec.of_several else base
    away = "data" if spec.unseen else "detach()"
    text = _viewed(program, position, spec, f"{base}.{away}" if spec.detached_base else base, lines, names)
    text = f"{text}.{away}" if spec.detached else text
    if spec.untaped:
        lines += ["    with no_grad():", f"        u{position} = {text}"]
        return f"u{position}"
    return text


def _viewed(
    program: AtenProgram, position: str, spec: OutputSpec, base: str, lines: list[str], names: dict[str, Any]
) -> str:
    """The expression that rebuilds a view of `base`."""
    view = spec.view
    if view is None:
        return base
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
        lines.append(f"        check_layout({spec.index}, b{position}, {want})")
        names["check_layout"] = check_layout
    offset = f"b{position}.storage_offset()" + (f" + {view.offset}" if view.offset else "")
    return f"as_strided(b{position}, {view.size}, {view.stride}, {offset})"


def _base_strides(program: AtenProgram, index: int) -> tuple[int, ...]:
    """Strides that the graph promises for one of its results."""
    results: Any = program.output_node.args[0]
    return tuple(results[index].meta["val"].stride())


def check_layout(index: int, result: torch.Tensor, want: tuple[int, ...]) -> None:
    """A result that other results are views of came out in another layout than the graph says: where elements lie at
    other places, its views cannot be rebuilt."""
    have = result.stride()
    if result.numel() and any(size > 1 and one != other for size, one, other in zip(result.shape, have, want)):
        raise InternalError(f"result {index} of a graph has strides {have}, not {want}: its views cannot be rebuilt")


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
