"""Numbers that vary from call to call, as the interpreted program sees them.

A symbolic number is a plain object that answers to `isinstance(n, int)`. Arithmetic gives symbolic numbers; comparisons
are decided by the value in the call at hand and leave a guard; whatever needs the number itself (an index, a text, a
hash) gets it, and the number is a constant of this version from there on.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn, Protocol

import torch

from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.sources import Source
from argand.capture.facts.values.symbols import Place
from argand.errors import GraphBreak
from argand.graph.python_operators import ARITHMETIC, COMPARISONS, BinaryOperator
from argand.graph.sizes.expr import Expr, Sym
from argand.graph.sizes.relations import Relation


class Undecided(Protocol):
    """Numbers that only the running program knows, as far as a condition of theirs asks."""

    def undecided(self, relation: Relation) -> GraphBreak:
        """The break for a condition that nothing is known of."""


class Symbols(Protocol):
    """The symbols of a capture, as far as numbers ask of them (`sizes.symbolic_state.Dynamics`)."""

    keys: dict[int, object]
    """The numbers, by id, that are hashed as they are (`sizes.hook_ids`)."""

    @property
    def unbacked(self) -> Undecided | None: ...

    @property
    def places(self) -> Mapping[Sym, Place]: ...

    def arithmetic(self, name: str, left: Any, right: Any) -> Any:
        """`left name right`, of plain and symbolic numbers."""

    def apply(self, name: str, value: Any) -> Any:
        """A function of one symbolic number."""

    def function(self, name: str, *values: object) -> object:
        """A function of several numbers."""

    def with_tensor(self, name: str, number: Any, tensor: torch.Tensor, reflected: bool) -> Any:
        """An operator of a number and a tensor (`reflected`: the tensor is on the left)."""

    def compare(self, op: str, left: Any, right: Any) -> bool:
        """Whether `left op right` in the call at hand; the answer is guarded."""

    def specialise(self, value: Any) -> Any:
        """The plain number, which is a constant from here on."""


class SymbolicNumber:
    """What SymbolicInt and SymbolicFloat share.

    Arguments:
        dynamics: the capture's symbols.
        expr: the expression.
        hint: its value in the call at hand.
    """

    __slots__ = ("dynamics", "expr", "hint")

    def __init__(self, dynamics: Symbols, expr: Expr, hint: Any) -> None:
        self.dynamics = dynamics
        self.expr = expr
        self.hint = hint

    def number(self) -> Any:
        """The plain number; it is a constant of this compiled version from now on."""
        return self.dynamics.specialise(self)

    def __bool__(self) -> bool:
        return self.dynamics.compare("ne", self, 0)

    def __index__(self) -> Any:
        return self.number()

    def __int__(self) -> int:
        return int(self.number())

    def __float__(self) -> float:
        return float(self.number())

    def __complex__(self) -> complex:
        return complex(self.number())

    def __hash__(self) -> int:
        return hash(self.hint if id(self) in self.dynamics.keys else self.number())

    def __str__(self) -> str:
        return str(self.number())

    def __repr__(self) -> str:
        return repr(self.number())

    def __format__(self, spec: str) -> str:
        return format(self.number(), spec)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.number().__reduce_ex__(protocol)

    def __copy__(self) -> object:
        return self

    def __deepcopy__(self, memo: object) -> object:
        return self

    def __divmod__(self, other: Any) -> object:
        return (self // other, self % other) if is_number(other) else divmod(self.number(), other)

    def __rdivmod__(self, other: Any) -> object:
        return (other // self, other % self) if is_number(other) else divmod(other, self.number())

    def __pos__(self) -> object:
        return self

    def __round__(self, digits: Any = None) -> object:
        if digits is None:
            return self if type(self) is SymbolicInt else self.dynamics.apply("round", self)
        if type(self) is SymbolicFloat and type(digits) is int:
            return self.dynamics.function("round", self, digits)
        return round(self.number(), digits)


class SymbolicInt(SymbolicNumber):
    """An int that varies from call to call."""

    __slots__ = ()

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return int

    def __trunc__(self) -> object:
        return self

    __floor__ = __ceil__ = __trunc__

    def __invert__(self) -> object:
        return self.dynamics.arithmetic("sub", -1, self)


class SymbolicFloat(SymbolicNumber):
    """A float that varies from call to call."""

    __slots__ = ()

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return float

    def __index__(self) -> NoReturn:
        raise TypeError("'float' object cannot be interpreted as an integer")

    def __trunc__(self) -> object:
        return self.dynamics.apply("trunc", self)

    def __floor__(self) -> object:
        return self.dynamics.apply("floor", self)

    def __ceil__(self) -> object:
        return self.dynamics.apply("ceil", self)


class SymbolicBool(SymbolicNumber):
    """A comparison of numbers that are known only when the graph runs, and that nothing known decides."""

    __slots__ = ("relation",)

    def __init__(self, dynamics: Symbols, relation: Any) -> None:
        self.dynamics = dynamics
        self.relation = relation

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return bool

    @property
    def expr(self) -> Any:  # type: ignore[override]
        return self.number()

    @property
    def hint(self) -> Any:
        return self.number()

    def number(self) -> Any:
        """Raises GraphBreak."""
        raise self.dynamics.unbacked.undecided(self.relation)  # type: ignore[union-attr]

    def __bool__(self) -> bool:
        return bool(self.number())


class SymbolicScalar(SymbolicNumber):
    """A scalar of numpy's that varies: `sizes.symbolic_scalars` says what becomes of it.

    Arguments:
        inner: the symbolic number that `item()` gives.
        kind: numpy's type.
        source: where the program has the scalar itself, of one that existed before the frame.
    """

    __slots__ = ("_a_dummy", "inner", "kind", "source")

    def __init__(self, inner: SymbolicNumber, kind: type, source: Source | None = None) -> None:
        super().__init__(inner.dynamics, inner.expr, inner.hint)
        self.inner = inner
        self.kind = kind
        self.source = source
        self._a_dummy = kind(1)

    @property
    def _a_owner(self) -> SymbolicScalar:
        """Who answers for methods (`array_value.Method`)."""
        return self

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return self.kind

    def number(self) -> object:
        """The scalar; it is a constant of this compiled version from now on."""
        return self.kind(self.inner.number())

    def __round__(self, digits: int | None = None) -> object:
        return self.method(self, "__round__", () if digits is None else (digits,), {})

    def method(self, of: object, name: str, args: Args, kwargs: Kwargs) -> object:
        """A method called."""
        if name in ("item", "tolist") and not args and not kwargs:
            return self.inner
        return getattr(self.number(), name)(*args, **kwargs)


SYMBOLIC: frozenset[type] = frozenset((SymbolicInt, SymbolicFloat, SymbolicBool, SymbolicScalar))
_OF_PYTHON: frozenset[type] = SYMBOLIC - {SymbolicScalar} | {int, float, bool}


def hint_of(value: Any) -> Any:
    """The number of the call at hand."""
    return value.hint if type(value) in SYMBOLIC else value


def expr_of(value: Any) -> Any:
    """The expression, or the number."""
    return value.expr if type(value) in SYMBOLIC else int(value) if type(value) is bool else value


def plain_of(value: Any) -> Any:
    """The number, as a constant."""
    return value.number() if type(value) in SYMBOLIC else value


def evaluated(function: Function, *operands: object) -> object:
    """The result for the numbers of this capture. An exception is what the program sees, with these numbers only."""
    try:
        return function(*[hint_of(operand) for operand in operands])
    except (ArithmeticError, ValueError):
        for operand in operands:
            plain_of(operand)
        raise


def is_number(value: object) -> bool:
    """A number of Python's that may stand beside a symbolic one."""
    return type(value) in _OF_PYTHON


def is_whole(value: object) -> bool:
    """An integer of Python's, which may vary."""
    return type(value) in (SymbolicInt, int, bool)


def is_one(base: object, exponent: object) -> bool:
    """Whether a power is 1.0 whatever the number that varies is: Python says so of infinities and nan, too."""
    if type(exponent) in (int, float) and exponent == 0:
        return type(exponent) is float or not is_whole(base)
    return type(base) is float and base == 1.0


def _binary(op: BinaryOperator) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    def forward(self: Any, other: object) -> object:
        if not is_number(other):
            return _with_tensor(self, other, op, False)
        return self.dynamics.arithmetic(op.name, self, other)

    def reflected(self: Any, other: object) -> object:
        if not is_number(other):
            return _with_tensor(self, other, op, True)
        return self.dynamics.arithmetic(op.name, other, self)

    return forward, reflected


def _with_tensor(number: Any, other: object, op: BinaryOperator, reflected: bool) -> object:
    if isinstance(other, torch.Tensor):
        return number.dynamics.with_tensor(op.name, number, other, reflected)
    if isinstance(other, complex | str | bytes | list | tuple):  # native code takes the plain number
        plain = number.number()
        return op.native(other, plain) if reflected else op.native(plain, other)
    return NotImplemented


_NO_NUMBERS: frozenset[type] = frozenset((str, bytes, type(None), tuple, list, dict, set, frozenset, type, slice))
"""Nothing of these classes compares with a number."""


def _comparison(name: str, native: Function) -> Callable[[Any, Any], Any]:
    def compare(self: Any, other: object) -> object:
        if not is_number(other):
            if isinstance(other, torch.Tensor):
                return self.dynamics.with_tensor(name, self, other, False)
            if type(other) in _NO_NUMBERS:
                return NotImplemented
            # What lies in a container, say: a scalar of numpy's, a member of an IntEnum.
            return native(self.number(), other)
        return self.dynamics.compare(name, self, other)

    return compare


def _unary(name: str) -> Callable[[Any], Any]:
    return lambda self: self.dynamics.apply(name, self)


def _of_scalar(native: Function, reflected: bool) -> Function:
    """An operator of a scalar of numpy's in native code, which gets constants."""

    def operate(self: SymbolicScalar, other: object) -> object:
        plain = other.number() if isinstance(other, SymbolicNumber) else other
        return native(plain, self.number()) if reflected else native(self.number(), plain)

    return operate


def _plain_unary(native: Function) -> Function:
    return lambda self: native(self.number())


def _fill() -> None:
    for cls in (SymbolicInt, SymbolicFloat):  # a comparison has no arithmetic: its number is asked for
        for op in ARITHMETIC.values():
            if op.numbers == "any" or (op.numbers == "int" and cls is SymbolicInt):
                forward, reflected = _binary(op)
                setattr(cls, op.method, forward)
                setattr(cls, op.reflected, reflected)
        for comparison in COMPARISONS.values():
            setattr(cls, comparison.method, _comparison(comparison.name, comparison.native))
        cls.__hash__ = SymbolicNumber.__hash__  # type: ignore[method-assign]
        for name in ("neg", "abs"):
            setattr(cls, f"__{name}__", _unary(name))
    for op in ARITHMETIC.values():
        setattr(SymbolicScalar, op.method, _of_scalar(op.native, False))
        setattr(SymbolicScalar, op.reflected, _of_scalar(op.native, True))
    for comparison in COMPARISONS.values():
        setattr(SymbolicScalar, comparison.method, _of_scalar(comparison.native, False))
    SymbolicScalar.__hash__ = SymbolicNumber.__hash__  # type: ignore[method-assign]
    for unary in (operator.neg, operator.abs, operator.invert):
        setattr(SymbolicScalar, f"__{unary.__name__}__", _plain_unary(unary))


_fill()


class SymbolicSize(tuple):  # type: ignore[type-arg]
    """A torch.Size with symbolic numbers in it."""

    __slots__ = ()

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return torch.Size

    def numel(self) -> object:
        """The product."""
        total: object = 1
        for item in tuple.__iter__(self):
            total = total * item
        return total

    def __getitem__(self, index: Any) -> Any:
        items = tuple.__getitem__(self, index)
        return size_of(items) if isinstance(index, slice) else items

    def __add__(self, other: object) -> Any:
        if not isinstance(other, tuple):
            return NotImplemented if hasattr(type(other), "__radd__") else torch.Size() + other  # in torch's words
        return size_of(tuple.__add__(self, tuple(other)))

    def __radd__(self, other: object) -> object:
        return size_of(tuple(other) + tuple(tuple.__iter__(self))) if isinstance(other, tuple) else NotImplemented

    def __mul__(self, count: Any) -> Any:
        return size_of(tuple.__mul__(self, count))

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return repr(torch.Size([operator.index(item) for item in tuple.__iter__(self)]))

    __str__ = __repr__

    def __reduce__(self) -> Any:
        return torch.Size, (list(tuple.__iter__(self)),)


SymbolicSize.__name__ = "torch.Size"  # what C code calls it


STANDS_FOR: frozenset[type] = SYMBOLIC | {SymbolicSize}
"""Types that pass for another one."""


_SIZES: Final = (int, SymbolicInt)


def size_of(items: Any) -> object:
    """A SymbolicSize, or a torch.Size where no item is symbolic."""
    items = tuple(items)
    if any(type(item) in SYMBOLIC for item in items) and all(issubclass(type(item), _SIZES) for item in items):
        return SymbolicSize(items)
    return torch.Size([item.number() if type(item) in SYMBOLIC else item for item in items])  # or raises


def holds_symbols(value: Any) -> bool:
    """Whether a symbolic number is in a value that is handed to torch: in (nested) tuples, lists, dicts, slices."""
    cls = type(value)
    if cls in SYMBOLIC:
        return True
    if cls is slice:
        return type(value.start) in SYMBOLIC or type(value.stop) in SYMBOLIC or type(value.step) in SYMBOLIC
    if cls is SymbolicSize:
        return True
    if cls is tuple or cls is list:
        return any(holds_symbols(item) for item in value)
    if cls is dict:
        return any(holds_symbols(item) for item in value.values())
    return False
