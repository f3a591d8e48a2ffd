"""Code of generators that are made anew at the `yield` where another one of their function stands.

Such a generator is called with all that its frame holds, and started: it stands at a yield of its own, in the same line
and under the same handlers, and goes on behind the function's. What it holds can be read there (`held`), and it can be
ended there without a trace (`finish`): its function's `finally` is run by whoever goes on in its place.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from types import CellType, CodeType, FunctionType, GeneratorType
from typing import Any, TypeAlias

from argand.bytecode.cells import cell_slots
from argand.bytecode.decode import ambiguous_names
from argand.bytecode.encode import Pools, encode_with_offsets
from argand.bytecode.flow import clone_instructions, reachable, zero_argument_super_calls
from argand.bytecode.instruction import Instruction
from argand.bytecode.liveness import local_names
from argand.bytecode.opcodes import CO_VARARGS, CO_VARKEYWORDS, PY312
from argand.bytecode.per_code import PerCode
from argand.bytecode.unbound_locals import unbound_cell_blocks
from argand.quick_dataclasses import dataclass

Generator: TypeAlias = "GeneratorType[object, object, object]"
_FINISH = object()
_CELLS = ".cells"


@dataclass(frozen=True, slots=True)
class Suspended:
    """What is known of such code.

    Arguments:
        code: the function's.
        at: index of the instruction behind the function's yield.
        stack: how many values are on the stack there.
        names: of the local variables that are set, in order of the parameters behind the stack's.
        cells: names of the cells, in order of the closure.
        place: offset of its own yield.
    """

    code: weakref.ref[CodeType]
    at: int
    stack: int
    names: tuple[str, ...]
    cells: tuple[str, ...]
    place: int


_ORIGINS: PerCode[Suspended] = PerCode()  # by the code of the generators made
_CODES: PerCode[dict[tuple[object, ...], CodeType | None]] = PerCode()  # by the function's code


def suspended_code(
    code: CodeType, instructions: Sequence[Instruction], at: int, stack: int, names: tuple[str, ...]
) -> CodeType | None:
    """The code for going on at an instruction, with so much on the stack and these variables set.

    Returns:
        None where there is none: it stands in a `yield from`, or variables and cells share a slot.
    """
    known = _CODES.get(code)
    if known is None:
        known = _CODES.add(code, {})
    key = at, stack, names
    if key not in known:
        known[key] = _make(code, instructions, at, stack, names)
    return known[key]


def suspended(code: CodeType) -> Suspended | None:
    """What code for going on at a yield was made of; None for other code."""
    return _ORIGINS.get(code)


def cells_of(code: CodeType) -> tuple[str, ...]:
    """Names of the cells that the closure of such code has."""
    return tuple(dict.fromkeys((*code.co_freevars, *code.co_cellvars)))


def _make(
    code: CodeType, instructions: Sequence[Instruction], at: int, stack: int, names: tuple[str, ...]
) -> CodeType | None:
    given, after = instructions[at - 1], instructions[at]
    if given.opname != "YIELD_VALUE" or after.opname != "RESUME" or (after.arg or 0) & 3 != 1:
        return None
    if ambiguous_names(code) or cell_slots(code, instructions) or zero_argument_super_calls(instructions, code):
        return None
    wanted = reachable(instructions, after)
    body, copies = clone_instructions(inst for inst in instructions if inst in wanted)
    body += unbound_cell_blocks(copies, instructions, frozenset(code.co_cellvars))
    goal = copies[instructions[at + 1]]
    cells = cells_of(code)
    line = given.positions
    handler = copies[after].handler
    held = [f".stack{i}" for i in range(stack)]

    def op(opname: str, value: Any = None, **more: Any) -> Instruction:
        return Instruction(opname, value if type(value) is int else None, value, positions=line, **more)

    entry = [op("COPY_FREE_VARS", len(cells))] if cells else []
    entry += [op("RETURN_GENERATOR"), op("POP_TOP"), op("RESUME", 0)]
    entry += [op("LOAD_FAST", name) for name in held]
    stands = Instruction("YIELD_VALUE", given.arg, given.argval, positions=line, handler=handler)
    goes_on = op("DELETE_FAST", _CELLS)
    entry += [op("LOAD_CONST"), stands, Instruction("RESUME", after.arg, after.argval, positions=line, handler=handler)]
    entry += [op("COPY", 1), op("LOAD_CONST", _FINISH), op("IS_OP", 0)]
    entry[-1].argval = "is"
    entry += [Instruction(_JUMP_IF_FALSE, positions=line, target=goes_on)]
    entry += [*(op("POP_TOP") for _ in range(stack + 1)), op("LOAD_CONST"), op("RETURN_VALUE")]
    entry += [goes_on, *(op("DELETE_FAST", name) for name in held), op("JUMP_FORWARD", target=goal)]

    plain = frozenset(code.co_varnames) - set(code.co_cellvars)
    parameters = (*held, *names, _CELLS)
    used = {name for inst in body for name in local_names(inst)} & plain
    more = [local for local in code.co_varnames if local in used and local not in parameters]
    pools = Pools.make(code, (*parameters, *more), (), cells)
    signature = {
        "co_argcount": len(parameters), "co_posonlyargcount": 0, "co_kwonlyargcount": 0,
        "co_flags": code.co_flags & ~(CO_VARARGS | CO_VARKEYWORDS),
    }  # fmt: skip
    anew, offsets = encode_with_offsets([*entry, *body], code, pools, signature)
    _ORIGINS.set(anew, Suspended(weakref.ref(code), at, stack, names, cells, offsets[stands]))
    return anew


_JUMP_IF_FALSE = "POP_JUMP_IF_FALSE" if PY312 else "POP_JUMP_FORWARD_IF_FALSE"


def make(
    code: CodeType,
    globals_: dict[str, object],
    name: str,
    qualname: str,
    cells: tuple[CellType, ...],
    held: tuple[object, ...],
) -> Generator:
    """A generator that stands at its yield."""
    function = FunctionType(code, globals_, name, None, cells)
    function.__qualname__ = qualname
    generator: Generator = function(*held, cells)
    next(generator)
    return generator


def origin(generator: Generator) -> Suspended | None:
    """What a generator is made of that still stands at its own yield."""
    known = _ORIGINS.get(generator.gi_code)
    if known is None or known.code() is None or not generator.gi_suspended:
        return None
    frame = generator.gi_frame
    return known if frame is not None and frame.f_lasti - known.place in (0, 2) else None  # 3.13: behind it


def held(generator: Generator) -> tuple[object, ...]:
    """What such a generator was made with: the stack's values, the variables, the cells."""
    known, frame = origin(generator), generator.gi_frame
    if known is None or frame is None:
        return ()
    values = dict(frame.f_locals)
    names = (*(f".stack{i}" for i in range(known.stack)), *known.names)
    return (*(values[name] for name in names), *values[_CELLS])


def finish(generator: Generator) -> None:
    """End a generator that stands at its own yield; nothing of its function runs."""
    with contextlib.suppress(StopIteration):
        generator.send(_FINISH)
