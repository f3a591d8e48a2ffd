"""What eager's tape holds between the results of a graph and its inputs: which results can be differentiated apart.

Autograd frees what its nodes saved as a backward passes them. A result whose history shares no such node with what was
differentiated before can still be differentiated; one that shares one raises. A compiled graph is one node for all
results, so it has to know.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from argand.graph import compat, histories
from argand.quick_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tape:
    """Arguments: one entry per differentiable result, in the order of the tangents.

    conflicts: the results (bit `1 << k` for result k) that cannot be differentiated any more once this one was, itself
        included; none when nothing was saved for it.
    reached: positions of the inputs that the result leads to. Other inputs have no gradient when it is differentiated.
    nodes: a number for the node that made the result, in the order of these: the same for results of one operation.
    passed: the other results (by their numbers, those of `apart` alone) that lie next on the way to the inputs.
    alone: positions of the inputs that the result leads to past none of these.
    watched: ("input" | "output", position) of inputs and results of the graph that functions with a backward of their
        own have saved: autograd refuses to hand out what was written to since, whatever it is needed for.
    itself: positions of results of which formulas read the tensor that the program gets, with the data it has by then.
    data: of those of which they read data that it had, kept by the operation that made it, or views.
    """

    conflicts: tuple[int, ...]
    reached: tuple[frozenset[int], ...]
    nodes: tuple[int, ...] = ()
    passed: tuple[frozenset[int], ...] = ()
    alone: tuple[frozenset[int], ...] = ()
    watched: tuple[tuple[str, int], ...] = ()
    itself: tuple[int, ...] = ()
    data: tuple[int, ...] = ()

    def leads_to(self, given: Sequence[bool]) -> frozenset[int]:
        """The inputs that one of the results leads to."""
        return frozenset().union(*[reached for reached, one in zip(self.reached, given) if one])


def read_tape(
    results: Sequence[torch.Tensor], inputs: Iterable[tuple[int, torch.Tensor]], apart: Iterable[int] = ()
) -> Tape:
    """The tape between results and leaves, as autograd recorded it. To be read before the engine frees it.

    Arguments:
        inputs: (position, leaf) pairs.
        apart: numbers of the results that the program sees as they are, which may look at their gradients.
    """
    roots = [result.grad_fn for result in results]
    seen: dict[Any, int] = {}  # node -> the results that lead to it
    for index, root in enumerate(roots):
        if root is not None:
            seen[root] = seen.get(root, 0) | 1 << index
    direct = dict(seen)  # the same, past no result that is apart
    arrived = {(roots[number], results[number].output_nr): 0 for number in apart if roots[number] is not None}
    positions: dict[int, set[int]] = {}
    for position, leaf in inputs:
        positions.setdefault(id(leaf), set()).add(position)
    reached: list[set[int]] = [set() for _ in results]
    alone: list[set[int]] = [set() for _ in results]
    conflicts = [0] * len(results)
    for node in _results_first(roots):
        mask, near = seen[node], direct.get(node, 0)
        for following, place in node.next_functions:
            if following is not None:
                seen[following] = seen.get(following, 0) | mask
                if (following, place) in arrived:
                    arrived[following, place] |= near
                else:
                    direct[following] = direct.get(following, 0) | near
        leaf_positions = positions.get(id(getattr(node, "variable", None)))
        if leaf_positions or _holds_tensors(node):
            for index in range(len(results)):
                if mask >> index & 1:
                    if leaf_positions:
                        reached[index] |= leaf_positions
                        alone[index] |= leaf_positions if near >> index & 1 else set()
                    else:
                        conflicts[index] |= mask
    for index, result in enumerate(results):
        own = positions.get(id(result), set())
        reached[index] |= own
        alone[index] |= own
    in_order = sorted({root for root in roots if root is not None}, key=compat.sequence_number)
    numbers = {node: number for number, node in enumerate(in_order)}
    # a leaf has no node: hooks are its own
    nodes = [len(roots) + index if root is None else numbers[root] for index, root in enumerate(roots)]
    passed = [
        frozenset(d for d, root in enumerate(roots) if arrived.get((root, results[d].output_nr), 0) >> index & 1)
        for index in range(len(results))
    ]
    sets = (tuple([frozenset(one) for one in each]) for each in (reached, passed, alone))
    return Tape(tuple(conflicts), next(sets), tuple(nodes), next(sets), next(sets))


def saved_by_functions(results: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """What functions with a backward of their own have saved on the way to results."""
    for node in histories.nodes(result.grad_fn for result in results):
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            with contextlib.suppress(RuntimeError):  # freed, or written to since: whoever runs the node is told so
                yield from node.saved_tensors


def _results_first(roots: Iterable[Any]) -> list[Any]:
    """Every node of a history, each before those that it leads to."""
    done: dict[Any, None] = {}
    entered: set[Any] = set()
    pending = [(root, False) for root in roots if root is not None]
    while pending:
        node, left = pending.pop()
        if left:
            done[node] = None
        elif node not in entered:
            entered.add(node)
            pending.append((node, True))
            pending += [(following, False) for following, _ in node.next_functions if following is not None]
    return list(done)[::-1]


def _holds_tensors(node: Any) -> bool:
    """Whether the node raises when it is used again after it was freed."""
    for name in _saved_names(node):
        held = getattr(node, name)
        if isinstance(held, tuple):
            if held:
                return True
        elif getattr(held, "data", held) is not None or getattr(held, "unpack_hook", None) is not None:
            return True
    return False


def _saved_names(node: Any) -> list[str]:
    """Attributes of autograd's node that stand for saved tensors."""
    kind = type(node)
    names = _NAMES.get(kind)
    if names is None:
        names = _NAMES[kind] = [name for name in dir(kind) if name.startswith("_raw_saved_")]
    return names


_NAMES: weakref.WeakKeyDictionary[type, list[str]] = weakref.WeakKeyDictionary()  # programs make classes of nodes
