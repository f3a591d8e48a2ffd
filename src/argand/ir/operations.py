"""The pointwise operations of loop bodies by name, and what each costs.

Lowering, the partition of training graphs and code generation ask this one table. `lower.ops` documents the operations;
a name is also that of the ATen operation that computes the same.
"""

from __future__ import annotations

from argand.graph import python_operators

_DIVISIONS = ("truediv", "floordiv", "truncdiv", "remainder")
INTEGER_DIVISIONS = frozenset(("floordiv", "truncdiv", "remainder", "fmod"))
_ROOTS = ("reciprocal", "sqrt", "rsqrt")
_EXPONENTIAL = ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "sigmoid", "erf", "erfc")
_CIRCULAR = ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")

FLOAT_FUNCTIONS = (*_ROOTS, *_EXPONENTIAL, *_CIRCULAR)
LANE_BY_LANE = frozenset(("erf", "erfc", "sin", "cos", "tan", "asin", "acos", "atan", "asinh", "acosh", "atan2", "pow"))
"""What the C++ prelude has in vectors of floats only: of doubles, one lane at a time is the C library's."""
SPECIAL_FUNCTIONS = (
    *("lgamma", "digamma", "trigamma", "erfinv", "erfcx", "ndtri", "log_ndtr"),
    *("modified_bessel_i0", "modified_bessel_i1", "i0e", "i1e"),
)
"""Of floats alone, and on processors only. The names of the two without an exponential are not those of variables."""
UNARY = (
    "neg",
    "abs",
    "sign",
    "floor",
    "ceil",
    "round",
    "trunc",
    "bitwise_not",
    "logical_not",
    *FLOAT_FUNCTIONS,
    *SPECIAL_FUNCTIONS,
)
BINARY = (
    *("add", "sub", "mul", *_DIVISIONS, "fmod", "pow", "atan2", "maximum", "minimum", "copysign", "lshift", "rshift"),
    *(f"{kind}_{word}" for kind in ("logical", "bitwise") for word in ("and", "or", "xor")),
)
COMPARISONS = tuple(python_operators.COMPARISONS)
PREDICATES = ("isnan", "isinf", "isfinite", "signbit")

DIVISION = 4  # what a division costs; from here on an operation is more than an instruction or two
ELEMENTARY = 12  # what an exponential costs; from here on an operation is worth keeping its result
_COSTS = {
    **dict.fromkeys((*_DIVISIONS, *_ROOTS), DIVISION),
    **dict.fromkeys(_EXPONENTIAL, ELEMENTARY),
    **dict.fromkeys((*_CIRCULAR, "atan2", "pow", "fmod"), 16),
    # ATen's, of several operations or without loops of argand's
    "silu": 16,
    "gelu": 18,
    "softplus": 30,
    "mish": 36,
    **dict.fromkeys(SPECIAL_FUNCTIONS, 40),
}


def cost(operation: str) -> int:
    """What an operation costs on one element, in additions."""
    return _COSTS.get(operation, 1)
