"""Per-version opcode tables: which opcodes exist, how each argument is to be read, how many cache units follow.

The tables for the running interpreter come from the `opcode` module; `all_opnames` also knows the other supported
versions, so that a test on one Python can check that every opcode of each of them is handled.
"""

from __future__ import annotations

import opcode as _opcode
import sys
from typing import Any, Final

from argand.errors import InternalError

VERSION: Final[tuple[int, int]] = (sys.version_info[0], sys.version_info[1])
PY312: Final[bool] = VERSION >= (3, 12)
PY313: Final[bool] = VERSION >= (3, 13)
SUPPORTED_VERSIONS: Final = ((3, 11), (3, 12), (3, 13))


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_COMMON: Final = _names(
    """
    BEFORE_ASYNC_WITH BEFORE_WITH BINARY_OP BINARY_SUBSCR BUILD_CONST_KEY_MAP BUILD_LIST BUILD_MAP BUILD_SET
    BUILD_SLICE BUILD_STRING BUILD_TUPLE CALL CALL_FUNCTION_EX CHECK_EG_MATCH CHECK_EXC_MATCH COMPARE_OP CONTAINS_OP
    COPY COPY_FREE_VARS DELETE_ATTR DELETE_DEREF DELETE_FAST DELETE_GLOBAL DELETE_NAME DELETE_SUBSCR DICT_MERGE
    DICT_UPDATE END_ASYNC_FOR FOR_ITER GET_AITER GET_ANEXT GET_AWAITABLE GET_ITER GET_LEN GET_YIELD_FROM_ITER
    IMPORT_FROM IMPORT_NAME IS_OP JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT JUMP_FORWARD LIST_APPEND LIST_EXTEND
    LOAD_ASSERTION_ERROR LOAD_ATTR LOAD_BUILD_CLASS LOAD_CLOSURE LOAD_CONST LOAD_DEREF LOAD_FAST LOAD_GLOBAL
    LOAD_NAME MAKE_CELL MAKE_FUNCTION MAP_ADD MATCH_CLASS MATCH_KEYS MATCH_MAPPING MATCH_SEQUENCE NOP POP_EXCEPT
    POP_TOP PUSH_EXC_INFO PUSH_NULL RAISE_VARARGS RERAISE RESUME RETURN_GENERATOR RETURN_VALUE SEND
    SETUP_ANNOTATIONS SET_ADD SET_UPDATE STORE_ATTR STORE_DEREF STORE_FAST STORE_GLOBAL STORE_NAME STORE_SUBSCR SWAP
    UNARY_INVERT UNARY_NEGATIVE UNARY_NOT UNPACK_EX UNPACK_SEQUENCE WITH_EXCEPT_START YIELD_VALUE
    """
)
_ONLY: Final[dict[tuple[int, int], frozenset[str]]] = {
    (3, 11): _names(
        """
        ASYNC_GEN_WRAP FORMAT_VALUE IMPORT_STAR JUMP_IF_FALSE_OR_POP JUMP_IF_TRUE_OR_POP KW_NAMES LIST_TO_TUPLE
        LOAD_CLASSDEREF LOAD_METHOD POP_JUMP_BACKWARD_IF_FALSE POP_JUMP_BACKWARD_IF_NONE
        POP_JUMP_BACKWARD_IF_NOT_NONE POP_JUMP_BACKWARD_IF_TRUE POP_JUMP_FORWARD_IF_FALSE POP_JUMP_FORWARD_IF_NONE
        POP_JUMP_FORWARD_IF_NOT_NONE POP_JUMP_FORWARD_IF_TRUE PRECALL PREP_RERAISE_STAR PRINT_EXPR UNARY_POSITIVE
        """
    ),
    (3, 12): _names(
        """
        BINARY_SLICE CALL_INTRINSIC_1 CALL_INTRINSIC_2 CLEANUP_THROW END_FOR END_SEND FORMAT_VALUE KW_NAMES
        LOAD_FAST_AND_CLEAR LOAD_FAST_CHECK LOAD_FROM_DICT_OR_DEREF LOAD_FROM_DICT_OR_GLOBALS LOAD_LOCALS
        LOAD_SUPER_ATTR POP_JUMP_IF_FALSE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE POP_JUMP_IF_TRUE RETURN_CONST
        STORE_SLICE
        """
    ),
    # LOAD_CLOSURE is no real opcode of 3.13 (a LOAD_FAST of a cell's slot is); decode names that case so anyway.
    (3, 13): _names(
        """
        BINARY_SLICE CALL_INTRINSIC_1 CALL_INTRINSIC_2 CALL_KW CLEANUP_THROW CONVERT_VALUE END_FOR END_SEND
        FORMAT_SIMPLE FORMAT_WITH_SPEC LOAD_FAST_AND_CLEAR LOAD_FAST_CHECK LOAD_FAST_LOAD_FAST
        LOAD_FROM_DICT_OR_DEREF LOAD_FROM_DICT_OR_GLOBALS LOAD_LOCALS LOAD_SUPER_ATTR POP_JUMP_IF_FALSE
        POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE POP_JUMP_IF_TRUE RETURN_CONST SET_FUNCTION_ATTRIBUTE
        STORE_FAST_LOAD_FAST STORE_FAST_STORE_FAST STORE_SLICE TO_BOOL
        """
    ),
}


def all_opnames(version: tuple[int, int] = VERSION) -> frozenset[str]:
    """Names that `decode` can produce on one Python version (default: the running one).

    Arguments:
        version: (major, minor), one of `SUPPORTED_VERSIONS`.

    Raises InternalError for a version without tables.
    """
    if version not in _ONLY:
        raise InternalError(f"no opcode tables for Python {version[0]}.{version[1]}", remedy="use Python 3.11 to 3.13")
    return _COMMON | _ONLY[version]


class Kind:
    """How the argument of an opcode is to be read (integers, because decode and encode compare them per instruction).

    NONE no argument; RAW the number itself; CONST index of a constant; NAME index into co_names, shifted left by
    `NAME_FLAG_BITS`; LOCAL slot of a local; PAIR two slots in one byte; DEREF slot of a cell or free variable;
    COMPARE, BINARY, IS, CONTAINS, INTRINSIC1, INTRINSIC2 an operator; JUMP a relative jump.
    """

    NONE = 0
    RAW = 1
    CONST = 2
    NAME = 3
    LOCAL = 4
    PAIR = 5
    DEREF = 6
    COMPARE = 7
    BINARY = 8
    IS = 9
    CONTAINS = 10
    INTRINSIC1 = 11
    INTRINSIC2 = 12
    JUMP = 13


CONST_OPS: Final = frozenset(["LOAD_CONST", "RETURN_CONST", "KW_NAMES"])
LOCAL_OPS: Final = frozenset(["LOAD_FAST", "STORE_FAST", "DELETE_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR"])
PAIR_OPS: Final = frozenset(["LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST"])
DEREF_OPS: Final = frozenset([
    "MAKE_CELL", "LOAD_CLOSURE", "LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF", "LOAD_CLASSDEREF",
    "LOAD_FROM_DICT_OR_DEREF",
])  # fmt: skip
_OPERATOR_KINDS: Final = {
    "COMPARE_OP": Kind.COMPARE,
    "BINARY_OP": Kind.BINARY,
    "IS_OP": Kind.IS,
    "CONTAINS_OP": Kind.CONTAINS,
    "CALL_INTRINSIC_1": Kind.INTRINSIC1,
    "CALL_INTRINSIC_2": Kind.INTRINSIC2,
}

# Jumps in both directions are told apart by the opcode, not by a sign.
BACKWARD_JUMPS: Final = frozenset(
    ["JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"]
    + [f"POP_JUMP_BACKWARD_IF_{what}" for what in ("TRUE", "FALSE", "NONE", "NOT_NONE")]
)
UNCONDITIONAL_JUMPS: Final = frozenset(["JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"])
TERMINATORS: Final = UNCONDITIONAL_JUMPS | {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"}

OPMAP: Final[dict[str, int]] = dict(_opcode.opmap)
if PY313:
    OPMAP["LOAD_CLOSURE"] = OPMAP["LOAD_FAST"]
OPNAME: Final[list[str]] = list(_opcode.opname[:256])
EXTENDED_ARG: Final[int] = OPMAP["EXTENDED_ARG"]
JUMP_OPS: Final = frozenset(OPNAME[op] for op in _opcode.hasjrel if op < 256)

CMP_OPS: Final[tuple[str, ...]] = tuple(_opcode.cmp_op)
BINARY_OPS: Final[tuple[str, ...]] = tuple(symbol for _, symbol in getattr(_opcode, "_nb_ops"))  # noqa: B009
INTRINSIC_1: Final[tuple[str, ...]] = tuple(getattr(_opcode, "_intrinsic_1_descs", ()))
INTRINSIC_2: Final[tuple[str, ...]] = tuple(getattr(_opcode, "_intrinsic_2_descs", ()))

# The operator's position within COMPARE_OP's argument, and the low bits that the specialiser wants for each operator
# (which of unordered, less, greater, equal make the comparison true).
COMPARE_SHIFT: Final[int] = 5 if PY313 else 4 if PY312 else 0
COMPARE_BOOL_BIT: Final[int] = 16 if PY313 else 0
COMPARE_MASKS: Final[dict[str, int]] = (
    {"<": 2, "<=": 10, "==": 8, "!=": 7, ">": 4, ">=": 12} if PY312 else dict.fromkeys(CMP_OPS, 0)
)

NAME_FLAG_BITS: Final[dict[str, int]] = {"LOAD_GLOBAL": 1}
if PY312:
    NAME_FLAG_BITS.update(LOAD_ATTR=1, LOAD_SUPER_ATTR=2)


# 3.11 has no such list, and the threshold that it has instead is off by one on 3.13.
_HAS_ARGUMENT: Final = frozenset(getattr(_opcode, "hasarg", range(_opcode.HAVE_ARGUMENT, 256)))


def _kind(op: int) -> int:
    name = OPNAME[op]
    if name in _OPERATOR_KINDS:
        return _OPERATOR_KINDS[name]
    if name in CONST_OPS:
        return Kind.CONST
    if name in LOCAL_OPS:
        return Kind.LOCAL
    if name in PAIR_OPS:
        return Kind.PAIR
    if name in DEREF_OPS:
        return Kind.DEREF
    if op in _opcode.hasname:
        return Kind.NAME
    if name in JUMP_OPS:
        return Kind.JUMP
    return Kind.RAW if op in _HAS_ARGUMENT else Kind.NONE


def _cache_counts() -> list[int]:
    table: Any = getattr(_opcode, "_inline_cache_entries")  # noqa: B009
    if isinstance(table, dict):
        return [table.get(OPNAME[op], 0) for op in range(256)]
    return list(table[:256])


# Indexed by opcode number: kind of argument, cache units after the instruction, flag bits below the name index.
KINDS: Final[list[int]] = [_kind(op) for op in range(256)]
CACHES: Final[list[int]] = _cache_counts()
NAME_SHIFTS: Final[list[int]] = [NAME_FLAG_BITS.get(OPNAME[op], 0) for op in range(256)]
KIND_OF: Final[dict[str, int]] = {
    name: Kind.DEREF if name in DEREF_OPS else KINDS[op] for name, op in OPMAP.items() if op < 256
}

# Code flags, as documented by `inspect`, which is slow to import.
CO_VARARGS: Final = 0x4
CO_VARKEYWORDS: Final = 0x8
CO_GENERATOR: Final = 0x20
CO_COROUTINE: Final = 0x80
CO_ASYNC_GENERATOR: Final = 0x200
CO_ANY_GENERATOR: Final = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
