"""Code for one call of a frame that runs eagerly, with what it calls."""

from __future__ import annotations

from types import CodeType

from argand._core import _C
from argand.bytecode.assemble import Assembler
from argand.bytecode.resume import frame_arg_names, transformed_code


def code_running_eagerly(code: CodeType) -> CodeType:
    """Code for the same frame, as `transformed_code` makes it, that has the frame's own run with capture off."""
    asm = Assembler()
    asm.load_const_callable(_C.run_original)
    names = frame_arg_names(code)
    for name in names:
        (asm.load_deref if name in code.co_cellvars else asm.load_fast)(name)
    asm.build_list(len(names))
    asm.load_const(None)
    asm.call(2)
    asm.return_value()
    return transformed_code(code, asm.finish())
