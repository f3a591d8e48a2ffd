"""One outcome as plain data: made from a finished capture, checked and installed in another process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from types import CodeType
from typing import Any

from argand import errors, events
from argand._core import _C
from argand.bytecode.eager_calls import code_running_eagerly
from argand.outcomes import code_objects, fingerprints, guard_log
from argand.outcomes.installed_names import install
from argand.outcomes.operators import identity, packet_of
from argand.outcomes.reads import Unknown
from argand.outcomes.references import Checks, Describer, Parts, Unstorable
from argand.outcomes.resolver import Mismatch, Resolver
from argand.outcomes.resume_codes import NUMBERS, PARTS
from argand.quick_dataclasses import dataclass

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Captured:
    """What a capture made.

    Arguments:
        code: the transformed code; None: the frame runs eagerly.
        names: what it reads from the frame's globals.
        log: the guards.
        graph: it calls a graph.
        once: the frame runs eagerly in such a call alone.
        reason: why the graph breaks, if it does.
        registered: classes and the abstract ones that they are registered with.
        operators: names of those of libraries that it calls.
        history: what sizes and numbers the capture saw, for captures after it.
        special, aliases: of `references.Describer`.
        of_rank: other ranks of a job cannot load it.
        whole: whether the frame's own code does the same (`_C.Entry`).
        region: that the frame was captured in.
    """

    code: CodeType | None
    names: Mapping[str, object]
    log: guard_log.Log
    graph: bool
    once: bool = False
    reason: errors.BreakReason | None = None
    registered: Sequence[tuple[type, type]] = ()
    operators: Collection[str] = ()
    history: Mapping[str, Any] = field(default_factory=dict)
    special: Mapping[type, Callable[[Any], Parts]] = field(default_factory=dict)
    aliases: Mapping[int, object] = field(default_factory=dict)
    of_rank: bool = False
    whole: int = 0
    region: object = None


@dataclass(frozen=True, slots=True)
class Needed:
    """As `recompiles.Needed`: which lines needed the guards of a stored entry is not known."""

    at: Mapping[str, Any] = field(default_factory=dict)


def described(info: _C.FrameInfo, captured: Captured) -> Record:
    """The record of a capture.

    Raises:
        Unstorable: a part of it is known to this process alone.
    """
    log = captured.log
    special, aliases, asked = captured.special, captured.aliases, log.asked()
    describer = Describer(info.code, info.globals, log.places(), special, aliases, asked, captured.region)
    calls = log.described(describer)
    code = None if captured.code is None else code_objects.described(captured.code, describer)
    names = [(name, describer.row(value)) for name, value in captured.names.items()]
    checks = describer.checks
    checks.registered.extend((describer.row(cls), describer.row(base)) for cls, base in captured.registered)
    checks.operators.extend((name, _identity(name)) for name in sorted(captured.operators))
    checks.modules.add(str(info.globals.get("__name__")))
    record = {
        "rows": tuple(describer.rows),
        "calls": tuple(calls),
        "numbers": tuple(log.numbers),
        "functions": tuple(checks.functions),
        "codes": tuple(checks.codes),
        "classes": tuple(checks.classes),
        "registered": tuple(checks.registered),
        "operators": tuple(checks.operators),
        "files": tuple(fingerprints.stamps(checks.modules)),
        "code": code,
        "names": tuple(names),
        "graph": captured.graph,
        "once": captured.once,
        "whole": captured.whole,
        "reason": None if captured.reason is None else dataclasses.astuple(captured.reason),
        "history": dict(captured.history),
    }
    _check_again(info, record, describer)
    return record


def _identity(name: str) -> str:
    try:
        return identity(packet_of(name))
    except Unknown as error:
        raise Unstorable(str(error)) from error


def _check_again(info: _C.FrameInfo, record: Record, describer: Describer) -> None:
    """What was described leads to the same objects here, where it is known what they are."""
    resolver = _resolver(record, info)
    try:
        for number, obj in describer.identities():
            if resolver.object(number) is not obj:
                raise Unstorable(f"{type(obj).__name__} {record['rows'][number][:3]} is found as another object")
        resolver.check(_checks(record))
    except Mismatch as error:
        raise Unstorable(str(error)) from error


def _resolver(record: Record, info: Any, region: object = None) -> Resolver:
    return Resolver(record["rows"], guard_log.nodes(record["calls"], record["numbers"]), info, region)


def _checks(record: Record) -> Checks:
    functions, codes, classes, registered, operators = (
        list(record[part]) for part in ("functions", "codes", "classes", "registered", "operators")
    )
    return Checks(functions, codes, classes, registered, operators)


def fits(record: Record, info: Any, given: Collection[int]) -> str:
    """What of a record does not hold, as far as that shows without a call; "" when nothing is found.

    Arguments:
        info: the frame of a call, of which only the arguments `given` are known.
    """
    edited = fingerprints.edited(record["files"])
    if edited:
        return f"the file of module {edited} was edited"
    resolver = _resolver(record, info)
    try:
        tree = guard_log.build(record["calls"], record["numbers"], resolver, given)
    except Mismatch as error:
        return str(error)
    outcome = tree.evaluate(info.args, info.globals, info.builtins, info.closure)
    return "" if outcome is True else failed(outcome)


def failed(outcome: object) -> str:
    """What a guard that does not hold says."""
    return ": ".join(map(str, outcome[1:])) if isinstance(outcome, tuple) else str(outcome)


def has_backward(record: Record) -> bool:
    """Whether its results have gradients, by programs that the record does not name."""
    return any(row[:2] == ("recipe", "taped") for row in record["rows"])


def gpus(record: Record) -> list[str]:
    """The devices that a record names, besides the CPU."""
    devices = [row[1:3] for row in record["rows"] if row[0] == "device" and row[3]]
    return [kind if index is None else f"{kind}:{index}" for kind, index in dict.fromkeys(devices)]


def with_programs(record: Record, text_of: Callable[[str], str]) -> Record:
    """A record that holds the texts of its programs, not their keys."""
    rows = []
    for row in record["rows"]:
        if row[:2] == ("recipe", "program"):
            key, kind = (record["rows"][number][1] for _, number in row[2])
            row = ("recipe", "text", (("plain", text_of(key)), ("plain", kind)))
        rows.append(row)
    return {**record, "rows": tuple(rows)}


def texts(record: Record) -> list[tuple[str, str]]:
    """The texts and kinds of a record's programs."""
    parts = [row[2] for row in record["rows"] if row[:2] == ("recipe", "text")]
    return [(text, kind) for (_, text), (_, kind) in parts]


def installed(record: Record, info: _C.FrameInfo, key: object, label: str) -> _C.Entry | None:
    """The entry of a record, for the frame at hand; its names are in the frame's globals. None: it runs eagerly.

    Arguments:
        key: of the entry: the region.
        label: of its runs in torch's profiler.

    Raises:
        Mismatch: the record is of another state of the program, or of other arguments.
    """
    edited = fingerprints.edited(record["files"])
    if edited:
        raise Mismatch(f"the file of module {edited} was edited")
    resolver = _resolver(record, info, key)
    resolver.check(_checks(record))
    tree = guard_log.build(record["calls"], record["numbers"], resolver)
    outcome = tree.evaluate(info.args, info.globals, info.builtins, info.closure)
    if outcome is not True:
        raise Mismatch(failed(outcome))
    if record["once"]:
        return _C.Entry(code_running_eagerly(info.code), None, key)
    if record["code"] is None:
        return None
    numbered = {name: f"__stored_fn_{next(NUMBERS)}" for name, _ in record["names"]}
    values = {numbered[name]: resolver.object(row) for name, row in record["names"]}
    code = code_objects.unpacked(record["code"], resolver, numbered)
    resumed = PARTS.of(info.code) is not None
    entry = _C.Entry(code, tree, key, Needed(), label, info.globals, record["graph"], resumed, record["whole"])
    install(values, code, info.globals)
    return entry


def tell_of_break(record: Record, info: _C.FrameInfo) -> None:
    """Say again why the graph breaks, as the process did that captured the frame."""
    if record["reason"] is None or not events.bus.wanted("graph_breaks"):
        return
    kind, context, explanation, hints, where = record["reason"]
    lines = tuple([errors.UserLine(*line) for line in where])
    reason = errors.BreakReason(kind, context, explanation, hints, lines)
    as_written = record["code"] is None or not (record["graph"] or record["names"])
    skipped = {"frame_skipped": True} if as_written else {}
    events.emit("graph_breaks", "capture", str(reason), reason=reason, function=info.code.co_name, **skipped)
