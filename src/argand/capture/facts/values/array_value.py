"""`Traced`: what stands for a numpy array, or a numpy scalar, that the graph computes.

A plain Python object, no array: numpy's C code cannot read a value out of it that does not exist yet. It says that it
is one (`__class__`), tells numpy's functions to come to it (`__array_ufunc__`, `__array_function__`), and everything
that needs values ends the graph. `arrays.Arrays` does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import BuiltinMethodType
from typing import Any

from argand import errors
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.graph.python_operators import ARITHMETIC, COMPARISONS, DIVMOD, UNARY

_FACTS = frozenset(("shape", "dtype", "ndim", "size", "itemsize", "nbytes", "strides", "__doc__"))
_COMPUTED = frozenset(("T", "real", "imag", "mT"))
_OF_PYTHON_CLASSES = frozenset(("__module__", "__weakref__", "__dict__", "__doc__"))  # not those of this class


def needs_values(what: str) -> errors.GraphBreak:
    """The graph break for what only the values tell."""
    return errors.graph_break(
        kind="data-dependent value",
        context=f"numpy {what}",
        explanation=f"{what} of a numpy array needs its values, which exist only when the program runs.",
        hints=("Do it outside the compiled function, or keep the value an array.",),
    )


class Method:
    """`array.name`, not called yet."""

    __slots__ = ("_a_name", "_a_of")

    def __init__(self, of: Traced, name: str) -> None:
        self._a_of = of
        self._a_name = name

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return BuiltinMethodType

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self._a_of._a_owner.method(self._a_of, self._a_name, args, kwargs)

    def __getattr__(self, name: str) -> object:
        return getattr(getattr(self._a_of._a_dummy, self._a_name), name)


Method.__name__ = "builtin_function_or_method"  # what C code calls it


class Traced:
    """See the module's docstring.

    Fields:
        _a_owner: the `arrays.Arrays` of this capture.
        _a_dummy: an array or scalar of the same type, dtype, shape and strides, with made-up values.
        _a_tensor: the stand-in of the tensor that has the values: now, where the array runs backwards.
        _a_memory: that whose memory it is.
        _a_flips: the dimensions in which it runs backwards through that memory; nothing is written to such an array.
        _a_source: where the program has this array, for one that existed before the frame.
    """

    __slots__ = ("__weakref__", "_a_dummy", "_a_flips", "_a_memory", "_a_owner", "_a_source")

    def __init__(
        self, owner: object, dummy: object, tensor: object, source: object = None, flips: tuple[int, ...] = ()
    ) -> None:
        put = object.__setattr__
        put(self, "_a_owner", owner)
        put(self, "_a_dummy", dummy)
        put(self, "_a_memory", tensor)
        put(self, "_a_source", source)
        put(self, "_a_flips", flips)

    @property
    def _a_tensor(self) -> Any:
        return self._a_owner.flipped(self) if self._a_flips else self._a_memory

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._a_dummy)

    def __array_ufunc__(self, ufunc: Function, method: str, *inputs: object, **kwargs: object) -> object:
        if method != "__call__":
            raise needs_values(f"{ufunc.__name__}.{method}")
        return self._a_owner.call(ufunc, inputs, kwargs)

    def __array_function__(self, func: object, types: object, args: Args, kwargs: Kwargs) -> object:
        return self._a_owner.call(func, args, kwargs)

    def __getattribute__(self, name: str) -> Any:
        if name in _OF_PYTHON_CLASSES:
            raise AttributeError(name)  # so that __getattr__ is asked
        if name in _SPECIAL:  # numpy's method is another, which the program may keep
            raise needs_values(name)
        try:
            return object.__getattribute__(self, name)
        except AttributeError:
            raise AttributeError(name) from None  # __getattr__ is asked, whose text names the array

    def __getattr__(self, name: str) -> Any:
        if name in _FACTS:
            return getattr(self._a_dummy, name)
        if name in _COMPUTED:
            return self._a_owner.attribute(self, name)
        if callable(getattr(self._a_dummy, name)) and not name.startswith("__"):
            return Method(self, name)
        raise needs_values(name)

    def __setattr__(self, name: str, value: object) -> None:
        raise needs_values(f"setting the attribute {name}")

    def __len__(self) -> int:
        return len(self._a_dummy)

    def __iter__(self) -> Iterator[object]:
        if not self._a_dummy.ndim:
            raise TypeError("iteration over a 0-d array")
        return iter([self._a_owner.item(self, i) for i in range(len(self._a_dummy))])

    def __getitem__(self, key: object) -> object:
        return self._a_owner.item(self, key)

    def __setitem__(self, key: object, value: object) -> None:
        self._a_owner.set_item(self, key, value)


def _refused(name: str) -> Callable[..., object]:
    def refuse(self: Traced, *args: object, **kwargs: object) -> object:
        raise needs_values(name)

    return refuse


def _binary(ufunc: str, swapped: bool, inplace: bool) -> Callable[[Traced, object], object]:
    def call(self: Traced, other: object) -> object:
        given = (other, self) if swapped else (self, other)
        if inplace:
            return self._a_owner.inplace(ufunc, self, other)
        return self._a_owner.named(ufunc, given)

    return call


def _unary(ufunc: str) -> Callable[[Traced], object]:
    def call(self: Traced) -> object:
        return self._a_owner.named(ufunc, (self,))

    return call


_REFUSED = (
    "array bool int float complex index repr str format hash contains round trunc floor ceil copy deepcopy reduce "
    "reduce_ex buffer delitem"
)


BINARY = {
    **{op.method: (op.ufunc, False) for op in (*ARITHMETIC.values(), DIVMOD, *COMPARISONS.values())},
    **{op.reflected: (op.ufunc, True) for op in (*ARITHMETIC.values(), DIVMOD)},
}
"""Operator method -> (ufunc, whether the operands change places)."""


def _fill() -> None:
    for method, (ufunc, swapped) in BINARY.items():
        setattr(Traced, method, _binary(ufunc, swapped, False))
    for op in ARITHMETIC.values():
        setattr(Traced, f"__i{op.name}__", _binary(op.ufunc, False, True))
    for method, ufunc in (*((op.method, op.ufunc) for op in UNARY), ("__abs__", "absolute")):
        setattr(Traced, method, _unary(ufunc))
    for name in _REFUSED.split():
        setattr(Traced, f"__{name}__", _refused(f"__{name}__"))


_fill()
_SPECIAL = frozenset(
    name
    for name, held in vars(Traced).items()
    if name.startswith("__")
    and type(held) is type(_fill)
    and not name.startswith(("__array_", "__get", "__set", "__init"))
) | {"__getitem__", "__setitem__"}
"""Special methods. Operators find them in the class, and do not read them as attributes."""
FUNCTIONS = [fn for cls in (Traced, Method) for fn in vars(cls).values() if type(fn) is type(_fill)] + [
    vars(Traced)["__class__"].fget
]
"""The Python functions that the interpreter is to call instead of interpreting them."""
