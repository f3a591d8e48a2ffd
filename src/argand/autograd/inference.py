"""`trace_inference`: torch-level graph → functional ATen program, without gradients."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from argand.autograd import recurrent
from argand.autograd.attention import ATTENTION, with_cheap_mask
from argand.autograd.bases import Bases, with_bases
from argand.autograd.data_checks import CHECKS
from argand.autograd.outputs import finish
from argand.autograd.tracer import Tracer
from argand.autograd.values import TraceTensor, Value, make_tensor
from argand.errors import ArgandError, AutogradError, UserLine
from argand.graph import compat, flex, time_limit
from argand.graph.meta import NodeOrigin, attribute, caller_line, user_line, user_stack
from argand.graph.program import AtenProgram, InputSpec, TensorSpec
from argand.graph.recurrent import FUNCTIONS as RECURRENT


def needs_autograd(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Running the graph now would record gradients, so that the inference path must not be taken."""
    if torch.is_inference_mode_enabled():
        return False
    return records_gradients(gm, example_inputs, enabled=torch.is_grad_enabled())


def records_gradients(gm: fx.GraphModule, example_inputs: Sequence[Any], *, enabled: bool) -> bool:
    """Whether an operation may be recorded by autograd, where gradients are enabled or not when the graph begins.

    An optimizer's step, say, disables them, writes to parameters, and enables them again: nothing is recorded.
    """
    values = iter(example_inputs)
    carrying: set[fx.Node] = set()
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            value = next(values, None)
            if isinstance(value, torch.Tensor) and value.requires_grad:
                carrying.add(node)
            continue
        switched = _grad_mode(node)
        if switched is not None:
            enabled = switched
            continue
        if node.op == "call_method" and node.target == "requires_grad_":  # the tensor itself changes
            carrying.update((node, *node.all_input_nodes))
            continue
        if node.kwargs.get("requires_grad"):  # a new tensor
            carrying.add(node)
            continue
        carries = _attribute_requires_grad(gm, node) or any(n in carrying for n in node.all_input_nodes)
        if not carries or isinstance(node.meta.get("example_value"), (int, float, str)):
            continue
        carrying.add(node)
        if enabled and node.op not in ("get_attr", "output"):
            return True
    return False


def _grad_mode(node: fx.Node) -> bool | None:
    """What the node sets the grad mode to, if it may: True where that is not known."""
    if node.op != "call_function":
        return None
    if node.target is torch._C._set_grad_enabled or node.target is torch.set_grad_enabled:
        return bool(node.args[0]) if node.args and not isinstance(node.args[0], fx.Node) else True
    return True if node.target is torch.enable_grad else None


def _attribute_requires_grad(gm: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "get_attr":
        value = attribute(gm, str(node.target))
        return isinstance(value, torch.Tensor) and value.requires_grad
    if node.op == "call_module":
        module = attribute(gm, str(node.target))
        return any(p.requires_grad for p in module.parameters())
    return False


def trace_inference(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    config: Any = None,
    layouts: Mapping[int, TensorSpec] | None = None,
    bases: bool = False,
) -> AtenProgram:
    """Trace a torch-level graph into a functional ATen program.

    Arguments:
        gm: graph of torch functions, methods, operators and `get_attr`s; `call_module` runs the module's forward.
        example_inputs: one value per placeholder: tensors (only their metadata is read) or plain Python values, which
            the program is specialised on.
        config: unused settings object, kept for stages that are tuned by it.
        layouts: metadata to trace with in place of the example's own, by argument.
        bases: inputs that share memory may be written to; the program then holds for calls whose inputs share it in
            the same way (`program.bases`).

    Raises:
        AutogradError: the graph cannot be expressed as a functional ATen graph; run it eagerly.
    """
    return with_bases(lambda groups: _trace_inference(gm, example_inputs, layouts, groups), bases)


def _trace_inference(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    layouts: Mapping[int, TensorSpec] | None,
    shared: Sequence[Sequence[torch.Tensor]],
) -> AtenProgram:
    tracer = Tracer()
    try:
        return _trace(tracer, gm, example_inputs, layouts, shared)
    finally:
        tracer.close()


def _trace(
    tracer: Tracer,
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    layouts: Mapping[int, TensorSpec] | None,
    shared: Sequence[Sequence[torch.Tensor]],
) -> AtenProgram:
    tracer.bases = Bases(shared)
    tracer.many_sizes = layouts is not None
    tracer.inference_mode = torch.is_inference_mode_enabled()
    builder = InputBuilder(tracer)
    specialised: dict[int, Any] = {}
    arguments: list[Any] = []
    for index, value in enumerate(example_inputs):
        if isinstance(value, torch.Tensor):
            arguments.append(builder.argument(value, index, layouts.get(index) if layouts else None))
        else:
            specialised[index] = value
            arguments.append(value)
    builder.names(gm)
    compat.keep_torch_compiler_out()
    with compat.paused_collection(), compat.restored_torch_state():
        tracer.on_lift = builder.constant
        torch._C._set_grad_enabled(False)
        attributes = lift_attributes(gm, tracer)
        with tracer:
            result = run_graph(gm, arguments, attributes, tracer)
        program = finish(tracer, builder, result)
    program.num_args = len(example_inputs)
    program.specialised = specialised
    return program


class InputBuilder:
    """Makes placeholders: for the call's tensor arguments, then for parameters and buffers as they are met."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.specs: list[InputSpec] = []
        self.constants: dict[str, torch.Tensor] = {}
        self.reals: list[torch.Tensor] = []  # the tensor of each input when traced, for aliasing checks
        self._names: dict[int, str] = {}
        self._last: fx.Node | None = None

    def names(self, gm: fx.GraphModule) -> None:
        """Learn what parameters and buffers are called, for readable placeholders."""
        for name, tensor in (*gm.named_parameters(remove_duplicate=True), *gm.named_buffers(remove_duplicate=True)):
            self._names[id(tensor)] = name

    def argument(self, tensor: torch.Tensor, index: int, layout: TensorSpec | None = None) -> TraceTensor:
        known = self.tracer.lifted.get(id(tensor))
        if known is not None:
            return known[1]  # one tensor passed twice is one value
        return self._add(tensor, f"arg{index}_1", "arg", index, layout)

    def constant(self, tensor: torch.Tensor) -> TraceTensor:
        known = self._names.get(id(tensor))
        name = f"p_{known}" if known else f"constant{len(self.constants)}"
        made = self._add(tensor, re.sub(r"\W", "_", name), "constant", -1)
        self.constants[self.specs[-1].name] = tensor
        return made

    def _add(
        self, tensor: torch.Tensor, name: str, kind: Any, index: int, layout: TensorSpec | None = None
    ) -> TraceTensor:
        if not (compat.is_plain_tensor(tensor) or compat.is_fake(tensor)):
            raise AutogradError(
                f"an input of the graph is a {type(tensor).__name__} ({tensor.layout}), which cannot be traced",
                remedy="the graph that holds it runs eagerly",
            )
        tracer = self.tracer
        spec = tracer.specs.make(
            tuple(int(n) for n in (tensor.shape if layout is None else layout.size)),
            tuple(int(n) for n in (tensor.stride() if layout is None else layout.stride)),
            int(tensor.storage_offset()),
            tensor.dtype,
            tensor.device,
        )
        group = tracer.bases.group_of(tensor)
        viewed = tracer.bases.stand_in(self, group, spec) if group is not None else None
        node = self.placeholder(name)
        node.meta.update(val=spec.meta, device=spec.device, origin=NodeOrigin(name))
        made = make_tensor(Value(spec, node)) if viewed is None else viewed
        made.value.input = len(self.specs)
        plain = TensorSpec(spec.size, spec.stride, spec.offset, spec.dtype, spec.device, tensor.requires_grad)
        self.specs.append(InputSpec(node.name, kind, index, plain))
        self.reals.append(tensor)
        tracer.inputs.append(made)
        tracer.lifted[id(tensor)] = (tensor, made)
        return made

    def leaf(self, tensor: TraceTensor) -> int:
        """An input for a leaf that the graph makes; returns its position."""
        spec = tensor.value.spec
        index = sum(one.kind == "leaf" for one in self.specs)
        node = self.placeholder(f"leaf{index}_1")
        node.meta.update(val=spec.meta, device=spec.device, origin=NodeOrigin(node.name))
        plain = TensorSpec(spec.size, spec.stride, 0, spec.dtype, spec.device, True)
        self.specs.append(InputSpec(node.name, "leaf", index, plain))
        self.tracer.inputs.append(tensor)
        return len(self.specs) - 1

    def base(self, real: torch.Tensor, number: int) -> TraceTensor:
        """An input for the memory that others share."""
        return self._add(real, f"base{number}", "base", number)

    def placeholder(self, name: str) -> fx.Node:
        """A new placeholder behind those made so far."""
        graph = self.tracer.graph
        if self._last is None:
            first = next(iter(graph.nodes), None)
            with graph.inserting_before(first) if first is not None else graph.inserting_after(None):
                node = graph.placeholder(name)
        else:
            with graph.inserting_after(self._last):
                node = graph.placeholder(name)
        self._last = node
        return node


def lift_attributes(gm: fx.GraphModule, tracer: Tracer) -> dict[str, Any]:
    """What each `get_attr` target stands for. Made before the tracer is active, which would record the making."""
    found: dict[str, Any] = {}
    for node in gm.graph.nodes:
        if node.op == "get_attr" and node.target not in found:
            value = attribute(gm, node.target)
            found[node.target] = tracer.tensor(value) if isinstance(value, torch.Tensor) else value
    return found


def run_graph(gm: fx.GraphModule, arguments: Sequence[Any], attributes: dict[str, Any], tracer: Tracer) -> Any:
    """Run a torch-level graph node by node under an active tracer; returns what the graph returns."""
    env: dict[fx.Node, Any] = {}
    remaining = iter(arguments)
    for node in gm.graph.nodes:
        op = node.op
        if op == "call_function":
            if node.target is torch.set_default_dtype:  # operations would have to be told what it is where they are
                raise AutogradError("the graph changes the default dtype")
            tracer.origin = _origin(node)
            time_limit.begin(tracer.origin)
            args, kwargs = _values(node.args, env), _values(node.kwargs, env)
            made = None
            if node.target in CHECKS:
                _call(node, CHECKS[node.target], args, kwargs)
            if node.target is ATTENTION:
                args, kwargs = with_cheap_mask(args, kwargs, tracer.many_sizes)
            if node.target in RECURRENT:
                made = recurrent.stands_for(RECURRENT[node.target], args, kwargs, tracer.many_sizes)
            if node.target is flex.flex_attention:
                made = _as_kernel(args)
            env[node] = _call(node, node.target, args, kwargs) if made is None else made
        elif op == "placeholder":
            env[node] = next(remaining) if not node.target.startswith("*") else _rest(node, remaining)
        elif op == "call_method":
            tracer.origin = _origin(node)
            time_limit.begin(tracer.origin)
            args, kwargs = _values(node.args, env), _values(node.kwargs, env)
            env[node] = _call(node, getattr(args[0], node.target), args[1:], kwargs)
        elif op == "get_attr":
            env[node] = attributes[node.target]
        elif op == "call_module":
            tracer.origin = _origin(node)
            time_limit.begin(tracer.origin)
            args, kwargs = _values(node.args, env), _values(node.kwargs, env)
            env[node] = _call(node, attribute(gm, node.target), args, kwargs)
        else:
            time_limit.begin(None)
            return _values(node.args[0], env)
    raise AutogradError("the graph has no output node")


def _as_kernel(args: Any) -> Any:
    """`flex_attention` as one operator, where its device has kernels for it."""
    from argand.autograd.flex import stands_for  # it traces, too

    return stands_for(*args)


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
