"""Gradients that can be differentiated again (`create_graph=True`) of a compiled graph.

A compiled backward computes numbers, which no history leads to. Where somebody wants their gradients, the captured
graph itself runs once more with eager's kernels, on the inputs of the call at hand, and autograd differentiates that:
blocks without gradients, `detach()` and functions with backwards of their own are then what they are in eager. The call
keeps nothing alive for that: weak references to its inputs, and how often each was written to.

A graph that drew random numbers, or ran under autocast, runs as the functional graph that was compiled, with the seeds
of the call, where autograd recorded each operation as it stands there.

What would not be the same again is refused, with the reason: other graphs that draw random numbers, one that writes to
what its gradients depend on, inputs that are gone or that were written to since.
"""

from __future__ import annotations

import operator
import re
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from argand.autograd.partitioning.moves import version
from argand.autograd.partitioning.partition import Partition
from argand.autograd.partitioning.replay import Replay, replay_of, unread_arguments
from argand.autograd.tracing.joint import JointProgram
from argand.errors import ArgandError
from argand.graph import compat
from argand.graph.nodes.program import AtenProgram

_ARGUMENT = re.compile(r"args\[(\d+)\]")
_VERSION = operator.attrgetter("_version")


class NotAgain(ArgandError):
    """The graph cannot run once more, or would not compute the same."""


class Inputs:
    """The inputs of one call, of which none is kept alive.

    Arguments:
        values: tensors and numbers, as the compiled forward gets them, after it has run.
        seeds: that the forward drew.
    """

    __slots__ = ("_held", "_versions", "seeds")

    def __init__(self, values: Sequence[Any], seeds: Sequence[torch.Tensor] = ()) -> None:
        self.seeds = seeds
        try:  # in C: models have a thousand parameters, and this is part of each call
            self._held: list[Any] = list(map(weakref.ref, values))
            self._versions = list(map(_VERSION, values))
        except (TypeError, AttributeError, RuntimeError):  # numbers, tensors of inference mode
            self._held = [weakref.ref(value) if isinstance(value, torch.Tensor) else value for value in values]
            self._versions = [version(value) if isinstance(value, torch.Tensor) else 0 for value in values]

    def values(self, needed: frozenset[int]) -> list[Any]:
        """The inputs again.

        Arguments:
            needed: positions of those that must be there, and be unchanged.

        Raises:
            NotAgain: one is gone.
            RuntimeError: one was written to since.
        """
        found: list[Any] = []
        for position, (held, before) in enumerate(zip(self._held, self._versions)):
            value = held() if isinstance(held, weakref.ref) else held
            if isinstance(held, weakref.ref) and position in needed:
                if value is None:
                    raise NotAgain("a tensor that the compiled code read is gone")
                if version(value) != before:
                    raise RuntimeError(
                        "one of the variables needed for gradient computation has been modified by an inplace "
                        f"operation: {value.type()} {list(value.shape)}, which a compiled graph read, is at version "
                        f"{version(value)}; expected version {before} instead."
                    )
            found.append(value)
        return found


class Differentiable:
    """Runs a captured graph again for gradients with a history.

    Arguments:
        graph: the captured graph as a function of its arguments; None where it is not at hand.
        joint, cut: what it was compiled as.
    """

    def __init__(self, graph: Callable[..., Any] | None, joint: JointProgram, cut: Partition) -> None:
        self.graph = graph
        self.differentiable = joint.differentiable
        self.cut = cut
        self.began_with_grad = torch.is_grad_enabled() or not joint.enables_grad
        self.refused = "it is not at hand" if graph is None else ""
        if compat.autocast_active():
            self.refused = "autocast was on around the code"
        # Only what may be run again in this way is kept.
        self._joint = joint if joint.plain and (cut.seeds or self.refused) else None
        self._needed: frozenset[int] | None = None
        self._replay: Replay | None = None

    def gradients(self, call: Inputs, grads: Sequence[Any]) -> tuple[Any, ...]:
        """One gradient, or None, per input of the forward, each with its history.

        Arguments:
            grads: per result of the forward, its gradient or None.

        Raises:
            NotAgain: the graph cannot run once more.
            RuntimeError: an input was written to since.
        """
        needed = self._needed = self._checked() if self._needed is None else self._needed
        values = call.values(needed)
        with torch.enable_grad():
            # Each input once, even where two are the same tensor: its gradient is not to count for both.
            kinds = [spec.kind for spec in self.cut.forward.inputs]  # (the graph has its constants itself)
            inputs = [v.view_as(v) if _requires_grad(v) and kind == "arg" else v for v, kind in zip(values, kinds)]
            results = self._results(inputs, call)
        wanted = [position for position, value in enumerate(inputs) if _requires_grad(value)]
        pairs = [(results[r], grads[r]) for r in self.differentiable if grads[r] is not None]
        pairs = [(result, grad) for result, grad in pairs if result.requires_grad]
        found: list[Any] = [None] * len(inputs)
        if pairs and wanted:
            made = self._differentiated(pairs, [inputs[position] for position in wanted])
            for position, gradient in zip(wanted, made):
                found[position] = gradient
        return tuple(found)

    def _differentiated(self, pairs: list[tuple[Any, Any]], inputs: list[Any]) -> tuple[Any, ...]:
        results, grads = zip(*pairs)
        try:
            return torch.autograd.grad(results, inputs, grads, create_graph=True, allow_unused=True)
        except RuntimeError as error:
            if self._replay is not None and "derivative" in str(error) and "not implemented" in str(error):
                raise NotAgain(f"torch has no gradient of an operation in it: {error}") from error
            raise

    def _results(self, inputs: list[Any], call: Inputs) -> dict[int, Any]:
        """The differentiable results of another run, by position."""
        if self._replay is not None:
            if any(inputs[position] is None for position in self._replay.passed):
                raise NotAgain("a tensor that the compiled code read is gone")
            autocast = compat.disabled_autocast()  # the casts are in the graph already
            try:
                return dict(zip(self.differentiable, self._replay.run(*inputs, *call.seeds)))
            finally:
                del autocast
        assert self.graph is not None
        with torch.set_grad_enabled(self.began_with_grad):
            results = compat.tree_flatten(self.graph(*self._arguments(inputs)))[0]
        return {spec.index: results[place] for place, spec in enumerate(self.cut.forward.outputs) if _is_plain(spec)}

    def _arguments(self, inputs: list[Any]) -> list[Any]:
        """What the captured graph was called with. What it writes to, and its gradients do not depend on, is a copy."""
        program = self.cut.forward
        written = {mutation.input for mutation in program.mutations}
        arguments = dict(program.specialised)
        numbers = {scalar.sym.name: scalar.source for scalar in program.scalars}
        for position, (spec, value) in enumerate(zip(program.inputs, inputs)):
            if spec.kind == "arg":
                if value is None:
                    raise NotAgain("a tensor that the compiled code read is gone")
                arguments[spec.index] = value.detach().clone() if position in written else value
            elif spec.kind == "scalar" and (place := _ARGUMENT.fullmatch(numbers[spec.name])):
                arguments[int(place[1])] = value
        missing = [index for index in range(program.num_args) if index not in arguments]
        if missing:
            raise NotAgain("not all of what the graph was called with is known")
        return [arguments[index] for index in range(program.num_args)]

    def _checked(self) -> frozenset[int]:
        """Positions of the inputs that gradients depend on.

        Raises:
            NotAgain: the graph cannot run twice.
        """
        forward = self.cut.forward
        if forward.bases or forward.leaves:
            raise NotAgain("its inputs share memory, or it makes tensors that require grad")
        random = any(compat.is_random(node.target) for node in forward.graph.nodes)
        if self.refused or random:
            return self._replayed(self.refused or "it draws random numbers, and would draw others")
        needed = self._read_for_gradients(forward)
        written = {mutation.input for mutation in forward.mutations}
        plain = {spec.index for spec in forward.outputs if _is_plain(spec)}
        if written & needed or any(mutation.differentiable for mutation in forward.mutations):
            raise NotAgain("it writes to a tensor that its gradients depend on")
        if not plain.issuperset(self.differentiable):
            raise NotAgain("a result is only seen through views of it")
        return needed

    def _replayed(self, reason: str) -> frozenset[int]:
        """As `_checked`, for the functional graph."""
        replay = None if self._joint is None else replay_of(self._joint)
        if replay is None:
            raise NotAgain(reason)
        if any(mutation.input in replay.read for mutation in self.cut.forward.mutations):
            raise NotAgain("it writes to a tensor that it reads")
        self._replay = replay
        return replay.read

    def _read_for_gradients(self, forward: AtenProgram) -> frozenset[int]:
        outputs: Any = forward.output_node.args[0]
        seen: set[fx.Node] = set()
        work = [outputs[slot.index] for slot in self.cut.arguments if slot.kind == "output"]
        while work:
            node = work.pop()
            if node not in seen:
                seen.add(node)
                unread = unread_arguments(node)
                work.extend(given for given in node.all_input_nodes if given not in unread)
        direct = {slot.index for slot in self.cut.arguments if slot.kind == "input"}
        placed = enumerate(forward.placeholders)
        return frozenset(direct | {position for position, node in placed if node in seen})


def _is_plain(spec: Any) -> bool:
    """Whether a result is handed over as it is."""
    return bool(spec.kind == "value" or (spec.kind == "alias_of_output" and spec.view is None))


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


__all__ = ["Differentiable", "Inputs", "NotAgain"]
