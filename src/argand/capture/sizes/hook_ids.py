"""The ids of hooks, which torch counts in one attribute of a class: numbers that vary, and keys all the same.

A function that puts on a hook at each call has another id at each call. All that becomes of it, as a rule, is that the
dict of the hooks is asked for it; so a dict of hooks takes it as it is, where any other would make a constant of it:
that it is none of the other keys is what the guards say. The count that the call leaves is an increment.
"""

from __future__ import annotations

import collections

from torch.utils.hooks import RemovableHandle

from argand.capture.facts.frames import NULL
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import is_a, raw_items
from argand.capture.facts.sources import ConstSource, TypeAttrSource
from argand.capture.facts.values.symbolic import SymbolicInt
from argand.capture.facts.values.symbols import Place
from argand.capture.sizes import symbolic_policy
from argand.graph.sizes.expr import Expr, free_symbols

_PLACE = Place(TypeAttrSource(ConstSource(RemovableHandle), "next_id"), "int")


def is_count(cls: type, name: str) -> bool:
    """Whether an attribute of a class is the count of hooks."""
    return cls is RemovableHandle and name == "next_id"


def count(interp: Interpreter, cls: type, name: str) -> object:
    """`RemovableHandle.next_id`; NULL for any other attribute, or where it is a constant."""
    if not is_count(cls, name):
        return NULL
    if (id(cls), name) in interp.types.overlay:
        written = interp.types.overlay[id(cls), name]
        return written if type(written) is SymbolicInt else NULL
    now = vars(cls).get(name)
    if type(now) is not int or now < 0:
        return NULL
    dynamics = symbolic_policy.dynamics_of(interp.state)
    expr = dynamics.symbol(_PLACE, now, low=0)
    return dynamics.wrap(expr, now) if isinstance(expr, Expr) else NULL


def take_key(key: object, held: object) -> bool:
    """Whether a hook's id is asked for in a dict of hooks, which copies of it hash anew: compared with all other keys
    there under guards, it is hashed as it is from here on."""
    if type(key) is not SymbolicInt or not is_a(held, collections.OrderedDict):
        return False
    places = key.dynamics.places
    if any(places.get(symbol) is not _PLACE for symbol in free_symbols(key.expr)):
        return False
    key.dynamics.keys[id(key)] = key
    for other, _ in raw_items(held):
        if type(other) in (int, SymbolicInt):
            key.dynamics.compare("eq", key, other)
    return True


def compare(key: object, held: object) -> None:
    """A number is looked up among the ids of hooks: guarded to be none of them, or to be the one that it is."""
    if type(key) is int and is_a(held, collections.OrderedDict):
        for other, _ in raw_items(held):
            if type(other) is SymbolicInt:
                other.dynamics.compare("eq", other, key)
