"""Stands in for torch's symbolic numbers where all sizes are plain: their module and sympy take 0.4 s to import.

Kernels of torch's that compute metadata, and its autograd, import them for questions whose answers are plain then. What
is asked beyond these has the modules imported, and goes to them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch.utils._ordered_set import OrderedSet

SYMBOLIC = "torch.fx.experimental.symbolic_shapes"
_PACKAGE, _, _LAST = SYMBOLIC.rpartition(".")
_SETTINGS = f"{_PACKAGE}._config"
_SYMPY = "sympy"
_ASKING = "torch._prims_common"  # asks whether operands are expressions
_NEEDED = {(_SYMPY, "__path__"), (_SYMPY, "__version__"), (_SYMPY, "__all__"), (SYMBOLIC, "__all__")}


class _Expression:
    """What no plain number is an instance of: `sympy.Basic` for who asks that of one."""


class _StandIn(ModuleType):
    """A module in the place of the real one, which answers for it and is replaced by it where it cannot."""

    def __getattr__(self, name: str) -> Any:
        if not _is_real(self.__name__):
            if name == "Basic" and sys._getframe(1).f_globals.get("__name__") == _ASKING:
                return _Expression
            if name.startswith("__") and (self.__name__, name) not in _NEEDED:
                raise AttributeError(name)  # whoever walks over all modules imports none
        return getattr(_real(self.__name__), name)


def _is_real(name: str) -> bool:
    return name in sys.modules and not isinstance(sys.modules[name], _StandIn)


def _real(name: str) -> ModuleType:
    _WINDOW.take_away()
    return importlib.import_module(name)


def _asked_plainly(name: str, plain: Callable[..., object], answer: Callable[..., object]) -> Callable[..., object]:
    """The function `name`, answered here where all arguments are `plain`."""

    def ask(*args: Any, **kwargs: Any) -> object:
        if kwargs or not all(map(plain, args)):
            return _ask_real(name, *args, **kwargs)
        return answer(*args)

    ask.__name__ = name
    return ask


def _ask_real(name: str, *args: Any, **kwargs: Any) -> object:
    return getattr(_real(SYMBOLIC), name)(*args, **kwargs)


def _is_plain(value: object) -> bool:
    """Whether a number, or a tensor or what has several of them, has no symbolic number in it."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return False
        return all(type(each) is int for each in (*value.shape, *value.stride(), value.storage_offset()))
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or _is_number(value)


def _is_bool(value: object) -> bool:
    return value is True or value is False


def _is_number(value: object) -> bool:
    return type(value) in (int, float, bool)


def _is_size(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return all(type(each) is int for each in value)
    return type(value) is int


def _equal(x: Any, y: Any) -> object:
    if isinstance(x, (tuple, list)) and isinstance(y, (tuple, list)):
        return tuple(x) == tuple(y)
    if type(x) is int and type(y) is int:
        return x == y
    return _real(SYMBOLIC).sym_eq(x, y)


_ANSWERS: tuple[tuple[str, Callable[..., object], Callable[..., object]], ...] = (
    *((name, _is_bool, lambda x: x) for name in ("guard_or_false", "guard_or_true", "statically_known_true")),
    ("expect_true", _is_bool, lambda x: x),
    ("statically_known_false", _is_bool, lambda x: not x),
    ("sym_and", _is_bool, lambda *each: all(each)),
    ("sym_or", _is_bool, lambda *each: any(each)),
    ("sym_eq", _is_size, _equal),
    ("is_nested_int", _is_number, lambda x: False),
    ("has_guarding_hint", _is_number, lambda x: True),
    ("has_hint", _is_number, lambda x: True),
    ("size_hint", lambda value: type(value) is int, lambda x: x),
    ("guard_int", lambda value: type(value) is int, lambda x: x),
    *((name, _is_plain, lambda x: OrderedSet()) for name in ("free_symbols", "free_unbacked_symbols")),
    *((name, _is_plain, lambda x: False) for name in ("has_free_symbols", "has_free_unbacked_symbols")),
)

_OTHERS = (
    "guard_size_oblivious", "guarding_hint_or_throw", "constrain_range",
    "_constrain_range_for_size", "_advise_is_size", "_advise_is_bounded",
)  # fmt: skip
"""Functions that are imported beside these, and hardly called: the real ones answer."""


class _Window:
    """The time in which the modules are stood in for.

    Fields:
        open: whether it is now.
    """

    def __init__(self) -> None:
        self.open = False
        self._stand_ins = {name: _StandIn(name) for name in (SYMBOLIC, _SYMPY)}
        for name, plain, answer in _ANSWERS:
            setattr(self._stand_ins[SYMBOLIC], name, _asked_plainly(name, plain, answer))
        for name in _OTHERS:
            setattr(self._stand_ins[SYMBOLIC], name, functools.partial(_ask_real, name))

    def put(self) -> None:
        """Stand in for what is not imported."""
        with contextlib.suppress(ImportError):
            importlib.import_module(_SETTINGS)  # who imports the module finds them, too
        for name, stand_in in self._stand_ins.items():
            sys.modules.setdefault(name, stand_in)
        package = sys.modules.get(_PACKAGE)
        if package is not None and _LAST not in vars(package):
            setattr(package, _LAST, self._stand_ins[SYMBOLIC])

    def take_away(self) -> None:
        """Whoever imports the modules from now on gets them."""
        for name, stand_in in self._stand_ins.items():
            if sys.modules.get(name) is stand_in:
                sys.modules.pop(name, None)
        package = sys.modules.get(_PACKAGE)
        if package is not None and vars(package).get(_LAST) is self._stand_ins[SYMBOLIC]:
            delattr(package, _LAST)


_WINDOW = _Window()


@contextlib.contextmanager
def stood_in() -> Iterator[None]:
    """Inside, plain questions import nothing. One thread at a time opens it: others import what they need."""
    if SYMBOLIC in sys.modules or _WINDOW.open:
        yield
        return
    _WINDOW.open = True
    try:
        _WINDOW.put()
        yield
    finally:
        _WINDOW.take_away()
        _WINDOW.open = False
