"""`argand.CompileProfiler`: runs a program under a backend that only watches, and counts what made argand recompile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

import torch

from argand.capture.driver.explain import Findings
from argand.capture.driver.explain_text import counted, many, ops_of
from argand.capture.driver.recompiles import GuardFailure, Recompile
from argand.quick_dataclasses import dataclass


@dataclass(slots=True)
class _Failures:
    """How often a guard failed, and with what values."""

    first: GuardFailure
    count: int = 0
    details: dict[str, None] = field(default_factory=dict)

    def add(self, failure: GuardFailure) -> None:
        self.count += 1
        self.details[failure.detail] = None

    def __str__(self) -> str:
        """`x.size()[0] was 2, is now 3, 4, 5, ...`."""
        changes = [detail.partition(", is now ") for detail in self.details]
        values = [now for before, _, now in changes if now and before == changes[0][0]]
        if len(values) < 2:
            return str(self.first)
        shown = ", ".join(values[:6]) + (", ..." if len(values) > 6 else "")
        return f"{self.first.what} {changes[0][0]}, is now {shown}"


@dataclass(slots=True)
class _Recompiled:
    """The calls of one function that its compiled code did not fit."""

    function: str
    place: str
    count: int = 0
    failures: dict[str, _Failures] = field(default_factory=dict)

    def add(self, recompile: Recompile) -> None:
        self.count += 1
        for failure in recompile.failures:
            self.failures.setdefault(f"{failure.what} {failure.guard}", _Failures(failure)).add(failure)


class CompileProfiler:
    """Watches a program compile: a context manager, and a backend that runs the captured graphs as they are.

    Each function is compiled once; every later call that does not fit that one version is counted, with the guard that
    failed, and runs eagerly. So the counts say which guards would make argand recompile, and how often::

        with argand.CompileProfiler() as prof:
            profiled = argand.compile(my_model, backend=prof)
            for batch in batches:
                profiled(batch)
            print(prof.report())

    Run it for at least as many iterations as the program that recompiles too much.
    """

    observe_only = True
    """Read by `argand.compile`: one version of each function is compiled, misses are reported."""

    def __init__(self) -> None:
        self.findings = Findings()
        self.frame_count = 0
        self.op_count = 0
        self._remove: Callable[[], None] | None = None

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        """As a backend: count the graph, run it as it is."""
        self.frame_count += 1
        self.op_count += len(ops_of(gm))
        forward: Callable[..., Any] = gm.forward
        return forward

    def __enter__(self) -> CompileProfiler:
        if self._remove is None:
            self._remove = self.findings.subscribe()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._remove is not None:
            self._remove()
            self._remove = None

    def recompiled(self) -> list[_Recompiled]:
        """The functions that did not fit their compiled code at some call, the most frequent first."""
        by_place: dict[str, _Recompiled] = {}
        for recompile in self.findings.recompiles:
            place = f"{recompile.filename}:{recompile.lineno}"
            by_place.setdefault(place, _Recompiled(recompile.function, place)).add(recompile)
        return sorted(by_place.values(), key=lambda one: -one.count)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form of the report."""
        return {
            "graph_count": self.frame_count,
            "op_count": self.op_count,
            "graph_breaks": [
                {"count": count, "reason": reason.headline, "where": str(reason.where[-1]) if reason.where else ""}
                for reason, count in counted(self.findings.breaks)
            ],
            "recompiles": [
                {
                    "function": one.function,
                    "place": one.place,
                    "count": one.count,
                    "failures": [
                        {"count": failures.count, **failures.first.as_dict()} for failures in one.failures.values()
                    ],
                }
                for one in self.recompiled()
            ],
        }

    def report(self) -> str:
        """What was found, as text: graph breaks, then recompiles, each with counts, reasons and remedies."""
        lines = ["argand compile profile", "======================", ""]
        lines += [f"{many(self.frame_count, 'graph')} with {many(self.op_count, 'op')} compiled.", ""]
        lines += ["Graph breaks", "------------", *self._breaks(), ""]
        lines += ["Recompiles", "----------", *self._recompiles()]
        return "\n".join(lines)

    def _breaks(self) -> list[str]:
        reasons = counted(self.findings.breaks)
        if not reasons:
            return ["No graph breaks."]
        lines = [f"{many(len(self.findings.breaks), 'graph break')}, for {many(len(reasons), 'reason')}:"]
        for reason, count in reasons:
            lines.append(f"{count:5d}  {reason.headline}")
            lines += ["       " + line for place in reason.where[-1:] for line in str(place).splitlines()]
            lines += [f"       What to do: {hint}" for hint in reason.hints[:1]]
        return lines

    def _recompiles(self) -> list[str]:
        functions = self.recompiled()
        if not functions:
            return ["No recompiles: every call fitted the code that was compiled first."]
        lines = ["These functions were called with something that their compiled code does not fit:"]
        for one in functions:
            lines.append(f"{one.count:5d}  {one.function} ({one.place})")
            for failures in sorted(one.failures.values(), key=lambda item: -item.count):
                lines.append(f"       {failures.count:5d}  {failures}    [{failures.first.guard}]")
                lines.append(f"              What to do: {failures.first.remedy}")
        lines += [
            "",
            "A function is compiled again for each of these until there are argand.config.cache_size_limit versions; "
            "after that such calls run eagerly.",
        ]
        return lines
