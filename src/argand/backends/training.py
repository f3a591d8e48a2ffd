"""Graphs whose gradients are needed: joint trace, partition, two compiled programs, one autograd function."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx
from torch.nn.functional import dropout

from argand import events
from argand.autograd import wrap
from argand.autograd.double_backward import RunsAgain
from argand.autograd.partitioning.partition import Partition, partition
from argand.autograd.tracing.joint import JointProgram
from argand.autograd.tracing.trace import trace_joint
from argand.autograd.training import (
    Boxed,
    LazyBackward,
    arriving_together,
    leaving,
    plan_of,
    recorded_program,
)
from argand.backends.compile_watchers import Compiler
from argand.backends.eager_contest import draws, draws_too_few, unless_too_small
from argand.backends.programs.like_layers.five_layers import shorter
from argand.backends.programs.like_layers.halves import halves_of_all
from argand.backends.programs.like_layers.layers import Unlike
from argand.backends.programs.rolled_training import keeps_in_loops
from argand.backends.programs.stored_backward import KeptBackward
from argand.backends.small_graphs import left_to_eager
from argand.config import config
from argand.errors import ArgandError, AutogradError, InternalError
from argand.graph import compat, time_limit
from argand.graph.nodes.module_text import lazy_forward
from argand.graph.nodes.printing import graph_function, readable
from argand.graph.nodes.program import AtenProgram
from argand.graph.operators.random_ops import draws_seed
from argand.runtime import build_turns, late_modules
from argand.runtime.recipes import with_recipe
from argand.runtime.tape.double_backward import Differentiable, by_eager_if_mostly_twice
from argand.runtime.tape.function import (
    heeding_hooks,
    results_only,
    training_function,
    under_grad,
    untaped,
    with_spent,
    with_tape,
)

Beside = Callable[..., Callable[..., Any]]


def compile_training(gm: fx.GraphModule, example_inputs: Sequence[Any], compiler: Compiler) -> Callable[..., Any]:
    """Trace `gm` with its gradients, compile forward and backward, and put them on autograd's tape.

    Raises:
        AutogradError: the graph cannot be differentiated ahead of time.
    """
    joint, cut = _by_layers(gm, example_inputs, compiler) or (_traced(gm, example_inputs, compiler), None)
    graph = lazy_forward(gm)
    takes_part = joint.differentiates or joint.spent or joint.enables_grad  # in what autograd does around it
    if compiler.backend == "native" and joint.gradients and not takes_part:
        if draws_too_few(gm, joint.program, example_inputs):
            reason = "a small graph with gradients draws random numbers, and eager's kernels run it"
            events.emit("fallback", "backend", reason, reason=reason, scope="graph")
            return left_to_eager(graph, varies=False)
    return compile_joint(
        joint, compiler, otherwise=graph, graph=graph, beside=beside(gm, example_inputs), meta=gm.meta, cut=cut
    )


def beside(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Beside:
    """What compares a graph that records gradients with eager's kernels, if it is small."""
    return functools.partial(unless_too_small, gm=gm, example_inputs=example_inputs)


def _traced(gm: fx.GraphModule, example_inputs: Sequence[Any], compiler: Compiler) -> JointProgram:
    with events.span("trace_joint", "autograd", backend=compiler.backend):
        joint = trace_joint(gm, example_inputs, bases=True)
    if joint.gradients:
        compiler.joint_pass(joint.program)
    return joint


def _by_layers(
    gm: fx.GraphModule, example_inputs: Sequence[Any], compiler: Compiler
) -> tuple[JointProgram, Partition] | None:
    """What a graph with many layers that are alike becomes, by what five of them do; None for any other."""
    if events.bus.wanted("aot_joint_graph") or config.activation_memory_budget < 1 or compat.autocast_active():
        return None  # who sees the joint graph, or runs it again, gets that of all layers
    dropped = [node for node in gm.graph.nodes if node.target is dropout and not config.fallback_random]
    if any(_drops(*node.args, **node.kwargs) for node in dropped):
        return None  # seeds are for running the joint graph again
    short = shorter(gm, example_inputs)
    if short is None:
        return None
    with contextlib.suppress(AutogradError, Unlike):
        joint = _traced(short.gm, short.inputs, compiler)
        program = joint.program
        if joint.gradients and not (program.mutations or any(draws_seed(node.target) for node in program.graph.nodes)):
            cut = _cut(joint, compiler)
            cut.forward.kind, cut.backward.kind = "forward", "backward"
            cut.forward, cut.backward = compiler.rewrite(cut.forward), compiler.rewrite(cut.backward)
            return halves_of_all(joint, cut, short)
    return None


def _drops(input: object, p: object = 0.5, training: bool = True, inplace: bool = False) -> bool:
    """Whether a call of `dropout` with these arguments draws a seed."""
    return training and p not in (0, 1)


def _cut(joint: JointProgram, compiler: Compiler) -> Partition:
    with events.span("partition", "autograd", backend=compiler.backend):
        return partition(
            joint, budget=config.activation_memory_budget, default=config.partitioner == "default",
            keeps_in_loops=keeps_in_loops if compiler.backend == "native" else None,
        )  # fmt: skip


def compile_joint(
    joint: JointProgram,
    compiler: Compiler,
    *,
    otherwise: Callable[..., Any] | None = None,
    graph: Callable[..., Any] | None = None,
    beside: Beside | None = None,
    meta: dict[str, Any] | None = None,
    cut: Partition | None = None,
) -> Callable[..., Any]:
    """Cut a joint program in two, compile both parts, and put them on autograd's tape.

    Arguments:
        otherwise: called with the user's arguments when their sizes do not meet the program's conditions.
        graph: the captured graph, run once more where gradients are differentiated again.
        beside: of what records gradients, `has_backward` and the `key` of the backward, makes what is called instead.
        meta: of the captured graph; "arrivals" is taken out of it where gradients will arrive so.
        cut: the two parts, where they are known.
    """
    if joint.differentiates and otherwise is not None:
        joint.differentiates = False
        run = compile_joint(joint, compiler, otherwise=otherwise, graph=graph)
        return heeding_hooks(run, otherwise, False)
    number = joint.program.model = events.bus.number("model")
    if not joint.gradients:
        return _without_gradients(joint, compiler, otherwise)
    backend = compiler.backend
    events.emit("aot_joint_graph", "autograd", lambda: readable(joint.program.graph), backend=backend, model=number)
    cut = cut or _cut(joint, compiler)
    cut.forward.kind, cut.backward.kind = "forward", "backward"
    together = _plan_arrivals(joint, cut, (meta or {}) if compiler.gives_early else {})
    cut.forward.model = cut.backward.model = number
    _report(joint, cut, backend)
    forward = _boxed(compiler.compile_program(cut.forward), compiler.boxed)
    compile_id = events.bus.compile_id  # of the forward: its backward is compiled later, in any thread

    def make_backward(program: AtenProgram) -> Boxed:
        with events.bus.compiling(compile_id):
            return compile_backward(program, compiler)

    backward = LazyBackward(cut, joint.tape, make_backward)
    if not config.lazy_backward or build_turns.held():  # who waits for this graph wants its backward, too
        backward.prepare()
    elif (scope := late_modules.scope()) is not None:  # the forward's kernels are being compiled: there is time
        scope.meanwhile.append(backward.begin)
    function, again, key = _on_tape(joint, cut, forward, backward, graph, together)
    taped = with_spent(function, tuple(joint.spent.items()))
    program = recorded_program(cut)
    writes = len(program.mutations) < len(cut.forward.mutations) or any(one.held for one in program.mutations)
    recorded = wrap(program, taped, otherwise=otherwise, told=joint.told, writes=writes, written=cut.forward.mutations)
    if graph is not None:
        recorded = heeding_hooks(by_eager_if_mostly_twice(recorded, graph, again), graph, True)
    if joint.enables_grad:
        return under_grad(recorded)
    if beside is not None and backend == "native" and not (joint.spent or cut.seeds or draws(joint.program)):
        recorded = beside(recorded, has_backward=backward.is_compiled, key=key)
    if cut.forward.leaves and otherwise is not None:  # of a call without gradients
        return with_tape(recorded, otherwise)
    plain = wrap(cut.forward, results_only(forward, cut.results), boxed=True, otherwise=otherwise)
    return with_tape(recorded, plain)


def _plan_arrivals(joint: JointProgram, cut: Partition, meta: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    """Positions of the inputs whose gradients are to leave the backward together, which is told of it."""
    together = arriving_together(joint, cut, meta.get("arrivals", ()))
    if together:
        del meta["arrivals"]
        cut.backward.arrivals = leaving(cut, together)
    return together


def _without_gradients(joint: JointProgram, compiler: Compiler, otherwise: Any) -> Callable[..., Any]:
    program = joint.program
    compiler.show(program)
    run = untaped(_boxed(compiler.compile_program(program), compiler.boxed))
    compiled = with_spent(run, tuple(joint.spent.items()))
    call = wrap(program, compiled, boxed=True, otherwise=otherwise)
    return under_grad(call) if joint.enables_grad else call


def _on_tape(
    joint: JointProgram,
    cut: Partition,
    forward: Boxed,
    backward: LazyBackward,
    graph: Callable[..., Any] | None,
    arrivals: tuple[tuple[int, ...], ...],
) -> tuple[Callable[..., Any], Differentiable, Callable[[], str]]:
    """The compiled graph as a function of the forward's inputs whose results autograd can differentiate, also twice.

    Also what differentiates twice, and what gives the key of the backward's entry.
    """
    plan, source = plan_of(joint, cut, arrivals), RunsAgain(joint, cut, graph=graph is not None)
    again = Differentiable(graph, plan.differentiable, source.facts, source.run)
    function = training_function(plan, forward, backward, again)
    kept = KeptBackward(cut, joint.tape, plan, forward, backward, source)

    def described() -> tuple[Any, ...]:
        facts = again.facts().described()
        return plan.described(), forward, kept.key(), graph, facts

    return with_recipe(function, "taped", described), again, kept.key


def compile_backward(program: AtenProgram, compiler: Compiler) -> Boxed:
    """The compiled backward; where it cannot be compiled its graph runs with eager's kernels."""
    with events.span("compile_backward", "autograd", backend=compiler.backend):
        try:
            with time_limit.preparing(len(program.graph.nodes)):
                return _boxed(compiler.compile_program(program), compiler.boxed)
        except time_limit.OutOfTime as late:
            reason = time_limit.took_too_long("the backward", late)
        except ArgandError as error:
            if config.verify_ir or config.repro_after or isinstance(error, InternalError):
                raise
            reason = f"the backward runs with eager's kernels: {error}"
        events.emit("fallback", "backend", reason, backend=compiler.backend, reason=reason, scope="backward")
        return _boxed(graph_function(program.graph, program.constants), False)


def _boxed(compiled: Callable[..., Any], boxed: bool) -> Callable[..., Any]:
    """`compiled` as a function of one list."""
    if boxed:
        return compiled

    def call(args: list[Any]) -> Any:
        taken = list(args)
        args.clear()
        return compiled(*taken)

    return call


def _report(joint: JointProgram, cut: Partition, backend: str) -> None:
    data = {"backend": backend, "model": cut.forward.model}
    events.emit("aot_forward_graph", "autograd", lambda: readable(cut.forward.graph), **data)
    events.emit("aot_backward_graph", "autograd", lambda: readable(cut.backward.graph), **data)
    events.emit("aot_forward_graph_fw_metadata", "autograd", lambda: metadata_text(joint, cut), **data)


def metadata_text(joint: JointProgram, cut: Partition) -> str:
    """What is known of the forward's inputs, results and kept values, a line each."""
    lines = [f"inputs ({len(joint.forward_inputs)}):"]
    written = {m.input: m for m in cut.forward.mutations}
    for position, spec in enumerate(joint.forward_inputs):
        notes = [f"{spec.spec.dtype} {list(spec.spec.size)} stride {list(spec.spec.stride)}"]
        if spec.spec.requires_grad:
            notes.append("requires grad" if position in cut.gradients else "requires grad, gradient None")
        if position in written:
            notes.append("written, recorded by autograd" if written[position].differentiable else "written")
        lines.append(f"  {spec.name}: {', '.join(notes)}")
    lines.append(f"outputs ({len(cut.forward.outputs)}):")
    for output in cut.forward.outputs:
        carries = output.kind == "value" and output.index in joint.differentiable
        lines.append(f"  {output.kind} {output.index}{', requires grad' if carries else ''}")
    lines.append(f"tangents ({len(joint.tangents)}):")
    for spec in joint.tangents:
        lines.append(f"  {spec.name}: {spec.spec.dtype} {list(spec.spec.size)} stride {list(spec.spec.stride)}")
    kept = [slot for slot in cut.saved if slot.kind == "output"]
    lines.append(f"kept for the backward: {len(kept)} values, {len(cut.saved) - len(kept)} inputs")
    return "\n".join(lines)
