"""Runs a loop program slowly but exactly: what the generated kernels must compute, said with torch operations.

Each loop body is evaluated once over its whole iteration space, with index tensors; buffers are flat tensors. Also
checks what kernels rely on: dtypes of statements, indices in bounds, layouts of what ATen kernels return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from argand.errors import InternalError
from argand.graph.nodes.devices import made_on
from argand.graph.sizes.expr import Expr, evaluate
from argand.ir.loops import ExternNode, LoopBlock, LoopBody, LoopNode, Program, TensorRef, Value
from argand.lower.ops import replay

BINARY_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "truediv": torch.true_divide,
    "floordiv": torch.floor_divide,
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "pow": torch.pow,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "atan2": torch.atan2,
    "copysign": torch.copysign,
    "lshift": torch.bitwise_left_shift,
    "rshift": torch.bitwise_right_shift,
    **{name: getattr(torch, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{
        f"{kind}_{op}": getattr(torch, f"{kind}_{op}") for kind in ("logical", "bitwise") for op in ("and", "or", "xor")
    },
}
REDUCTION_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "sum": lambda x: x.sum(-1, dtype=x.dtype),
    "prod": lambda x: x.prod(-1, dtype=x.dtype),
    "max": lambda x: x.amax(-1),
    "min": lambda x: x.amin(-1),
    "any": lambda x: x.any(-1),
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(-1),
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
    return Interpreter(program, args).run()


class Interpreter:
    """One run of a program; `flat` holds each buffer's memory as a 1-d tensor."""

    def __init__(self, program: Program, args: Sequence[Any]) -> None:
        self.program = program
        self.args = dict(zip(program.inputs, args))
        self.sizes: dict[str, int] = {}
        for name, buffer, dim in program.input_symbols:
            self.sizes[name] = self.args[buffer].shape[dim] if buffer else self.args[name]
        self.flat: dict[str, torch.Tensor] = {}
        self.relaid: list[str] = []  # ATen kernels whose results did not have the promised strides
        for name, value in (*self.args.items(), *program.constants.items()):
            if isinstance(value, torch.Tensor):
                self.flat[name] = flatten(value)

    def run(self) -> list[Any]:
        for node in self.program.nodes:
            if isinstance(node, LoopNode):
                for name in node.outputs:
                    self._allocate(name)
                with made_on(self.program.buffers[(*node.outputs, *node.mutates)[0]].device):
                    BodyRun(self, node.body).run()
            else:
                self._extern(node)
        outputs = [self._result(ref) for ref in self.program.outputs]
        for name, ref in self.program.mutations:
            self.args[name].copy_(self.tensor(ref))
        return outputs

    def size(self, expr: Expr) -> int:
        return int(evaluate(expr, self.sizes))

    def _allocate(self, name: str) -> None:
        buffer = self.program.buffers[name]
        count = 1
        for extent in buffer.size:
            count *= self.size(extent)
        memory = torch.empty(count, dtype=buffer.dtype, device=buffer.device)
        if buffer.dtype.is_floating_point:
            memory.fill_(float("nan"))  # what is never written must not look right by chance
        else:
            memory.fill_(1)
        self.flat[name] = memory

    def tensor(self, ref: TensorRef) -> torch.Tensor:
        """The strided view that a TensorRef stands for."""
        memory = self.flat[ref.buffer]
        size, stride = [self.size(e) for e in ref.size], [self.size(e) for e in ref.stride]
        start = memory.storage_offset() + self.size(ref.offset)
        made = torch.as_strided(memory, size, stride, start)
        return made if ref.dtype is None else made.view(ref.dtype)

    def _result(self, ref: Any) -> Any:
        if isinstance(ref, TensorRef):
            return self.tensor(ref)
        return self.size(ref) if isinstance(ref, Expr) else ref

    def _argument(self, arg: Any) -> Any:
        if isinstance(arg, (TensorRef, Expr)):
            return self._result(arg)
        if isinstance(arg, (list, tuple)):
            return [self._argument(item) for item in arg]
        return arg

    def _extern(self, node: ExternNode) -> None:
        args = [self._argument(arg) for arg in node.args]
        kwargs = {name: self._argument(arg) for name, arg in node.kwargs.items()}
        found = node.target(*args, **kwargs)
        results = list(found) if isinstance(found, (tuple, list)) else [found]
        if len(results) == 1 and isinstance(results[0], (tuple, list)):
            results = list(results[0])
        results = [part for item in results for part in (item if isinstance(item, (tuple, list)) else [item])]
        for name, result in zip(node.outputs, results):
            if name is None or not isinstance(result, torch.Tensor):
                continue
            buffer = self.program.buffers[name]
            size = tuple(self.size(e) for e in buffer.size)
            stride = tuple(self.size(e) for e in buffer.stride)
            if result.dtype is buffer.dtype and result.shape == size and not same_layout(result, stride):
                result = torch.empty_strided(size, stride, dtype=result.dtype, device=result.device).copy_(result)
                self.relaid.append(str(node.target))
            if result.dtype is not buffer.dtype or result.shape != size:
                raise InternalError(
                    f"{node.target} returned {result.dtype} {tuple(result.shape)} {result.stride()}, "
                    f"the program says {buffer.dtype} {size} {stride}"
                )
            self.flat[name] = flatten(result)


def same_layout(tensor: torch.Tensor, stride: Sequence[int]) -> bool:
    """Whether the strides agree wherever they matter."""
    if tensor.numel() == 0:
        return True
    return all(size == 1 or a == b for size, a, b in zip(tensor.shape, tensor.stride(), stride))


def flatten(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor from its first element to the end of its storage, as a 1-d tensor."""
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    total = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    return torch.as_strided(tensor.detach(), (max(total, 0),), (1,), tensor.storage_offset())


class BodyRun:
    """One evaluation of a loop body. Values have one dimension per variable, and one for all reduction variables."""

    def __init__(self, parent: Interpreter, body: LoopBody) -> None:
        self.parent = parent
        self.body = body
        self.sizes = [parent.size(e) for e in body.sizes]
        self.reduction_sizes = [parent.size(e) for e in body.reduction_sizes]
        self.env: dict[str, Any] = dict(parent.sizes)
        # after a reduction, values have size one in the last dimension
        self.space = [*self.sizes, *self.reduction_sizes]
        variables = (*body.vars, *body.reduction_vars)
        for place, var in enumerate(variables):
            shape = [1] * len(variables)
            shape[place] = self.space[place]
            self.env[var.name] = torch.arange(self.space[place]).view(shape)
        self.masks: list[torch.Tensor] = []
        self.results: dict[int, Any] = {}  # by statement id: blocks see the values outside them

    def run(self) -> None:
        replay(self.body.statements, self.handle, self.results)

    def handle(self, statement: Value, args: tuple[Any, ...]) -> Any:
        method = getattr(self, f"op_{statement.op}", None)
        if method is not None:
            result = method(statement, *args)
        elif statement.op in BINARY_FUNCTIONS:
            result = BINARY_FUNCTIONS[statement.op](*args)
        else:
            result = getattr(torch, statement.op)(*args)
        if statement.op != "store" and result.dtype is not statement.dtype:
            raise InternalError(f"{statement.op} made {result.dtype}, recorded as {statement.dtype}")
        return result

    def index(self, expr: Expr) -> torch.Tensor:
        found = evaluate(expr, self.env)
        return found if isinstance(found, torch.Tensor) else torch.tensor(found)

    def op_load(self, statement: Value, buffer: str, index: Expr) -> torch.Tensor:
        memory = self.parent.flat[buffer]
        position = self.index(index)
        if self.masks:
            position = torch.where(self.masks[-1], position, 0)
        used = position if all(self.space) else position.new_empty(0)
        if self.masks and not bool(self.masks[-1].any()):
            shape = torch.broadcast_shapes(position.shape, self.masks[-1].shape)
            return torch.zeros(shape, dtype=memory.dtype)
        if used.numel() and (int(used.min()) < 0 or int(used.max()) >= memory.numel()):
            raise InternalError(f"load of {buffer}[{index}] out of bounds")
        if position.numel() == 0 or memory.numel() == 0:
            return torch.zeros(position.shape, dtype=memory.dtype)
        return memory[position]

    def op_store(self, statement: Value, buffer: str, index: Expr, value: torch.Tensor, mode: str | None) -> None:
        memory = self.parent.flat[buffer]
        space = [*self.sizes, *([1] * len(self.reduction_sizes) if self.has_reduction else self.reduction_sizes)]
        position = self.index(index).expand(space).reshape(-1)
        flat = value.expand(space).reshape(-1)
        if value.dtype is not memory.dtype:
            raise InternalError(f"{buffer} is {memory.dtype}, a store writes {value.dtype}")
        if mode == "add":
            memory.index_put_((position,), flat, accumulate=True)
        elif position.numel():
            if int(position.min()) < 0 or int(position.max()) >= memory.numel():
                raise InternalError(f"store to {buffer}[{index}] out of bounds")
            memory[position] = flat

    @property
    def has_reduction(self) -> bool:
        return bool(self.body.reduction_vars)

    def op_constant(self, statement: Value, value: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(value, dtype=dtype)

    def op_index_expr(self, statement: Value, expr: Expr, dtype: torch.dtype) -> torch.Tensor:
        return self.index(expr).to(dtype)

    def op_indirect(self, statement: Value, value: torch.Tensor, size: Expr, wrap: bool) -> torch.Tensor:
        extent = self.parent.size(size)
        inside = (value >= (-extent if wrap else 0)) & (value < extent)
        if self.masks:
            inside = inside | ~self.masks[-1]
        if not bool(inside.all()) and all(self.space):
            raise IndexError(f"index out of range in a dimension of size {extent}")
        position = torch.where(inside, torch.where(value < 0, value + extent, value), 0)
        self.env[f"i{statement.id}"] = position
        return position

    def op_to_dtype(self, statement: Value, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return value.to(dtype)

    def op_bitcast(self, statement: Value, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return value.contiguous().view(dtype)

    def op_masked(self, statement: Value, mask: torch.Tensor, block: LoopBlock, other: Any) -> torch.Tensor:
        outer = self.masks[-1] if self.masks else torch.tensor(True)
        self.masks.append(outer & mask)
        inner = replay(block.statements, self.handle, self.results)
        self.masks.pop()
        value = inner[block.result.id]
        return torch.where(mask, value, torch.tensor(other, dtype=value.dtype))

    def op_where(self, statement: Value, mask: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.where(mask, a, b)

    def op_fma(self, statement: Value, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return (a.double() * b.double() + c.double()).to(statement.dtype)

    def op_signbit(self, statement: Value, value: torch.Tensor) -> torch.Tensor:
        return torch.signbit(value)

    def op_reduction(self, statement: Value, kind: str, value: torch.Tensor) -> torch.Tensor:
        outer = len(self.sizes)
        flat = value.expand(self.space).reshape([*self.sizes, -1] if all(self.space) else self._empty_shape())
        if flat.shape[-1] == 0 and kind in ("max", "min", "argmax", "argmin"):
            made = torch.zeros(self.sizes, dtype=statement.dtype)
        else:
            made = REDUCTION_FUNCTIONS[kind](flat)
        return made.reshape([*self.sizes, *[1] * (len(self.space) - outer)])

    def op_scan(self, statement: Value, kind: str, value: torch.Tensor) -> torch.Tensor:
        flat = value.expand(self.space).reshape([*self.sizes, -1] if all(self.space) else self._empty_shape())
        made: torch.Tensor = getattr(torch, f"cum{kind}")(flat, -1, dtype=value.dtype)
        return made.reshape(self.space)

    def _empty_shape(self) -> list[int]:
        count = 1
        for extent in self.reduction_sizes:
            count *= extent
        return [*self.sizes, count]
