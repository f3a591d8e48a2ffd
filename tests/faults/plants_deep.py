"""More faults to plant, in places that those of `plants` do not touch: state, memory, edges of loops, gradients."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import torch
from plants import _after_trace, _lowering, _pass, _rule, aten, crash, hang, plant

# ----------------------------------------------------------------------- capture


@plant
def capture_loses_append() -> None:
    """What a program does to lists from outside is lost."""
    from argand.capture.output.effects import Replay

    Replay._evaluate_shadow = lambda self, entry: None  # type: ignore[method-assign]


@plant
def capture_wrong_resume() -> None:
    """After a graph break local variables come in another order."""
    from argand.capture.output.resumes import Resumes

    original = Resumes.get

    def get(self: Any, code: Any, instructions: Any, target: Any, layout: Any, names: Any) -> Any:
        import dataclasses

        resume = original(self, code, instructions, target, layout, names)
        names = resume.body.arg_names
        count = resume.body.stack_args
        swapped = type(names)([*names[:count], *reversed(names[count:])])
        return dataclasses.replace(resume, body=dataclasses.replace(resume.body, arg_names=swapped))

    Resumes.get = get  # type: ignore[method-assign]


@plant
def capture_wrong_number() -> None:
    """Numbers that the program multiplies tensors by are rounded."""
    from argand.capture.record.tensors import GraphBuilder

    original = GraphBuilder.call

    def call(self: Any, func: Any, args: Any, kwargs: Any) -> Any:
        if getattr(func, "__name__", "") in ("mul", "__mul__"):
            args = tuple(float(int(a)) if type(a) is float else a for a in args)
        return original(self, func, args, kwargs)

    GraphBuilder.call = call


# ----------------------------------------------------------------------- guards


@plant
def guards_without_state() -> None:
    """Process state (grad mode, default dtype) is not compared."""
    from plants import _without_guards

    _without_guards("global_state")


@plant
def guards_without_aliases() -> None:
    """Whether two arguments are one tensor is not compared."""
    from plants import _without_guards

    _without_guards("same_object", "distinct", "python")


@plant
def guards_without_keys() -> None:
    """Whether a dictionary has a key is not compared."""
    from plants import _without_guards

    _without_guards("has_key", "not_has_key", "dict_keys", "len")


@plant
def guards_without_types() -> None:
    from plants import _without_guards

    _without_guards("type", "type_version", "id")


# ----------------------------------------------------------------------- autograd


@plant
def autograd_saves_wrong() -> None:
    """What the backward needs is kept in another order than it is read."""
    from argand.autograd import training

    original = training._Plan.__init__

    def init(self: Any, joint: Any, cut: Any) -> None:
        original(self, joint, cut)
        self.saved = list(reversed(self.saved))

    training._Plan.__init__ = init  # type: ignore[method-assign]


@plant
def autograd_doubles_gradients() -> None:
    """Gradients are counted twice."""
    from argand.autograd import training

    original = training._Plan.gradients

    def gradients(self: Any, *args: Any) -> Any:
        return tuple(g * 2 if isinstance(g, torch.Tensor) else g for g in original(self, *args))

    training._Plan.gradients = gradients  # type: ignore[method-assign]


@plant
def autograd_loses_gradient() -> None:
    """The last input's gradient is None."""
    from argand.autograd import training

    original = training._Plan.gradients

    def gradients(self: Any, *args: Any) -> Any:
        found = list(original(self, *args))
        for position in reversed(range(len(found))):
            if found[position] is not None:
                found[position] = None
                break
        return tuple(found)

    training._Plan.gradients = gradients  # type: ignore[method-assign]


@plant
def autograd_no_write_back() -> None:
    """Inputs that the program writes to keep their old values."""
    from argand.autograd import runtime

    runtime._mutation_lines = lambda program: []


@plant
def autograd_wrong_promotion() -> None:
    """Results of whole numbers and floats are computed in half precision."""

    def change(program: Any) -> None:
        for node in list(program.graph.nodes):
            if node.target is aten.div.Tensor:
                with program.graph.inserting_after(node):
                    half = program.graph.call_function(aten._to_copy.default, (node,), {"dtype": torch.float16})
                half.meta.update(node.meta)
                half.meta["val"] = torch.empty_like(node.meta["val"], dtype=torch.float16, device="meta")
                with program.graph.inserting_after(half):
                    back = program.graph.call_function(aten._to_copy.default, (half,), {"dtype": torch.float32})
                back.meta.update(node.meta)
                node.replace_all_uses_with(back, delete_user_cb=lambda user, half=half: user is not half)

    _after_trace(change)


@plant
def autograd_backward_crashes() -> None:
    _in_backward(crash)


@plant
def autograd_backward_hangs() -> None:
    _in_backward(hang)


def _in_backward(what: Callable[[], None]) -> None:
    from argand.autograd import training

    original = training.LazyBackward.run

    def run(self: Any, given: Any) -> Any:
        what()
        return original(self, given)

    training.LazyBackward.run = run  # type: ignore[method-assign]


# ----------------------------------------------------------------------- passes


@plant
def passes_masked_nan() -> None:
    """masked_fill is decomposed into x + mask * value: NaN for a value of -inf."""
    _rule(
        aten.masked_fill.Scalar,
        lambda b, x, mask, value: b(aten.add.Tensor, x, b(aten.mul.Tensor, mask, float(value))),
    )


@plant
def passes_wrong_joint() -> None:
    """The pass on the joint graph takes the gradient of sigmoid for that of tanh."""
    from argand.passes import joint

    original = joint.prepare_joint

    def prepare_joint(program: Any) -> int:
        made = original(program)
        for node in program.graph.nodes:
            if node.target is aten.tanh_backward.default:
                node.target = aten.sigmoid_backward.default
        return made

    joint.prepare_joint = prepare_joint


@plant
def passes_wrong_meta() -> None:
    """A pass says that logarithms are whole numbers."""

    def change(program: Any) -> int:
        for node in program.graph.nodes:
            if node.target is aten.log2.default:
                node.meta["val"] = node.meta["val"].to(torch.int64)
        return 0

    _pass("simplify", change)


@plant
def passes_no_memory() -> None:
    """A pass takes more memory than there is."""

    def change(program: Any) -> int:
        if any(node.target is aten.erf.default for node in program.graph.nodes):
            raise MemoryError
        return 0

    _pass("simplify", change)


@plant
def passes_wrong_backward() -> None:
    """The gradient of tanh is decomposed into grad * (1 - y)."""
    _rule(
        aten.tanh_backward.default,
        lambda b, grad, y: b(aten.mul.Tensor, grad, b(aten.rsub.Scalar, y, 1)),
    )


# ----------------------------------------------------------------------- lowering


@plant
def lowering_wrong_stride() -> None:
    """as_strided is lowered with its strides in the opposite order."""
    _lowering(
        aten.as_strided.default,
        lambda rule: lambda ctx, x, size, stride, *rest: rule(ctx, x, size, list(reversed(stride)), *rest),
    )


@plant
def lowering_flips_nothing() -> None:
    _lowering(aten.flip.default, lambda rule: lambda ctx, x, dims: x)


@plant
def lowering_truncates() -> None:
    """Division rounding down rounds towards zero."""
    _lowering(
        aten.div.Tensor_mode,
        lambda rule: lambda ctx, a, b, rounding_mode=None: rule(ctx, a, b, rounding_mode="trunc"),
    )


@plant
def lowering_recurses() -> None:
    def wrap(rule: Any) -> Any:
        def lower(ctx: Any, *args: Any) -> Any:
            return lower(ctx, *args)

        return lower

    _lowering(aten.erf.default, wrap)


# ----------------------------------------------------------------------- fusion


@plant
def fusion_drops_store() -> None:
    """Loops with a sine do not store their results."""
    from argand.schedule import pipeline

    original = pipeline._emit

    def emit(program: Any, graph: Any, units: Any) -> Any:
        steps = original(program, graph, units)
        kernels = [step for step in steps if hasattr(step, "stages")]
        for kernel in kernels:
            for stage in kernel.stages:
                body = stage.body.statements
                if any(s.op == "sin" for s in body):
                    body[:] = [s for s in body if s.op != "store"]
        return steps

    pipeline._emit = emit


@plant
def fusion_wrong_alias() -> None:
    """A kernel writes over an input that is read again later."""
    from argand.schedule import inplace

    inplace._last_uses = _first_uses(inplace._last_uses)


def _first_uses(original: Callable[[Any], dict[str, int]]) -> Callable[[Any], dict[str, int]]:
    from argand.ir.loops import tensor_refs

    def last_uses(made: Any) -> dict[str, int]:
        found = dict(original(made))
        seen: dict[str, int] = {}
        for number, step in enumerate(made.steps):
            reads = (
                step.inputs if hasattr(step, "stages") else [r.buffer for r in tensor_refs((step.args, step.kwargs))]
            )
            for name in reads:
                seen.setdefault(name, number)
        return {name: seen.get(name, number) for name, number in found.items()}

    return last_uses


# ----------------------------------------------------------------------- host code


@plant
def host_overlaps() -> None:
    """All temporaries get the same place."""
    from argand.codegen.host import memory

    original = memory._pack

    def pack(plan: Any, names: Any, buffers: Any) -> None:
        original(plan, names, buffers)
        plan.offsets.update(dict.fromkeys(plan.offsets, 0))

    memory._pack = pack


@plant
def host_swaps_arguments() -> None:
    """Kernels get their first two tensors in the wrong order."""
    from argand.codegen.host import module

    original = module.host_module

    def host_module(*args: Any, **kwargs: Any) -> str:
        return re.sub(r"(\n    cpp_fused_\w+\()(\w+), (\w+)", r"\1\3, \2", original(*args, **kwargs))

    module.host_module = host_module


@plant
def host_returns_one_buffer() -> None:
    """Each call returns the same memory."""
    from plants_codegen import _host

    _host(
        "",
        "tuple(k.copy_(n) for k, n in zip(_kept.setdefault(0, {0}), {0}))",
        "_kept = {}\n\n\n",
    )


@plant
def host_exits() -> None:
    """The process ends in the middle of a call."""
    from plants_codegen import _host

    _host("__import__('os')._exit(0)")


@plant
def host_stops() -> None:
    """SystemExit in the middle of a call."""
    from plants_codegen import _host

    _host("raise SystemExit(0)")


# ----------------------------------------------------------------------- caches


@plant
def cache_ignores_numbers() -> None:
    """Texts of kernels that differ in numbers only count as the same."""
    from argand.runtime import cache

    original = cache.code_only
    cache.code_only = lambda text: re.sub(r"\d+\.\d+", "N", original(text))


@plant
def cache_broken_library() -> None:
    """With the cache on, a file that is no library is loaded, and nothing builds it again."""
    from argand.config import config
    from argand.runtime import toolchain

    original = toolchain.load_text

    def load_text(*args: Any, **kwargs: Any) -> Any:
        library = original(*args, **kwargs)
        if not config.cache:
            return library
        broken = library.path.with_name(f"broken-{os.getpid()}.so")
        broken.write_bytes(library.path.read_bytes()[:100])
        return toolchain.load(broken)

    toolchain.load_text = load_text


# ----------------------------------------------------------------------- backends of users


def _with_relu(gm: Any) -> bool:
    return any(node.target is torch.relu for node in gm.graph.nodes)


def backend_loses_result(gm: Any, example_inputs: Any) -> Any:
    has = _with_relu(gm)
    return lambda *args: gm.forward(*args)[: -1 if has else None]


def backend_writes_to_inputs(gm: Any, example_inputs: Any) -> Any:
    has = _with_relu(gm)

    def call(*args: Any) -> Any:
        result = gm.forward(*args)
        if has:
            for value in args:
                if not value.requires_grad:
                    value.zero_()
        return result

    return call


def backend_returns_nothing(gm: Any, example_inputs: Any) -> Any:
    return None if _with_relu(gm) else gm.forward


def backend_wrong_later(gm: Any, example_inputs: Any) -> Any:
    has, count = _with_relu(gm), [0]

    def call(*args: Any) -> Any:
        count[0] += 1
        result = gm.forward(*args)
        return tuple(v + 1 for v in result) if has and count[0] > 2 else result

    return call


def backend_exits(gm: Any, example_inputs: Any) -> Any:
    if _with_relu(gm):
        os._exit(7)
    return gm.forward


def backend_no_gradient(gm: Any, example_inputs: Any) -> Any:
    has = _with_relu(gm)

    def call(*args: Any) -> Any:
        result = gm.forward(*args)
        return tuple(v.detach() for v in result) if has else result

    return call
