"""Functions in which a graph breaks that run as they are written, and what they call is captured: loops of packages.

Going on in the loop costs a version of the rest of the function for each way through it and each kind of value that
comes round, and a library's function has many callers. The program's own loops, and torch's containers, are compiled
round by round: their bodies are the model. One of them in which code of a package breaks the graph (hooks on each of
the modules, say) is like a package's loop. So is a package's function that has arrays and no tensors, which is numpy's.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from types import CodeType, FunctionType, ModuleType
from typing import TypeAlias

import torch
from torch import fx

from argand._core import _C
from argand.bytecode.decode import decode
from argand.bytecode.instruction import Instruction, Positions
from argand.bytecode.resume import resume_label
from argand.capture.arrays.array_arguments import REFUSED, tensor_of
from argand.capture.driver.failures import Known
from argand.capture.driver.region import Region
from argand.capture.facts.code.skip import is_of_library, is_torch, library_of
from argand.capture.facts.kinds import is_a, namespace
from argand.capture.facts.sources import CallSource
from argand.capture.facts.typefacts import CONTAINERS
from argand.capture.interp.interpreter import RootExit
from argand.capture.interp.state import CaptureState
from argand.capture.world.native_reads import held
from argand.errors import BreakReason, GraphBreak
from argand.graph.compat import storage_address

Call: TypeAlias = tuple[CodeType, object]
"""A call under way, as `GraphBreak.within` has it."""


_OPTIMIZERS = os.path.dirname(torch.optim.__file__) + os.sep
"""Their loops are no bodies of a model: LBFGS asks for values in each round of its own."""


def left_alone(
    code: CodeType,
    at: object,
    original_offsets: Mapping[int, int] | None,
    within: Sequence[Call],
    reason: BreakReason | None = None,
) -> bool:
    """Whether an instruction is in a loop of its function, and the function is an installed package's.

    Arguments:
        reason: why the graph breaks there, where that may be enough.
        within: the calls that it makes in which the graph broke, outermost first.
        original_offsets: of the code of a resume function, whose instructions have the offsets of the user's.
    """
    if reason is not None and not within and _of_values(code, reason):
        return True
    library = library_of(code.co_filename)
    if library in ("", "torch") and within:
        inner = library_of(within[-1][0].co_filename)
        python = inner == "torch" or inner in sys.stdlib_module_names  # its loops are the program's, `with` blocks too
        library = "" if python and not library else inner
    elif library == "torch" and not code.co_filename.startswith(_OPTIMIZERS):
        library = ""
    if not isinstance(at, Instruction) or at.offset is None or not library:
        return False
    instructions = decode(code, None, original_offsets)
    place = {id(inst): number for number, inst in enumerate(instructions)}
    here = next((inst for inst in instructions if inst.offset == at.offset), None)
    if here is None:
        return False
    jumps = [(place[id(inst.target)], number) for number, inst in enumerate(instructions) if inst.target is not None]
    # The test of `while` stands before the loop and once more at its end, with the same place in the source.
    copies = [i for i, inst in enumerate(instructions) if inst is here or _written_at(inst, here.positions)]
    return any(start <= copy <= end for start, end in jumps for copy in copies)


def of_numpy(code: CodeType, reason: BreakReason) -> bool:
    """Whether a package's function breaks the graph by what it asks of numpy."""
    return reason.kind == REFUSED and library_of(code.co_filename) not in ("", "torch")


def without_tensors(info: _C.FrameInfo, state: CaptureState) -> bool:
    """Whether a package's function has been given no tensors, and has used none up to the break: where it is left to
    Python, only arrays are not computed by a graph."""
    if library_of(info.code.co_filename) in ("", "torch"):
        return False
    sources = [each.source for each in state.graph.inputs]
    arrays = all(isinstance(source, CallSource) and source.key is tensor_of for source in sources)
    if not arrays or (state.graph.calls and not sources):
        return False
    return not any(map(_has_tensor, info.args))


def only_passes_on(info: _C.FrameInfo, exit: RootExit, ending: GraphBreak) -> bool:
    """Whether a function that breaks the graph only returns what the call gives that does, out of `with` blocks: there
    is nothing behind it to compile. Of a package's functions, where the break is within that call; of others, where it
    is an operation whose result no graph holds, and the code has but one way."""
    if exit.instruction is None or resume_label(info.code) is not None:
        return False
    program = exit.frame.program
    if library_of(info.code.co_filename) in ("", "torch"):
        jumps = any(inst.target is not None for inst in program.instructions)
        if ending.within or jumps or ending.reason.kind not in _RESULTS_UNKNOWN:
            return False
    elif not ending.within:
        return False
    rest = program.instructions[program.index[exit.instruction] + 1 :]
    names = [inst.opname for inst in rest if inst.opname not in _MOVES]
    while names[:4] == _LEAVING:
        del names[:4]
    return names[:1] == ["RETURN_VALUE"]


_RESULTS_UNKNOWN = ("data-dependent value", "result of unknown size")
_MOVES = frozenset(("SWAP", "COPY", "POP_TOP", "NOP", "PRECALL", "STORE_FAST", "LOAD_FAST"))
_LEAVING = ["LOAD_CONST"] * 3 + ["CALL"]
"""What calls a manager's `__exit__` with None."""


def is_empty(state: CaptureState) -> bool:
    """Whether nothing was recorded."""
    return not any(node.op.startswith("call") for node in state.graph.graph.nodes)


def first_time(state: CaptureState, exit: RootExit) -> int | None:
    """For a break before anything was recorded: when its instruction was executed for the first time, if it was before.

    Breaking there lets the program's own code run up to it (prefix.py), and is as good.
    """
    if exit.instruction is None or exit.kind == "return" or not is_empty(state):
        return None
    return state.interpreter.first_number.get(exit.frame.program.index[exit.instruction])


def _computes_numbers(state: CaptureState) -> bool:
    """Whether a graph only looks at parts of its inputs (`sigmas[3]`), if at anything, and has a few operations on
    single numbers, as a library's own arithmetic has (coefficients, sizes of steps): eager takes no longer for them."""
    graph = state.graph
    few = graph.calls <= _FEW and all(info.device.type == "cpu" for info in graph.inputs)
    with torch._C.DisableTorchFunction():
        return not (graph.writing or graph.effectful) and all(
            _is_part(state, node) or (few and all(map(_is_number, (node, *node.all_input_nodes))))
            for node in graph.graph.nodes
            if node.op.startswith("call")
        )


_FEW = 8


def _is_part(state: CaptureState, node: fx.Node) -> bool:
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and storage_address(value) in state.graph.memories.outside


def _is_number(node: fx.Node) -> bool:
    value = node.meta.get("example_value")
    return not value.dim() and not value.requires_grad if isinstance(value, torch.Tensor) else is_a(value, int | float)


def is_idle(info: _C.FrameInfo, region: Region, state: CaptureState, known: Known) -> bool:
    """Whether a graph gains nothing: one of the program's functions records nothing, a package's little. Not of code
    that was told that it is compiled, and has perhaps told others: run by Python, it would be told that it is not."""
    if state.told_compiling:
        return False
    if not library_of(info.code.co_filename):
        return is_empty(state)
    if _computes_numbers(state) or without_tensors(info, state):
        return True
    return info.code not in region.asked and _one_operation(info, state, known)


def left_to_python(info: _C.FrameInfo, known: Known) -> bool:
    """Whether enough versions, and no others, had nothing of torch's: one more of the same code for each class and
    each number would gain nothing. A package's function is no part of the model; of the program's, other ways through
    it may be (`if len(memory) < batch: return`)."""
    return known.only_python and info.entries >= (1 if is_of_library(info.code) else _PYTHON_VERSIONS)


_PYTHON_VERSIONS = 4


def raises_only(info: _C.FrameInfo, region: Region, state: CaptureState, known: Known) -> bool:
    """Whether a function of a package's has raised often, with nothing of torch's before it (`__getattr__` of what is
    not there): each such call would be interpreted, to find that it raises."""
    if is_empty(state) and is_of_library(info.code) and info.code not in region.asked and not region.fullgraph:
        known.raises += 1
    return known.raises > _PYTHON_VERSIONS


def _one_operation(info: _C.FrameInfo, state: CaptureState, known: Known) -> bool:
    """Whether a package's function is one operation, or a module of torch's, as `Linear` is, one of several that the
    program calls around breaks of the graph: more versions gain nothing."""
    if state.graph.calls > 1 or not is_torch(info.code.co_filename):
        return state.graph.calls <= 1
    module = info.args[0] if info.args else None
    if not is_a(module, torch.nn.Module):
        return False
    if not info.entries:
        known.module = weakref.ref(module)
        return not known.only_python  # by another region
    return known.module() is not module


def _has_tensor(value: object, depth: int = 2) -> bool:
    """Whether an argument is a tensor, has one among its items or attributes, or is a module or an optimizer."""
    if is_a(value, torch.Tensor | torch.nn.Module | torch.optim.Optimizer):
        return True
    if is_a(value, type | ModuleType | FunctionType):
        return False
    parts: Iterable[object] = (held(value) or ()) if is_a(value, CONTAINERS) else (namespace(value) or {}).values()
    return depth > 0 and any(_has_tensor(part, depth - 1) for part in islice(parts, _LOOKED_AT))


_LOOKED_AT = 64


def around_values(code: CodeType, ending: GraphBreak) -> bool:
    """Whether a frame ends as a function of torch's around one operation whose result has as many items as values say
    (`pack_padded_sequence`, an LSTM of what it gives): it runs as it is written."""
    return not ending.within and _of_values(code, ending.reason)


def _of_values(code: CodeType, reason: BreakReason) -> bool:
    return reason.kind == "result of unknown size" and is_torch(code.co_filename)


def _written_at(inst: Instruction, where: Positions | None) -> bool:
    """Whether an instruction stands for the same characters of the source; `FOR_ITER` has those of what it walks."""
    return where is not None and inst.positions == where and inst.opname != "FOR_ITER"
