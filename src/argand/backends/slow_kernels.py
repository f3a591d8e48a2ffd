"""Which kernel of a compiled graph loses most time against the operations of eager that it does the work of."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from argand.config import config
from argand.graph import profiler_compat

_KERNEL = re.compile(r"graph_\d+_cpp_fused_(?P<operations>.+)_\d+$")


def slowest(compiled: Callable[[], object], eager: Callable[[], object]) -> str:
    """Words on the kernel to blame.

    Arguments:
        compiled, eager: run the graph once.
    """
    with config.patch({"cpp.enable_kernel_profile": True}):
        return to_blame(_profiled(compiled), _profiled(eager))


def to_blame(compiled: Mapping[str, float], eager: Mapping[str, float]) -> str:
    """Words on the kernel that loses most.

    Arguments:
        compiled, eager: microseconds of each kernel and operation.
    """
    lost = {name: taken - _before(name, eager) for name, taken in compiled.items()}
    if not lost:
        return "the time is not in its kernels"
    name = max(lost, key=lambda each: lost[each])
    return f"{name} loses most ({compiled[name] / 1e3:.3g} ms; in eager {_before(name, eager) / 1e3:.3g} ms)"


def _before(name: str, eager: Mapping[str, float]) -> float:
    """Microseconds of the operations of eager that a kernel is named after, or of the call of ATen's that it is."""
    kernel = _KERNEL.match(name)
    if kernel is None:
        return eager.get(name, 0.0)
    text = f"_{kernel['operations']}_"
    return sum(taken for each, taken in eager.items() if f"_{each.removeprefix('aten::').strip('_')}_" in text)


def _profiled(call: Callable[[], object]) -> dict[str, float]:
    return {name: taken for name, taken in profiler_compat.operation_times(call).items() if _is_work(name)}


def _is_work(name: str) -> bool:
    return name.startswith(("aten::", "mkldnn::", "argand::")) or _KERNEL.match(name) is not None
