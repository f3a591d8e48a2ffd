"""The order of passes, and the loop that runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from argand import events, garbage_collection
from argand.config import config
from argand.graph import time_limit
from argand.graph.nodes.printing import readable
from argand.graph.nodes.program import AtenProgram
from argand.passes import bags, cse, dead_code, decompose, fold, padded_sums, randomness, scalars, simplify
from argand.passes.complex_numbers.pairs import split_complex
from argand.passes.verify import verify
from argand.quick_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pass:
    """A named rewrite of an ATen program; `run` returns how many changes it made."""

    name: str
    run: Callable[[AtenProgram], int]


INFERENCE: tuple[Pass, ...] = (
    Pass("eliminate_dead_code", dead_code.eliminate_dead_code),
    Pass("functional_random", randomness.functional_random),
    Pass("open_bags", bags.open_bags),
    Pass("decompose", decompose.decompose),
    Pass("split_complex", split_complex),
    Pass("fold_constants", fold.fold_constants),
    Pass("move_scalars", scalars.move_scalars),
    Pass("simplify", simplify.simplify),
    Pass("join_padded_sums", padded_sums.join_padded_sums),
    Pass("common_subexpressions", cse.eliminate_common_subexpressions),
    Pass("eliminate_dead_code_again", dead_code.eliminate_dead_code),
)

AT_MANY_SIZES: tuple[Pass, ...] = tuple(
    Pass(one.name, fold.fold_without_numbers) if one.run is fold.fold_constants else one for one in INFERENCE
)
"""Of traces that are generalised."""


def run_passes(program: AtenProgram, passes: Sequence[Pass] = INFERENCE) -> AtenProgram:
    """Run `passes` in order on the program, in place, and return it.

    Emits an "aten_graph_after_pass" event for each pass that changed something. With `config.verify_ir`, the verifier
    runs before the first and after every pass.

    Raises:
        VerificationError: a pass broke a rule of the graph; the message names the pass.
    """
    check = bool(config.verify_ir)
    if check:
        verify(program, after="tracing")
    left_out = {name.strip() for name in str(config.disabled_passes).split(",")}
    for one in passes:
        time_limit.check()
        if one.name in left_out:
            continue
        with events.span(one.name, "passes"), garbage_collection.paused():
            changes = one.run(program)
        if check:
            verify(program, after=one.name)
        if changes:
            events.emit(
                "aten_graph_after_pass", "passes", lambda: readable(program.graph), changes=changes, after=one.name
            )
    return program
