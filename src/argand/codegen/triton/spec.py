"""What the Triton code generator hands to the host module and to the runtime, besides the source text."""

from __future__ import annotations

from collections.abc import Mapping

from argand.graph.sizes.expr import Expr
from argand.quick_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """How one Triton function is compiled and launched.

    A launch takes the grid, then the kernel's tensors (`plan.inputs`, `plan.outputs`, workspaces), then its integers
    (`plan.symbols`): the order of the function's arguments that are no constants.

    Arguments:
        name: of the function in the source text.
        signature: Triton's type of each argument that is no constant: "*fp32", "*bf16", "*i1", "i32", "i64".
        constants: the `tl.constexpr` arguments, which come last, and their values: (("XBLOCK", 128), ...).
        num_warps, num_stages: of the launch.
        points: how many points each of the up to three axes of the grid has to cover; for the host's text.
        blocks: points of one program along each axis: the grid is the quotients, rounded up.
        workspaces: row buffers in memory: (Triton's type, elements of one outer point); the host allocates them for
            all outer points. Their number is the number of pointers behind the plan's own.
        checks: the kernel has assertions on positions, which must be compiled in.
        sizes: of a kernel with variants: the arguments that are sizes: (place in the signature, symbol).
        reach: of such a kernel: none of its positions is greater than the greatest of these. The signature and the
            constants are those of the variant for any size, with positions of 64 bits.
    """

    name: str
    signature: tuple[str, ...]
    constants: tuple[tuple[str, int], ...]
    num_warps: int
    num_stages: int
    points: tuple[Expr, ...]
    blocks: tuple[int, ...]
    workspaces: tuple[tuple[str, Expr], ...] = ()
    checks: bool = False
    sizes: tuple[tuple[int, str], ...] = ()
    reach: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class TritonSource:
    """The kernels of one graph.

    Arguments:
        text: a Python module: imports, helpers and one `@triton.jit` function a kernel. It imports no torch.
        specs: by kernel name.
    """

    text: str
    specs: Mapping[str, KernelSpec]
