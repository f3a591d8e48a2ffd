"""How to propose smaller programs: each strategy yields candidates, the best first, until one is accepted."""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from argand.debug.minify.surgery import Program, ancestors, extract, is_call, with_outputs
from argand.debug.trial.search import Proposals, Search, pieces
from argand.quick_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to shrink programs.

    Arguments:
        name: as the log says it.
        propose: yields candidates, and is sent whether each of them still fails; it goes on from one that does.
        takes_apart: it cuts at places that depend on the granularity.
    """

    name: str
    propose: Callable[[Search[Program], int], Proposals[Program]]
    takes_apart: bool = False


def truncate_suffix(search: Search[Program], granularity: int) -> Proposals[Program]:
    """Keep the first nodes only; the cut is found by bisection among multiples of a `granularity`th of the nodes."""
    program = search.smallest
    nodes = list(program.graph.nodes)
    places = sorted({len(nodes) * part // granularity for part in range(1, granularity)})
    places = [place for place in places if 0 < place < len(nodes) - 1 and any(map(is_call, nodes[:place]))]
    low, high = 0, len(places)  # places[high] fails, as far as is known; places[low - 1] does not
    while low < high:
        middle = (low + high) // 2
        candidate = _prefix(program, nodes, places[middle])
        if candidate is not None and (yield candidate):
            high = middle
        else:
            low = middle + 1


def _prefix(program: Program, nodes: list[fx.Node], place: int) -> Program | None:
    kept = set(nodes[:place])
    results = set(program.outputs)
    outputs = [n for n in nodes[:place] if is_call(n) and (n in results or any(user not in kept for user in n.users))]
    unused = [node for node in nodes[:place] if is_call(node) and not node.users]
    outputs = outputs or unused[-1:]
    return extract(program, lambda node: node in kept, outputs, lambda names: {}, drop_inputs=False)


def remove_outputs(search: Search[Program], granularity: int) -> Proposals[Program]:
    """Return fewer of the results."""
    outputs = search.smallest.outputs
    if len(outputs) < 2:
        return
    size = max(1, len(outputs) // granularity)
    start = 0
    while start < len(outputs) and len(outputs) > 1:
        left = outputs[:start] + outputs[start + size :]
        candidate = with_outputs(search.smallest, left) if left else None
        if candidate is not None and (yield candidate):
            names = {node.name for node in left}
            outputs = [node for node in search.smallest.outputs if node.name in names]
        else:
            start += size


def eliminate_dead_code(search: Search[Program], granularity: int) -> Proposals[Program]:
    """Drop every node that no result is computed from."""
    program = search.smallest
    needed: set[str] = set()
    for node in program.outputs:
        needed |= ancestors(program.graph, node.name)
    if all(node.name in needed for node in program.calls):
        return
    candidate = extract(program, lambda n: n.name in needed, program.outputs, search.smallest.values, drop_inputs=False)
    if candidate is not None:
        yield candidate


def remove_unused_inputs(search: Search[Program], granularity: int) -> Proposals[Program]:
    """Drop inputs that nobody reads."""
    program = search.smallest
    if all(node.users for node in program.placeholders):
        return
    outputs = [node for node in program.outputs if node.op != "placeholder"]
    candidate = extract(program, lambda node: True, outputs or program.outputs, search.smallest.values)
    if candidate is not None and len(candidate.inputs) < len(program.inputs):
        yield candidate


def delta_debugging(search: Search[Program], granularity: int) -> Proposals[Program]:
    """Take out pieces of a `granularity`th of the calls; what they computed becomes inputs."""
    names = [node.name for node in search.smallest.calls if is_call(node)]
    size = max(1, len(names) // granularity)
    if len(names) < 2:
        return
    for piece in pieces(len(names), size):
        gone = set(names[piece])
        candidate = without(search.smallest, gone)
        if candidate is not None and (yield candidate):
            continue
        candidate = without(search.smallest, gone, show=True)
        if candidate is not None:
            yield candidate


def without(program: Program, gone: set[str], *, show: bool = False) -> Program | None:
    """The program without these nodes, and without what only they needed; None when nothing would be left or gone.

    Arguments:
        show: what only they needed is kept, and becomes a result.
    """
    here = {node.name for node in program.calls} & gone
    if not here:
        return None
    left = [node for node in program.calls if node.name not in here]
    outputs = [node for node in program.outputs if node in left]
    if not outputs or show:  # return what the pieces read, so that something is left to look at
        cut = [n for n in left if is_call(n) and n.users and all(user.name in here for user in n.users)]
        if show and not cut:
            return None
        outputs += [node for node in cut if node not in outputs]
        outputs = outputs or [node for node in left if is_call(node) and not node.users][-1:]
    needed: set[str] = set()
    for node in (*outputs, *(node for node in left if not node.users and is_call(node))):
        needed |= ancestors(program.graph, node.name, here)
    kept = {node for node in left if node.name in needed}
    if not any(map(is_call, kept)):
        return None
    return extract(program, lambda node: node in kept, outputs, program.values)


STRATEGIES = (
    Strategy("Eliminate dead code", eliminate_dead_code),
    Strategy("Remove unused inputs", remove_unused_inputs),
    Strategy("Truncate suffix", truncate_suffix, True),
    Strategy("Remove outputs", remove_outputs, True),
    Strategy("Delta debugging", delta_debugging, True),
)
