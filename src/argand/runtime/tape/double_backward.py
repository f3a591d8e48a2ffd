"""Gradients that can be differentiated again (`create_graph=True`) of a compiled graph.

A compiled backward computes numbers, which no history leads to. Where somebody wants their gradients, the captured
graph itself runs once more with eager's kernels, on the inputs of the call at hand, and autograd differentiates that:
blocks without gradients, `detach()` and functions with backwards of their own are then what they are in eager. Until a
backward frees what was saved, the call keeps the inputs that gradients depend on for that, and how often each was
written to. For others that are gone stand zeros.

A graph that drew random numbers, or ran under autocast, runs as the functional graph that was compiled, with the seeds
of the call, where autograd recorded each operation as it stands there. One that drew them from torch's generators draws
them again, from the state in which the call met these. Of small tensors that it writes to, and its gradients depend
on, a call keeps a copy from before.

Where most calls of a graph end like that, the graph itself is called from then on (`by_eager_if_mostly_twice`):
running it twice, once compiled, is slower than eager.

What would not be the same again is refused, with the reason: other graphs that draw random numbers, one that writes to
large tensors, or such that require grad, that its gradients depend on, inputs that are gone or were written to since.
"""

from __future__ import annotations

import contextlib
import operator
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Any

import torch

from argand import events
from argand.errors import ArgandError
from argand.graph import compat
from argand.quick_dataclasses import dataclass
from argand.runtime.recipes import same_recipe
from argand.runtime.tape.moves import layout_function, version
from argand.runtime.tape.plan import Plan

_VERSION = operator.attrgetter("_version")


class NotAgain(ArgandError):
    """The graph cannot run once more, or would not compute the same."""


class LetGo:
    """The inputs that calls of a graph do not keep alive, where zeros may stand for them.

    Arguments:
        touched: positions of those that the forward writes to.

    Fields:
        positions: of these inputs.
    """

    def __init__(self, plan: Plan, touched: Sequence[int]) -> None:
        self._specs = {position: (spec, grad) for position, spec, grad in plan.weak if position not in touched}
        self.positions = list(self._specs)
        self._names, self._numbers = plan.names, plan.numbers

    def stand_in(self, position: int, held: Sequence[Any]) -> torch.Tensor | None:
        """Zeros in the place of one that is gone; None where it is another input.

        Arguments:
            held: what a call has of its inputs, its numbers among them.
        """
        spec, differentiable = self._specs.get(position, (None, False))
        if spec is None:
            return None
        layout = layout_function(self._names, spec.layout)
        size, stride = (spec.size, spec.stride) if layout is None else layout(*[held[at] for at in self._numbers])
        zeros = torch.empty_strided(size, stride, dtype=spec.dtype, device=spec.device).zero_()
        return zeros.requires_grad_(differentiable)


class RandomStates:
    """In which state generators of random numbers are.

    Arguments:
        device: that a graph draws on, or the CPU.
    """

    __slots__ = ("_states",)

    def __init__(self, device: torch.device) -> None:
        generators = [torch.default_generator]
        if device.type == "cuda":
            generators.append(torch.cuda.default_generators[device.index or 0])
        self._states = [(generator, generator.get_state()) for generator in generators]

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Inside, the generators are in that state; then in the one that they were in."""
        now = [(generator, generator.get_state()) for generator, _ in self._states]
        try:
            for generator, state in self._states:
                generator.set_state(state)
            yield
        finally:
            for generator, state in now:
                generator.set_state(state)


class Inputs:
    """The inputs of one call.

    Arguments:
        values: tensors and numbers, as the compiled forward gets them, after it has run.
        seeds: that the forward drew.
        written: positions of those that it wrote to: their history leads to the call, so that it must not hold them.
        let_go: others that it does not keep alive.
        before: by position, what such as it wrote to held before.
        random: in which state generators were, where it drew from these.
    """

    __slots__ = ("_held", "_let_go", "_versions", "random", "seeds")

    def __init__(
        self,
        values: Sequence[Any],
        let_go: LetGo,
        seeds: Sequence[torch.Tensor] = (),
        written: Sequence[int] = (),
        before: Mapping[int, torch.Tensor] = MappingProxyType({}),
        random: RandomStates | None = None,
    ) -> None:
        self.seeds = seeds
        self.random = random
        self._let_go = let_go
        self._held: list[Any] = list(values)
        for position in let_go.positions:
            self._held[position] = weakref.ref(values[position])
        for position in written:
            self._held[position] = weakref.ref(values[position])
        try:  # in C: models have a thousand parameters, and this is part of each call
            self._versions = list(map(_VERSION, values))
        except (AttributeError, RuntimeError):  # numbers, tensors of inference mode
            self._versions = [version(value) if isinstance(value, torch.Tensor) else 0 for value in values]
        for position, value in before.items():
            self._held[position], self._versions[position] = value, version(value)

    def let_go(self) -> None:
        """Keep no tensor alive any more, as what was saved is freed: who has kept the graph has said so."""
        self._held = [weakref.ref(value) if isinstance(value, torch.Tensor) else value for value in self._held]

    def forget(self) -> None:
        """Keep nothing of them: nobody asks for gradients any more."""
        self._held = []

    def sources(self) -> list[torch.Tensor] | None:
        """What gradients lead to: the inputs that require some; None where one is gone."""
        sources: list[torch.Tensor] = []
        for position, held in enumerate(self._held):
            value = held() if isinstance(held, weakref.ref) else held
            if value is None and isinstance(held, weakref.ref):
                value = self._let_go.stand_in(position, self._held)
                if value is None or value.requires_grad:
                    return None
            elif isinstance(value, torch.Tensor) and value.requires_grad:
                sources.append(value)
        return sources

    def values(self, needed: frozenset[int]) -> list[Any]:
        """The inputs again.

        Arguments:
            needed: positions of those that must be there, and be unchanged.

        Raises:
            NotAgain: one is gone.
            RuntimeError: one was written to since.
        """
        values: list[Any] = []
        for position, (held, before) in enumerate(zip(self._held, self._versions)):
            value = held() if isinstance(held, weakref.ref) else held
            if value is None and isinstance(held, weakref.ref) and position not in needed:
                value = self._let_go.stand_in(position, self._held)
            if position in needed:
                if value is None:
                    raise NotAgain("a tensor that the compiled code read is gone")
                if isinstance(value, torch.Tensor) and version(value) != before:
                    raise RuntimeError(
                        "one of the variables needed for gradient computation has been modified by an inplace "
                        f"operation: {value.type()} {list(value.shape)}, which a compiled graph read, is at version "
                        f"{version(value)}; expected version {before} instead."
                    )
            values.append(value)
        return values


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a captured graph that may run again; plain values.

    Arguments:
        refused: why it cannot; "" where it can.
        began_with_grad: gradients were on where it began.
        needed: positions of the inputs that gradients depend on.
        tensors, numbers: (position of the input, of the argument) for tensors and numbers of the call.
        copied: positions of inputs that it writes to, and its gradients do not depend on.
        specialised: (position of the argument, its value) of those that are no inputs.
        count: how many arguments the graph has.
        places: (result of the forward, which leaf of what the graph returns it is).
        replayed: the functional graph runs, with the seeds of the call.
        passed: positions of the inputs that its operations are given.
    """

    refused: str
    began_with_grad: bool = True
    needed: tuple[int, ...] = ()
    tensors: tuple[tuple[int, int], ...] = ()
    numbers: tuple[tuple[int, int], ...] = ()
    copied: tuple[int, ...] = ()
    specialised: tuple[tuple[int, Any], ...] = ()
    count: int = 0
    places: tuple[tuple[int, int], ...] = ()
    replayed: bool = False
    passed: tuple[int, ...] = ()

    def described(self) -> tuple[Any, ...]:
        """The facts as a tuple."""
        return tuple([getattr(self, field.name) for field in fields(self)])


class Differentiable:
    """Runs a captured graph again for gradients with a history.

    Arguments:
        graph: the captured graph as a function of its arguments; None where it is not at hand.
        differentiable: of the plan.
        facts: finds out about the graph, when it is first asked for.
        replay: makes the functional graph, of the forward's inputs and the seeds.
    """

    def __init__(
        self,
        graph: Callable[..., Any] | None,
        differentiable: Sequence[int],
        facts: Callable[[], Facts],
        replay: Callable[[], Callable[..., Any]],
    ) -> None:
        self.graph = graph
        self._make_replay = replay
        self.differentiable = differentiable
        self._find_out = facts
        self.runs = 0  # the times that it ran again
        self._facts: Facts | None = None
        self._replay: Callable[..., Any] | None = None

    def facts(self) -> Facts:
        """What is known of the graph."""
        facts = self._facts
        if facts is None:
            facts = self._facts = self._find_out()
        return facts

    def gradients(
        self, call: Inputs, grads: Sequence[Any], data: Mapping[int, torch.Tensor], passed: Sequence[int] = ()
    ) -> tuple[Any, ...]:
        """One gradient, or None, per input of the forward, each with its history.

        Arguments:
            grads: per result of the forward, its gradient or None.
            data: by position, results whose data the program has set since.
            passed: positions of results whose gradients are theirs as a whole, whatever others contribute to them.

        Raises:
            NotAgain: the graph cannot run once more.
            RuntimeError: an input was written to since.
        """
        facts, inputs, results = self._run_again(call, data)
        came: dict[int, Any] = {}
        with contextlib.ExitStack() as hooks:
            for position in passed:
                hooks.enter_context(_stopped_at(results[position], position, grads[position], came))
            wanted = [position for position, value in enumerate(inputs) if _requires_grad(value)]
            gradients: list[Any] = [None] * len(inputs)
            for position, gradient in zip(
                wanted, self._gradients_again(facts, results, grads, [inputs[p] for p in wanted])
            ):
                gradients[position] = gradient
        return tuple(gradients)

    def contributions(
        self, call: Inputs, grads: Sequence[Any], data: Mapping[int, torch.Tensor], passed: Sequence[int]
    ) -> tuple[Any, ...]:
        """One gradient, or None, per result at the positions `passed`: what comes to it past none of the others."""
        facts, _, results = self._run_again(call, data)
        came: dict[int, Any] = {}
        others = [position for position in passed if grads[position] is None]
        with contextlib.ExitStack() as hooks:
            for position in others:
                hooks.enter_context(_stopped_at(results[position], position, None, came))
            self._gradients_again(facts, results, grads, [results[position] for position in others])
        return tuple([came.get(position) for position in passed])

    def _run_again(self, call: Inputs, data: Mapping[int, torch.Tensor]) -> tuple[Facts, list[Any], dict[int, Any]]:
        """The inputs that autograd records now, and the differentiable results."""
        facts = self.facts()
        if facts.refused:
            raise NotAgain(facts.refused)
        self.runs += 1
        values = call.values(frozenset(facts.needed))
        tensors = {position for position, _ in facts.tensors}
        with torch.enable_grad():
            # Each input once, even where two are the same tensor: its gradient is not to count for both.
            placed = enumerate(values)  # (the graph has its constants itself)
            inputs = [v.view_as(v) if _requires_grad(v) and position in tensors else v for position, v in placed]
            results = self._results(facts, inputs, call)
        for position, now in data.items():
            results[position].data = now.detach()
        return facts, inputs, results

    def _gradients_again(
        self, facts: Facts, results: dict[int, Any], grads: Sequence[Any], wanted: list[Any]
    ) -> tuple[Any, ...]:
        pairs = [(results[r], grads[r]) for r in self.differentiable if grads[r] is not None]
        pairs = [(result, grad) for result, grad in pairs if result.requires_grad]
        return _differentiated(pairs, wanted, facts.replayed) if pairs and wanted else ()

    def _results(self, facts: Facts, inputs: list[Any], call: Inputs) -> dict[int, Any]:
        """The differentiable results of another run, by position."""
        if facts.replayed:
            if any(inputs[position] is None for position in facts.passed):
                raise NotAgain("a tensor that the compiled code read is gone")
            if self._replay is None:
                self._replay = self._make_replay()
            autocast = compat.disabled_autocast()  # the casts are in the graph already
            try:
                return dict(zip(self.differentiable, self._replay(*inputs, *call.seeds)))
            finally:
                del autocast
        if self.graph is None:
            raise NotAgain("it is not at hand")
        again = contextlib.nullcontext() if call.random is None else call.random.again()
        with torch.set_grad_enabled(facts.began_with_grad), again:
            results = compat.tree_flatten(self.graph(*_arguments(facts, inputs)))[0]
        return {result: results[place] for result, place in facts.places}


def by_eager_if_mostly_twice(
    compiled: Callable[..., Any], graph: Callable[..., Any], again: Differentiable
) -> Callable[..., Any]:
    """`compiled`, until most of its calls have had their gradients differentiated again.

    Arguments:
        graph: the captured graph, of the same arguments.
        again: what runs it once more.
    """
    calls = [0]

    def call(*args: Any) -> Any:
        if again.runs < _RUNS or compat.saved_tensor_hooks_active():  # a checkpoint's: both of its runs save the same
            return compiled(*args)
        calls[0] += 1
        if again.runs < 2 * _RUNS:
            return compiled(*args)
        if 3 * calls[0] > 5 * _RUNS or again.facts().replayed:  # not three of five calls since the first runs
            again.runs, calls[0] = 0, 0
            return compiled(*args)
        if calls[0] > 0:
            reason = "most calls of the graph have their gradients differentiated again, which runs it once more"
            events.emit("fallback", "runtime", reason, reason=reason, scope="graph")
            calls[0] = -sys.maxsize
        return graph(*args)

    return same_recipe(call, compiled)


_RUNS = 6
"""So many are counted, after as many that were not."""


@contextlib.contextmanager
def _stopped_at(result: torch.Tensor, position: int, grad: Any, came: dict[int, Any]) -> Iterator[None]:
    """While autograd differentiates: what comes to a result is noted, and goes on as `grad` (or zeros)."""

    def hook(arrived: torch.Tensor) -> torch.Tensor:
        came[position] = arrived
        instead: torch.Tensor = torch.zeros_like(arrived) if grad is None else grad
        return instead

    handle = result.register_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _differentiated(pairs: list[tuple[Any, Any]], inputs: list[Any], replayed: bool) -> tuple[Any, ...]:
    results, grads = zip(*pairs)
    try:
        return torch.autograd.grad(results, inputs, grads, create_graph=True, allow_unused=True)
    except RuntimeError as error:
        if replayed and "derivative" in str(error) and "not implemented" in str(error):
            raise NotAgain(f"torch has no gradient of an operation in it: {error}") from error
        raise


def _arguments(facts: Facts, inputs: list[Any]) -> list[Any]:
    """What the captured graph was called with. What it writes to, and its gradients do not depend on, is a copy."""
    arguments = dict(facts.specialised)
    for position, index in facts.tensors:
        value = inputs[position]
        if value is None:
            raise NotAgain("a tensor that the compiled code read is gone")
        arguments[index] = value.detach().clone() if position in facts.copied else value
    arguments.update({index: inputs[position] for position, index in facts.numbers})
    if any(index not in arguments for index in range(facts.count)):
        raise NotAgain("not all of what the graph was called with is known")
    return [arguments[index] for index in range(facts.count)]


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad
