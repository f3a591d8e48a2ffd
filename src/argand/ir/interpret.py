"""Runs loop programs slowly but exactly: what generated kernels must compute, said with torch operations.

A loop body is evaluated once over its whole iteration space, with index tensors; buffers are flat tensors, and memory
that was not written holds NaN (or a large integer). Also checks what kernels rely on: dtypes of statements, indices in
bounds, layouts of what ATen kernels return. `schedule.reference` runs fused kernels with it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from argand.errors import InternalError
from argand.graph.nodes.devices import made_on
from argand.graph.sizes.expr import Expr, evaluate
from argand.graph.trees import leaves
from argand.ir.kernel import Schedule
from argand.ir.loops import (
    Buffer,
    ExternNode,
    LoopBlock,
    LoopBody,
    LoopNode,
    Program,
    TensorRef,
    Value,
    element_dtype,
    identity,
)

Env = dict[str, Any]
Memory = dict[str, torch.Tensor]

# Pointwise ops that torch has under another name than the loop program.
_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "trigamma": functools.partial(torch.polygamma, 1),
    "truediv": torch.true_divide,
    "floordiv": torch.floor_divide,
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "lshift": torch.bitwise_left_shift,
    "rshift": torch.bitwise_right_shift,
}


def interpret(program: Program, args: Sequence[Any]) -> list[Any]:
    """Run `program`.

    Arguments:
        args: a tensor (or integer) for each of `program.inputs`. Mutated inputs are updated.

    Returns:
        a value for each of `program.outputs`.

    Raises:
        IndexError: an index tensor holds a position out of range, as in eager.
        InternalError: the program is not what it must be.
    """
    run = Run(program, args)
    for node in program.nodes:
        if isinstance(node, LoopNode):
            for name in node.outputs:
                run.allocate(name)
            with made_on(program.buffers[(*node.outputs, *node.mutates)[0]].device):
                run_body(node.body, run.env, run.memory)
        else:
            run.call(node)
    outputs = run.outputs()
    for name, ref in program.mutations:
        run.args[name].copy_(run.value(ref))
    return outputs


class Run:
    """One run of a program: what its memory holds.

    Arguments:
        copied: the inputs keep their values, whatever writes to them.

    Attributes:
        env: values of size symbols.
        memory: each buffer's elements, as a 1-d tensor.
    """

    def __init__(self, program: Program | Schedule, args: Sequence[Any], *, copied: bool = False) -> None:
        self.program = program
        self.args = dict(zip(program.inputs, args))
        self.env: Env = {name: value for name, value in self.args.items() if not isinstance(value, torch.Tensor)}
        self.env.update((symbol, self.args[name].shape[dim]) for symbol, name, dim in program.input_symbols if name)
        self.memory: Memory = {}
        for name, value in (*self.args.items(), *program.constants.items()):
            if isinstance(value, torch.Tensor):
                self.memory[name] = flatten(value).clone() if copied else flatten(value)

    def allocate(self, name: str) -> None:
        """A buffer that nothing wrote to yet."""
        if name not in self.memory:
            self.memory[name] = unwritten(self.program.buffers[name], self.env)

    def outputs(self) -> list[Any]:
        return [self.value(ref) for ref in self.program.outputs]

    def value(self, arg: Any) -> Any:
        """What an argument of an ATen kernel, or an output, stands for."""
        if isinstance(arg, TensorRef):
            return view(arg, self.env, self.memory)
        if isinstance(arg, Expr):
            return int(evaluate(arg, self.env))
        if isinstance(arg, (list, tuple)):
            return type(arg)(self.value(item) for item in arg)
        return {key: self.value(item) for key, item in arg.items()} if isinstance(arg, dict) else arg

    def call(self, node: ExternNode) -> None:
        """An ATen kernel; its results are laid out as the program says."""
        results = leaves(node.target(*self.value(node.args), **self.value(node.kwargs)))
        for name, result in zip(node.outputs, results):
            if name is None or not isinstance(result, torch.Tensor):
                continue
            buffer = self.program.buffers[name]
            size, stride = sizes(buffer.size, self.env), sizes(buffer.stride, self.env)
            if result.dtype is not buffer.dtype or result.shape != size:
                raise InternalError(
                    f"{node.target} returned {result.dtype} {tuple(result.shape)} {result.stride()}, "
                    f"the program says {buffer.dtype} {size} {stride}"
                )
            if not same_layout(result, stride):
                result = torch.empty_strided(size, stride, dtype=result.dtype, device=result.device).copy_(result)
            self.memory[name] = flatten(result)


def sizes(exprs: Sequence[Expr], env: Env) -> tuple[int, ...]:
    """Values of expressions over size symbols."""
    return tuple(int(evaluate(expr, env)) for expr in exprs)


def view(ref: TensorRef, env: Env, memory: Memory) -> torch.Tensor:
    """The strided view that a TensorRef stands for."""
    flat = memory[ref.buffer] if ref.dtype is None else memory[ref.buffer].view(ref.dtype)
    start = flat.storage_offset() + int(evaluate(ref.offset, env))
    return torch.as_strided(flat, sizes(ref.size, env), sizes(ref.stride, env), start)


def unwritten(buffer: Buffer, env: Env) -> torch.Tensor:
    """Memory for a buffer, of values that do not look right by chance."""
    count = 1
    for size in sizes(buffer.size, env):
        count *= size
    value: float
    if buffer.dtype.is_floating_point or buffer.dtype.is_complex:
        value = float("nan")
    else:
        value = True if buffer.dtype is torch.bool else torch.iinfo(buffer.dtype).max
    return torch.full((count,), value, dtype=buffer.dtype, device=buffer.device)


def flatten(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor from its first element to the end of its storage, as a 1-d tensor."""
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    total = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    return torch.as_strided(tensor.detach(), (max(total, 0),), (1,), tensor.storage_offset())


def same_layout(tensor: torch.Tensor, stride: Sequence[int]) -> bool:
    """Whether the strides agree wherever they matter."""
    if tensor.numel() == 0:
        return True
    return all(size == 1 or a == b for size, a, b in zip(tensor.shape, tensor.stride(), stride))


def run_body(body: LoopBody, env: Env, memory: Memory, *, fixed: int = 0) -> None:
    """One loop nest.

    Arguments:
        fixed: so many of its first variables have their value in `env`.
    """
    nest = _Nest(body, env, memory, fixed)
    if all(nest.own):
        nest.run(body.statements)


class _Nest:
    """One evaluation of a loop body. Values have one dimension per variable; after a reduction, the reduction
    variables' have size one."""

    def __init__(self, body: LoopBody, env: Env, memory: Memory, fixed: int) -> None:
        self.memory = memory
        self.own = sizes(body.sizes[fixed:], env)
        self.space = (*self.own, *sizes(body.reduction_sizes, env))
        self.env = dict(env)
        for axis, var in enumerate((*body.vars[fixed:], *body.reduction_vars)):
            shape = [1] * len(self.space)
            shape[axis] = self.space[axis]
            self.env[var.name] = torch.arange(self.space[axis]).view(shape)
        self.masks: list[torch.Tensor] = []
        self.results: dict[int, torch.Tensor] = {}  # by statement id: blocks see the values outside them

    def run(self, statements: Sequence[Value]) -> None:
        for statement in statements:
            args = [self.results[arg.id] if isinstance(arg, Value) else arg for arg in statement.args]
            self.results[statement.id] = self._statement(statement, args)

    def _statement(self, statement: Value, args: Sequence[Any]) -> torch.Tensor:
        method = getattr(self, f"op_{statement.op}", None)
        if method is not None:
            result = method(statement, *args)
        else:
            function = _FUNCTIONS.get(statement.op) or getattr(
                torch, statement.op, getattr(torch.special, statement.op, None)
            )
            if function is None:
                raise InternalError(f"the interpreter does not know ops.{statement.op}")
            result = function(*args)
        if result.dtype is not statement.dtype:
            raise InternalError(f"{statement.op} made {result.dtype}, recorded as {statement.dtype}")
        return result

    def index(self, expr: Expr) -> torch.Tensor:
        return torch.as_tensor(evaluate(expr, self.env), dtype=torch.int64)

    def _check(self, position: torch.Tensor, memory: torch.Tensor, access: str) -> None:
        """Raise if an access that the loops make is out of bounds; loops over nothing make none."""
        if all(self.space) and position.numel():
            if int(position.min()) < 0 or int(position.max()) >= memory.numel():
                raise InternalError(f"{access} out of bounds")

    def _elements(self, buffer: str) -> torch.Tensor:
        """What loops see of a buffer: of complex numbers, their parts."""
        memory = self.memory[buffer]
        return memory.view(element_dtype(memory.dtype))

    def op_load(self, statement: Value, buffer: str, index: Expr) -> torch.Tensor:
        memory, position = self._elements(buffer), self.index(index)
        if self.masks:
            position = torch.where(self.masks[-1], position, 0)
            if not bool(self.masks[-1].any()):
                return torch.zeros(position.shape, dtype=memory.dtype)
        self._check(position, memory, f"load of {buffer}[{index}]")
        if memory.numel() == 0:
            return torch.zeros(position.shape, dtype=memory.dtype)
        return memory[position]

    def op_store(
        self, statement: Value, buffer: str, index: Expr, value: torch.Tensor, mode: str | None
    ) -> torch.Tensor:
        memory = self._elements(buffer)
        if value.dtype is not memory.dtype:
            raise InternalError(f"{buffer} is {memory.dtype}, a store writes {value.dtype}")
        position, each = torch.broadcast_tensors(self.index(index), value)
        points = torch.broadcast_shapes(position.shape, (*self.own, *[1] * (len(self.space) - len(self.own))))
        position, each = position.expand(points).reshape(-1), each.expand(points).reshape(-1)
        self._check(position, memory, f"store to {buffer}[{index}]")
        if mode == "add":
            memory.index_put_((position,), each, accumulate=True)
        elif mode is not None:
            memory.scatter_reduce_(0, position, each, {"mul": "prod", "max": "amax", "min": "amin"}[mode])
        elif position.numel():
            memory[position] = each
        return value

    def op_constant(self, statement: Value, value: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(value, dtype=dtype)

    def op_index_expr(self, statement: Value, expr: Expr, dtype: torch.dtype) -> torch.Tensor:
        return self.index(expr).to(dtype)

    def op_indirect(self, statement: Value, value: torch.Tensor, size: Expr, wrap: bool) -> torch.Tensor:
        extent = int(evaluate(size, self.env))
        inside = (value >= (-extent if wrap else 0)) & (value < extent)
        if self.masks:
            inside = inside | ~self.masks[-1]
        if not bool(inside.all()) and all(self.space):
            raise IndexError(f"index out of range in a dimension of size {extent}")
        position = torch.where(inside, torch.where(value < 0, value + extent, value), 0)
        self.env[f"i{statement.id}"] = position
        return position

    def op_divisor(self, statement: Value, value: torch.Tensor) -> torch.Tensor:
        zero = value == 0
        if self.masks:
            zero = zero & self.masks[-1]
        if bool(zero.any()) and all(self.space):
            raise RuntimeError("ZeroDivisionError")
        return torch.where(value == 0, 1, value)

    def op_to_dtype(self, statement: Value, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return value.to(dtype)

    def op_bitcast(self, statement: Value, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return value.contiguous().view(dtype)

    def op_masked(self, statement: Value, mask: torch.Tensor, block: LoopBlock, other: Any) -> torch.Tensor:
        self.masks.append(self.masks[-1] & mask if self.masks else mask)
        self.run(block.statements)
        self.masks.pop()
        value = self.results[block.result.id]
        rest = other if isinstance(other, torch.Tensor) else torch.tensor(other, dtype=value.dtype)
        return torch.where(mask, value, rest)

    def op_fma(self, statement: Value, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return (a.double() * b.double() + c.double()).to(statement.dtype)

    def _rows(self, value: torch.Tensor) -> torch.Tensor:
        """A row of values for every point of the own loops: those at the points of the reduction loops."""
        count = 1
        for extent in self.space[len(self.own) :]:
            count *= extent
        return value.expand(self.space).reshape(*self.own, count)

    def op_reduction(self, statement: Value, kind: str, value: torch.Tensor) -> torch.Tensor:
        rows = self._rows(value)
        if rows.shape[-1] == 0:
            start = 0 if kind.startswith("arg") else identity(kind, value.dtype)
            result = torch.full(self.own, start, dtype=statement.dtype)
        elif kind in ("sum", "prod"):
            result = getattr(torch, kind)(rows, -1, dtype=value.dtype)
        else:
            result = getattr(torch, {"max": "amax", "min": "amin"}.get(kind, kind))(rows, -1)
        return result.reshape(*self.own, *[1] * (len(self.space) - len(self.own)))

    def op_scan(self, statement: Value, kind: str, value: torch.Tensor) -> torch.Tensor:
        rows = self._rows(value)
        if kind == "logaddexp":
            return torch.logcumsumexp(rows, -1).reshape(self.space)
        if kind in ("max", "min"):
            return getattr(torch, f"cum{kind}")(rows, -1)[0].reshape(self.space)
        sums: torch.Tensor = getattr(torch, f"cum{kind}")(rows, -1, dtype=value.dtype)
        return sums.reshape(self.space)
