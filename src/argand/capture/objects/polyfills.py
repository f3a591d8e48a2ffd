"""Native algorithms written in Python, for operands whose own methods are Python code: the interpreter runs these.

They must not be called natively. Nothing here is shown in user stacks.
"""
# ruff: noqa: SIM110

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from logging import Logger
from typing import Any, Protocol

_MISSING = object()


class Ordered(Protocol):
    """What is compared by order."""

    def __lt__(self, other: object, /) -> object: ...
    def __le__(self, other: object, /) -> object: ...
    def __gt__(self, other: object, /) -> object: ...
    def __ge__(self, other: object, /) -> object: ...


class Indexed(Protocol):
    """What is read by position."""

    def __getitem__(self, index: int, /) -> object: ...


def list_equal(a: Sequence[object], b: Sequence[object]) -> bool:
    if len(a) != len(b):
        return False
    return tuple_equal(a, b)


def tuple_equal(a: Sequence[object], b: Sequence[object]) -> bool:
    i = 0
    while i < len(a) and i < len(b):
        x, y = a[i], b[i]
        if not (x is y or x == y):  # asks __eq__, not __ne__
            return False
        i += 1
    return len(a) == len(b)


def dict_equal(a: dict[object, object], b: dict[object, object]) -> bool:
    if len(a) != len(b):
        return False
    for key, value in a.items():
        if key not in b:
            return False
        other = b[key]
        if value is other:
            continue
        if not (value == other):  # noqa: SIM201 - asks __eq__, not __ne__
            return False
    return True


def sequence_order(a: Sequence[object], b: Sequence[object], compare: Callable[[object, object], object]) -> object:
    """The order of the first elements that differ, or that of the lengths; `compare` is one of `operator`'s."""
    i = 0
    while i < len(a) and i < len(b):
        x, y = a[i], b[i]
        if not (x is y or x == y):
            return compare(x, y)
        i += 1
    return compare(len(a), len(b))


def contains(items: Iterable[object], value: object) -> bool:
    for item in items:
        if item is value or item == value:
            return True
    return False


def iterate_by_index(obj: Indexed) -> Iterator[object]:
    i = 0
    while True:
        try:
            value = obj[i]
        except (IndexError, StopIteration):
            return
        yield value
        i += 1


def iterate_reversed(obj: Indexed, size: int) -> Iterator[object]:
    i = size - 1
    while i >= 0:
        try:
            value = obj[i]
        except (IndexError, StopIteration):
            return
        yield value
        i -= 1


def iterate_sentinel(fn: Callable[[], object], sentinel: object) -> Iterator[object]:
    while True:
        value = fn()
        if value is sentinel or value == sentinel:
            return
        yield value


def bisect(
    a: Sequence[Ordered], x: Ordered, lo: int, hi: int | None, key: Callable[[object], Ordered] | None, right: bool
) -> int:
    """Where to insert: right or left of equal elements."""
    if lo < 0:
        raise ValueError("lo must be non-negative")
    if hi is None or hi == -1:  # which C takes for None
        hi = len(a)
    while lo < hi:
        middle = (lo + hi) // 2
        item = a[middle] if key is None else key(a[middle])
        if (x < item) if right else not (item < x):
            hi = middle
        else:
            lo = middle + 1
    return lo


def insort(
    a: MutableSequence[Ordered],
    x: Ordered,
    lo: int,
    hi: int | None,
    key: Callable[[object], Ordered] | None,
    right: bool,
) -> None:
    at = bisect(a, x if key is None else key(x), lo, hi, key, right)
    a.insert(at, x)


def _rise(heap: list[Ordered], start: int, at: int, largest: bool) -> None:
    """Move an item of a heap towards its root, as far as `start`, over items that it comes before."""
    size = len(heap)
    while at > start:
        parent = (at - 1) // 2
        before = heap[parent] < heap[at] if largest else heap[at] < heap[parent]
        if len(heap) != size:
            raise RuntimeError("list changed size during iteration")
        if not before:
            return
        heap[parent], heap[at] = heap[at], heap[parent]
        at = parent


def _settle(heap: list[Ordered], at: int, largest: bool) -> None:
    """Move an item of a heap to the leaves along the first children, and up again to where it belongs."""
    start, size = at, len(heap)
    while at < size // 2:
        child = 2 * at + 1
        if child + 1 < size:
            first = heap[child + 1] < heap[child] if largest else heap[child] < heap[child + 1]
            if len(heap) != size:
                raise RuntimeError("list changed size during iteration")
            child += not first
        heap[child], heap[at] = heap[at], heap[child]
        at = child
    _rise(heap, start, at, largest)


def heap_build(heap: list[Ordered], largest: bool) -> None:
    at = len(heap) // 2
    while at:
        at -= 1
        _settle(heap, at, largest)


def heap_push(heap: list[Ordered], item: Ordered, largest: bool) -> None:
    heap.append(item)
    _rise(heap, 0, len(heap) - 1, largest)


def heap_pop(heap: list[Ordered], largest: bool) -> Ordered:
    if not heap:
        raise IndexError("index out of range")
    last = heap.pop()
    return heap_replace(heap, last, largest) if heap else last


def heap_replace(heap: list[Ordered], item: Ordered, largest: bool) -> Ordered:
    if not heap:
        raise IndexError("index out of range")
    top, heap[0] = heap[0], item
    _settle(heap, 0, largest)
    return top


def heap_push_pop(heap: list[Ordered], item: Ordered, largest: bool) -> Ordered:
    if not heap or not (heap[0] < item):
        return item
    return heap_replace(heap, item, largest)


def list_index(items: Sequence[object], value: object, start: int, stop: int) -> int:
    i = start
    while i < stop and i < len(items):
        item = items[i]
        if item is value or item == value:
            return i
        i += 1
    return -1


def list_count(items: Iterable[object], value: object) -> int:
    count = 0
    for item in items:
        if item is value or item == value:
            count += 1
    return count


def sum_items(items: Any, start: object) -> object:
    total = start
    for item in items:
        total = total + item
    return total


def multiply_items(items: Any, start: Any) -> object:
    total = start
    for item in items:
        total = total * item
    return total


def any_items(items: Iterable[object]) -> bool:
    for item in items:
        if item:
            return True
    return False


def all_items(items: Iterable[object]) -> bool:
    for item in items:
        if not item:
            return False
    return True


def pick_best(
    items: Iterable[object], key: Callable[[object], object] | None, default: object, has_default: bool, largest: bool
) -> object:
    best: object = _MISSING
    best_key: object = None
    for item in items:
        item_key: Any = item if key is None else key(item)
        if best is _MISSING or (item_key > best_key if largest else item_key < best_key):
            best = item
            best_key = item_key
    if best is _MISSING:
        if has_default:
            return default
        return max(()) if largest else min(())  # raises with CPython's own message
    return best


def reduce_items(
    fn: Callable[[object, object], object], items: Iterable[object], initial: object, has_initial: bool
) -> object:
    try:
        iterator: Iterator[object] | None = iter(items)
    except TypeError:
        iterator = None
    if iterator is None:  # outside of the handler: the error has no context
        raise TypeError("reduce() arg 2 must support iteration")
    if has_initial:
        value = initial
    else:
        try:
            value = next(iterator)
        except StopIteration:
            raise TypeError("reduce() of empty iterable with no initial value") from None
    for item in iterator:
        value = fn(value, item)
    return value


def logger_enabled(logger: Logger, level: int) -> bool:
    if logger.disabled or logger.manager.disable >= level:
        return False
    return level >= logger.getEffectiveLevel()


class Called(Protocol):
    """A module."""

    forward: Callable[..., object]


def hooked_call(
    module: Called,
    args: Sequence[object],
    kwargs: dict[str, object],
    before: Iterable[tuple[Callable[..., object], bool]],
    behind: Callable[[Called], Iterable[tuple[Callable[..., object], bool]]],
    refuse: Callable[[], None],
) -> object:
    """What calling a module does that has hooks around its forward, and no others.

    Arguments:
        before: the hooks before its forward, and of each whether it takes named arguments.
        behind: gives those behind it, when it is over.
        refuse: what is called where a hook answers with something else than arguments.
    """
    for hook, named in before:
        answer = hook(module, args, kwargs) if named else hook(module, args)
        if answer is None:
            continue
        if not named:
            args = answer if isinstance(answer, tuple) else (answer,)
        elif isinstance(answer, tuple) and len(answer) == 2:
            args, kwargs = answer
        else:
            refuse()
    result = module.forward(*args, **kwargs)
    for hook, named in behind(module):
        answer = hook(module, args, kwargs, result) if named else hook(module, args, result)
        if answer is not None:
            result = answer
    return result
