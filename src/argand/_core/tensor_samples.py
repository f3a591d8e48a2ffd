"""Tensors from which `_C` learns how this build of torch lays a tensor out in memory (see tensor_layout.c).

Called by `_C` once, when the first tensor guard is made; torch is imported by then.
"""

from __future__ import annotations

from typing import Any


def raw_keys(tensor: Any) -> int:
    """The dispatch key set of a tensor as one integer."""
    import torch

    return int(torch._C._dispatch_keys(tensor).raw_repr())


def reference(dtype: Any, device: Any, inference: bool) -> Any:
    """An ordinary empty tensor of that dtype and device, made with every mode of torch out of the way."""
    import torch

    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), torch.inference_mode(inference):
        return torch.empty(0, dtype=dtype, device=device)


def samples() -> dict[str, list[tuple[Any, int]]]:
    """(tensor, raw dispatch keys) in groups.

    `shapes` of rank 0 to 8; `dtypes`, one each; `keys`, with different key sets; `plain` and `grad`, alike but for
    requires_grad; `result`, of recorded operations; `views`; `meta`, as the first of `plain` but on the meta device.
    """
    import torch

    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), torch.inference_mode(False):
        return {name: [(t, raw_keys(t)) for t in group] for name, group in _make(torch).items()}


def _make(torch: Any) -> dict[str, list[Any]]:
    cpu = torch.device("cpu")
    complex_ = torch.empty(2, 3, dtype=torch.complex64, device=cpu)
    with torch.inference_mode():
        inference = torch.empty(2, 3, device=cpu)
    shapes = [(), (7,), (2, 3), (3, 1, 2), (2, 1, 3, 5), (1, 2, 3, 4, 5), (1, 2, 3, 4, 5, 6), (2, 1, 2, 1, 2, 1, 3)]
    shapes.append((1,) * 8)
    dtypes = [
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
        torch.uint8, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
    ]  # fmt: skip
    grad = [torch.empty(2, 3, device=cpu, requires_grad=True) for _ in range(3)]
    with torch.enable_grad():
        result = [grad[0] * 2, grad[1].sum(), torch.empty(2, 3, device=cpu).add_(grad[2])]
        base = torch.zeros(4, 3, device=cpu)
        views = [torch.empty(4, 3, device=cpu)[1:], torch.empty(4, 3, device=cpu).t(), base[:2]]
        with torch.autograd.graph.saved_tensors_hooks(_same, _same):  # the program's own, if any, see nothing of this
            base.mul_(grad[0].sum())  # its views require grad from here on
    return {
        "shapes": [torch.empty(s, device=cpu) for s in shapes] + [torch.empty(5, 3, device=cpu).t()],
        "dtypes": [torch.empty(2, 3, dtype=dtype, device=cpu) for dtype in dtypes],
        "keys": [
            torch.empty(2, 3, device=cpu),
            complex_.conj(),
            complex_.conj().imag,
            inference,
            torch._efficientzerotensor(2, 3),
            torch.empty(2, 3, device="meta"),
        ],
        "plain": [torch.empty(2, 3, device=cpu) for _ in range(3)],
        "grad": [torch.empty(2, 3, device=cpu, requires_grad=True) for _ in range(3)],
        "result": result,
        "views": views,
        "meta": [torch.empty(2, 3, device="meta")],
    }


def _same(tensor: Any) -> Any:
    return tensor
