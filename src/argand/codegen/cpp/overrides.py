"""One C++ expression per op: `neg("tmp1")` is `"decltype(tmp1)(-tmp1)"`.

In: operand strings. Out: an expression that holds for scalars and for vectors (GCC vector extensions) alike. A user
may replace any function, for an experiment or to work around a wrong kernel:

    from argand.codegen.cpp import overrides
    overrides.neg = lambda x: f"decltype({x})(2 * {x})"

The next compile uses it (the text changes, so the cache cannot answer with the old kernel). Kernels that use a
replaced function are generated as scalar code, since a replacement is written for scalars.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

from argand.ir.operations import BINARY, PREDICATES, UNARY


def _call(name: str) -> Callable[..., str]:
    """An override that calls the function `name` of the prelude."""

    def call(*operands: str) -> str:
        return f"{name}({', '.join(operands)})"

    call.__name__ = call.__qualname__ = name
    return call


def _infix(operator: str) -> Callable[[str, str], str]:
    """An override that applies a C++ operator; the type stays the operands' (C++ widens small integers)."""

    def infix(a: str, b: str) -> str:
        return f"{a} {operator} {b}"

    return infix


class CppOverrides:
    """The table. Attributes are functions of operand strings; assign to replace one."""

    @staticmethod
    def neg(x: str) -> str:
        return f"decltype({x})(-{x})"

    @staticmethod
    def bitwise_not(x: str) -> str:
        return f"decltype({x})(~{x})"

    add, sub, mul, truediv = (staticmethod(_infix(op)) for op in ("+", "-", "*", "/"))
    eq, ne, lt, le, gt, ge = (staticmethod(_infix(op)) for op in ("==", "!=", "<", "<=", ">", ">="))
    bitwise_and, bitwise_or, bitwise_xor = (staticmethod(_infix(op)) for op in ("&", "|", "^"))


for _name in (*UNARY, *BINARY, *PREDICATES, "fma", "where"):
    if not hasattr(CppOverrides, _name):
        setattr(CppOverrides, _name, staticmethod(_call(_name)))
DEFAULTS: dict[str, Any] = {name: value for name, value in vars(CppOverrides).items() if not name.startswith("_")}


def known(op: str) -> bool:
    """Whether the table has `op`."""
    return hasattr(CppOverrides, op)


def replaced(op: str) -> bool:
    """Whether a user replaced the function of `op`."""
    return vars(CppOverrides).get(op) is not DEFAULTS.get(op)


def expression(op: str, *operands: str) -> str:
    """The C++ expression of `op` on `operands`."""
    return str(getattr(CppOverrides, op)(*operands))


class _OverridesModule(types.ModuleType):
    """Lets `overrides.neg = f` replace `CppOverrides.neg`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(CppOverrides, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in DEFAULTS:
            default = DEFAULTS[name]
            same = value is default or value is getattr(default, "__func__", None)
            setattr(CppOverrides, name, default if same else staticmethod(value))
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name in DEFAULTS:
            setattr(CppOverrides, name, DEFAULTS[name])
        else:
            super().__delattr__(name)


sys.modules[__name__].__class__ = _OverridesModule
