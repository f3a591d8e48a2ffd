"""The minifier: the smallest graph that fails in the same way, found in child processes.

    from argand.debug.minify import BackendCheck, minify

    result = minify(gm, inputs, BackendCheck("native", accuracy=True))
    print(result.calls, result.fingerprint)

What goes in: an `fx.GraphModule`, a value for each of its placeholders, and a *check*: a callable `(gm, inputs)` that
raises (or crashes, or hangs) where a graph fails. What comes out: `MinifyResult`. Every attempt is
`run_isolated(function) -> Outcome` in a forked child with limits of time and memory; two failures are the same when
`fingerprint(outcome)` matches: exception type, stage, normalised message; the signal of a crash and the stage; of a
wrong value the kind of mismatch, a result that the original one depends on, and the order of its error. A candidate
that fails otherwise is not accepted.

* `minify(gm, inputs, check, *, wanted=None, limits=None, listener=None, tried=None, simplify=True) -> MinifyResult`:
  raises `NotReproduced` when the whole graph passes in a child, or fails otherwise than `wanted`.
* `run_isolated(function, *, time_limit=60, memory_limit=0, quiet=True) -> Outcome`; `mark(stage)` inside it says what
  is going on; `outcome_of(error, stage)` is the outcome of an exception in this process.
* `fingerprint(outcome) -> Fingerprint`, with `.matches(other)`.
* `BackendCheck(backend, options, after="dynamo"|"aot", accuracy=False, run=True, surroundings)`: the check for a
  backend, or for the native compiler on an ATen graph.
* `same(expected, actual, float64=None)`, `AccuracyError`: `argand.debug.accuracy`.
* `argand.debug.repro.minify_to_directory(...)` does all, and writes the result as files.
"""

from argand.debug.accuracy import AccuracyError, same
from argand.debug.minify.checks import BackendCheck
from argand.debug.minify.search import MinifyResult, NotReproduced, minify
from argand.debug.minify.surgery import Program
from argand.debug.trial.fingerprint import Fingerprint, fingerprint, normalise
from argand.debug.trial.isolation import Limits, mark, run_isolated
from argand.debug.trial.outcome import Outcome, outcome_of
from argand.debug.trial.surroundings import Surroundings

__all__ = [
    "AccuracyError", "BackendCheck", "Fingerprint", "Limits", "MinifyResult", "NotReproduced", "Outcome", "Program",
    "Surroundings", "fingerprint", "mark", "minify", "normalise", "outcome_of", "run_isolated", "same",
]  # fmt: skip
