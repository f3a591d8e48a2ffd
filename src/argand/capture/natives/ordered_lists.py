"""Handlers of bisect and heapq: lists that the program keeps in order. Their comparisons are interpreted."""

from __future__ import annotations

from argand.capture.facts.handlers import Function
from argand.capture.facts.interfaces import Interpreter
from argand.capture.natives.operator_functions import is_sequence
from argand.capture.natives.rows import Native, enter_rows
from argand.capture.objects import keys, polyfills


def _bisect(
    interp: Interpreter,
    fn: Function,
    polyfill: Function,
    right: bool,
    a: object,
    x: object,
    lo: object = 0,
    hi: object = None,
    *,
    key: object = None,
) -> object:
    if not is_sequence(interp, a):
        return interp.native(fn, a, x, lo, hi, key=key)
    lo, hi = keys.to_index(interp, lo), hi if hi is None else keys.to_index(interp, hi)
    return interp.polyfill(polyfill, a, x, lo, hi, key, right)


def _heap(interp: Interpreter, fn: Function, polyfill: Function, largest: bool, heap: object, *args: object) -> object:
    if type(heap) is not list:  # of a subclass, C code looks past its methods
        return interp.native(fn, heap, *args)
    return interp.polyfill(polyfill, heap, *args, largest)


enter_rows({
    **{
        f"bisect.{name}": Native(_bisect, (polyfill, right), (2, 4), "lo hi key", itself=True)
        for name, polyfill, right in (
            ("bisect_left", polyfills.bisect, False), ("bisect_right", polyfills.bisect, True),
            ("insort_left", polyfills.insort, False), ("insort_right", polyfills.insort, True),
        )
    },
    **{
        f"heapq.{name}": Native(_heap, (polyfill, name.endswith("_max")), count, itself=True)
        for name, polyfill, count in (
            ("heapify", polyfills.heap_build, 1), ("_heapify_max", polyfills.heap_build, 1),
            ("heappop", polyfills.heap_pop, 1), ("_heappop_max", polyfills.heap_pop, 1),
            ("heapreplace", polyfills.heap_replace, 2), ("_heapreplace_max", polyfills.heap_replace, 2),
            ("heappush", polyfills.heap_push, 2), ("heappushpop", polyfills.heap_push_pop, 2),
        )
    },
})  # fmt: skip
