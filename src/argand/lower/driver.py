"""`lower`: an ATen graph becomes a loop program."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import torch
from torch import fx

from argand import events
from argand.config import config
from argand.errors import ArgandError, LoweringError
from argand.graph import compat, time_limit
from argand.graph.nodes.meta import user_lines
from argand.graph.nodes.program import AtenProgram
from argand.graph.operators import data_checks
from argand.graph.operators.custom_backward import is_custom
from argand.graph.sizes.expr import Expr, Var, free_symbols, product
from argand.graph.sizes.symbolic import MetaTensor, SymbolicTensor, is_tensor
from argand.interruptions import let_pass
from argand.ir.loops import (
    Buffer,
    ExternNode,
    Origin,
    Program,
    TensorRef,
    Value,
    checks_values,
    statements_of,
    tensor_refs,
)
from argand.ir.target import Targets
from argand.lower.context import SHARED_COST, SHARED_TRAFFIC, Context
from argand.lower.dump import dump
from argand.lower.layout import is_dense
from argand.lower.lowerings import REGISTRY
from argand.lower.lowerings.shape import INLINE_PARTS
from argand.lower.recorder import Recorder
from argand.lower.registry import NoLowering
from argand.lower.tensor import Tensor
from argand.lower.verify import verify


def lower(
    program: AtenProgram, *, targets: Targets | None = None, check: bool = False, inline: bool = False
) -> Program:
    """Lower a functional ATen graph to loop nests and ATen kernel calls.

    Arguments:
        program: the ATen graph. Every node carries `meta["val"]` and `meta["device"]`.
        targets: what kernels may be like on each device; what only some can do is an ATen call where nothing is said.
        check: verify the result (tests do).
        inline: give no value a buffer that can be computed where it is read, whatever that costs.

    Returns:
        the loop program. Its `outputs` are the graph's outputs in order; those that the user receives are in buffers
        of their own, never in an input's. An op without a lowering is an ExternNode with a `reason`, also emitted as
        a "fallback" event.

    Raises:
        LoweringError: the graph is not what AtenProgram promises, or a rule failed.
    """
    with events.span("lower", "lower"):
        result = _Lowering(program, targets, inline).run()
    if check:
        verify(result)
    events.emit("ir_pre_fusion", "lower", lambda: _dump(result))
    return result


def _dump(program: Program) -> str:
    text: str = dump(program)
    return text


_READ_EVERYTHING: Final = frozenset(
    {
        *(getattr(torch.ops.aten, name).Tensor for name in ("add", "sub", "mul", "div")),
        *(getattr(torch.ops.aten, name).default for name in ("neg", "exp", "tanh", "sigmoid", "relu", "gelu", "silu")),
    }
)
"""Ops whose every element is computed from one of each argument, whatever the values are."""

_REDUCTIONS: Final = frozenset(
    {
        *(getattr(torch.ops.aten, name).default for name in ("sum", "mean", "amax", "amin")),
        torch.ops.aten.sum.dim_IntList,
        torch.ops.aten.mean.dim,
    }
)
"""Reductions whose loops read every element of their argument; of one element each there are none."""

_WHOLE_VIEWS: Final = frozenset(
    {
        *(getattr(torch.ops.aten, name).default for name in ("view", "_unsafe_view", "unsqueeze", "permute", "t")),
        torch.ops.aten.transpose.int,
        torch.ops.aten.squeeze.dim,
    }
)
"""Views that have each element of what they view."""


class _Lowering:
    """One run of `lower`."""

    def __init__(self, program: AtenProgram, targets: Targets | None, inline: bool) -> None:
        self.program = program
        self.ctx = Context(inline)
        self.ctx.targets = targets or self.ctx.targets
        self.ctx.hints = {scalar.sym.name: int(scalar.hint) for scalar in program.scalars if not scalar.is_float}
        self.ctx.floats = frozenset(scalar.sym for scalar in program.scalars if scalar.is_float)
        self.env: dict[fx.Node, Any] = {}
        self.uses: dict[fx.Node, int] = {}
        self.wanted: set[fx.Node] = set()  # nodes that will need a buffer: outputs, and arguments of ATen kernels
        self.inputs: list[str] = []

    def run(self) -> Program:
        nodes = list(self.program.graph.nodes)
        self._count_uses(nodes)
        outputs: list[Any] = []
        for node in nodes:
            time_limit.begin(node.meta.get("origin"))
            if node.op == "call_function":
                self.env[node] = self._call(node)
            elif node.op == "placeholder":
                self.env[node] = self._input(node)
                self.inputs.append(node.name)
            elif node.op == "get_attr":
                self.env[node] = self._constant(node)
            elif node.op == "output":
                outputs = list(node.args[0]) if isinstance(node.args[0], (tuple, list)) else [node.args[0]]
            else:
                raise LoweringError(f"an ATen graph has no {node.op} nodes ({node.name})")
        time_limit.begin(None)
        return self._finish(outputs)

    # --- how often, and by whom, a value is used

    def _count_uses(self, nodes: Sequence[fx.Node]) -> None:
        """Count users of each node, looking through views, and find the nodes that need a buffer anyway."""
        uses, wanted = self.uses, self.wanted
        views: set[fx.Node] = set()
        kernels: set[fx.Node] = set()
        for node in reversed(nodes):
            total = 0
            for user in node.users:
                if user in views:
                    total += uses[user]
                    if user in wanted:
                        wanted.add(node)
                else:
                    total += 1
                    if user in kernels:
                        wanted.add(node)
            uses[node] = total
            entry = REGISTRY.entries.get(node.target) if node.op == "call_function" else None
            if node.target is operator.getitem or (entry is not None and entry.is_view):
                views.add(node)
            elif entry is None or node.target in REGISTRY.kernels:
                kernels.add(node)

    def _place(self, node: fx.Node, x: Tensor) -> None:
        """Decide whether a fresh lazy value becomes a buffer now."""
        if x.ref is not None or x.base is not None:
            return
        ctx = self.ctx
        if node in self.wanted:
            if x.cost or x.realiser is not None or self.uses[node] > 1 or x.reads:
                ctx.realise(x)
            return
        if self.ctx.inline or self.uses[node] < 2 or not x.reads:
            return
        if x.cost >= SHARED_COST or self._traffic(x) > SHARED_TRAFFIC:
            ctx.realise(x)

    def _traffic(self, x: Tensor) -> float:
        """What computing `x` reads, in multiples of its own size."""
        own = max(ctx_hint(self.ctx, x.size), 1)
        total = 0.0
        for name in x.reads:
            buffer = self.ctx.buffers[name]
            total += min(ctx_hint(self.ctx, buffer.size) / own, 1.0)
        return total

    # --- nodes

    def _input(self, node: fx.Node) -> Any:
        val = node.meta["val"]
        if not is_tensor(val):
            is_size = isinstance(val, (int, Expr, torch.SymInt)) and not isinstance(val, bool)
            return self.ctx.expr(val) if is_size else val
        return self._external(node.name, "input", val, node.meta.get("device", val.device))

    def _external(self, name: str, kind: str, val: MetaTensor, device: torch.device) -> Tensor:
        ctx = self.ctx
        size, stride = ctx.sizes(val.shape), ctx.sizes(val.stride())
        ctx.buffers[name] = Buffer(name, val.dtype, device, size, stride, kind)
        return ctx.from_ref(ctx.ref_of(ctx.buffers[name]), val.dtype, device)

    def _constant(self, node: fx.Node) -> Tensor:
        name = str(node.target)
        tensor = self.program.constants.get(name)
        if tensor is None:
            raise LoweringError(f"the ATen graph reads the constant {name!r}, which the program does not hold")
        self.ctx.constants[name] = tensor
        return self._external(name, "constant", tensor, node.meta.get("device", tensor.device))

    def _call(self, node: fx.Node) -> Any:
        target = node.target
        if target is operator.getitem:
            source, position = node.args
            part = self.env[source][position]
            if isinstance(part, Tensor):
                self._place(node, part)
            return part
        ctx = self.ctx
        ctx.node, ctx.stored = node, node in self.wanted
        ctx.val = node.meta["val"]
        device = node.meta.get("device")
        ctx.device = device if device is not None else _device_of(ctx.val)
        ctx.origin = origin_of(node)
        args = [self._value(arg) for arg in node.args]
        kwargs = {name: self._value(arg) for name, arg in node.kwargs.items()} if node.kwargs else {}
        entry = REGISTRY.entries.get(target)
        reason = _no_number_of_kernels(node.args) or _no_number_of_kernels(tuple(node.kwargs.values()))
        if entry is not None and not reason:
            try:
                result = entry.rule(ctx, *args, **kwargs)
                if self.program.scalars and self._is_of_symbols(node, args, kwargs):
                    self._try_out(result)
            except NoLowering as why:
                reason = str(why)
            except ArgandError as error:
                error.where = error.where or user_lines(node)
                raise
            except Exception as error:
                let_pass(error)
                if _is_symbolic(node):
                    reason = f"sizes are symbolic ({type(error).__name__}: {error})"
                    return self._extern(target, args, kwargs, reason)
                raise LoweringError(
                    f"the lowering of {ctx.origin.fx_code} failed: {type(error).__name__}: {error}",
                    remedy='compile with backend="aot_eager" meanwhile, and please report this with the script',
                    where=user_lines(node),
                ) from error
            else:
                if (
                    not ctx.inline
                    and data_checks.may_raise(target, node.args, node.kwargs)
                    and not self._is_read_whole(node)
                ):
                    self._check_whole(result)
                if isinstance(result, Tensor):
                    self._place(node, result)
                return result
        return self._extern(target, args, kwargs, reason)

    def _is_read_whole(self, node: fx.Node) -> bool:
        """Whether everything of a node's result certainly goes into a buffer."""
        return node in self.wanted or any(map(self._reads_whole, node.users))

    def _reads_whole(self, user: fx.Node) -> bool:
        """Whether a node has everything of each tensor it is given go into a buffer."""
        target = user.target
        if target is torch.ops.aten.cat.default:
            parts = sum(part.meta["val"].dim() > 1 for part in user.all_input_nodes)  # eager skips some of one dim
            return parts > INLINE_PARTS or self._is_read_whole(user)
        if target in _REDUCTIONS:
            sizes = [tuple(meta.shape) for meta in (user.args[0].meta["val"], user.meta["val"])]
            known = all(isinstance(extent, int) for size in sizes for extent in size)
            return (known and math.prod(sizes[0]) > math.prod(sizes[1])) or self._is_read_whole(user)
        return (target in _READ_EVERYTHING or target in _WHOLE_VIEWS) and self._is_read_whole(user)

    def _check_whole(self, result: Any) -> None:
        """Give the results of an op that raises for bad positions loops of their own, where these may meet such.

        Inside the loops of who reads them only the positions that are read would be checked. Fusing joins these loops
        with those of readers that read everything, so this costs nothing there.
        """
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if not isinstance(x, Tensor) or x.ref is not None:
                continue
            if x.realiser is not None or checks_values(self._recorded(x)):
                self.ctx.realise(x)

    @staticmethod
    def _recorded(x: Tensor) -> Sequence[Value]:
        ranges = {Var(f"d{dim}"): extent for dim, extent in enumerate(x.size)}
        ops = Recorder(ranges)
        x.load(ops, tuple(ranges))
        return ops.statements

    def _try_out(self, result: Any) -> None:
        """Record once, and forget, the loops of an op of symbols: some need constants where these stand.

        Raises:
            NoLowering: this one does.
        """
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(x, Tensor) and x.ref is None and x.realiser is None:
                self._recorded(x)

    def _is_of_symbols(self, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> bool:
        return (bool(self.ctx.floats) and self._takes_float((args, kwargs))) or _is_symbolic(node)

    def _takes_float(self, given: Any) -> bool:
        if isinstance(given, Expr):
            return not free_symbols(given).isdisjoint(self.ctx.floats)
        if isinstance(given, dict):
            given = given.values()
        return isinstance(given, Iterable) and not isinstance(given, str) and any(map(self._takes_float, given))

    def _extern(self, target: Any, args: list[Any], kwargs: dict[str, Any], reason: str) -> Any:
        kernel = REGISTRY.kernels.get(target)
        out_variant = None
        if kernel is not None:
            out_variant, reason = kernel.out_variant, ""
        elif compat.communicates(target) or is_custom(target):
            reason = ""  # who defines an operator has it called
        elif reason or getattr(target, "namespace", "") != "argand":  # our own are made to be called
            reason = reason or "no lowering"
            node = self.ctx.node
            events.emit("fallback", "lower", reason, op=str(target), node=node.name if node else "", reason=reason)
        functional = without_alias(target)
        if functional is None:
            raise LoweringError(
                f"{target} returns a view of its argument and has neither a lowering nor a copying twin"
            )
        try:
            return self.ctx.extern(functional, tuple(args), kwargs, reason=reason, out_variant=out_variant)
        except ArgandError:
            raise
        except Exception as error:
            raise LoweringError(f"a call of {target} cannot be described: {type(error).__name__}: {error}") from error

    def _value(self, arg: Any) -> Any:
        if isinstance(arg, fx.Node):
            return self.env[arg]
        if isinstance(arg, (list, tuple)):
            return [self._value(item) for item in arg]
        return arg

    # --- the end

    def _finish(self, outputs: list[Any]) -> Program:
        ctx = self.ctx
        program = self.program
        handed_over = program.handed_over
        mutated = {program.inputs[mutation.input].name for mutation in program.mutations}
        taken: set[str] = set()  # buffers that an output handed to the user lives in
        refs: list[Any] = []
        for position, output in enumerate(outputs):
            value = self.env[output] if isinstance(output, fx.Node) else output
            if not isinstance(value, Tensor):
                refs.append(value)
                continue
            ref = ctx.realise(value)
            kind = ctx.buffers[ref.buffer].kind
            own = position in handed_over
            if ref.buffer in mutated or (own and (kind != "temp" or ref.buffer in taken)):
                ref = self._copy(output, value)
            elif own and self._has_gaps(output, ref):
                ref = self._copied_by_kernel(output, value, "a result with gaps between its elements")
            if own:
                taken.add(ref.buffer)
            refs.append(ref)
        mutations = [(program.inputs[m.input].name, refs[m.output]) for m in program.mutations]
        result = Program(
            inputs=self.inputs,
            input_symbols=[(scalar.sym.name, "", 0) for scalar in program.scalars if scalar.sym.name in self.inputs],
            buffers=ctx.buffers,
            constants=ctx.constants,
            nodes=ctx.nodes,
            outputs=refs,
            mutations=mutations,
            hints=ctx.hints,
            floats=frozenset(sym.name for sym in ctx.floats),
        )
        remove_dead(result)
        if config.check_numerics:
            result.graph = program.graph
            result.values = {
                node.name: value.ref
                for node, value in self.env.items()
                if node.op == "call_function" and isinstance(value, Tensor) and value.ref is not None
            }
        return result

    def _copy(self, node: fx.Node, x: Tensor) -> TensorRef:
        """A buffer of its own for an output that lives in an input's or another output's buffer."""
        ctx = self.ctx
        ctx.node, ctx.val, ctx.device = node, node.meta["val"], x.device
        try:
            return ctx.realise(ctx.lazy(x.load, [x], cost=0))
        except NoLowering:
            return self._copied_by_kernel(node, x, "a copy of an aliased output")

    def _has_gaps(self, node: fx.Node, ref: TensorRef) -> bool:
        """Whether eager leaves gaps between a result's elements, where the buffer has none."""
        val, ctx = node.meta["val"], self.ctx
        size, stride = ctx.sizes(val.shape), ctx.sizes(val.stride())
        apart = all(step != 0 for step, extent in zip(stride, size) if extent != 1)
        return apart and ref.stride != stride and not is_dense(size, stride, ctx.hints)

    def _copied_by_kernel(self, node: fx.Node, x: Tensor, reason: str) -> TensorRef:
        """A copy in the layout of the node's result."""
        ctx = self.ctx
        ctx.node, ctx.val, ctx.device = node, node.meta["val"], x.device
        return ctx.realise(ctx.extern(torch.ops.aten.clone.default, (x,), {}, reason=reason))


def ctx_hint(ctx: Context, size: tuple[Any, ...]) -> int:
    """Likely number of elements."""
    return ctx.hint(product(size))


def _no_number_of_kernels(arguments: Sequence[Any]) -> str:
    """Which number there is that kernels do not compute with, if any."""
    for arg in arguments:
        if isinstance(arg, fx.Node):
            continue
        if isinstance(arg, (tuple, list)):
            if problem := _no_number_of_kernels(arg):
                return problem
        elif isinstance(arg, int) and not -(2**63) <= arg < 2**63:  # ATen takes some of these, and refuses others
            return "an argument is an integer of more than 64 bits"
        elif isinstance(arg, complex):
            return "an argument is a complex number"
    return ""


def _device_of(val: Any) -> torch.device:
    while isinstance(val, (tuple, list)) and val:
        val = next((item for item in val if item is not None), None)
    return val.device if is_tensor(val) else torch.device("cpu")


def _is_symbolic(node: fx.Node) -> bool:
    """Whether a size symbol occurs in a node's arguments or results."""

    def occurs(tree: Any) -> bool:
        if isinstance(tree, (tuple, list)):
            return any(occurs(item) for item in tree)
        if isinstance(tree, fx.Node):
            return occurs(tree.meta.get("val"))
        return isinstance(tree, (Expr, SymbolicTensor))

    return occurs((node.args, tuple(node.kwargs.values()), node.meta.get("val")))


def origin_of(node: fx.Node) -> Origin:
    """Where the statements that `node` lowers to come from."""
    args = [_print_arg(arg) for arg in node.args]
    args += [f"{name} = {_print_arg(arg)}" for name, arg in node.kwargs.items()]
    info = node.meta.get("origin")
    line, caller = (info.user_line, info.caller) if info is not None else ("", "")
    return Origin(node.name, f"{node.name} = torch.ops.{_name_of(node.target)}({', '.join(args)})", line, caller)


_SHOWN = 16  # items of a list in a comment


@lru_cache(maxsize=1 << 10)
def _name_of(target: Any) -> str:
    return str(target)


def _print_arg(arg: Any) -> str:
    if isinstance(arg, fx.Node):
        return f"{arg.name}"
    if isinstance(arg, (list, tuple)):
        items = [_print_arg(item) for item in (arg if len(arg) <= _SHOWN else (*arg[: _SHOWN - 1], arg[-1]))]
        if len(arg) > _SHOWN:  # each of them may be a statement with this as its comment
            items.insert(-1, "...")
        return "[" + ", ".join(items) + "]"
    return repr(arg)


def without_alias(target: Any) -> Any:
    """`target`, or its copying twin when it returns a view of its argument; None when there is no such twin."""
    schema = getattr(target, "_schema", None)
    if schema is None or not any(result.alias_info is not None for result in schema.returns):
        return target
    packet = getattr(torch.ops.aten, schema.name.split("::")[1] + "_copy", None)
    name = schema.overload_name or "default"
    return getattr(packet, name, None) if packet is not None else None


def remove_dead(program: Program) -> None:
    """Drop nodes whose results nothing reads, and buffers that nothing touches."""
    live = {ref.buffer for ref in program.outputs if isinstance(ref, TensorRef)}
    live.update(ref.buffer for _, ref in program.mutations)
    kept = []
    for node in reversed(program.nodes):
        written = (*node.outputs, *node.mutates)
        if any(name in live for name in written) or (_must_stay(node)):
            kept.append(node)
            live.update(reads_of(node))
    program.nodes = kept[::-1]
    for node in kept:
        live.update(name for name in (*node.outputs, *node.mutates) if name is not None)
    program.buffers = {
        name: buffer for name, buffer in program.buffers.items() if name in live or buffer.kind == "input"
    }
    program.constants = {name: tensor for name, tensor in program.constants.items() if name in live}


def _must_stay(node: Any) -> bool:
    if not isinstance(node, ExternNode):
        return checks_values(node.body.statements)
    schema = getattr(node.target, "_schema", None)
    if schema is None or schema.is_mutable or compat.has_effect(node.target, node.args, node.kwargs):
        return True
    return data_checks.may_raise(node.target, node.args, node.kwargs)


def reads_of(node: Any) -> set[str]:
    """Buffers that a node reads."""
    if isinstance(node, ExternNode):
        return {ref.buffer for ref in tensor_refs((node.args, node.kwargs))}
    return {statement.args[0] for statement in statements_of(node.body) if statement.op == "load"} | set(node.mutates)
