"""Torch-level graph → functional ATen program, without gradients; `trace.trace_inference` is the entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from argand import garbage_collection
from argand.autograd.ops import custom, padding, recurrent, running_products
from argand.autograd.ops.attention import ATTENTION, with_cheap_mask
from argand.autograd.ops.data_checks import CHECKS, ROW_MAJOR
from argand.autograd.ops.running_products import RUNNING_PRODUCTS
from argand.autograd.ops.special import ASKED_OF_CONJUGATES, of_conjugate
from argand.autograd.recording.bases import Bases
from argand.autograd.recording.inputs import InputBuilder
from argand.autograd.tracing.outputs import finish
from argand.autograd.tracing.tracer import Tracer
from argand.errors import ArgandError, AutogradError, UserLine
from argand.graph import compat, time_limit
from argand.graph.nodes.meta import attribute, caller_line, user_line, user_stack
from argand.graph.nodes.program import AtenProgram, TensorSpec
from argand.graph.operators import flex
from argand.graph.origin import NodeOrigin
from argand.runtime.kernels.recurrent import FUNCTIONS as RECURRENT

Attention = Callable[..., Any]
"""`flex_attention` as one operator: called with its arguments; None where it is to be spelt out."""


def trace(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    layouts: Mapping[int, TensorSpec] | None = None,
    shared: Sequence[Sequence[torch.Tensor]] = (),
    attention: Attention | None = None,
) -> AtenProgram:
    """What `trace_inference` does.

    Arguments:
        shared: groups of inputs that share memory, one of which is written to.
        attention: of `run_graph`.
    """
    tracer = Tracer()
    try:
        return _trace(tracer, gm, example_inputs, layouts, shared, attention)
    finally:
        tracer.close()


def _trace(
    tracer: Tracer,
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    layouts: Mapping[int, TensorSpec] | None,
    shared: Sequence[Sequence[torch.Tensor]],
    attention: Attention | None,
) -> AtenProgram:
    tracer.bases = Bases(shared)
    tracer.many_sizes = layouts is not None
    tracer.inference_mode = torch.is_inference_mode_enabled()
    specialised = {index: value for index, value in enumerate(example_inputs) if not isinstance(value, torch.Tensor)}
    compat.keep_torch_compiler_out()
    with garbage_collection.paused(), compat.restored_torch_state():  # stand-ins made in inference mode have no version
        builder = InputBuilder(tracer)
        arguments = [
            builder.argument(value, index, layouts.get(index) if layouts else None)
            if index not in specialised
            else value
            for index, value in enumerate(example_inputs)
        ]
        builder.names(gm)
        tracer.on_lift = builder.constant
        torch._C._set_grad_enabled(False)
        attributes = lift_attributes(gm, tracer)
        with tracer:
            result = run_graph(gm, arguments, attributes, tracer, attention)
        program = finish(tracer, builder, result)
    program.num_args = len(example_inputs)
    program.specialised = specialised
    return program


def lift_attributes(gm: fx.GraphModule, tracer: Tracer) -> dict[str, Any]:
    """What each `get_attr` target stands for. Made before the tracer is active, which would record the making."""
    lifted: dict[str, Any] = {}
    for node in gm.graph.nodes:
        if node.op == "get_attr" and node.target not in lifted:
            value = attribute(gm, node.target)
            lifted[node.target] = tracer.tensor(value) if isinstance(value, torch.Tensor) else value
    return lifted


def run_graph(
    gm: fx.GraphModule,
    arguments: Sequence[Any],
    attributes: dict[str, Any],
    tracer: Tracer,
    attention: Attention | None = None,
) -> Any:
    """Run a torch-level graph node by node under an active tracer; returns what the graph returns.

    Arguments:
        attention: makes `flex_attention` one operator, where it returns not None; without, it is always spelt out.
    """
    env: dict[fx.Node, Any] = {}
    try:
        return _run_nodes(gm, arguments, attributes, tracer, attention, env)
    except BaseException:
        for guard in reversed(list(env.values())):  # the end of one, with the traceback, would set what it has noted
            if isinstance(guard, torch._C._InferenceMode):
                guard.__exit__(None, None, None)
        raise


def _run_nodes(
    gm: fx.GraphModule,
    arguments: Sequence[Any],
    attributes: dict[str, Any],
    tracer: Tracer,
    attention: Attention | None,
    env: dict[fx.Node, Any],
) -> Any:
    remaining = iter(arguments)
    for node in gm.graph.nodes:
        op = node.op
        if op.startswith("call_"):
            tracer.origin = _origin(node)
            time_limit.begin(tracer.origin)
            args, kwargs = _values(node.args, env), _values(node.kwargs, env)
        if op == "call_function":
            if node.target is torch.set_default_dtype:  # operations would have to be told what it is where they are
                raise AutogradError("the graph changes the default dtype")
            stand_in = None
            if node.target in CHECKS:
                _call(node, CHECKS[node.target], args, kwargs)
            if node.target is ATTENTION:
                args, kwargs = with_cheap_mask(args, kwargs, tracer.many_sizes)
            if node.target in RECURRENT:
                stand_in = recurrent.stands_for(RECURRENT[node.target], args, kwargs, tracer.many_sizes)
            if node.target is padding.PAD:
                stand_in = padding.rounds(args, kwargs, tracer.many_sizes)
            if node.target is flex.flex_attention and attention is not None:
                stand_in = attention(*args)
            custom.refuse_casts(node.target)
            if node.target in RUNNING_PRODUCTS or node.target in ASKED_OF_CONJUGATES:
                stand_in = _stands_for(node.target, args, kwargs)
            elif tracer.whole_backwards:
                stand_in = custom.stands_for(node.target, args, kwargs)
            value = env[node] = _call(node, node.target, args, kwargs) if stand_in is None else stand_in
            if value is None:
                tracer.look_at_settings()
            if node.target in ROW_MAJOR:
                env[node] = _call(node, torch.Tensor.contiguous, (env[node],), {})
        elif op == "placeholder":
            env[node] = next(remaining) if not node.target.startswith("*") else _rest(node, remaining)
        elif op == "call_method":
            stand_in = _stands_for(node.target, args, kwargs)
            env[node] = _call(node, getattr(args[0], node.target), args[1:], kwargs) if stand_in is None else stand_in
        elif op == "get_attr":
            env[node] = attributes[node.target]
        elif op == "call_module":
            env[node] = _call(node, attribute(gm, node.target), args, kwargs)
        else:
            time_limit.begin(None)
            return _values(node.args[0], env)
    raise AutogradError("the graph has no output node")


def _stands_for(target: Any, args: Any, kwargs: Any) -> Any:
    """The result of a function or a method that stand-ins cannot be handed to; None of others."""
    if target in RUNNING_PRODUCTS:
        return running_products.stands_for(target, args, kwargs)
    return of_conjugate(target, args) if target in ASKED_OF_CONJUGATES else None


def _origin(node: fx.Node) -> NodeOrigin:
    return NodeOrigin(node.name, user_line(node), caller=caller_line(node))


def _rest(node: fx.Node, remaining: Any) -> Any:
    raise AutogradError(f"the graph takes variable arguments ({node.target})")


def _call(node: fx.Node, target: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    try:
        return target(*args, **kwargs)
    except AutogradError as error:
        error.where = error.where or _where(node)
        raise
    except (ArgandError, MemoryError):
        raise
    except Exception as error:
        raise AutogradError(
            f"tracing {node.format_node()} raised {type(error).__name__}: {error}",
            remedy="the graph runs eagerly, which raises the program's own error if it is one",
            where=_where(node),
        ) from error


def _where(node: fx.Node) -> tuple[UserLine, ...]:
    stack = user_stack(node)
    if stack:
        return stack
    line = user_line(node)
    return (UserLine(line, 0, "?"),) if line else ()


def _values(tree: Any, env: dict[fx.Node, Any]) -> Any:
    """`tree` with nodes replaced by what they computed; fx's immutable containers become plain ones."""
    if isinstance(tree, fx.Node):
        return env[tree]
    if isinstance(tree, tuple):
        if type(tree) is tuple or not hasattr(tree, "_fields"):
            return tuple([_values(item, env) for item in tree])
        return type(tree)(*[_values(item, env) for item in tree])
    if isinstance(tree, list):
        return [_values(item, env) for item in tree]
    if isinstance(tree, dict):
        return {key: _values(item, env) for key, item in tree.items()}
    if isinstance(tree, slice):
        return slice(_values(tree.start, env), _values(tree.stop, env), _values(tree.step, env))
    return tree
