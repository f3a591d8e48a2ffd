"""Runs loop programs and schedules with plain tensor operations: what fusion is tested against.

Shared loops run one point at a time, last point first, and memory that was not written holds NaN (or a large integer):
a stage that reads across shared points, or before the write, gives a wrong result.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from argand.errors import InternalError
from argand.graph.nodes.devices import made_on
from argand.graph.sizes.expr import ZERO, Expr, evaluate
from argand.ir.kernel import KernelPlan, Product, Schedule
from argand.ir.loops import Buffer, ExternNode, LoopBlock, LoopBody, LoopNode, Program, TensorRef, Value
from argand.schedule.access import is_empty

Env = dict[str, Any]
Memory = dict[str, torch.Tensor]


def run_program(program: Program, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of an unscheduled program: its nodes one after the other."""
    env, memory = _start(program.inputs, program.input_symbols, program.buffers, program.constants, inputs)
    for node in program.nodes:
        if isinstance(node, LoopNode):
            for name in node.outputs:
                memory.setdefault(name, _poisoned(program.buffers[name], env))
            with made_on(program.buffers[(*node.outputs, *node.mutates)[0]].device):
                run_body(node.body, env, memory)
        else:
            _run_extern(node, env, memory, program.buffers)
    return _finish(program, env, memory)


def run_schedule(
    schedule: Schedule, inputs: Sequence[Any], run: Callable[[KernelPlan, Env, Memory], None] | None = None
) -> list[Any]:
    """The outputs of a schedule.

    Arguments:
        run: runs one kernel on flat tensors by name, given the values of size symbols; `run_kernel` unless told.
    """
    run = run or run_kernel
    env, memory = _start(schedule.inputs, schedule.input_symbols, schedule.buffers, schedule.constants, inputs)
    memory.update({n: _poisoned(b, env) for n, b in schedule.buffers.items() if is_empty(b) and n not in memory})
    for step in schedule.steps:
        if isinstance(step, KernelPlan):
            for name in step.outputs:
                taken = schedule.aliases.get(name)
                if taken is not None:
                    memory[name] = memory.pop(taken)
                memory.setdefault(name, _poisoned(schedule.buffers[name], env))
            run(step, env, memory)
        else:
            _run_extern(step, env, memory, schedule.buffers)
    return _finish(schedule, env, memory)


def run_kernel(plan: KernelPlan, env: Env, memory: Memory) -> None:
    """One kernel, by the definition in `ir.kernel`."""
    for segment in plan.segments:
        theirs = {name: memory[other] for name, other in segment.buffers.items()}
        run_kernel(plan.of_segment(segment), {**env, **segment.numbers}, theirs)
    if plan.segments:
        return
    allowed = {name: memory[name] for name in (*plan.inputs, *plan.outputs)}
    if plan.product is not None:
        *operands, last = plan.stages
        for stage in operands:
            name = stage.body.statements[-1].args[0]
            allowed[name] = _poisoned(plan.buffers[name], env)
            run_body(stage.body, env, allowed)
        run_body(last.body, env, {**allowed, plan.product.result: _product(plan, plan.product, allowed)})
        return
    names = [var.name for var, _ in plan.outer]
    ranges = [range(int(evaluate(size, env)) - 1, -1, -1) for _, size in plan.outer]
    with made_on(plan.device):
        _run_points(plan, env, allowed, names, ranges)


def _run_points(plan: KernelPlan, env: Env, allowed: Memory, names: list[str], ranges: list[range]) -> None:
    for point in itertools.product(*ranges):
        here = {**env, **dict(zip(names, point))}
        local = {name: _poisoned(plan.buffers[name], env) for name in (*plan.scratch, *plan.registers)}
        for stage in plan.stages:
            run_body(stage.body, here, {**allowed, **local}, fixed=len(plan.outer))


def _product(plan: KernelPlan, product: Product, memory: Memory) -> torch.Tensor:
    """A product as it lies in memory."""

    def operand(ref: TensorRef) -> torch.Tensor:
        size, stride = (tuple(int(evaluate(n, {})) for n in part) for part in (ref.size, ref.stride))
        return memory[ref.buffer].as_strided(size, stride, int(evaluate(ref.offset, {}))).float()

    value = operand(product.left) @ operand(product.right)
    if product.bias is not None:
        value = value + operand(product.bias)
    made = plan.buffers[product.result]
    size, stride = (tuple(int(evaluate(n, {})) for n in part) for part in (made.size, made.stride))
    laid = torch.empty_strided(size, stride, dtype=made.dtype)
    return laid.copy_(value).as_strided((value.numel(),), (1,))


def run_body(body: LoopBody, env: Env, memory: Memory, *, fixed: int = 0) -> None:
    """One loop nest; the first `fixed` of its variables have their value in `env` already."""
    own = list(zip(body.vars[fixed:], body.sizes[fixed:]))
    reduced = list(zip(body.reduction_vars, body.reduction_sizes))
    shape = tuple(int(evaluate(size, env)) for _, size in (*own, *reduced))
    here = dict(env)
    for axis, (var, _) in enumerate((*own, *reduced)):
        view = [1] * len(shape)
        view[axis] = shape[axis]
        here[var.name] = torch.arange(shape[axis]).reshape(view)
    if 0 in shape[: len(own)]:
        return
    _Run(here, memory, shape, len(own)).statements(body.statements, None)


class _Run:
    """Evaluates statements over all points of a nest at once."""

    def __init__(self, env: Env, memory: Memory, shape: tuple[int, ...], own: int) -> None:
        self.env, self.memory, self.shape, self.own = env, memory, shape, own
        self.values: dict[int, torch.Tensor] = {}

    def statements(self, statements: Sequence[Value], mask: torch.Tensor | None) -> None:
        for statement in statements:
            self.values[statement.id] = self.one(statement, mask)

    def index(self, expr: Expr) -> torch.Tensor:
        return torch.as_tensor(evaluate(expr, self.env), dtype=torch.int64)

    def one(self, statement: Value, mask: torch.Tensor | None) -> torch.Tensor:
        op, dtype = statement.op, statement.dtype
        args = [self.values[arg.id] if isinstance(arg, Value) else arg for arg in statement.args]
        if op == "load":
            memory = self.memory[args[0]]
            index = self.index(args[1])
            if mask is not None:
                index = torch.where(mask, index, 0)
            if memory.numel() == 0:
                return torch.zeros(index.shape, dtype=dtype)
            return memory[index]
        if op == "store":
            self.store(*args)
            return args[2]
        if op == "constant":
            return torch.tensor(args[0]).to(dtype)
        if op == "index_expr":
            return self.index(args[0]).to(dtype)
        if op == "indirect":
            return self.indirect(statement, args, mask)
        if op in ("to_dtype",):
            return args[0].to(dtype)
        if op == "bitcast":
            return args[0].view(dtype)
        if op == "where":
            return torch.where(args[0], args[1], args[2])
        if op == "fma":
            return (args[0].double() * args[1].double() + args[2].double()).to(dtype)
        if op == "masked":
            return self.masked(args[0], args[1], args[2], dtype, mask)
        if op == "reduction":
            return self.reduction(args[0], args[1])
        if op == "scan":
            return self.scan(args[0], args[1])
        return pointwise(op, args)

    def store(self, name: str, index_expr: Expr, value: torch.Tensor, mode: str | None) -> None:
        index, value = torch.broadcast_tensors(self.index(index_expr), value)
        memory = self.memory[name]
        if mode == "add":
            memory.index_put_((index.reshape(-1),), value.reshape(-1).to(memory.dtype), accumulate=True)
        else:
            memory[index] = value.to(memory.dtype)

    def indirect(self, statement: Value, args: list[Any], mask: torch.Tensor | None) -> torch.Tensor:
        value = args[0].to(torch.int64)
        size = int(evaluate(args[1], self.env))
        wrap = bool(args[2])
        active = value if mask is None else torch.where(mask, value, 0)
        if bool(((active >= size) | (active < (-size if wrap else 0))).any()):
            raise IndexError("index out of range in self")
        wrapped = torch.where(active < 0, active + size, active)
        self.env[f"i{statement.id}"] = wrapped
        return wrapped

    def masked(
        self, mask: torch.Tensor, block: LoopBlock, other: Any, dtype: torch.dtype, outer: torch.Tensor | None
    ) -> torch.Tensor:
        active = mask if outer is None else mask & outer
        self.statements(block.statements, active)
        return torch.where(mask, self.values[block.result.id], torch.tensor(other).to(dtype))

    def scan(self, kind: str, value: torch.Tensor) -> torch.Tensor:
        flat = value.expand(self.shape).reshape(*self.shape[: self.own], -1)
        made: torch.Tensor = getattr(torch, f"cum{kind}")(flat, -1, dtype=value.dtype)
        return made.reshape(self.shape)

    def reduction(self, kind: str, value: torch.Tensor) -> torch.Tensor:
        full = value.expand(self.shape)
        own = self.shape[: self.own]
        flat = full.reshape(*own, -1) if full.numel() else full.new_zeros((*own, 0))
        if flat.shape[-1] == 0:
            result = _identity(kind, value.dtype).expand(own)
        elif kind in ("sum", "prod"):
            result = getattr(torch, kind)(flat, -1, dtype=value.dtype)
        elif kind in ("max", "min"):
            result = getattr(torch, "a" + kind)(flat, -1)
        else:
            result = getattr(torch, kind)(flat, -1)
        return result.reshape(*own, *([1] * (len(self.shape) - self.own)))


def _identity(kind: str, dtype: torch.dtype) -> torch.Tensor:
    if kind in ("max", "min"):
        low = kind == "max"
        if dtype.is_floating_point:
            return torch.tensor(float("-inf") if low else float("inf"), dtype=dtype)
        info = torch.iinfo(dtype)
        return torch.tensor(info.min if low else info.max, dtype=dtype)
    return torch.tensor(1 if kind == "prod" else 0, dtype=torch.int64 if kind.startswith("arg") else dtype)


_NAMES = {"truediv": "true_divide", "floordiv": "floor_divide"}


def pointwise(op: str, args: Sequence[Any]) -> torch.Tensor:
    """One pointwise op of `lower.ops` on tensors."""
    if op == "truncdiv":
        return torch.div(args[0], args[1], rounding_mode="trunc")
    if op == "lshift":
        return args[0] << args[1]
    if op == "rshift":
        return args[0] >> args[1]
    function = getattr(torch, _NAMES.get(op, op), None)
    if function is None:
        raise InternalError(f"the reference interpreter does not know ops.{op}")
    return function(*args)


# --- memory


def _start(
    names: Sequence[str],
    symbols: Sequence[tuple[str, str, int]],
    buffers: Mapping[str, Buffer],
    constants: Mapping[str, torch.Tensor],
    inputs: Sequence[Any],
) -> tuple[Env, Memory]:
    env: Env = {name: value for name, value in zip(names, inputs) if not isinstance(value, torch.Tensor)}
    memory: Memory = {}
    for name, value in (*zip(names, inputs), *constants.items()):
        if isinstance(value, torch.Tensor) and name in buffers:
            memory[name] = _flat(value)
    given = dict(zip(names, inputs))
    for symbol, name, dim in symbols:
        if name:
            env[symbol] = given[name].shape[dim]
    return env, memory


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    count = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride())) if tensor.numel() else 0
    return torch.as_strided(tensor, (count,), (1,)).clone()


def _poisoned(buffer: Buffer, env: Env) -> torch.Tensor:
    count = 1
    for size in buffer.size:
        count *= int(evaluate(size, env))
    if buffer.dtype.is_floating_point or buffer.dtype.is_complex:
        return torch.full((count,), float("nan"), dtype=buffer.dtype, device=buffer.device)
    if buffer.dtype is torch.bool:
        return torch.ones(count, dtype=torch.bool, device=buffer.device)
    return torch.full((count,), torch.iinfo(buffer.dtype).max, dtype=buffer.dtype, device=buffer.device)


def _view(ref: TensorRef, env: Env, memory: Memory) -> torch.Tensor:
    size, stride = (tuple(int(evaluate(e, env)) for e in part) for part in (ref.size, ref.stride))
    base = memory[ref.buffer] if ref.dtype is None else memory[ref.buffer].view(ref.dtype)
    return torch.as_strided(base, size, stride, int(evaluate(ref.offset, env)))


def _argument(value: Any, env: Env, memory: Memory) -> Any:
    if isinstance(value, TensorRef):
        return _view(value, env, memory)
    if isinstance(value, Expr):
        return int(evaluate(value, env))
    if isinstance(value, (list, tuple)):
        return type(value)(_argument(item, env, memory) for item in value)
    if isinstance(value, dict):
        return {key: _argument(item, env, memory) for key, item in value.items()}
    return value


def _run_extern(node: ExternNode, env: Env, memory: Memory, buffers: Mapping[str, Buffer]) -> None:
    results = node.target(*_argument(node.args, env, memory), **_argument(node.kwargs, env, memory))
    results = results if isinstance(results, (tuple, list)) else (results,)
    for name, result in zip(node.outputs, results):
        if name is not None:
            memory[name] = _poisoned(buffers[name], env)
            whole = TensorRef(name, buffers[name].size, buffers[name].stride, ZERO)
            _view(whole, env, memory).copy_(result)


def _finish(program: Program | Schedule, env: Env, memory: Memory) -> list[Any]:
    return [_argument(output, env, memory) for output in program.outputs]
