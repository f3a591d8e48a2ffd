"""The first difference between an eager and a compiled run that counts.

What eager runs do not agree on among themselves (`Run.variants`) cannot be asked of a compiled one: values may lie as
far from eager's as eager's own do when they are rounded otherwise, and what differs in kind (the order of calls, times
that are printed, addresses) is not compared.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

import torch

from argand.debug import accuracy
from argand.debug.accuracy import Mismatch
from argand.debug.doctor.records import CallRecord, Difference, Run

RAISED = re.compile(r"\braised [A-Z]\w*(Error|Exception)\b")  # in the reason of a fallback: a fault, not a limit
_KINDS = {"value": "wrong value", "nan": "NaN", "inf": "wrong value", "stride": "wrong stride", "dtype": "wrong dtype"}
_TIMES = 100.0  # how much further than eager's runs from one another a compiled value may lie
_COUNTED = 16  # the same, of the number of elements of which eager's runs decide otherwise
_ABSENT = object()
_STEADY = {"tensors": 3, "objects": 5, "bytes": 5}  # calls in a row that each leave more alive
_LEAST = {"tensors": 1, "objects": 1, "bytes": 1 << 16}  # that one call must leave for it to be a leak


def first_difference(eager: Run, other: Run) -> Difference | None:
    """The first difference that counts; None when the runs did the same."""
    difference = _of_all_calls(eager, other)
    if difference is not None:
        return difference
    return _of_ends(eager, other) or _of_exceptions(eager, other) or _of_fallbacks(other) or _of_rest(eager, other)


def _of_all_calls(eager: Run, other: Run) -> Difference | None:
    variants = [_main(variant) for variant in eager.variants]
    for number, (one, two) in enumerate(zip(_main(eager), _main(other))):
        others = [calls[number] for calls in variants if number < len(calls)]
        if one.function != two.function and any(call.function != one.function for call in others):
            break  # the order of calls is left to chance
        if two.ended and one.ended:
            usable = [call for call in others if call.ended and call.function == one.function]
            difference = _of_calls(one, two, number, usable)
            if difference is not None:
                return difference
    return _of_threads(eager, other)


def _main(run: Run) -> list[CallRecord]:
    return [call for call in run.calls if not call.thread]


def _of_threads(eager: Run, other: Run) -> Difference | None:
    """Calls in other threads come in any order: each must be like one of eager's."""
    left = [call for call in eager.calls if call.thread and call.ended]
    for number, two in enumerate(other.calls):
        if not two.thread or not two.ended:
            continue
        candidates = [call for call in left if call.function == two.function]
        differences = []
        for one in candidates:
            differences.append(_of_calls(one, two, number, []))
            if differences[-1] is None:
                left.remove(one)
                break
        else:
            if candidates and not _restless(eager):
                return min(filter(None, differences), key=_size)
    return None


def _size(difference: Difference) -> float:
    return difference.mismatch.size if difference.mismatch is not None else math.inf


def _restless(eager: Run) -> bool:
    """Whether what the threads of eager runs compute is left to chance."""
    return any(
        _of_threads(Run("", eager.outcome, eager.calls, "", {}), variant) is not None for variant in eager.variants
    )


def _of_calls(one: CallRecord, two: CallRecord, number: int, others: Sequence[CallRecord]) -> Difference | None:
    name, place = one.function, one.place
    if one.function != two.function:
        text = f"call {number + 1} is of {two.function}, not of {one.function}"
        return Difference("wrong value", text, number, name, place)
    if one.values.keys() != two.values.keys():
        if any(call.values.keys() != one.values.keys() for call in others):
            return None
        odd = sorted(one.values.keys() ^ two.values.keys())
        text = f"call {number + 1} of {name} returns other parts: {', '.join(odd[:4])}"
        return Difference("wrong value", text, number, name, place, Mismatch(odd[0], "structure", 0.0, text))
    for where, expected in one.state.items():
        actual = two.state.get(where, expected)
        if _same_text(actual, expected) or any(call.state.get(where) != expected for call in others):
            continue
        text = f"before call {number + 1} of {name}, {where} is {actual}, not {expected}"
        return Difference("wrong value", text, number, name, place, Mismatch(where, "state", 1.0, text))
    floor = _floor(one)
    for where, expected in one.values.items():
        mismatch = accuracy.compare(expected, two.values[where], strides=True, where=where, floor=floor)
        if mismatch is None or _expected(
            mismatch, expected, two.values[where], [c.values.get(where, _ABSENT) for c in others]
        ):
            continue
        kind = _KINDS.get(mismatch.kind, f"wrong {mismatch.kind}")
        return Difference(kind, f"in call {number + 1} of {name}, {mismatch}", number, name, place, mismatch)
    return None


def _floor(call: CallRecord) -> float:
    """One rounding error of the largest gradient of a backward: others come from terms of that size."""
    largest = 0.0
    for where, value in call.values.items():
        if call.function == "backward" and isinstance(value, torch.Tensor) and value.is_floating_point():
            finite = value.detach()[torch.isfinite(value.detach())]
            if where.startswith("the gradient") and finite.numel():
                largest = max(largest, float(finite.abs().max()) * torch.finfo(value.dtype).eps)
    return largest


# ------------------------------------------------------------------- what eager runs do not agree on


def _expected(mismatch: Mismatch, want: Any, got: Any, others: Sequence[Any]) -> bool:
    """Whether eager's own runs differ in this value as much as the compiled one does."""
    others = [other for other in others if other is not _ABSENT]
    if not others:
        return False
    if mismatch.kind not in ("value", "nan", "inf"):
        return any(
            (m := accuracy.compare(want, o, strides=True)) is not None and m.kind == mismatch.kind for o in others
        )
    if not isinstance(want, torch.Tensor):
        if isinstance(want, float) and all(isinstance(other, float) for other in others):
            furthest = max(abs(other - want) if math.isfinite(other - want) else math.inf for other in others)
            return furthest > 0 and not abs(got - want) > _TIMES * furthest
        return any(type(other) is type(want) and other != want for other in others)
    alike = [o for o in others if isinstance(o, torch.Tensor) and o.shape == want.shape and o.dtype == want.dtype]
    if not alike or want.layout is not torch.strided:
        return False
    with torch.no_grad():
        return _within(want.detach(), got.detach(), [other.detach() for other in alike])


def _within(want: torch.Tensor, got: torch.Tensor, others: Sequence[torch.Tensor]) -> bool:
    if want.is_complex():
        want, got, *others = (torch.view_as_real(value.resolve_conj()) for value in (want, got, *others))
    if not want.is_floating_point():
        decided_otherwise = torch.stack([other != want for other in others]).any(0)
        return int((got != want).sum()) <= _COUNTED * int(decided_otherwise.sum())
    finite = torch.isfinite(want)
    turned = torch.stack([torch.isfinite(other) != finite for other in others]).any(0)
    if int((torch.isfinite(got) != finite).sum()) > _COUNTED * int(turned.sum()):
        return False
    normal = finite & torch.isfinite(got)
    far = torch.zeros_like(want[normal], dtype=torch.float64)
    for other in others:
        moved = (other[normal].double() - want[normal].double()).abs()
        far = torch.maximum(far, torch.where(torch.isfinite(moved), moved, torch.inf))
    if not far.numel():
        return True
    tol = accuracy.TOLERANCE.get(want.dtype, 1e-1)
    right = want[normal].double()
    error = (got[normal].double() - right).abs()
    return bool((error <= accuracy.allowed_error(right, far, tol, _TIMES)).all())


# ------------------------------------------------------------------- beyond values


def _of_ends(eager: Run, other: Run) -> Difference | None:
    a, b = eager.outcome, other.outcome
    if not b.failed or a.same_end(b):
        if a.failed and not b.failed and all(variant.outcome.failed for variant in eager.variants):
            return Difference("exception", f"eager raises {a}, the compiled program does not")
        return None
    if any(variant.outcome.same_end(b) for variant in eager.variants):
        return None
    call = other.last
    number, function, place = -1, "", ""
    if call is not None and not call.ended:
        number, function, place = len(other.calls) - 1, call.function, call.place
    kind = {"crashed": "crash", "hung": "hang", "memory": "out of memory"}.get(b.kind, "exception")
    if b.error.endswith("CppCompileError"):
        kind = "C++ compile error"
    where = f" in call {number + 1} of {function}" if function else ""
    return Difference(kind, f"the compiled program {b}{where}" if kind != "exception" else f"{b}{where}",
                      number, function, place)  # fmt: skip


def _of_exceptions(eager: Run, other: Run) -> Difference | None:
    for number, (one, two) in enumerate(zip(_main(eager), _main(other))):
        if two.raised.partition(":")[0] != one.raised.partition(":")[0] and (two.raised or two.ended):
            calls = [_main(variant)[number : number + 1] for variant in eager.variants]
            if any(c.raised.partition(":")[0] != one.raised.partition(":")[0] for c in itertools.chain(*calls)):
                continue
            does = f"raises {two.raised}" if two.raised else f"does not raise {one.raised}"
            text = f"call {number + 1} of {two.function} {does}"
            kind = "C++ compile error" if "CppCompileError" in two.raised else "exception"
            return Difference(kind, text, number, two.function, two.place)
    raised = {call.raised.partition(":")[0] for run in (eager, *eager.variants) for call in run.calls if call.thread}
    for number, two in enumerate(other.calls):
        if two.thread and two.raised and two.raised.partition(":")[0] not in raised:
            text = f"call {number + 1} of {two.function}, in another thread, raises {two.raised}"
            return Difference("exception", text, number, two.function, two.place)
    last = other.last
    if last is not None and not last.thread and not last.ended and not last.raised and not other.outcome.failed:
        text = f"the compiled program ends in call {len(other.calls)} of {last.function}"
        if eager.outcome.failed or len(eager.calls) < len(other.calls) or eager.calls[len(other.calls) - 1].ended:
            return Difference("exception", text, len(other.calls) - 1, last.function, last.place)
    return None


def _of_fallbacks(other: Run) -> Difference | None:
    """Faults that argand hid by running eagerly."""
    if other.facts.get("suppressed"):
        function, cause = other.facts["suppressed"][0]
        text = f"argand fails on {function}, which then runs eagerly: {cause}"
        kind = "out of memory" if "MemoryError" in cause else "exception"
        return Difference(kind, text, 0, function, mismatch=Mismatch("", cause.partition("(")[0], 0.0, text))
    for stage, text in other.facts.get("fallbacks", []):
        if RAISED.search(text):
            return Difference("exception", f"a graph runs with eager's kernels, because {stage} failed: {text}")
    return None


def _of_rest(eager: Run, other: Run) -> Difference | None:
    if not eager.outcome.failed and not other.outcome.failed:
        said = _printed(eager.printed, other.printed, [variant.printed for variant in eager.variants])
        if said is not None:
            return Difference("wrong value", said, mismatch=Mismatch("", "printed", 1.0, said))
    count = len(_main(eager))
    if count != len(_main(other)) and all(len(_main(variant)) == count for variant in eager.variants):
        text = f"{len(_main(other))} calls of compiled functions, not {count}"
        return Difference("wrong value", text)
    return None


_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,16}\b")
_WORD = re.compile(r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?|\s+|[A-Za-z_]+|.")


def _words(line: str) -> list[str]:
    return [word for word in _WORD.findall(_ADDRESS.sub("ADDRESS", line)) if not word.isspace()]


def _printed(one: str, two: str, others: Sequence[str] = ()) -> str | None:
    """What is first printed otherwise; numbers may differ in their last digits, and in what eager runs differ in."""
    if one == two:
        return None
    lines, variants = one.splitlines(), [other.splitlines() for other in others]
    if any(len(variant) != len(lines) for variant in variants):
        return None
    for number, (a, b) in enumerate(itertools.zip_longest(lines, two.splitlines(), fillvalue="")):
        if _same_line(a, b) or any(not _same_line(a, v[number], True) for v in variants if number < len(v)):
            continue
        return f"line {number + 1} of what it prints is {b!r:.80}, not {a!r:.80}"
    return None


def _same_line(one: str, two: str, exactly: bool = False) -> bool:
    left, right = _words(one), _words(two)
    if exactly:
        return left == right or (len(left) == len(right) and all(map(_near, left, right)))
    return len(left) == len(right) and all(map(_same_word, left, right))


def _near(one: str, two: str) -> bool:
    """As near as rounding leaves two numbers that are far from zero."""
    try:
        return one == two or math.isclose(float(one), float(two), rel_tol=1e-5)
    except ValueError:
        return False


def _same_word(one: str, two: str) -> bool:
    if one == two:
        return True
    try:
        return math.isclose(float(one), float(two), rel_tol=1e-3, abs_tol=1e-4) or (_address(one) and _address(two))
    except ValueError:
        return False


def _address(word: str) -> bool:
    """Whether a number is where an object lies: what `id` gives, or the hash that follows from it."""
    return word.isdecimal() and any(1 << 40 <= int(word) * times < 1 << 47 for times in (1, 16))


def _same_text(one: str, two: str) -> bool:
    """Whether two plain values, as text, are the same but for rounding and addresses."""
    if one == two:
        return True
    if "." not in one and "e" not in one and "0x" not in one:
        return False
    left, right = _words(one), _words(two)
    return len(left) == len(right) and all(a == b or ("." in a + b and _same_word(a, b)) for a, b in zip(left, right))


# ------------------------------------------------------------------- what stays alive


def _growth(run: Run) -> dict[tuple[str, str], int]:
    """By function and kind: what each of its last calls left alive; 0 where that does not grow steadily."""
    counts: dict[tuple[str, str], list[int]] = {}
    for call in run.calls:
        for kind, number in call.held.items():
            counts.setdefault((call.function, kind), []).append(number)
    growth = {}
    for key, numbers in counts.items():
        steps = [b - a for a, b in itertools.pairwise(numbers)][-_STEADY[key[1]] :]
        growth[key] = min(steps) if len(steps) == _STEADY[key[1]] else 0
    return growth


def leaks(eager: Run, other: Run) -> Difference | None:
    """The leak of a run that an eager one does not have."""
    before, after = _growth(eager), _growth(other)
    for kind, least in _LEAST.items():
        grown = {
            name: n for (name, k), n in after.items() if k == kind and n >= max(before.get((name, k), 0), 0) + least
        }
        if grown:
            name, count = max(grown.items(), key=lambda item: item[1])
            what = {"tensors": "more tensor", "objects": "more object", "bytes": "more byte"}[kind]
            text = f"each call of {name} leaves {count} {what}{'s' if count > 1 else ''} alive than the call before"
            return Difference("leak", text, function=name)
    return None
