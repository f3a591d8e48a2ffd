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


def _call(name: str, arity: int) -> Callable[..., str]:
    """An override that calls the function `name` of the prelude."""
    if arity == 1:

        def unary(x: str) -> str:
            return f"{name}({x})"

        made: Callable[..., str] = unary
    else:

        def nary(*operands: str) -> str:
            return f"{name}({', '.join(operands)})"

        made = nary
    made.__name__ = made.__qualname__ = name
    return made


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
    def square(x: str) -> str:
        return f"{x} * {x}"

    @staticmethod
    def bitwise_not(x: str) -> str:
        return f"decltype({x})(~{x})"

    @staticmethod
    def positive(x: str) -> str:
        return x

    identity = positive
    add, sub, mul, truediv = (staticmethod(_infix(op)) for op in ("+", "-", "*", "/"))
    eq, ne, lt, le, gt, ge = (staticmethod(_infix(op)) for op in ("==", "!=", "<", "<=", ">", ">="))
    bitwise_and, bitwise_or, bitwise_xor = (staticmethod(_infix(op)) for op in ("&", "|", "^"))
    div = truediv


_UNARY = (
    "abs exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh tanh asinh "
    "acosh atanh erf erfc erfinv sigmoid lgamma digamma floor ceil trunc round sign signbit isnan isinf isfinite "
    "relu logical_not"
)
_BINARY = (
    "maximum minimum fmax fmin fmod remainder floordiv truncdiv pow atan2 copysign nextafter hypot gcd shift_left "
    "shift_right logical_and logical_or logical_xor"
)
for _name in _UNARY.split():
    setattr(CppOverrides, _name, staticmethod(_call(_name, 1)))
for _name in _BINARY.split():
    setattr(CppOverrides, _name, staticmethod(_call(_name, 2)))
CppOverrides.fma = staticmethod(_call("fma", 3))  # type: ignore[attr-defined]
CppOverrides.where = staticmethod(_call("where", 3))  # type: ignore[attr-defined]

# Other names by which lowering may know an op.
_ALIASES = {
    "mod": "remainder",
    "lshift": "shift_left",
    "rshift": "shift_right",
    "bitwise_left_shift": "shift_left",
    "bitwise_right_shift": "shift_right",
    "left_shift": "shift_left",
    "right_shift": "shift_right",
    "floor_divide": "floordiv",
    "trunc_divide": "truncdiv",
    "divide": "truediv",
}
DEFAULTS: dict[str, Any] = {name: value for name, value in vars(CppOverrides).items() if not name.startswith("_")}


def canonical(op: str) -> str:
    """The name under which the table holds `op`."""
    return op if op in DEFAULTS else _ALIASES.get(op, op)


def known(op: str) -> bool:
    """Whether the table has `op`."""
    return hasattr(CppOverrides, canonical(op))


def replaced(op: str) -> bool:
    """Whether a user replaced the function of `op`."""
    name = canonical(op)
    return vars(CppOverrides).get(name) is not DEFAULTS.get(name)


def expression(op: str, *operands: str) -> str:
    """The C++ expression of `op` on `operands`."""
    return str(getattr(CppOverrides, canonical(op))(*operands))


class _OverridesModule(types.ModuleType):
    """Lets `overrides.neg = f` replace `CppOverrides.neg`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(CppOverrides, canonical(name))

    def __setattr__(self, name: str, value: Any) -> None:
        if canonical(name) in DEFAULTS:
            default = DEFAULTS[canonical(name)]
            same = value is default or value is getattr(default, "__func__", None)
            setattr(CppOverrides, canonical(name), default if same else staticmethod(value))
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if canonical(name) in DEFAULTS:
            setattr(CppOverrides, canonical(name), DEFAULTS[canonical(name)])
        else:
            super().__delattr__(name)


sys.modules[__name__].__class__ = _OverridesModule
