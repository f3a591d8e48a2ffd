"""Compares what `graph.metadata.metas` says of the results of ATen ops on a GPU with what eager's kernels return there.

python tests/autograd/gpu_layouts.py
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from argand.graph.metadata.metas import Many, infer
from argand.graph.metadata.specs import Spec, SpecTable

aten = torch.ops.aten
GPU = torch.device("cuda", 0)


def t(*size: int, dtype: torch.dtype = torch.float32, last: bool = False) -> torch.Tensor:
    made = torch.rand(size, device=GPU).to(dtype)
    return made.to(memory_format=torch.channels_last) if last else made


def calls() -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for dtype in (torch.float32, torch.bfloat16):
        p = t(8, dtype=dtype)
        wide = t(8)
        for last in (False, True):
            x = t(2, 8, 10, 10, dtype=dtype, last=last)
            for weight_last in (False, True):
                w = t(8, 8, 3, 3, dtype=dtype, last=weight_last)
                for groups, transposed in ((1, False), (8, False), (1, True)):
                    one = w[:, : 8 // groups] if groups > 1 else w
                    args = (x, one, p, [1, 1], [1, 1], [1, 1], transposed, [0, 0], groups)
                    found.append((aten.convolution.default, *args))
                    grad = aten.convolution.default(*args)
                    rest = ([1, 1], [1, 1], [1, 1], transposed, [0, 0], groups, [True, True, True])
                    found.append((aten.convolution_backward.default, grad, x, one, [8], *rest))
                    found.append((aten.convolution_backward.default, grad.contiguous(), x, one, [8], *rest))
            for given in (p, wide):
                found.append((aten.native_batch_norm.default, x, given, given, wide, wide, True, 0.1, 1e-5))
                found.append((aten.native_batch_norm.default, x, given, given, wide, wide, False, 0.1, 1e-5))
                found.append(
                    (aten._native_batch_norm_legit_functional.default, x, given, given, wide, wide, True, 0.1, 1e-5)
                )
                found.append(
                    (aten._native_batch_norm_legit_no_training.default, x, given, given, wide, wide, 0.1, 1e-5)
                )
                try:
                    _, mean, scale = aten.native_batch_norm.default(x, given, given, wide, wide, True, 0.1, 1e-5)
                    saved = (given, wide, wide, mean, scale, True, 1e-5, [True, True, True])
                    found.append((aten.native_batch_norm_backward.default, x, x, *saved))
                except RuntimeError:  # these dtypes do not go together
                    continue
            found.append((aten.native_group_norm.default, x, p, p, 2, 8, 100, 2, 1e-5))
            found.append((aten.max_pool2d_with_indices.default, x, [2, 2], [2, 2]))
            found.append((aten.avg_pool2d.default, x, [2, 2], [2, 2]))
            found.append((aten._adaptive_avg_pool2d.default, x, [3, 3]))
            found.append((aten.upsample_nearest2d.vec, x, None, [2.0, 2.0]))
            found.append((aten.upsample_bilinear2d.vec, x, None, False, [2.0, 2.0]))
            for op in (aten.reflection_pad2d, aten.replication_pad2d):
                found.append((op.default, x, [1, 1, 1, 1]))
            found += [(aten.constant_pad_nd.default, x, [1, 1]), (aten.pixel_shuffle.default, x, 2)]
            found += [(aten.sort.default, x), (aten.topk.default, x, 2), (aten.roll.default, x, [1], [2])]
            found += [
                (aten.log_sigmoid_forward.default, x),
                (aten.cumsum.default, x, 1),
                (aten.native_dropout.default, x, 0.5, True),
            ]
            found += [
                (op.default, x, x.contiguous()) for op in (aten.gelu_backward, aten.silu_backward, aten.tanh_backward)
            ]
            found += [
                (aten.threshold_backward.default, x, x.contiguous(), 0),
                (aten.clone.default, x),
                (aten._softmax.default, x, 1, False),
            ]
            found += [
                (aten.cat.default, [x, x.contiguous()], 1),
                (aten.add.Tensor, x, x.contiguous()),
                (aten.mean.dim, x, [2, 3]),
            ]
        y = t(4, 6, 8, dtype=dtype)
        for given in (p, wide):
            found.append((aten.native_layer_norm.default, y, [8], given, given, 1e-5))
            try:
                _, mean, scale = aten.native_layer_norm.default(y, [8], given, given, 1e-5)
                found.append(
                    (aten.native_layer_norm_backward.default, y, y, [8], mean, scale, given, given, [True, True, True])
                )
            except RuntimeError:
                pass
        z = y.transpose(0, 1)
        found += [
            (aten.bmm.default, y, y.transpose(1, 2)),
            (aten.bmm.default, z, z.transpose(1, 2)),
            (aten.sort.default, z),
            (aten.var_mean.correction, z, [2]),
        ]
        found += [
            (aten.mm.default, y[0], y[1].t()),
            (aten.addmm.default, t(6, dtype=dtype), y[0], y[1].t()),
            (aten.native_layer_norm.default, z, [8], p, p, 1e-5),
        ]
        q = t(2, 4, 64, 32, dtype=dtype)
        for heads in (q, q.transpose(1, 2).contiguous().transpose(1, 2)):
            found.append((aten._scaled_dot_product_efficient_attention.default, heads, heads, heads, None, True))
            if dtype is torch.bfloat16:
                found.append((aten._scaled_dot_product_flash_attention.default, heads, heads, heads))
        index = torch.randint(0, 4, (3, 5), device=GPU)
        found += [
            (aten.embedding.default, t(9, 8, dtype=dtype), index),
            (aten.index.Tensor, z, [index]),
            (aten.gather.default, t(4, 6), 1, index[:, :4]),
        ]
    return found


def main() -> None:
    wrong: dict[str, int] = {}
    cases = calls()
    for func, *args in cases:
        table = SpecTable()
        try:
            real = func(*args)
        except (RuntimeError, NotImplementedError) as error:
            print(f"{func}: eager refuses: {str(error).splitlines()[0][:90]}")
            continue
        try:
            said = infer(table, func, tuple(_spec(table, arg) for arg in args), {})
        except Exception as error:
            text = f"{func}: {type(error).__name__}: {str(error).splitlines()[0][:90]}"
            wrong[text] = wrong.get(text, 0) + 1
            continue
        items = said.items if isinstance(said, Many) else (said,)
        for number, (one, two) in enumerate(zip(items, real if isinstance(real, (tuple, list)) else (real,))):
            if isinstance(two, torch.Tensor) and not _same(one, two):
                first = next((a for a in args if isinstance(a, torch.Tensor)), None)
                given = "" if first is None else f" of {tuple(first.shape)} {first.stride()} {first.dtype}"
                text = f"{func} result {number}{given}: said {_text(one)}, is {_text(two)}"
                wrong[text] = wrong.get(text, 0) + 1
    print(f"{len(cases)} calls, {len(wrong)} differ")
    for text, count in sorted(wrong.items()):
        print(count, text)


def _spec(table: SpecTable, arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        return table.of_meta(torch.empty_strided(arg.shape, arg.stride(), dtype=arg.dtype, device="meta"), arg.device)
    return [_spec(table, item) for item in arg] if isinstance(arg, list) else arg


def _same(one: Any, two: torch.Tensor) -> bool:
    if not isinstance(one, Spec) or tuple(one.size) != tuple(two.shape) or one.dtype is not two.dtype:
        return False
    return two.numel() == 0 or all(n == 1 or a == b for n, a, b in zip(two.shape, one.stride, two.stride()))


def _text(one: Any) -> str:
    if isinstance(one, Spec):
        return f"{tuple(one.size)} {tuple(one.stride)} {one.dtype}"
    return f"{tuple(one.shape)} {one.stride()} {one.dtype}" if isinstance(one, torch.Tensor) else str(one)


if __name__ == "__main__":
    sys.exit(main())
