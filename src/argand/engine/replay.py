"""A backward whose gradients a compiled graph computes.

The engine runs all the same, twice: once through the nodes with no gradient at all, so that each frees what it saved,
and raises what it raises; and once from a node whose gradients are the computed ones to the leaves, where it
accumulates them as ever.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from argand.engine.callbacks import at_the_end
from argand.engine.checkpoints import Late, computed, give_again
from argand.engine.node_state import NotRecorded, tensor_facts
from argand.engine.recording import Interval, Recorded, Value
from argand.engine.streams import wait_for_forward
from argand.engine.structure import Structure, hooked_within
from argand.quick_dataclasses import dataclass

Run = Callable[..., Any]
"""As `torch.autograd.graph._engine_run_backward`."""


class Varied(RuntimeError):
    """Code of the program did other than when the backward was recorded, which is noticed too late."""


class _Nothing(torch.autograd.Function):
    """Stands behind what is differentiated, and gives it no gradient."""

    @staticmethod
    def forward(ctx: Any, *roots: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.count = len(roots)
        return torch.empty(0, device=roots[0].device)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return (None,) * ctx.count


class _Delivered(torch.autograd.Function):
    """Stands behind leaves, and gives them gradients that are computed already."""

    @staticmethod
    def forward(ctx: Any, gradients: list[torch.Tensor], *leaves: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.gradients = gradients
        return torch.empty(0, device=leaves[0].device)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        # Nobody else holds them: the engine may take them as they are.
        gradients = ctx.gradients
        del ctx.gradients
        handed = (None, *gradients)
        gradients.clear()
        return handed


class _Between(torch.autograd.Function):
    """Stands behind what is differentiated: computes all gradients when the engine comes to it, and then gives none."""

    @staticmethod
    def forward(ctx: Any, work: Callable[[], None], *roots: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.work, ctx.count = work, len(roots)
        return torch.empty(0, device="cpu")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        work = ctx.work
        del ctx.work
        work()
        return (None,) * (ctx.count + 1)


Compiled = Callable[[int, list[torch.Tensor]], list[torch.Tensor]]
"""Computes what an interval's graph returns."""


def replay(
    structure: Structure,
    recorded: Recorded,
    compiled: Compiled,
    roots: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    keep: bool,
    run: Run,
) -> tuple[torch.Tensor | None, ...]:
    """Compute gradients and give them to the leaves; those that are asked for are given back.

    Arguments:
        structure: of this backward; is emptied.
        roots, grads: what is differentiated, and the gradients that this begins with.
        keep: the tape is kept for another backward.
        run: runs the engine.
    """
    values: dict[Value, Any] = {("grad", at): grad for at, grad in enumerate(grads)}
    values.update({("saved", at): tensor for at, tensor in enumerate(structure.tensors)})
    for at, one in enumerate(structure.reductions):
        values.update({("old", at, number): old for number, old in enumerate(one.old)})
        one.old.clear()
    late = structure.tensors.late
    if structure.gpu is not None:
        _wait(structure, roots, run)
    structure.tensors.clear()
    for at, results in recorded.given.items():
        structure.nodes[at].computed = (threading.get_ident(), results)
    if len(recorded.intervals) > 1:
        _with_calls(_Calls(structure, recorded, compiled, values, run, late), roots, keep)
        return tuple([None if value is None else values[value] for value in recorded.returned])
    (only,) = recorded.intervals
    ends = _ends(structure)
    structure.nodes.clear()
    with torch.enable_grad():
        nothing = _Nothing.apply(*roots)
    with _silent(structure) if structure.ordered else contextlib.nullcontext():
        _engine(run, (nothing,), keep, ends)
    del nothing, ends
    given = [values[value] for value in only.inputs]
    taken = [*[value for _, value in only.leaves], *recorded.returned]
    direct = {value: values[value] for value in taken if value is not None and value[0] != "out"}
    values.clear()
    with torch.set_grad_enabled(structure.differentiable):
        values.update(zip(only.outputs, compiled(0, given)))
    values.update(direct)
    _deliver(structure, only, values, run)
    return tuple([None if value is None else values[value] for value in recorded.returned])


def _wait(structure: Structure, roots: Sequence[torch.Tensor], run: Run) -> None:
    """Let the caller's stream wait for the forward's."""
    with torch.enable_grad():
        nothing = _Nothing.apply(*roots)
    with _silent(structure):
        wait_for_forward(roots, structure.tensors, lambda ends: _engine(run, (nothing,), True, ends))


def _engine(
    run: Run, behind: tuple[torch.Tensor, ...], keep: bool = False, ends: tuple[Any, ...] = (), create: bool = False
) -> None:
    """Let the engine begin at tensors without data.

    Arguments:
        ends: where it stops, if there are any; else it comes to all leaves.
    """
    start = tuple([torch.empty(0, device=one.device) for one in behind])
    run(behind, start, keep, create, ends, allow_unreachable=True, accumulate_grad=not ends)


def _ends(structure: Structure) -> tuple[GradientEdge, ...]:
    """Where the engine is to stop while it passes without gradients: a reducer counts how often it comes to leaves."""
    if structure.ends:
        return structure.ends
    return tuple([GradientEdge(structure.nodes[at], 0) for at in structure.leaves]) if structure.reduced else ()


def _deliver(structure: Structure, interval: Interval, values: dict[Value, Any], run: Run) -> None:
    """Give the leaves of an interval their gradients."""
    if not interval.leaves:
        return
    uses = Counter(value for _, value in interval.leaves)
    gradients: list[Any] = []
    for _, value in interval.leaves:  # the engine takes what nobody else holds
        uses[value] -= 1
        last = value is not None and value[0] == "out" and not uses[value] and value in interval.final
        gradients.append(None if value is None else values.pop(value) if last else values[value])
    leaves = [structure.leaves[at] for at, _ in interval.leaves]
    arrived = [structure.reductions[number].reducer.arrived for number, _, _ in interval.reduced]
    for (_, bucket, value), into in zip(interval.reduced, arrived):
        into[bucket] = values.pop(value)
    try:
        _engine(run, _deliveries(gradients, leaves, structure.ordered), create=structure.differentiable)
        if any(arrived):
            raise RuntimeError("argand: DistributedDataParallel did not take what a graph has reduced")
    finally:
        for one in arrived:
            one.clear()


@dataclass(slots=True)
class _Calls:
    """A backward in which the engine runs some nodes with the gradients that come to them.

    Arguments:
        values: of the first gradients and saved tensors.
        late: by their places, the saved tensors that checkpoints compute again.
        versions: of the saved tensors when the backward began.
    """

    structure: Structure
    recorded: Recorded
    compiled: Compiled
    values: dict[Value, Any]
    run: Run
    late: dict[int, Late]
    versions: dict[Value, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        saved = {value: one for value, one in self.values.items() if value[0] == "saved" and value[1] not in self.late}
        self.versions = {value: one._version for value, one in saved.items()}

    def has_written(self, values: Iterable[Value]) -> bool:
        """Whether code of the program has written to some saved tensors since the backward began."""
        return any(value in self.versions and self.values[value]._version != self.versions[value] for value in values)

    def work(self) -> None:
        """Run graphs and nodes in turn, and give leaves their gradients."""
        with torch.set_grad_enabled(self.structure.differentiable):
            self._work()

    def _work(self) -> None:
        for number, interval in enumerate(self.recorded.intervals):
            if self.has_written(interval.inputs):
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation, "
                    "in a hook that ran within this backward"
                )
            if interval.outputs:
                given = [self.values[value] for value in interval.inputs]
                for value in interval.gone:
                    del self.values[value]
                self.values.update(zip(interval.outputs, self.compiled(number, given)))
            _deliver(self.structure, interval, self.values, self.run)
            if interval.call is not None:
                self._call(interval, *interval.call)
            if interval.computed is not None:
                self._compute_again(*interval.computed)
        if hooked_within(self.structure):
            raise Varied(
                "argand: code of the program put a hook on a tensor of the backward that it runs in, and did not when "
                "compiled autograd recorded it. From now on the engine runs it."
            )

    def _compute_again(self, number: int, like: list[Any]) -> None:
        """Let a checkpoint compute its saved tensors; the engine's nodes are given others, with which they compute
        nothing."""
        places, late = self.structure.checkpoints[number], self.late
        tensors = [computed(late[place]) for place in places]
        for place in places:
            give_again(late[place])
        try:
            same = tensor_facts(tensors) == like
        except NotRecorded:
            same = False
        if not same:
            raise Varied(
                "argand: a checkpoint computed tensors with other strides, or memory, than when compiled autograd "
                "recorded this backward. From now on the engine runs it."
            )
        self.values.update({("saved", place): tensor for place, tensor in zip(places, tensors)})

    def _call(self, interval: Interval, at: int, wanted: list[Value | None]) -> None:
        node = self.structure.nodes[at]
        grads = [None if value is None else self.values[value] for value in wanted]
        if at in self.structure.formulas:
            seen = self._watched(node, grads)
            by_number = {number: grad for number, grad in enumerate(seen) if grad is not None}
        else:
            by_number = self._opaque_gradients(at, node, grads)
        del grads
        if by_number.keys() != interval.layouts.keys():
            raise Varied(
                f"argand: {node.name()} gave gradients to other inputs than when compiled autograd recorded this "
                "backward. From now on the engine runs it."
            )
        for number, (size, stride) in interval.layouts.items():
            self.values["made", at, number] = _laid_out(by_number.pop(number), size, stride)

    def _opaque_gradients(self, at: int, node: Any, grads: list[Any]) -> dict[int, Any]:
        """What an opaque node gives, where it is wanted."""
        run = {id(one) for one in self.structure.nodes}
        edges = [(number, *edge) for number, edge in enumerate(node.next_functions) if id(edge[0]) in run]
        if at in self.structure.watched:
            results: Sequence[Any] = _directly(node, self._watched(node, grads), edges)
        elif self.structure.opaque[at]:
            results = self._by_engine(node, grads, edges)
        else:
            results = _directly(node, grads, edges)
        return {number: grad for (number, _, _), grad in zip(edges, results) if grad is not None}

    def _watched(self, node: Any, grads: list[Any]) -> list[Any]:
        """What hooks of the tensors that a node made leave of their gradients: the engine stops before the node."""
        edges = tuple([GradientEdge(node, number) for number in range(len(grads))])
        behind = tuple([edge for edge, grad in zip(edges, grads) if grad is not None])
        given = tuple([grad for grad in grads if grad is not None])
        create = self.structure.differentiable
        return list(self.run(behind, given, True, create, edges, allow_unreachable=True, accumulate_grad=False))

    def _by_engine(self, node: Any, grads: list[Any], edges: list[tuple[int, Any, int]]) -> Sequence[Any]:
        """What a node gives, with the hooks on it."""
        given = [(GradientEdge(node, number), grad) for number, grad in enumerate(grads) if grad is not None]
        wanted = tuple([GradientEdge(to, place) for _, to, place in edges])
        behind, grads = zip(*given)  # type: ignore[assignment]
        create = self.structure.differentiable
        ran: list[bool] = []
        handle = node.register_hook(lambda *given: ran.append(True))  # behind all others
        try:
            with _quiet(self._hooks_of([to for _, to, _ in edges]), ran):  # they see what arrives, with the rest, later
                results: Sequence[Any] = self.run(
                    behind, grads, True, create, wanted, allow_unreachable=True, accumulate_grad=False
                )
        finally:
            handle.remove()
        return results

    def _hooks_of(self, nodes: Sequence[Any]) -> list[Any]:
        """The dictionaries of hooks on nodes that an opaque node leads to, and on leaves."""
        structure = self.structure
        places = [at for at, node in enumerate(structure.nodes) if any(node is one for one in nodes)]
        hooks = [one for at in places for one in structure.opaque.get(at, ())]
        return hooks + [structure.leaves[at]._backward_hooks for at in places if at in structure.leaves]


def _directly(node: Any, grads: list[Any], edges: list[tuple[int, Any, int]]) -> list[Any]:
    """What a node gives that has no hooks, where it is wanted."""
    function = isinstance(node, torch._C._FunctionBase)
    results = node.apply(*grads) if function else node(*grads)
    results = results if isinstance(results, tuple) else (results,)
    for one in results:
        if not (one is None or isinstance(one, torch.Tensor)):
            raise RuntimeError(f"{node.name()} gave a {type(one).__name__} where a tensor or None is expected")
    if function:  # gives something for all arguments
        results = tuple([results[at] for at, needed in enumerate(node.needs_input_grad) if needed])
        joined = [number for number, (to, _) in enumerate(node.next_functions) if to is not None]
        if len(results) != len(joined):
            raise RuntimeError(f"argand: {node.name()} gave {len(results)} gradients, not {len(joined)}")
        given = dict(zip(joined, results))
    else:
        given = dict(enumerate(results))
    return [_fitting(given[number], to._input_metadata[place]) for number, to, place in edges]


def _fitting(grad: Any, metadata: Any) -> Any:
    """A gradient as the engine hands it on."""
    if grad is None:
        return None
    if tuple(grad.shape) != tuple(metadata.shape):
        grad = grad.sum_to_size(tuple(metadata.shape))
    return grad if grad.dtype is metadata.dtype else grad.to(metadata.dtype)


def _laid_out(grad: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    """A gradient that code of the program made, in the layout that the graphs were compiled for."""
    if grad.stride() == stride and not (grad.is_conj() or grad.is_neg() or grad._is_zerotensor()):
        return grad
    return torch.empty_strided(size, stride, dtype=grad.dtype, device=grad.device).copy_(grad)


def _with_calls(calls: _Calls, roots: Sequence[torch.Tensor], keep: bool) -> None:
    """Compute, then let the engine pass without gradients: it frees what was saved."""
    structure = calls.structure
    with at_the_end(), contextlib.ExitStack() as after:
        done = False

        def work() -> None:
            nonlocal done
            calls.work()
            done = True
            after.enter_context(_silent(structure))

        ends = _ends(structure)
        with torch.enable_grad():
            between, nothing = _Between.apply(work, *roots), _Nothing.apply(*roots)
        try:
            _engine(calls.run, (between,), keep, ends)
        except BaseException as error:  # of the program's code: what is behind it is freed, as by the engine
            if done and isinstance(error, RuntimeError) and calls.has_written(calls.versions):
                return  # to what the engine's nodes had read by then
            if not calls.late:  # these would be computed again
                with contextlib.suppress(RuntimeError), _silent(structure):
                    _engine(calls.run, (nothing,), keep, ends)
            raise


def _deliveries(gradients: list[Any], leaves: list[torch.Tensor], ordered: bool) -> tuple[torch.Tensor, ...]:
    """What the engine is to run for leaves to get their gradients, which are taken out of the list.

    Arguments:
        ordered: one leaf after the other, with its hooks: what is made last runs first.
    """
    with torch.enable_grad():
        if not ordered:
            return (_Delivered.apply(gradients, *leaves),)
        delivered = [_Delivered.apply([gradients.pop()], leaf) for leaf in reversed(leaves)]
        return tuple(delivered)


class _Silent:
    """Stands for a hook while the engine passes without gradients; other threads call the hook.

    Arguments:
        begun: is empty before it is to be silent.
    """

    def __init__(self, hook: Callable[..., Any], begun: Sequence[Any]) -> None:
        self.hook = hook
        self.begun = begun
        self.thread = threading.get_ident()

    def __call__(self, *grads: Any) -> Any:
        silent = self.begun and threading.get_ident() == self.thread
        return None if silent else self.hook(*grads)


@contextlib.contextmanager
def _silent(structure: Structure) -> Iterator[None]:
    """Hooks, and backwards of the program's functions, are not called in this thread."""
    hooks: list[Any] = [one for on_node in structure.opaque.values() for one in on_node]
    for leaf in structure.leaves.values():
        hooks += [leaf._backward_hooks, leaf._post_accumulate_grad_hooks]
    functions = [structure.nodes[at] for at in structure.opaque]
    functions = [node for node in functions if isinstance(node, torch._C._FunctionBase)]
    try:
        for node in functions:
            node.apply = _NoGradients(node)
        with _quiet(hooks):
            yield
    finally:
        for node in functions:
            node.__dict__.pop("apply", None)


@contextlib.contextmanager
def _quiet(hooks: Sequence[Any], begun: Sequence[Any] = (True,)) -> Iterator[None]:
    """Hooks in dictionaries, where there are any, are not called in this thread, once `begun` is not empty."""
    silenced: list[tuple[Any, int, _Silent]] = []
    try:
        for one in filter(None, hooks):
            for key, hook in list(one.items()):
                if not isinstance(hook, _Silent):
                    silenced.append((one, key, _Silent(hook, begun)))
                    one[key] = silenced[-1][2]
        yield
    finally:
        for one, key, silent in reversed(silenced):
            if one.get(key) is silent:  # nobody has removed it
                one[key] = silent.hook


class _NoGradients:
    """Stands for the backward of a function's node, which has run already; other threads call it."""

    def __init__(self, node: Any) -> None:
        self.node = weakref.ref(node)
        self.count = len(node.needs_input_grad)
        self.thread = threading.get_ident()

    def __call__(self, *grads: Any) -> Any:
        if threading.get_ident() == self.thread:
            return (None,) * self.count
        node: Any = self.node()
        return type(node).apply(node, *grads)
