"""flex_attention through its Triton kernels, interpreted on CPU tensors, compared with eager and with autograd.

TRITON_INTERPRET=1 python tests/runtime/gpu/flex_programs.py
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS), str(TESTS / "capture" / "torch_functions" / "higher_order")]

import test_flex_attention as programs  # noqa: E402
import torch  # noqa: E402
from torch.nn.attention.flex_attention import AuxRequest, flex_attention  # noqa: E402

import argand  # noqa: E402
import flex_layouts  # noqa: E402
from argand.backends import native  # noqa: E402
from helpers import collected  # noqa: E402
from sweeps import WHOLE  # noqa: E402

P = programs


def tensors(heads: int, keys: int, length: int, others: int, width: int = 16, values: int = 16) -> list[torch.Tensor]:
    sizes = ((1, heads, length, width), (1, keys, others, width), (1, keys, others, values))
    return [torch.randn(size) for size in sizes]


def attention(*args: Any, **kwargs: Any) -> Any:
    return lambda q, k, v: flex_attention(q, k, v, *args, **kwargs)


def cases() -> dict[str, tuple[Any, list[torch.Tensor]]]:
    """Programs, with masks that are made outside of them."""
    causal, wide = P.block_mask(P.causal, 70, 70, BLOCK_SIZE=32), P.block_mask(near, 70, 70, BLOCK_SIZE=(16, 64))
    never, other = P.block_mask(P.never), P.block_mask(P.causal, 48, 33)
    apart = P.block_mask(P.by_batch, B=2, H=4)
    two = [tensor.expand(2, -1, -1, -1).contiguous() for tensor in tensors(4, 4, 48, 48)]
    spread = [tensor.transpose(1, 2) for tensor in tensors(20, 20, 2, 2)]
    return {
        "two tiles, groups": (attention(P.soft_cap, causal, enable_gqa=True), tensors(4, 2, 70, 70, 32)),
        "blocks that are not square": (attention(P.alibi, wide), tensors(2, 2, 70, 70)),
        "rows that see nothing": (attention(None, never, return_aux=AuxRequest(lse=True)), tensors(2, 2, 48, 48)),
        "a bias, -inf": (attention(P.biased, scale=0.7), tensors(2, 2, 48, 48, 16, 32)),
        "positions as numbers": (attention(P.mixed, other), tensors(2, 2, 48, 33)),
        "lists for each head": (attention(None, apart), two),
        "bfloat16": (attention(P.alibi), [tensor.bfloat16() for tensor in tensors(2, 2, 33, 33)]),
        "other layouts": (lambda q, k, v: flex_attention(q.sin(), k, v).cos(), spread),
        "no kernel: a reduction": (attention(P.summed), tensors(2, 2, 48, 48)),
        "no kernel: the type": (attention(), [tensor.double() for tensor in tensors(2, 2, 33, 33)]),
    }


def near(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q - k).abs() < 20


def graph_of(fn: Any, given: list[torch.Tensor]) -> tuple[Any, list[Any]]:
    """What is captured, and its inputs."""
    kept: list[Any] = []

    def keep(gm: Any, inputs: Any) -> Any:
        kept.append((gm, list(inputs)))
        return gm.forward

    argand.reset()
    argand.compile(fn, backend=keep, fullgraph=True)(*given)
    found: tuple[Any, list[Any]] = kept[-1]
    return found


def finite(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.nan_to_num(0, 0, 0)


def gradients(call: Any, inputs: list[torch.Tensor], wanted: list[bool]) -> list[Any]:
    results = [t for t in call(*inputs) if isinstance(t, torch.Tensor) and t.requires_grad]
    generator = torch.Generator().manual_seed(0)
    loss = sum((finite(t) * torch.randn(t.shape, generator=generator)).sum() for t in results)
    return list(torch.autograd.grad(loss, [tensor for tensor, want in zip(inputs, wanted) if want]))


def check(name: str, fn: Any, given: list[torch.Tensor], kernel: bool) -> None:
    close = {"rtol": 2e-2, "atol": 3e-2} if given[0].dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    with collected("aot_inference_graph") as graphs:
        got = argand.compile(fn, fullgraph=True)(*given)
    assert ("argand.flex_attention" in graphs[-1].text()) is kernel, name
    torch.testing.assert_close(got, fn(*given), equal_nan=True, **close)
    gm, inputs = graph_of(fn, given)
    wanted = [any(one is tensor for tensor in given) for one in inputs]
    fresh = [one.detach().clone().requires_grad_() if want else one for one, want in zip(inputs, wanted)]
    want = gradients(gm.forward, fresh, wanted)
    with collected("aot_joint_graph") as graphs:
        got = gradients(native.native(gm, fresh), fresh, wanted)
    assert ("argand.flex_attention_backward" in graphs[-1].text()) is kernel, name
    torch.testing.assert_close(got, want, **close)


def main() -> None:
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    made = cases()
    if not WHOLE:
        made = dict(list(made.items())[::2])
    argand.config.triton.on_cpu = True
    for name, (fn, given) in made.items():
        check(name, fn, given, not name.startswith("no kernel"))
    flex_layouts.torchs._validate_device = flex_layouts.nothing
    for seed in range(16 if WHOLE else 3):
        flex_layouts.compare(flex_layouts.given(seed, (16, 32)), True, "native")
    print(f"{len(made)} programs agree")


if __name__ == "__main__":
    main()
