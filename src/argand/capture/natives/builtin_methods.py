"""Handlers of methods of the builtin classes: who is changed, what is compared, iterated, kept or formatted."""

from __future__ import annotations

import collections
import gc
import re
import types
from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch

from argand.capture.facts.frames import NULL
from argand.capture.facts.handlers import Kwargs
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import is_a, raw_length
from argand.capture.facts.sources import CallSource
from argand.capture.facts.typefacts import CONTAINERS
from argand.capture.natives.iteration_functions import hashed_items, sort_list, update_dict
from argand.capture.natives.rows import position
from argand.capture.objects import iteration, keys, operators, polyfills, text
from argand.capture.objects.call_protocol.native_handlers import (
    SAFE_NEW,
    Args,
    add_methods,
    method,
    other_methods,
    python_object_in_native,
)
from argand.capture.sizes import symbolic_ops
from argand.capture.world import additions, native_reads
from argand.graph.python_operators import BINARY, COMPARE, Comparison

_BY_METHOD: Final[dict[str, Comparison]] = {op.method: op for op in COMPARE.values()}


# ---- handlers of methods that many classes share -------------------------------------------------------------------


_NUMBERS = (int, float, bool, complex)


_OF_TEXTS = frozenset((str, bytes, re.Pattern))
_ITEM_BY_ITEM = frozenset(("join", "translate"))
"""Of their methods, those that do not read a text's characters as they lie in memory, past methods of its class."""


def read_only(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    """Reads the object; arguments are plain values."""
    args = [interp.plain(arg) for arg in args]
    for arg in args:
        unread = name.startswith("__") or (cls in _OF_TEXTS and name not in _ITEM_BY_ITEM and is_a(arg, str | bytes))
        if type(arg) not in interp.settled and not unread and not interp.benign(arg):
            raise python_object_in_native(getattr(cls, name), arg)
    if interp.dynamic and cls in _NUMBERS:  # its methods answer NotImplemented to a symbolic number
        symbolic_ops.plain_arguments(args, kwargs)
    return interp.native(getattr(cls, name), interp.shadow(owner), *args, **kwargs)


def moving(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    """Counts elements, or hands them on: of the container and of others like it."""
    args = [interp.plain(arg) for arg in args]
    for arg in args:
        if not is_a(arg, CONTAINERS):
            native_reads.check(interp, getattr(cls, name), (arg,))
    if (
        name == "__reduce__"
        and interp.is_outer(interp.origin(owner))
        and any("__dict__" in vars(k) for k in type(owner).__mro__)
    ):
        raise native_reads.unseen_object(owner, getattr(cls, name))  # it reads attributes, which the shadow has not
    return interp.unread(getattr(cls, name), interp.shadow(owner), *args, **kwargs)


_ASKED_BY_COPIES: dict[type, tuple[str, ...]] = {
    collections.OrderedDict: ("__new__", "__init__", "__iter__", "__getitem__", "__setitem__", "keys", "update"),
    collections.defaultdict: ("__new__", "__init__", "__iter__"),
    dict: ("__iter__",),
}
"""Methods of subclasses that C code calls when it copies or joins dicts, and not those of the kind of dict itself."""


def copying(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    """Copies or joins dicts, whose classes may say in Python what is in them."""
    for operand in (owner, *args):
        value = interp.plain(operand)
        kind = next((kind for kind in _ASKED_BY_COPIES if is_a(value, kind)), None)
        if kind is None:
            continue
        interp.note_class(type(value))
        lookup = interp.types.lookup
        if any(lookup(type(value), asked) is not lookup(kind, asked) for asked in _ASKED_BY_COPIES[kind]):
            raise python_object_in_native(getattr(cls, name), value)
    return moving(interp, cls, name, owner, args, kwargs)


def keeping(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    """Changes the object, storing the arguments as they are."""
    if name == "pop":
        iteration.note_order(interp, owner)
    if name == "append" and len(args) == 1 and not kwargs and additions.add(interp.state, owner, args):
        return None
    return interp.unread(getattr(cls, name), interp.shadow(owner), *args, **kwargs)


def keeping_at(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    """Changes the object at an index, storing the other arguments as they are."""
    args = [keys.native_key(interp, arg) if i == 0 else arg for i, arg in enumerate(args)]
    if name == "__setitem__" and args and type(args[0]) is slice and len(args) == 2:
        args[1] = iteration.native_iterable(interp, args[1]) if iteration.is_iterable(interp, args[1]) else args[1]
    return interp.unread(getattr(cls, name), interp.shadow(owner), *args, **kwargs)


def comparing(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    """Compares elements natively."""
    target = interp.shadow(owner)
    args = [interp.plain(arg) for arg in args]
    for operand in (interp.plain(owner), *args):
        if not interp.benign(operand):
            if name in _BY_METHOD and len(args) == 1 and issubclass(cls, list | tuple | dict):
                if not is_a(args[0], list if issubclass(cls, list) else tuple if issubclass(cls, tuple) else dict):
                    return NotImplemented
                return operators.compare_containers(interp, _BY_METHOD[name], target, args[0])
            raise python_object_in_native(getattr(cls, name), operand)
    return interp.reading("compare", getattr(cls, name), target, *args, **kwargs)


_ADDING: Final = {"add": 1, "__setitem__": 2}  # arguments of what puts a key into a container


def hashing(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    """Hashes its first argument; stores arguments as they are."""
    if args:
        keys.check_hash(interp, args[0], owner)
    if len(args) == _ADDING.get(name) and not kwargs:
        if additions.add(interp.state, owner, args if name == "add" else [tuple(args)]):
            return None
    return interp.unread(getattr(cls, name), interp.shadow(owner), *args, **kwargs)


def iterating(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    """Iterates over its arguments."""
    hint = not issubclass(cls, collections.deque)  # which does not ask
    args = [iteration.native_iterable(interp, arg, hint) if iteration.is_iterable(interp, arg) else arg for arg in args]
    adds = name in ("extend", "__iadd__") and len(args) == 1 and not kwargs
    if adds and type(args[0]) in (list, tuple) and additions.add(interp.state, owner, args[0]):
        return None if name == "extend" else owner
    return interp.unread(getattr(cls, name), interp.shadow(owner), *args, **kwargs)


def joining(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    """Iterates over its argument and reads the elements."""
    if len(args) == 1 and not kwargs and not iteration.is_iterable(interp, args[0]):
        raise interp.throw(TypeError("can only join an iterable"))
    if len(args) == 1 and iteration.is_iterable(interp, args[0]) and type(args[0]) not in interp.settled:
        # The iterator is asked how long it will be, and not what it iterates over.
        args = [iteration.to_list(interp, iteration.get_iter(interp, args[0]), hint=True)]
    return interp.native(getattr(cls, name), owner, *args, **kwargs)


def iterating_hashed(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    """Iterates over its arguments and hashes their elements."""
    ready: list[object] = []
    target = interp.shadow(owner)
    for arg in args:
        if not iteration.is_iterable(interp, arg):
            ready.append(arg)
            continue
        source = iteration.native_elements(interp, arg, exact=name == "isdisjoint")
        if not is_a(source, set | frozenset | dict):
            source = hashed_items(interp, source, lambda key: interp.unread(getattr(cls, name), target, *ready, key))
        ready.append(source)
    return interp.unread(getattr(cls, name), target, *ready, **kwargs)


def formatting(interp: Interpreter, cls: type, name: str, owner: Any, args: Args, kwargs: Kwargs) -> object:
    """`str.format`: a text with fields like `{0.a}` or `{0[k]}` reads attributes and items, as the program would."""
    if _FIELD_READS.search(owner) is None:
        return textual(interp, cls, name, owner, args, kwargs)
    if name == "format_map":
        raise python_object_in_native(str.format_map, args[0] if args else None)
    args = [interp.textual_field(arg) for arg in args]
    kwargs = {key: interp.textual_field(value) for key, value in kwargs.items()}
    return interp.unread(getattr(cls, name), interp.plain(owner), *args, **kwargs)


_FIELD_READS: Final = re.compile(r"\{[^{}:!]*[.\[]")
"""In a text for `str.format`: a field that goes on from an argument to something in it (or looks like one)."""


def textual(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    """Formats its arguments."""
    args = [interp.textual(arg) for arg in args]
    kwargs = {key: interp.textual(value) for key, value in kwargs.items()}
    return interp.reading("text", getattr(cls, name), interp.shadow(owner), *args, **kwargs)


def subscript(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    """`__getitem__` called as a method: on an outer container, one item."""
    if len(args) == 1 and interp.is_outer(owner) and is_a(owner, list | tuple | dict):
        if is_a(owner, dict):
            keys.check_hash(interp, args[0], owner)
            if interp.outer_has_key(owner, args[0]):
                return interp.outer_item(owner, args[0])
        else:
            return interp.outer_item(owner, args[0])
    if is_a(owner, dict):
        return hashing(interp, cls, name, owner, args, kwargs)
    return keeping_at(interp, cls, name, owner, args, kwargs)


# ---- str, bytes, numbers -------------------------------------------------------------------------------------------

_cls: Any
add_methods(str, formatting, "format format_map")


@method(str, "__mod__")
def _str_mod(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    return operators.binary(interp, BINARY["%"], owner, *args)


def mapping_behind(proxy: object) -> object:
    """The mapping that a MappingProxyType shows (a step of a source)."""
    return gc.get_referents(proxy)[0]


def _through_proxy(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    """A method of a MappingProxyType: that of the dict behind it, which is read under guards."""
    if not interp.is_outer(owner) or not is_a(mapping_behind(owner), dict):
        return read_only(interp, cls, name, owner, args, kwargs)
    source = CallSource(interp.source(owner), mapping_behind)
    mapping = interp.state.load_source(source, mapping_behind(owner))
    return interp.call(interp.getattr(mapping, name), args, kwargs)


add_methods(
    types.MappingProxyType, _through_proxy, "keys values items get copy __getitem__ __contains__ __iter__ __len__"
)
_NOT_CALLED = frozenset(
    ("__class__", "__new__", "__init__", "__getattribute__", "__setattr__", "__delattr__", "__init_subclass__",
     "__subclasshook__")
)  # fmt: skip
for _cls in (str, bytes, bytearray):
    add_methods(_cls, joining, "join")
    other_methods(_cls, read_only, _NOT_CALLED)
for _cls in (int, float, bool, complex, range, slice, memoryview, types.GenericAlias, types.UnionType, type(None),
             types.MappingProxyType, types.CodeType, type(...), type(NotImplemented)):  # fmt: skip
    other_methods(_cls, read_only, _NOT_CALLED)


# ---- sequences -----------------------------------------------------------------------------------------------------

COMPARISONS = "__eq__ __ne__ __lt__ __le__ __gt__ __ge__"
add_methods(list, keeping, "append clear reverse")
add_methods(list, keeping_at, "insert pop __setitem__ __delitem__ __imul__")
add_methods(list, moving, "copy __len__ __iter__ __reversed__ __mul__ __rmul__ __add__ __sizeof__ __hash__")
add_methods(list, subscript, "__getitem__")
add_methods(list, iterating, "extend __iadd__ __init__")
add_methods(list, comparing, COMPARISONS + " __contains__")
add_methods(tuple, moving, "__len__ __iter__ __mul__ __rmul__ __add__ __getnewargs__")
add_methods(tuple, subscript, "__getitem__")
add_methods(tuple, comparing, COMPARISONS + " __contains__")
add_methods(list, textual, "__repr__")
add_methods(tuple, textual, "__repr__")


@method(tuple, "__hash__")
@method(frozenset, "__hash__")
@method(set, "__hash__")
def _container_hash(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    keys.check_hash(interp, owner)
    return interp.unread(getattr(cls, name), interp.plain(owner), *args, **kwargs)


@method(list, "sort")
def _list_sort(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    if args or not set(kwargs) <= {"key", "reverse"}:
        return interp.native(list.sort, [], *args, **kwargs)
    target = interp.shadow(owner)
    items = list.copy(target)
    list.clear(target)  # as CPython does, so that what happens to the list meanwhile is noticed
    try:
        sort_list(interp, items, kwargs.get("key"), kwargs.get("reverse", False))
    finally:
        modified = list.__len__(target) > 0
        list.__setitem__(target, slice(None), items)
    if modified:
        raise interp.throw(ValueError("list modified during sort"))
    return None


def _searching(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    """index, count, remove: compare elements, by interpreted code if need be."""
    target = interp.plain(owner)
    positions = [position(interp, arg) for arg in args[1:]]
    args = [*args[:1], *positions]
    if not args or (interp.benign(target) and interp.benign(args[0])) or kwargs:
        return interp.reading("compare", getattr(cls, name), target, *[interp.plain(arg) for arg in args], **kwargs)
    if name == "count":
        return interp.polyfill(polyfills.list_count, operators.bare(target), args[0])
    if any(type(position) is not int for position in positions):
        return interp.native(getattr(cls, name), target, *args)
    start, stop, _ = slice(*(*positions, None)[:2]).indices(raw_length(target))
    at = interp.polyfill(polyfills.list_index, operators.bare(target), args[0], start, stop)
    if name == "index":
        if at < 0:
            shown = text.to_repr(interp, args[0]) if cls is list else ""
            problem = f"{shown} is not in list" if cls is list else "tuple.index(x): x not in tuple"
            raise interp.throw(ValueError(problem))
        return at
    if at < 0:
        raise interp.throw(ValueError("list.remove(x): x not in list"))
    del target[at]
    return None


add_methods(list, _searching, "index count remove")
add_methods(tuple, _searching, "index count")
add_methods(
    collections.deque,
    keeping,
    "append appendleft pop popleft clear reverse",
)
add_methods(collections.deque, keeping_at, "rotate insert __setitem__ __delitem__ __imul__")
add_methods(
    collections.deque, moving, "copy __copy__ __len__ __iter__ __reversed__ __getitem__ __add__ __mul__ __reduce__"
)
add_methods(collections.deque, iterating, "extend extendleft __init__ __iadd__")
add_methods(collections.deque, comparing, "index count remove __contains__ " + COMPARISONS)
SAFE_NEW.add(collections.deque)


# ---- dicts ---------------------------------------------------------------------------------------------------------

add_methods(dict, hashing, "__setitem__ __delitem__ pop")
add_methods(dict, subscript, "__getitem__")
add_methods(dict, keeping, "clear popitem")
add_methods(dict, moving, "keys values items __len__ __iter__ __reversed__ __hash__")
add_methods(dict, copying, "copy __or__ __ror__")
add_methods(dict, comparing, COMPARISONS)
add_methods(dict, textual, "__repr__")


@method(dict, "setdefault")
def _dict_setdefault(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    if not kwargs and len(args) in (1, 2) and additions.of(interp.state, owner) and additions.is_plain_key(args[0]):
        if interp.outer_has_key(owner, args[0]):
            return interp.outer_item(owner, args[0])
        value = args[1] if len(args) == 2 else None
        additions.add(interp.state, owner, [(args[0], value)])
        return value
    return hashing(interp, cls, name, owner, args, kwargs)


@method(dict, "get")
def _dict_get(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    if kwargs or not 1 <= len(args) <= 2:
        return interp.native(dict.get, {}, *args, **kwargs)
    keys.check_hash(interp, args[0], owner)
    if interp.is_outer(owner):
        if interp.outer_has_key(owner, args[0]):
            return interp.outer_item(owner, args[0])
        return args[1] if len(args) == 2 else None
    return interp.unread(dict.get, interp.shadow(owner), *args)


@method(dict, "__contains__")
def _dict_contains(interp: Interpreter, cls: type, name: str, owner: Any, args: Args, kwargs: Kwargs) -> object:
    if interp.is_outer(owner) and len(args) == 1:
        keys.check_hash(interp, args[0], owner)
        return interp.outer_has_key(owner, args[0])
    return hashing(interp, cls, name, owner, args, kwargs)


def _pairs_one_by_one(interp: Interpreter, values: Iterable[object]) -> Iterator[Any]:
    """Keys and values as an OrderedDict takes them from what is no mapping."""
    for pair in iteration.each(interp, values):
        items = iteration.to_list(interp, pair)
        if len(items) != 2:
            interp.unread(collections.OrderedDict, [range(min(len(items), 3))])  # raises
        yield items


def _dict_update(interp: Interpreter, cls: type, name: str, owner: Any, args: Args, kwargs: Kwargs) -> object:
    target = interp.shadow(owner)
    if len(args) > 1:
        return interp.unread(dict.update, target, *args, **kwargs)
    put = operators.setitem if cls is collections.OrderedDict else None
    if args:
        if put is None:
            update_dict(interp, target, args[0])
        else:
            items = iteration.mapping_items(interp, args[0], by_keys=True)
            if items is None:
                method = interp.try_attr(args[0], "items")
                items = _pairs_one_by_one(interp, args[0] if method is NULL else interp.call(method))
            for key, value in items:
                put(interp, owner, key, value)
    for key, value in kwargs.items():
        if put is None:
            dict.__setitem__(target, key, value)
        else:
            put(interp, owner, key, value)
    return target if name == "__ior__" else None


add_methods(dict, _dict_update, "update __init__ __ior__")
_ordered = collections.OrderedDict
add_methods(_ordered, hashing, "__setitem__ __delitem__ pop setdefault move_to_end")
add_methods(_ordered, keeping, "clear popitem")
add_methods(_ordered, moving, "keys values items __iter__ __reversed__")
add_methods(_ordered, copying, "copy __or__ __ror__")
add_methods(_ordered, comparing, COMPARISONS)
add_methods(_ordered, textual, "__repr__")
add_methods(_ordered, _dict_update, "update __init__ __ior__")
add_methods(collections.defaultdict, moving, "__reduce__")
add_methods(collections.defaultdict, copying, "copy __copy__ __or__ __ror__")


@method(collections.defaultdict, "__missing__")
def _default_missing(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    target = interp.shadow(owner)
    if target.default_factory is None:
        raise interp.throw(KeyError(*args))
    value = interp.call(target.default_factory)
    operators.setitem(interp, owner, args[0], value)
    return value


@method(collections.defaultdict, "__init__")
def _default_init(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    interp.unread(collections.defaultdict.__init__, owner, *args[:1])
    return _dict_update(interp, dict, "update", owner, args[1:], kwargs)


SAFE_NEW.update({_ordered, collections.defaultdict})

_view: Any
for _view in ({}.keys(), {}.items(), _ordered().keys(), _ordered().items(), {}.values(), _ordered().values()):
    add_methods(type(_view), moving, "__len__ __iter__ __reversed__ mapping")
    add_methods(type(_view), comparing, COMPARISONS)
    if "values" not in type(_view).__name__:  # which is no set
        add_methods(type(_view), comparing, "__contains__ __and__ __or__ __sub__ __xor__ isdisjoint "
                                            "__rand__ __ror__ __rsub__ __rxor__")  # fmt: skip


# ---- sets ----------------------------------------------------------------------------------------------------------

for _cls in (set, frozenset):
    add_methods(_cls, moving, "copy __len__ __iter__ __and__ __or__ __sub__ __xor__ __rand__ __ror__ "
                                 "__rsub__ __rxor__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __reduce__")  # fmt: skip
    add_methods(_cls, iterating_hashed, "union intersection difference symmetric_difference isdisjoint issubset "
                                        "issuperset")  # fmt: skip
    add_methods(_cls, hashing, "__contains__")
    add_methods(_cls, textual, "__repr__")
add_methods(set, iterating_hashed, "update intersection_update difference_update symmetric_difference_update "
                                   "__iand__ __ior__ __isub__ __ixor__ __init__")  # fmt: skip
add_methods(set, hashing, "add remove discard")
add_methods(set, keeping, "pop clear")


# ---- iterators -----------------------------------------------------------------------------------------------------


def _iterator_next(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    has_next, value = iteration.next_value(interp, owner)
    if not has_next:
        raise interp.throw(StopIteration(value) if value is not None else StopIteration())
    return value


def _iterator_state(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    interp.check_known(owner)  # what it iterates over comes out, and no guard knows it
    return interp.native(getattr(cls, name), owner, *args, **kwargs)


def known_iterator(cls: type) -> None:
    """An iterator class whose steps touch nothing but what it was made from."""
    add_methods(cls, _iterator_next, "__next__")
    add_methods(cls, lambda interp, cls, name, owner, args, kwargs: owner, "__iter__")
    state = (name for name in ("__length_hint__", "__copy__", "__reduce__") if hasattr(cls, name))
    add_methods(cls, _iterator_state, " ".join(state))


_iterator: object
for _iterator in (iter([]), iter(()), iter({}), iter({}.items()), iter({}.values()), iter(range(0)), iter(""),
        iter(set()),
                  enumerate([]), zip(), reversed([]), iter(b""), map(len, ()), filter(None, ()), reversed({}),
                  iter(collections.deque()), reversed(collections.deque()), iter(_ordered()), iter(range(1 << 70)),
                  reversed({}.items()), reversed({}.values()), iter(memoryview(b"")), reversed(())):  # fmt: skip
    known_iterator(type(_iterator))
add_methods(torch.Size, read_only, "numel __reduce__")
