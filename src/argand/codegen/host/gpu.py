"""How a host module loads and launches Triton kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from argand.graph.sizes.expr import ONE, Expr, product
from argand.ir.kernel import KernelPlan
from argand.ir.loops import Buffer

if TYPE_CHECKING:
    from argand.codegen.triton.spec import KernelSpec, TritonSource

_LOADER = "from argand.runtime.gpu.kernels.load import load_triton_kernels"
_VARIANTS = "from argand.runtime.gpu.kernels.variants import TritonVariants"
_DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i1": torch.bool,
}


def imports(sources: Mapping[torch.device, TritonSource]) -> list[str]:
    """Lines that import what loads kernels."""
    specs = [spec for source in sources.values() for spec in source.specs.values()]
    return [_LOADER] * any(not spec.reach for spec in specs) + [_VARIANTS] * any(spec.reach for spec in specs)


def loading(sources: Mapping[torch.device, TritonSource], hints: Mapping[str, int]) -> list[str]:
    """Lines that compile the kernels of each device.

    Arguments:
        hints: likely values of size symbols.
    """
    lines = []
    for number, (device, source) in enumerate(sources.items()):
        end = f"_{number}" if number else ""
        lines += [f"triton_source{end} = r'''", source.text.strip("\n"), "'''", ""]
        fixed = {name: spec for name, spec in source.specs.items() if not spec.reach}
        if fixed:
            lines += ["# name: types of the arguments, constants, warps, stages, whether positions are checked"]
            lines += [f"triton_kernels{end} = {{"]
            lines += [f"    {name!r}: {_literal(spec)}," for name, spec in fixed.items()]
            lines += ["}"]
            call = f"load_triton_kernels(triton_source{end}, triton_kernels{end}, {str(device)!r})"
            lines += [f"[{', '.join(fixed)}] = {call}", ""]
        lines += _variants(source, end, str(device), hints)
    return lines


def _sizes(source: TritonSource) -> list[str]:
    """The sizes that kernels with variants take."""
    return list(dict.fromkeys(name for spec in source.specs.values() for _, name in spec.sizes))


def _variants(source: TritonSource, end: str, device: str, hints: Mapping[str, int]) -> list[str]:
    """Lines that make what chooses among the variants of kernels."""
    varying = {name: spec for name, spec in source.specs.items() if spec.reach}
    if not varying:
        return []
    sizes = _sizes(source)
    terms = dict.fromkeys(str(term) for spec in varying.values() for term in spec.reach)
    lines = [f"def triton_reach{end}({', '.join(sizes)}):", '    """No position in a kernel is greater than this."""']
    lines += [f"    return max(0, {', '.join(terms)})", "", ""]
    lines += ["# name: as above, of the variant for all sizes; which arguments are which of the sizes"]
    lines += [f"triton_varying{end} = {{"]
    for name, spec in varying.items():
        places = {place: sizes.index(symbol) for place, symbol in spec.sizes}
        lines.append(f"    {name!r}: ({_literal(spec)}, {places}),")
    likely = tuple(hints.get(name, 64) for name in sizes)
    args = f"triton_source{end}, triton_varying{end}, triton_reach{end}, {device!r}, {likely}"
    return [*lines, "}", f"triton_variants{end} = TritonVariants({args})", ""]


def choosing(sources: Mapping[torch.device, TritonSource]) -> list[str]:
    """Lines of a call that take the variants for its sizes."""
    lines = []
    for number, source in enumerate(sources.values()):
        names = [name for name, spec in source.specs.items() if spec.reach]
        if names:
            end = f"_{number}" if number else ""
            lines.append(f"[{', '.join(names)}] = triton_variants{end}({', '.join(_sizes(source))})")
    return lines


def _literal(spec: KernelSpec) -> str:
    return repr((tuple(spec.signature), tuple(spec.constants), spec.num_warps, spec.num_stages, spec.checks))


def launching(
    plan: KernelPlan, spec: KernelSpec, tensors: Sequence[str], ints: Sequence[str], empty: Callable[[Buffer], str]
) -> list[str]:
    """Lines that launch a kernel.

    Arguments:
        tensors, ints: the plan's arguments.
        empty: the expression that allocates a buffer.
    """
    points = product(size for _, size in plan.outer)
    lines, names = [], []
    for number, (kind, elements) in enumerate(spec.workspaces):
        size = elements * points
        names.append(f"workspace{number}")
        lines.append(f"{names[-1]} = {empty(Buffer(names[-1], dtype_of(kind), plan.device, (size,), (ONE,)))}")
    grid = [str(programs(extent, block)) for extent, block in zip(spec.points, spec.blocks, strict=True)]
    grid += ["1"] * (3 - len(grid))
    lines.append(f"{plan.name}({', '.join([*grid, *tensors, *names, *ints])})")
    return [*lines, f"del {', '.join(names)}"] if names else lines


def programs(points: Expr, block: int) -> Expr:
    """How many programs cover an axis."""
    return points if block == 1 else (points + (block - 1)) // block


def dtype_of(kind: str) -> torch.dtype:
    """The dtype of Triton's name of a type of elements."""
    return _DTYPES[kind.removeprefix("*")]


def current_device(sources: Mapping[torch.device, TritonSource]) -> torch.device | None:
    """The device that is to be current while the module runs; None where that does not matter."""
    numbered = [device for device in sources if device.index is not None]
    return numbered[0] if len(numbered) == 1 else None
