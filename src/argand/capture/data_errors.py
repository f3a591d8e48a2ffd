"""Operations that raise because of the values they meet, inside code of the program that would notice.

The graph runs as a whole, before or after the instructions around it: an IndexError of an embedding inside it would not
reach the `try` in which the program wrote the call. Such an operation is no part of a graph: it runs where it stands.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
from typing import TYPE_CHECKING, Any

import torch

from argand import errors
from argand.capture.kinds import is_a
from argand.capture.words import words

if TYPE_CHECKING:
    from argand.bytecode.instruction import ExceptionHandler, Instruction
    from argand.capture.frames import Frame
    from argand.capture.tensors import GraphBuilder, TensorInfo

_RAISED: tuple[type[BaseException], ...] = (IndexError, RuntimeError)
_NEVER_RAISED = (NotImplementedError, RecursionError)

_ALWAYS = frozenset(
    words(
        """
    embedding embedding_bag embedding_renorm_ gather scatter scatter_ scatter_add scatter_add_ scatter_reduce
    scatter_reduce_ index_select index_add index_add_ index_copy index_copy_ index_fill index_fill_ index_reduce
    index_reduce_ index_put index_put_ _unsafe_index take take_along_dim put put_ cross_entropy nll_loss nll_loss_nd
    nll_loss2d gaussian_nll_loss one_hot multi_margin_loss multilabel_margin_loss ctc_loss adaptive_max_pool2d
    binary_cross_entropy bernoulli bernoulli_ multinomial poisson binomial normal histc histogram histogramdd
    bincount repeat_interleave max_unpool1d max_unpool2d max_unpool3d quantile nanquantile bucketize
    linalg_inv linalg_inv_ex linalg_cholesky linalg_cholesky_ex linalg_solve linalg_solve_ex linalg_eig linalg_eigh
    linalg_eigvals linalg_eigvalsh linalg_svd linalg_svdvals linalg_lstsq linalg_pinv linalg_matrix_rank linalg_cond
    linalg_norm linalg_matrix_norm linalg_lu_factor linalg_lu_factor_ex linalg_lu linalg_lu_solve linalg_tensorinv
    linalg_tensorsolve linalg_matrix_power linalg_matrix_exp linalg_ldl_factor linalg_ldl_factor_ex linalg_ldl_solve
    linalg_det linalg_slogdet linalg_householder_product
    inverse pinverse cholesky cholesky_inverse cholesky_solve lu lu_solve lu_unpack logdet slogdet svd svd_lowrank
    pca_lowrank lobpcg geqrf ormqr nuclear_norm matrix_power triangular_solve
    _assert_async _functional_assert_async _validate_sparse_coo_tensor_args complex polar
    fractional_max_pool2d fractional_max_pool3d pack_padded_sequence _pack_padded_sequence tensor_split
    """
    )
)
_INTEGERS = frozenset(
    words(
        """
    floor_divide floor_divide_ remainder remainder_ fmod fmod_ __floordiv__ __rfloordiv__ __ifloordiv__ __mod__
    __rmod__ __imod__ div div_ divide divide_ pow pow_ __pow__ __rpow__ __ipow__ float_power
    """
    )
)
_INDEXING = frozenset(("__getitem__", "__setitem__"))


@functools.lru_cache(maxsize=8192)
def _kind(func: Any) -> str:
    """ "always", "integers", "index", "foreign" or "" (only shapes and dtypes decide whether it raises)."""
    name = getattr(func, "__name__", "")
    if isinstance(func, torch._ops.OpOverload):
        name = func._schema.name.partition("::")[2]
        if func.namespace not in ("aten", "prims", "prim"):
            return "foreign"
    elif isinstance(func, torch._ops.OpOverloadPacket):
        name = func.__name__
        if not func._qualified_op_name.startswith(("aten::", "prims::", "prim::")):
            return "foreign"
    elif not str(getattr(func, "__module__", None) or "torch").startswith(("torch", "_operator")):
        return "foreign"
    if name in _ALWAYS or name.removeprefix("linalg_") in _ALWAYS or name.startswith("linalg_"):
        return "always"
    if name in _INDEXING:
        return "index"
    return "integers" if name in _INTEGERS else ""


def may_raise(func: Any, args: tuple[Any, ...], infos: list[TensorInfo]) -> bool:
    """Whether what the tensors hold can make this call raise."""
    kind = _kind(func)
    if kind == "index":
        fills = len(args) > 2 and not isinstance(args[2], torch.Tensor)
        return _holds_tensor(args[1], masks=not fills)
    if kind == "integers":
        return all(not (info.tensor.dtype.is_floating_point or info.tensor.dtype.is_complex) for info in infos)
    return bool(kind)


def _holds_tensor(key: Any, *, masks: bool) -> bool:
    """A tensor of positions, or (with `masks`) of truth values, whose number decides how many values are wanted."""
    if isinstance(key, torch.Tensor):
        return masks or key.dtype not in (torch.bool, torch.uint8)
    return isinstance(key, tuple | list) and any(_holds_tensor(item, masks=masks) for item in key)


def check(builder: GraphBuilder, func: Any, args: tuple[Any, ...], infos: list[TensorInfo]) -> None:
    """End the graph before a call that may raise because of values, where the program would notice.

    Raises:
        GraphBreak: the program's instructions stand in a `try` that could catch it, or in a `with` whose manager is
            told of it.
    """
    if not may_raise(func, args, infos):
        return
    for frame in getattr(builder.state.interpreter, "frames", None) or ():
        if _noticed(frame):
            name = getattr(func, "__name__", str(func))
            raise errors.graph_break(
                kind="operation that may raise inside a try block",
                context=name,
                explanation=f"Whether {name} raises depends on the values of its tensors, and the code around it "
                "handles exceptions: it runs where it stands instead of in the graph.",
                hints=("Move the call out of the try block (or the with block), or check the values before it.",),
            )  # fmt: skip


def _noticed(frame: Frame) -> bool:
    handler = frame.instruction.handler
    while handler is not None:
        if handler.target.opname == "PUSH_EXC_INFO" and _catches(frame, handler):
            return True
        handler = handler.target.handler
    return False


def _catches(frame: Frame, handler: ExceptionHandler) -> bool:
    instructions = frame.program.instructions
    at = frame.program.index[handler.target] + 1
    if instructions[at].opname == "WITH_EXCEPT_START":
        return _manager_is_told(frame, handler.depth)
    if instructions[at].opname != "POP_TOP" and _clause(frame, at)[0] is None:
        return False  # a `finally`: it undoes what the program did, and on an error nothing of that was done yet
    while True:
        classes, after = _clause(frame, at)
        if classes is None:
            return True
        if any(_may_match(cls) for cls in classes):
            return True
        following = after.target
        if following is None:
            return True
        if following.opname == "RERAISE":
            return False
        at = frame.program.index[following]


def _clause(frame: Frame, at: int) -> tuple[list[Any] | None, Instruction]:
    """The classes of the except clause that begins at `at` (None: not known) and the jump to the next one."""
    names: list[Any] = []
    instructions = frame.program.instructions
    while True:
        inst = instructions[at]
        at += 1
        if inst.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            name = inst.argval[0] if isinstance(inst.argval, tuple) else inst.argval
            names.append(frame.globals.get(name, vars(builtins).get(name)))
        elif inst.opname == "CHECK_EXC_MATCH":
            return names, instructions[at]
        elif inst.opname != "BUILD_TUPLE":
            return None, inst


def _may_match(cls: Any) -> bool:
    if not is_a(cls, type) or not issubclass(cls, BaseException):
        return True
    if issubclass(cls, _NEVER_RAISED):
        return False
    return any(issubclass(raised, cls) or issubclass(cls, raised) for raised in _RAISED)


def _manager_is_told(frame: Frame, depth: int) -> bool:
    """Whether a `with` is one of the program's own, or contextlib.suppress."""
    if depth < 1 or depth > len(frame.stack):
        return True
    leave = frame.stack[depth - 1]
    manager = getattr(leave, "__self__", None)
    cls = type(manager)
    if is_a(manager, contextlib._GeneratorContextManager):
        inner = getattr(manager.gen, "_frame", None)  # of a TracedGenerator: suspended at its yield
        return inner is not None and inner.instruction is not None and _noticed(inner)
    return cls is not contextlib.nullcontext and not cls.__module__.startswith(("torch", "argand"))
