"""Running a partitioned program: an autograd function whose forward and backward are compiled graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from argand._core import _C
from argand._core.calls import uncaptured
from argand.autograd.joint import JointProgram
from argand.autograd.leaves import data_of_results
from argand.autograd.partition import Partition, Slot
from argand.graph import compat
from argand.graph.expr import Expr
from argand.graph.program import AtenProgram, MutationSpec, TensorSpec
from argand.locks import fork_safe_lock

Boxed = Callable[[list[Any]], Sequence[torch.Tensor]]


class LazyBackward:
    """The compiled backward, made when the first gradient is asked for (or at once, by `prepare`)."""

    def __init__(self, make: Callable[[], Boxed]) -> None:
        self._make: Callable[[], Boxed] | None = make
        self._run: Boxed | None = None
        self._lock = fork_safe_lock()

    def prepare(self) -> Boxed:
        """The compiled backward."""
        run = self._run
        if run is None:
            run = uncaptured(_C.call_locked, self._lock, _C.call_restoring, self._compile)
        return run

    def _compile(self) -> Boxed:
        run = self._run
        if run is None:
            assert self._make is not None
            run = self._run = self._make()
            self._make = None  # what it holds is not needed any more
        return run


def training_function(
    joint: JointProgram, cut: Partition, forward: Boxed, backward: LazyBackward
) -> Callable[..., Any]:
    """A callable that takes the forward's inputs positionally and returns the forward's results, on autograd's tape.

    Arguments:
        forward: the compiled forward; takes a list (which it empties), returns results and kept values.
        backward: makes the compiled backward; the same calling convention.
    """
    plan = _Plan(joint, cut)

    def gradients(saved: Any, anchor: torch.Tensor, grads: Any, numbers: Any) -> Any:
        if not torch.is_grad_enabled():
            return plan.gradients(backward.prepare(), saved, grads, numbers)
        with torch.no_grad():
            found = plan.gradients(backward.prepare(), saved, grads, numbers)
        return _once(found, (anchor, *grads))

    class CompiledFunction(torch.autograd.Function):
        """One call of the compiled graph. Its last result is empty: it stands for all that gradients depend on."""

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            out = forward(list(inputs))
            if plan.written:
                _write_back(plan.written, plan.raised, inputs, out)
            for position, result in plan.leaves:  # before anything is saved: what is saved of a leaf is the leaf itself
                inputs[position].data = out[result]
            ctx.numbers = tuple([inputs[i] for i in plan.numbers])
            if compat.saved_tensor_hooks_active():
                out = [*out[: plan.results], *map(_alone, out[plan.results :])]
            anchor = torch.empty(0)
            ctx.save_for_backward(*plan.kept(inputs, out), anchor)
            ctx.set_materialize_grads(False)
            results = plan.result_tensors(out)
            if plan.plain:
                ctx.mark_non_differentiable(*[results[i] for i in plan.plain])
            return (*results, anchor)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            *saved, anchor = ctx.saved_tensors
            ctx.maybe_clear_saved_tensors()
            # The user's `backward()` may be called by a frame that is watched.
            return uncaptured(gradients, saved, anchor, grads, ctx.numbers)

    apply: Callable[..., Any] = CompiledFunction.apply
    return apply


def recorded_program(forward: AtenProgram) -> AtenProgram:
    """The forward's plan for the runtime wrapper around `training_function`, which has written to plain inputs."""
    return replace(forward, mutations=[mutation for mutation in forward.mutations if mutation.differentiable])


def without_base(result: torch.Tensor) -> torch.Tensor:
    """A result that the graph's kernels made as a view of something that nobody else sees may be written to."""
    return result.detach() if result._is_view() else result


def _write_back(
    written: list[MutationSpec], raised: tuple[int, ...], inputs: Sequence[Any], out: Sequence[torch.Tensor]
) -> None:
    """Give inputs their new values. Before anything is saved: what the backward reads may be such an input itself."""
    stored = [inputs[position] for position in raised]
    for mutation in written:
        target, new = inputs[mutation.input], out[mutation.output]
        if new is not target:
            (target.data if mutation.unseen else target).copy_(new)
        elif not mutation.unseen:
            stored.append(target)
    compat.written_in_place(stored)


def _alone(kept: torch.Tensor) -> torch.Tensor:
    """A kept tensor that shares no memory with others: hooks may write its storage to a file, say."""
    dense = kept.numel() * kept.element_size() == kept.untyped_storage().nbytes()
    return kept if dense else kept.clone()


class _Once(torch.autograd.Function):
    """Gradients that cannot be differentiated again; whoever tries is told so."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> Any:
        return tensors[:count]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(_TWICE)


def _once(found: tuple[Any, ...], sources: tuple[Any, ...]) -> tuple[Any, ...]:
    """Gradients computed under `create_graph=True`. They depend on what the graph read, as nobody recorded, and on the
    gradients that came in: `sources` lead autograd to all of these, which would else be taken for constants."""
    given = [grad for grad in found if grad is not None]
    if not given:
        return found
    leading = [source for source in sources if source is not None and source.requires_grad]
    marked = iter(_Once.apply(len(given), *given, *leading))
    return tuple([None if grad is None else next(marked) for grad in found])


_TWICE = (
    "argand: a gradient of a gradient was asked for (create_graph=True) through a compiled graph, whose backward "
    "cannot be differentiated again. Keep the part that needs second derivatives out of the compiled function, or run "
    'it with backend="eager".'
)


class _Plan:
    """What moves where around the two compiled graphs."""

    def __init__(self, joint: JointProgram, cut: Partition) -> None:
        self.results = cut.results
        self.written = [mutation for mutation in cut.forward.mutations if not mutation.differentiable]
        self.raised = tuple([position for base in cut.forward.bases for position in base.written])
        gone = {mutation.output for mutation in self.written}
        self.plain = [i for i in range(cut.results) if i not in joint.differentiable and i not in gone]
        recorded = {mutation.output for mutation in cut.forward.mutations} - gone
        self.handed_over = ["none" if i in gone else "same" if i in recorded else "fresh" for i in range(cut.results)]
        self.leaves = data_of_results(cut.forward.leaves)
        leaf_of = {result: position for position, result in self.leaves}
        slots = [(slot.kind, slot.index) for slot in cut.saved]
        self.saved = [("input", leaf_of[i]) if kind == "output" and i in leaf_of else (kind, i) for kind, i in slots]
        views = [kind == "input" and i in cut.through_views for kind, i in self.saved]
        self.saved = [("view" if view else kind, i) for (kind, i), view in zip(self.saved, views)]
        self.differentiable = joint.differentiable
        self.inputs = len(joint.forward_inputs)
        self.grads = cut.gradients
        # gradients that are kept values themselves: where each is found among these
        self.handed = {slot: cut.saved.index(slot) for slot in self.grads.values() if slot.kind in ("input", "output")}
        self.tangents: list[tuple[int, TensorSpec]] = []
        specs = [spec.spec for spec in joint.tangents]
        for slot in cut.arguments:
            if slot.kind == "tangent":
                self.tangents.append((slot.index, specs[slot.index]))
        self.numbers = [position for position, spec in enumerate(joint.forward_inputs) if spec.kind == "scalar"]
        names = [joint.forward_inputs[position].name for position in self.numbers]
        self.taken = [self.numbers.index(slot.index) for slot in cut.arguments if slot.kind == "number"]
        layouts = [_layout_function(names, spec) for _, spec in self.tangents]
        self.layouts = layouts if any(layouts) else None

    def kept(self, inputs: Sequence[Any], out: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What the backward reads."""
        return [
            out[i] if kind == "output" else inputs[i] if kind == "input" else inputs[i].detach()
            for kind, i in self.saved
        ]

    def result_tensors(self, out: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
        """The results for autograd; None for those that are written to inputs already."""
        made: list[torch.Tensor | None] = []
        for how, result in zip(self.handed_over, out):
            made.append(None if how == "none" else without_base(result) if how == "fresh" else result)
        return tuple(made)

    def gradients(
        self, run: Boxed, saved: list[Any], grads: tuple[Any, ...], numbers: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """One gradient, or None, per input of the forward."""
        passed: dict[int, torch.Tensor] = {}
        tangents = self.tangents if self.layouts is None else self._sized_tangents(self.layouts, numbers)
        for index, spec in tangents:
            passed[index] = as_expected(grads[self.differentiable[index]], spec)
        through = {slot: saved[k] for slot, k in self.handed.items()}
        saved.extend(passed[index] for index, _ in self.tangents)
        saved.extend(numbers[k] for k in self.taken)
        if compat.autocast_active():
            guard = compat.disabled_autocast()
            try:
                out = run(saved)
            finally:
                del guard
        else:
            out = run(saved)
        found: list[Any] = [None] * self.inputs
        for position, slot in self.grads.items():
            found[position] = self._gradient(slot, out, passed, through)
        return tuple(found)

    def _sized_tangents(
        self, layouts: list[Callable[..., Any] | None], numbers: tuple[Any, ...]
    ) -> list[tuple[int, TensorSpec]]:
        """The tangents' layouts in a call of these sizes."""
        made = []
        for (index, spec), layout in zip(self.tangents, layouts):
            if layout is not None:
                size, stride = layout(*numbers)
                spec = replace(spec, size=size, stride=stride)
            made.append((index, spec))
        return made

    def _gradient(self, slot: Slot, out: Any, passed: dict[int, Any], through: dict[Slot, Any]) -> Any:
        if slot.kind == "value":
            return out[slot.index]
        if slot.kind == "tangent":
            return passed[slot.index]
        return through[slot]


def _layout_function(names: list[str], spec: TensorSpec) -> Callable[..., Any] | None:
    """Size and stride as a function of the program's numbers; None when they depend on none."""
    if not any(isinstance(n, Expr) for n in (*spec.size, *spec.stride)):
        return None
    size, stride = (f"({' '.join(f'{n},' for n in dims)})" for dims in (spec.size, spec.stride))
    text = compile(f"lambda {', '.join(names)}: ({size}, {stride})", "<argand layout>", "eval")
    made: Callable[..., Any] = eval(text, {})
    return made


def as_expected(grad: torch.Tensor | None, spec: TensorSpec) -> torch.Tensor:
    """A gradient in the layout that the backward was compiled for; zeros where autograd has none."""
    if grad is None:
        return torch.empty_strided(spec.size, spec.stride, dtype=spec.dtype, device=spec.device).zero_()
    if grad.stride() == spec.stride and grad.dtype is spec.dtype and type(grad) is torch.Tensor:
        return grad
    made = torch.empty_strided(spec.size, spec.stride, dtype=spec.dtype, device=spec.device)
    return made.copy_(grad)
