"""The loop program: what lowering makes, the scheduler fuses and code generation prints.

A `Program` is a list of nodes over named buffers. A `LoopNode` is one loop nest, recorded as straight-line SSA
(`LoopBody`); an `ExternNode` calls an ATen kernel. Index arithmetic is `graph.sizes.expr.Expr` throughout.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

import torch

from argand.graph.sizes.expr import Expr, Var
from argand.graph.trees import leaves
from argand.quick_dataclasses import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a statement came from, printed as a comment beside the generated code."""

    fx_node: str  # name of the ATen FX node
    fx_code: str  # that node as one line of code
    user_line: str = ""  # "file.py:12 in forward: x = a + b"
    caller: str = ""  # the program's own line, when `user_line` is in a module of torch

    @property
    def comment(self) -> str:
        """The node and the lines that it came from, in one line that may stand in a triple-quoted text."""
        lines = (self.fx_code or self.fx_node, self.user_line, self.caller)
        return "  <- ".join(" ".join(line.splitlines()) for line in lines if line).replace("'''", "' ' '")


@dataclass(frozen=True, slots=True)
class Buffer:
    """A contiguous piece of memory with a default (dense) layout."""

    name: str
    dtype: torch.dtype
    device: torch.device
    size: tuple[Expr, ...]
    stride: tuple[Expr, ...]  # of the allocation; may be a dense permutation (channels_last)
    kind: str = "temp"  # "temp" | "input" | "constant"


_PARTS: Final = {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
}


def element_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of what a kernel reads and writes in a buffer: of complex numbers, their parts, one after the other; of
    floats of eight bits, these."""
    return _PARTS.get(dtype, dtype)


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A (possibly strided) view of a buffer, as handed to ATen kernels and returned to the caller."""

    buffer: str
    size: tuple[Expr, ...]
    stride: tuple[Expr, ...]
    offset: Expr
    dtype: torch.dtype | None = None  # set when it views the buffer's bytes as another dtype


@dataclass(slots=True, eq=False)
class Value:
    """The result of one statement of a loop body."""

    id: int
    op: str
    args: tuple[Any, ...]  # Value | Expr | str | number | torch.dtype | LoopBlock, as the op's documentation says
    dtype: torch.dtype
    origin: Origin | None = None


@dataclass(slots=True, eq=False)
class LoopBlock:
    """A straight-line list of statements with one result: the body of a `masked` op."""

    statements: list[Value]
    result: Value


@dataclass(slots=True, eq=False)
class LoopBody:
    """One loop nest: `for vars: (for reduction_vars:) statements`.

    `statements` is in execution order. Statements after the reductions (those that depend only on a reduction's
    result and `vars`) run once per point of `vars`: their `args` reach the `reduction` Value. Kinds of statement are
    documented in `lower.ops`.
    """

    vars: tuple[Var, ...]  # pointwise iteration variables, outermost first
    sizes: tuple[Expr, ...]
    reduction_vars: tuple[Var, ...]
    reduction_sizes: tuple[Expr, ...]
    statements: list[Value]


@dataclass(slots=True, eq=False)
class LoopNode:
    """A loop nest that writes `outputs`.

    The first node that writes a buffer names it in `outputs`; nodes that write more of it (the parts of a cat) or add
    to it name it in `mutates`, and come after. A buffer that any node mutates is complete only after the last of them.
    """

    name: str
    body: LoopBody
    outputs: tuple[str, ...]  # buffers stored by the body
    origins: tuple[Origin, ...] = ()
    mutates: tuple[str, ...] = ()  # existing buffers that it updates in place (scatter): a write dependency


@dataclass(slots=True, eq=False)
class ExternNode:
    """A call of an ATen kernel (or another callable) on tensors.

    `args`/`kwargs` are nested lists/tuples/dicts of TensorRef, Expr (a size), and plain constants. `outputs` names one
    buffer per tensor result, None where a result is not a tensor or not used. A result's buffer has the strides that
    the meta kernel promised: the host must compare them with what the kernel returned, and copy when they differ.
    `out_variant`: when set, a callable name (e.g. "torch.mm") that takes `out=` and writes into the preallocated first
    output. `reason` says why the op has no lowering; it is emitted as a "fallback" event.
    """

    name: str
    target: Callable[..., Any]  # OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[str | None, ...]
    out_variant: str | None = None
    mutates: tuple[str, ...] = ()
    reason: str = ""
    origins: tuple[Origin, ...] = ()


Node = LoopNode | ExternNode


@dataclass(slots=True, eq=False)
class Program:
    """Everything that code generation needs for one graph."""

    inputs: list[str]  # buffer names in call order; size symbols (ints) are Sym names
    input_symbols: list[tuple[str, str, int]]  # (symbol, input buffer or "", dim): where each size symbol is read from
    buffers: dict[str, Buffer]
    constants: dict[str, torch.Tensor]
    nodes: list[Node]
    outputs: list[TensorRef | Expr | int | float | bool | None]
    mutations: list[tuple[str, TensorRef]] = field(default_factory=list)  # input := value, after all nodes have run
    hints: dict[str, int] = field(default_factory=dict)  # likely values of size symbols
    floats: frozenset[str] = frozenset()  # symbols that are doubles; in index expressions they stand for its bits
    graph: Any = None  # under config.check_numerics: the ATen graph that was lowered
    values: dict[str, TensorRef] = field(default_factory=dict)  # and where the results of its nodes are, by name
    # outputs that leave a run together before its end, in order, and the inputs that may be written to from then on
    arrivals: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()


CHECKS = ("indirect", "divisor")  # operations that raise for some values, even if nobody reads their results


def checks_values(statements: Sequence[Value]) -> bool:
    """Whether the loops raise where a tensor holds a position that is out of bounds, or a divisor that is 0: they run
    even if nobody reads what they write."""
    return any(statement.op in CHECKS for statement in with_nested(statements))


def expressions(statement: Value) -> Iterable[Expr]:
    """Index expressions of one statement, those inside `masked` blocks included."""
    for arg in statement.args:
        if isinstance(arg, Expr):
            yield arg
        elif isinstance(arg, LoopBlock):
            for inner in arg.statements:
                yield from expressions(inner)


def statements_of(body: LoopBody) -> Sequence[Value]:
    """All statements, those inside `masked` blocks included, in execution order."""
    return with_nested(body.statements)


def with_nested(statements: Sequence[Value]) -> Sequence[Value]:
    """Statements and those inside of their `masked` blocks, in execution order."""
    for statement in statements:
        if statement.op == "masked":
            break
    else:
        return statements
    nested: list[Value] = []

    def visit(statements: Sequence[Value]) -> None:
        for statement in statements:
            for arg in statement.args:
                if isinstance(arg, LoopBlock):
                    visit(arg.statements)
            nested.append(statement)

    visit(statements)
    return nested


def identity(kind: str, dtype: torch.dtype) -> int | float | bool:
    """What a reduction of kind "sum", "prod", "max", "min" or "any" starts from."""
    if kind == "any":
        return False
    if kind in ("sum", "prod"):
        return float(kind == "prod") if dtype.is_floating_point else int(kind == "prod")
    if dtype.is_floating_point:
        return float("-inf") if kind == "max" else float("inf")
    info = torch.iinfo(dtype)
    return info.min if kind == "max" else info.max


def tensor_refs(args: Any) -> list[TensorRef]:
    """Every TensorRef inside nested arguments."""
    return [leaf for leaf in leaves(args) if isinstance(leaf, TensorRef)]


def aliases_arguments(node: ExternNode) -> bool:
    """Whether the operator may return memory of its arguments."""
    return _returns_aliases(node.target)


@functools.lru_cache(maxsize=1 << 10)
def _returns_aliases(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    return schema is None or any(result.alias_info is not None for result in schema.returns)
