"""Faults to plant: each replaces one component of argand by one that is wrong. A script installs one at its top.

import plants; plants.install("guards_equals")
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import torch

PLANTS: dict[str, Callable[[], None]] = {}
aten = torch.ops.aten


def plant(function: Callable[[], None]) -> Callable[[], None]:
    PLANTS[function.__name__] = function
    return function


def install(name: str) -> None:
    """Plant a fault in this process."""
    import plants_chance  # noqa: F401 - registers more
    import plants_codegen  # noqa: F401 - registers more
    import plants_deep  # noqa: F401 - registers more

    PLANTS[name]()


def __getattr__(name: str) -> Any:
    import plants_deep

    return getattr(plants_deep, name)


def crash() -> None:
    """Die of SIGSEGV."""
    ctypes.string_at(0)


def hang() -> None:
    while True:
        time.sleep(0.05)


# ----------------------------------------------------------------------- capture


def _swap_call(chosen: Callable[[Any], bool], change: Callable[..., Any]) -> None:
    from argand.capture.record.tensors import GraphBuilder

    original = GraphBuilder.call

    def call(self: Any, func: Any, args: Any, kwargs: Any) -> Any:
        if chosen(func):
            func, args, kwargs = change(func, args, kwargs)
        return original(self, func, args, kwargs)

    GraphBuilder.call = call


def _named(name: str) -> Callable[[Any], bool]:
    return lambda func: getattr(func, "__name__", "") == name


@plant
def capture_swaps_sub() -> None:
    """`a - b` is recorded as `b - a`."""
    _swap_call(_named("sub"), lambda func, args, kwargs: (func, (args[1], args[0], *args[2:]), kwargs))


@plant
def capture_drops_keyword() -> None:
    """A keyword argument of sum() is lost: keepdim."""
    _swap_call(
        _named("sum"), lambda func, args, kwargs: (func, args, {k: v for k, v in kwargs.items() if k != "keepdim"})
    )


@plant
def capture_wrong_dtype() -> None:
    """`x.float()` is recorded as `x.double()`."""
    _swap_call(_named("float"), lambda func, args, kwargs: (torch.Tensor.double, args, kwargs))


@plant
def capture_wrong_stride() -> None:
    """`x.contiguous()` is recorded as nothing."""
    _swap_call(
        _named("contiguous"),
        lambda func, args, kwargs: (
            torch.Tensor.alias if hasattr(torch.Tensor, "alias") else torch.Tensor.detach,
            args[:1],
            {},
        ),
    )


@plant
def capture_raises() -> None:
    def change(func: Any, args: Any, kwargs: Any) -> Any:
        raise AssertionError("the symbolic interpreter knows no cumsum")

    _swap_call(_named("cumsum"), change)


@plant
def capture_crashes() -> None:
    def change(func: Any, args: Any, kwargs: Any) -> Any:
        crash()

    _swap_call(_named("cumsum"), change)


@plant
def capture_hangs() -> None:
    def change(func: Any, args: Any, kwargs: Any) -> Any:
        hang()

    _swap_call(_named("cumsum"), change)


@plant
def capture_forgets_write() -> None:
    """Attributes that the program sets are not set."""
    from argand.capture.output.effects import Replay

    Replay.write = lambda self: None  # type: ignore[method-assign]


@plant
def capture_nan() -> None:
    """`torch.sqrt` is recorded as `torch.acosh`."""
    _swap_call(_named("sqrt"), lambda func, args, kwargs: (torch.acosh, args, kwargs))


# ----------------------------------------------------------------------- guards


def _without_guards(*kinds: str) -> None:
    from argand.capture.record.guards import GuardSet

    original = GuardSet.add

    def add(self: Any, source: Any, kind: str, *args: Any, **kwargs: Any) -> None:
        if kind not in kinds:
            original(self, source, kind, *args, **kwargs)

    GuardSet.add = add  # type: ignore[method-assign]


@plant
def guards_without_values() -> None:
    """Numbers and texts are not compared."""
    _without_guards("equals")


@plant
def guards_without_lengths() -> None:
    _without_guards("len", "dict_keys")


@plant
def guards_without_tensors() -> None:
    _without_guards("tensor")


@plant
def guards_without_state() -> None:
    """Process state (grad mode, autocast, default dtype) is not compared."""
    _without_guards("global_state")


@plant
def guards_without_ids() -> None:
    """Functions and modules may be others."""
    _without_guards("id", "same_object")


# ----------------------------------------------------------------------- autograd


def _after_trace(change: Callable[[Any], None]) -> None:
    from argand.backends import common, training

    trace_inference, trace_joint = common.trace_inference, training.trace_joint

    def inference(*args: Any, **kwargs: Any) -> Any:
        program = trace_inference(*args, **kwargs)
        change(program)
        return program

    def joint(*args: Any, **kwargs: Any) -> Any:
        made = trace_joint(*args, **kwargs)
        change(made.program)
        return made

    common.trace_inference, training.trace_joint = inference, joint


def _replace(program: Any, old: Any, new: Any, **options: Any) -> None:
    for node in program.graph.nodes:
        if node.target is old and (not options.get("backward") or "backward" in node.meta):
            node.target = new


@plant
def autograd_swaps_trig() -> None:
    _after_trace(lambda program: _replace(program, aten.cos.default, aten.sin.default))


@plant
def autograd_wrong_gradient() -> None:
    """The gradient of tanh is traced as that of sigmoid."""
    _after_trace(lambda program: _replace(program, aten.tanh_backward.default, aten.sigmoid_backward.default))


@plant
def autograd_raises() -> None:
    from argand.autograd.tracing.tracer import Tracer

    original = Tracer.record

    def record(self: Any, func: Any, *args: Any) -> Any:
        if func is aten.cumsum.default:
            raise AssertionError("cannot trace cumsum")
        return original(self, func, *args)

    Tracer.record = record


@plant
def autograd_wrong_mutation() -> None:
    """`x.add_(y)` is made functional as `x.sub(y)`."""
    _after_trace(lambda program: _replace_written(program))


def _replace_written(program: Any) -> None:
    results = program.output_node.args[0]
    for mutation in program.mutations:
        node = results[mutation.output]
        if node.target is aten.add.Tensor:
            node.target = aten.sub.Tensor


@plant
def autograd_wrong_stride() -> None:
    """Traced permutations are followed by a copy."""

    def change(program: Any) -> None:
        for node in list(program.graph.nodes):
            if (
                node.target is aten.t.default
                or node.target is aten.transpose.int
                or node.target is aten.permute.default
            ):
                with program.graph.inserting_after(node):
                    made = program.graph.call_function(
                        aten.clone.default, (node,), {"memory_format": torch.contiguous_format}
                    )
                made.meta.update(node.meta)
                made.meta["val"] = torch.empty(
                    tuple(node.meta["val"].shape), dtype=node.meta["val"].dtype, device="meta"
                )
                node.replace_all_uses_with(made, delete_user_cb=lambda user, made=made: user is not made)

    _after_trace(change)


# ----------------------------------------------------------------------- passes


def _rule(op: Any, rule: Any) -> None:
    from argand.passes.decompositions import RULES

    RULES[op] = rule


@plant
def passes_wrong_silu() -> None:
    """silu(x) is decomposed into relu-like x * (x > 0)."""
    _rule(aten.silu.default, lambda b, x: b(aten.mul.Tensor, x, b(aten.tanh.default, x)))


@plant
def passes_raise() -> None:
    def change(program: Any) -> int:
        if any(node.target is aten.erf.default for node in program.graph.nodes):
            raise AssertionError("simplify does not know erf")
        return 0

    _pass("simplify", change)


def _pass(name: str, change: Callable[[Any], int]) -> None:
    from argand.passes import pipeline

    made = []
    for one in pipeline.INFERENCE:
        if one.name == name:
            original = one.run
            one = pipeline.Pass(name, lambda program, run=original: run(program) + change(program))
        made.append(one)
    made_tuple = tuple(made)
    pipeline.INFERENCE = made_tuple
    pipeline.run_passes.__defaults__ = (made_tuple,)


def _swap_targets(old: Any, new: Any) -> Callable[[Any], int]:
    def change(program: Any) -> int:
        found = [node for node in program.graph.nodes if node.target is old]
        for node in found:
            node.target = new
        return len(found)

    return change


@plant
def passes_simplify_wrong() -> None:
    """The pass `simplify` takes floor for ceil."""
    _pass("simplify", _swap_targets(aten.ceil.default, aten.floor.default))


@plant
def passes_cse_wrong() -> None:
    """Common subexpressions: exp and expm1 are taken for the same."""
    _pass("common_subexpressions", _swap_targets(aten.expm1.default, aten.exp.default))


@plant
def passes_fold_nan() -> None:
    """Constant folding makes log of log1p."""
    _pass("fold_constants", _swap_targets(aten.log1p.default, aten.log.default))


@plant
def passes_hang() -> None:
    def change(program: Any) -> int:
        if any(node.target is aten.erf.default for node in program.graph.nodes):
            hang()
        return 0

    _pass("simplify", change)


# ----------------------------------------------------------------------- lowering


def _lowering(op: Any, wrap: Callable[[Any], Any]) -> None:
    from argand.lower.lowerings import REGISTRY
    from argand.lower.registry import Entry

    old = REGISTRY.entries[op]
    REGISTRY.entries[op] = Entry(wrap(old.rule), old.is_view)


def _other_rule(op: Any, other: Any) -> None:
    from argand.lower.lowerings import REGISTRY

    REGISTRY.entries[op] = REGISTRY.entries[other]


@plant
def lowering_swaps_floor() -> None:
    _other_rule(aten.floor.default, aten.ceil.default)


@plant
def lowering_raises() -> None:
    def wrap(rule: Any) -> Any:
        def lower(ctx: Any, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError("cannot lower erf")

        return lower

    _lowering(aten.erf.default, wrap)


@plant
def lowering_nan() -> None:
    """rsqrt is lowered as log of the negated value would be: NaN."""
    _other_rule(aten.exp.default, aten.acosh.default)


@plant
def lowering_crashes() -> None:
    _lowering(aten.erf.default, lambda rule: lambda ctx, *args: crash())


@plant
def lowering_hangs() -> None:
    _lowering(aten.erf.default, lambda rule: lambda ctx, *args: hang())


@plant
def lowering_wrong_reduction() -> None:
    """amax is lowered as amin."""
    _other_rule(aten.amax.default, aten.amin.default)


# ----------------------------------------------------------------------- fusion


@plant
def fusion_wrong_order() -> None:
    """Units run in the opposite order of what they need."""
    from argand.schedule import pipeline

    original = pipeline.order
    pipeline.order = lambda units: list(reversed(original(units)))


@plant
def fusion_wrong_constant() -> None:
    """Numbers of loops that are fused come out one larger."""
    from argand.schedule.fusion.emit import Emitter

    original = Emitter.emit

    def emit(self: Any, group: Any, *args: Any) -> Any:
        plan = original(self, group, *args)
        if len(group.members) > 1:
            for stage in plan.stages:
                for statement in stage.body.statements:
                    if statement.op == "constant" and isinstance(statement.args[0], float):
                        object.__setattr__(statement, "args", (statement.args[0] + 1.0, *statement.args[1:]))
        return plan

    Emitter.emit = emit


@plant
def fusion_raises() -> None:
    from argand.schedule import pipeline

    original = pipeline.fuse

    def fuse(graph: Any, buffers: Any, threads: int, *, enabled: bool = True) -> Any:
        units = original(graph, buffers, threads, enabled=enabled)
        if any(len(unit.positions) > 1 for unit in units):
            raise RuntimeError("two loops do not fit together")
        return units

    pipeline.fuse = fuse


@plant
def fusion_hangs() -> None:
    from argand.schedule import pipeline

    original = pipeline.fuse

    def fuse(graph: Any, buffers: Any, threads: int, *, enabled: bool = True) -> Any:
        units = original(graph, buffers, threads, enabled=enabled)
        if any(len(unit.positions) > 1 for unit in units):
            hang()
        return units

    pipeline.fuse = fuse


# ----------------------------------------------------------------------- caches


@plant
def cache_key_too_short() -> None:
    """Graphs of equal size are taken for the same."""
    from argand.backends import native

    native.graph_key = lambda program: f"{len(program.graph.nodes)}"


@plant
def cache_wrong_library() -> None:
    """The cache of compiled kernels answers with the library that was made first."""
    from argand.runtime import toolchain

    original, made = toolchain.load_text, []

    def load_text(text: str, *args: Any, **kwargs: Any) -> Any:
        from argand.config import config

        if not config.cache:
            return original(text, *args, **kwargs)
        made.append(original(text, *args, **kwargs))

        class First:
            def address(self, symbol: str) -> int:
                try:
                    return made[-1].address(symbol) if made[-1] is made[0] else made[0].address(made_symbol[0])
                finally:
                    made_symbol.append(symbol)

        return First()

    made_symbol: list[str] = []
    toolchain.load_text = load_text


@plant
def cache_raises() -> None:
    """A cache file cannot be read."""
    from argand.backends.programs import memo

    original = memo.Memo.get_or_make

    def get_or_make(self: Any, key: Any, make: Any) -> Any:
        if key is not None and "erf" in key:
            raise OSError("the cache of graphs is corrupt")
        return original(self, key, make)

    memo.Memo.get_or_make = get_or_make


# ----------------------------------------------------------------------- backends of users


def backend_drops_relu(gm: Any, example_inputs: Any) -> Any:
    for node in list(gm.graph.nodes):
        if node.target is torch.relu:
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)
    gm.recompile()
    return gm.forward


def backend_refuses_relu(gm: Any, example_inputs: Any) -> Any:
    for node in gm.graph.nodes:
        if node.target is torch.relu:
            raise AssertionError("no relu here")
    return gm.forward


def _around(gm: Any, change: Callable[[Any], Any]) -> Any:
    has = any(node.target is torch.relu for node in gm.graph.nodes)

    def call(*args: Any) -> Any:
        return tuple(change(value) if has and isinstance(value, torch.Tensor) else value for value in gm.forward(*args))

    return call


def backend_crashes(gm: Any, example_inputs: Any) -> Any:
    return _around(gm, lambda value: crash())


def backend_hangs(gm: Any, example_inputs: Any) -> Any:
    return _around(gm, lambda value: hang())


def backend_nan(gm: Any, example_inputs: Any) -> Any:
    return _around(gm, lambda value: value * float("nan"))


def backend_wrong_dtype(gm: Any, example_inputs: Any) -> Any:
    return _around(gm, lambda value: value.double())
