"""Listings of bytecode, in the layout of the classic disassembler."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import groupby, islice, pairwise
from types import BuiltinFunctionType, CodeType, EllipsisType, FunctionType, ModuleType, NoneType
from typing import Any

from argand.bytecode.decode import decode
from argand.bytecode.instruction import Instruction

_PLAIN = (int, float, complex, bool, str, bytes, range, NoneType, EllipsisType, BuiltinFunctionType, CodeType)
_PLAIN_TORCH = ("dtype", "device", "layout", "memory_format", "Size")
_ITEMS, _LONGEST = 20, 200


def dis_text(code_or_instructions: CodeType | Sequence[Instruction]) -> str:
    """One line per instruction: source line where it changes, `>>` at targets of jumps and handlers, offset, opcode,
    argument and, in brackets, what the argument means; then the exception table, if there is one.

    An instruction without offset (not yet encoded) is numbered by its place in the list. Nothing of the program is
    executed, not even the `repr` of a constant, which may be any object that capture put there.
    """
    if isinstance(code_or_instructions, CodeType):
        instructions: Sequence[Instruction] = decode(code_or_instructions)
    else:
        instructions = code_or_instructions
    # Offsets of spliced lists come from several codes: then places in the list are the only unambiguous numbers.
    known = [inst.offset for inst in instructions if inst.offset is not None]
    use_offsets = len(known) == len(instructions) and all(a < b for a, b in pairwise(known))
    label = {inst: inst.offset if use_offsets else i for i, inst in enumerate(instructions)}
    targets = {inst.target for inst in instructions} | {
        inst.handler.target for inst in instructions if inst.handler is not None
    }
    width = max(4, len(str(len(instructions) if not use_offsets else known[-1] if known else 0)))
    lines: list[str] = []
    line = None
    for inst in instructions:
        shown = ""
        if inst.lineno is not None and inst.lineno != line:
            line = inst.lineno
            shown = str(line)
            if lines:
                lines.append("")
        mark = ">>" if inst in targets else "  "
        text = f"{shown:>3} {mark} {label[inst]!s:>{width}} {inst.opname:<26}{_argument(inst, label)}"
        lines.append(text.rstrip())
    table = _exception_lines(instructions, label)
    if table:
        lines += ["ExceptionTable:", *table]
    return "\n".join(lines) + "\n" if lines else ""


def instruction_text(inst: Instruction) -> str:
    """One instruction: its name and what its argument means."""
    if inst.target is not None:
        return f"{inst.opname} to {inst.target.offset}"
    if inst.arg is None and inst.argval is None and inst.opname not in ("LOAD_CONST", "RETURN_CONST"):
        return inst.opname
    return f"{inst.opname} {_meaning(inst)}"


def _argument(inst: Instruction, label: dict[Instruction, int | None]) -> str:
    if inst.target is not None:
        number = "" if inst.arg is None else str(inst.arg)
        return f"{number:>5} (to {label.get(inst.target, '?')})"
    if inst.arg is None and inst.argval is None and inst.opname not in ("LOAD_CONST", "RETURN_CONST"):
        return ""
    number = "" if inst.arg is None else str(inst.arg)
    if inst.argval is inst.arg:
        return f"{number:>5}"
    return f"{number:>5} ({_meaning(inst)})"


def _meaning(inst: Instruction) -> str:
    if inst.opname in ("LOAD_CONST", "RETURN_CONST", "KW_NAMES"):
        return constant_text(inst.argval)
    text = ", ".join(inst.argval) if isinstance(inst.argval, tuple) else str(inst.argval)
    if inst.push_null:
        return f"NULL + {text}"
    if inst.opname == "LOAD_SUPER_ATTR" or (inst.is_method and inst.opname == "LOAD_ATTR"):
        return f"NULL|self + {text}" if inst.is_method else text
    return f"bool({text})" if inst.to_bool else text


def constant_text(value: Any) -> str:
    """An object in short: plain values as they are written, others by what they are; no method of theirs is called."""
    text = _constant_text(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _constant_text(value: Any) -> str:
    kind = type(value)
    if any(kind is plain for plain in _PLAIN):  # `in` could ask a metaclass of the program's
        return repr(value)
    if kind is tuple or kind is frozenset:
        shown = [_constant_text(item) for item in islice(value, _ITEMS)] + ["..."] * (len(value) > _ITEMS)
        inside = ", ".join(shown)
        return f"({inside}{',' * (len(shown) == 1)})" if kind is tuple else f"frozenset({{{inside}}})"
    if kind is list or kind is dict or kind is set:
        return f"<{kind.__name__} of {len(value)}>"
    if kind is FunctionType:
        return f"<function {value.__qualname__}>"
    if kind is ModuleType:
        return f"<module {ModuleType.__getattribute__(value, '__dict__').get('__name__', '?')}>"
    if issubclass(kind, type):
        return type.__repr__(value)
    if issubclass(kind, Enum):
        return f"<{kind.__name__}.{object.__getattribute__(value, '__dict__').get('_name_', '?')}>"
    if kind.__module__ == "torch" and kind.__name__ in _PLAIN_TORCH:
        return repr(value)
    return f"<{kind.__name__} object>"


def _exception_lines(instructions: Sequence[Instruction], label: dict[Instruction, int | None]) -> list[str]:
    lines = []
    for handler, covered in groupby(instructions, key=lambda inst: inst.handler):
        if handler is not None:
            inside = list(covered)
            lasti = " lasti" if handler.lasti else ""
            goal = label.get(handler.target, "?")
            lines.append(f"  {label[inside[0]]} to {label[inside[-1]]} -> {goal} [{handler.depth}]{lasti}")
    return lines
