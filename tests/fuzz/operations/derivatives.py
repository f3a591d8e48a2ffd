"""Random compositions of differentiable functions, with first and second derivatives, against eager.

Functions over torch's breadth, several deep, with views and writes between, of inputs that are conjugated, negated, expanded,
transposed, strided, shared, empty, of one element, of real and complex dtypes, of which only some require gradients. Each
program is compiled once and called with other sizes and layouts. Compared are results, gradients, gradients of gradients, dtypes,
layouts, what is written, errors.

    python tests/fuzz/operations/derivatives.py --count 200 --backends native,aot_eager
"""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path
from typing import Any

import torch

import argand

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import seeds
import snapshots
from varying import loaded

# fmt: off
BOTH = (
    "{v} * {w}", "{v} + {w}", "{v} - 0.5 * {w}", "{v} / (2 + {w}.abs())", "{v}.sin()", "{v}.exp()", "{v}.tanh()", "{v} * {c}", "{c} - {v}", "{v} ** 2", "{v} ** 3", "{v}.square()", "{v}.sigmoid()", "{v}.sum({d}, keepdim=True) + {v}", "{v}.mean({d}, keepdim=True) * {w}", "{v}.t()", "{v} @ {v}.mT", "{v}.mT @ {w} @ {v}.mT",
    "{v}.cumsum({d})", "{v}.cumprod({d})", "{v}.flip({d})", "{v}.roll(1, {d})", "torch.cat([{v}, {w}], {d})", "torch.stack([{v}, {w}]).sum(0)", "torch.where(M, {v}, {w})", "torch.where(M, {v}, 0)", "{v}.masked_fill(M, {c})", "{v}.tril()", "{v}.triu(1) + {w}", "{v}.diagonal().diag_embed()", "{v}.reshape(-1)[:1] * {v}", "{v}[::2].repeat_interleave(2, 0)[:{v}.shape[0]]",
    "{v}.index_select(0, I)", "{v}.gather(0, I[:, None].expand_as({v}))", "{v}[I]", "{v}[:, [0, 0]]", "{v}.clone().index_add(0, I, {w})", "{v}.scatter_add(0, I[:, None].expand_as({w}).clone(), {w})", "{v}.index_put((I,), {w}, accumulate=True)", "{v}.take(I)", "torch.addmm({v} @ {v}.mT, {v}, {w}.mT, beta=0.5, alpha=2)", "torch.einsum('ij,kj->ik', {v}, {w})", "torch.outer({v}.reshape(-1), {w}.reshape(-1))",
    "{v}.unsqueeze(0).expand(2, -1, -1).sum(0)", "{v}.repeat(2, 1)", "{v}.abs()", "{v}.sgn() * {w}", "{v}.reciprocal()", "{v}.sqrt()", "torch.lerp({v}, {w}, 0.3)", "torch.addcmul({v}, {v}, {w}, value=0.5)", "{v}.var({d}, keepdim=True) + {w}", "torch.linalg.vector_norm({v}, 2, {d}, keepdim=True) * {v}", "torch.kron({v}, {v}[:1, :1])", "{v}.unfold(0, 1, 1).squeeze(-1)", "{v}.narrow(0, 0, {v}.shape[0] // 2)",
    "torch.tensordot({v}, {w}, ([1], [1]))", "{v}.rot90()", "{v}.diff(dim={d})", "torch.linalg.multi_dot([{v}, {v}.mT, {v}])", "torch.matmul({v}[None], {w}.mT)", "{v}.real", "{v}.conj()", "{v}.conj() * {v}", "-{v}.conj()", "{v}.prod({d}, keepdim=True) * {v}", "{v}.sum() * {v}", "{v}.mean(dtype=torch.complex128)", "{v}.movedim(0, 1)", "{v}.mH", "{v}.adjoint() @ {w}", "torch.block_diag({v}, {w})",
    "torch.linalg.solve({v} @ {v}.mH + 3 * torch.eye({v}.shape[0], dtype={v}.dtype), {v})", "torch.linalg.inv({v} @ {v}.mH + 3 * torch.eye({v}.shape[0], dtype={v}.dtype))", "torch.linalg.cholesky({v} @ {v}.mH + 3 * torch.eye({v}.shape[0], dtype={v}.dtype))", "torch.logcumsumexp({v}, {d})", "torch.trapezoid({v}, dim={d})", "torch.cov({v})", "{v}.expand(2, *{v}.shape)[1]", "{v}.broadcast_to(3, *{v}.shape).mean(0)", "{v}.to(torch.complex64)", "{v}.to(torch.complex128).abs()",
    "torch.nn.functional.pad({v}, (1, 0, 0, 1), value=0.5)", "torch.linalg.norm({v})", "{v}.trace() * {w}", "torch.linalg.matrix_power({v} @ {v}.mT, 2)", "{v}.float()", "{v}.ravel()", "{v}.unbind(0)[0]", "{v}.split(1, 0)[-1] * {w}", "{v}.chunk(2, -1)[0]", "{v}.hsplit(1)[0]", "torch.hstack([{v}, {w}])", "torch.column_stack([{v}, {w}])", "torch.meshgrid({v}[0], {w}[0], indexing='ij')[0]", "{v}.detach() * {w}", "{v}.view_as({v}).mul(2)", "{v}.fill_diagonal_({c}) if not {v}._is_view() and not {v}.is_leaf else {v}",
    "torch.linalg.cross({v}[:, [0, 0, 0]], {w}[:, [0, 0, 0]])", "torch.cartesian_prod({v}[0], {w}[0])", "torch.vander({v}[0], 3)", "torch.cross({v}[:, :1].expand(-1, 3), {w}[:, :1].repeat(1, 3), dim=1)", "torch.masked.sum({v}, 0, mask=M)", "{v}.masked_select(M)", "{v}[M]", "torch.baddbmm({v}[None], {v}[None], ({v}.mT @ {v})[None])", "torch.select_scatter({v}, {w}[0], 0, 0)", "torch.slice_scatter({v}, {w}[:1], 0, 0, 1)", "torch.diagonal_scatter({v}, {v}.diagonal() * 2)", "torch.as_strided_scatter({v}, {w}.reshape(-1)[:1], (1,), (1,))",
)
REAL = (
    "{v}.relu()", "F.gelu({v})", "F.gelu({v}, approximate='tanh')", "F.silu({v})", "F.softplus({v}, beta=2)", "F.elu({v}, 0.5)", "F.celu({v})", "F.selu({v})", "F.mish({v})", "F.hardtanh({v}, -0.3, 0.3)", "F.leaky_relu({v}, 0.1)", "F.logsigmoid({v})", "F.softsign({v})", "F.softshrink({v})", "F.hardshrink({v})", "F.hardswish({v})", "F.threshold({v}, 0.1, 0.3)", "F.softmax({v}, {d})", "F.log_softmax({v}, {d})", "F.softmin({v}, {d})", "F.normalize({v}, dim={d})", "F.glu(torch.cat([{v}, {w}], -1))",
    "F.layer_norm({v}, {v}.shape[-1:])", "F.layer_norm({v}, {v}.shape[-1:], {w}[0], {w}[0])", "F.rms_norm({v}, {v}.shape[-1:])", "F.batch_norm({v}, None, None, training=True)", "F.group_norm({v}[None], 1)[0]", "F.instance_norm({v}[None])", "F.linear({v}, {w})", "F.mse_loss({v}, {w})", "F.l1_loss({v}, {w}, reduction='none')", "F.smooth_l1_loss({v}, {w}, beta=0.3)", "F.huber_loss({v}, {w}, delta=0.3)", "F.kl_div({v}, {w}.softmax(-1), reduction='batchmean')", "F.cross_entropy({v}, I % {v}.shape[-1])", "F.cross_entropy({v}, {w}.softmax(-1), label_smoothing=0.1)", "F.nll_loss({v}, I % {v}.shape[-1], reduction='none')",
    "F.binary_cross_entropy_with_logits({v}, {w}.sigmoid(), reduction='none')", "F.binary_cross_entropy({v}.sigmoid(), {w}.sigmoid())", "F.cosine_similarity({v}, {w}, {d})", "F.pairwise_distance({v}, {w})", "torch.cdist({v}, {w})", "torch.cdist({v}, {w}, p=1)", "F.soft_margin_loss({v}, {w}.sign())", "F.margin_ranking_loss({v}, {w}, M * 2 - 1)", "F.hinge_embedding_loss({v}, (M * 2 - 1).to({v}.dtype))", "F.triplet_margin_loss({v}, {w}, {v} * 0.3)", "F.poisson_nll_loss({v}, {w})", "F.gaussian_nll_loss({v}, {w}, {v}.square() + 0.1)", "F.multilabel_margin_loss({v}, (I % {v}.shape[-1])[:, None].expand_as({v}))", "F.multi_margin_loss({v}, I % {v}.shape[-1])",
    "{v}.amax({d})", "{v}.amin({d}, keepdim=True) + {v}", "{v}.max({d})[0]", "{v}.min({d}, keepdim=True)[0] * {w}", "{v}.max()", "{v}.median({d})[0]", "{v}.sort({d})[0]", "{v}.sort({d}, descending=True)[0] * {w}", "{v}.topk(1, {d})[0]", "{v}.kthvalue(1, {d})[0]", "{v}.cummax({d})[0]", "{v}.cummin({d})[0]", "torch.maximum({v}, {w})", "torch.fmin({v}, {w})", "{v}.clamp(-0.5, 0.5)", "{v}.clamp(min={w})", "{v}.clip({w}, {w} + 1)", "{v}.logsumexp({d})", "{v}.std({d}, correction=0)", "{v}.var(correction=2)", "torch.var_mean({v}, {d})[0]", "torch.std_mean({v})[1] * {v}", "{v}.norm(1, {d})", "{v}.norm(float('inf'), {d})", "{v}.norm(3)", "{v}.norm(0.5, {d})", "torch.renorm({v}, 2, 0, 0.5)",
    "{v}.erf()", "{v}.expm1()", "{v}.abs().log1p()", "torch.atan2({v}, {w})", "torch.hypot({v}, {w})", "torch.logaddexp({v}, {w})", "torch.logaddexp2({v}, {w})", "torch.xlogy({v}, {w}.abs() + 0.1)", "{v}.fmod({c})", "{v}.remainder({c})", "torch.remainder({v}, {w})", "{v}.frac()", "{v}.round()", "{v}.sign()", "torch.copysign({v}, {w})", "{v}.lgamma()", "{v}.digamma()", "torch.special.i0({v})", "torch.special.i1e({v})", "torch.special.ndtr({v})", "torch.special.log_ndtr({v})", "torch.special.erfcx({v})", "torch.special.entr({v}.abs())", "torch.sinc({v})", "torch.special.xlog1py({v}, {w}.abs())", "{v}.asinh()", "{v}.abs().pow({w})", "torch.pow({c}, {v})", "{v}.nan_to_num()", "torch.ldexp({v}, I[:, None])", "{v}.deg2rad()", "torch.heaviside({v}, {w})", "torch.polygamma(1, {v}.abs() + 1)", "{v}.logit(0.1)",
    "F.conv1d({v}[None], {w}[:, :1, None].expand(-1, {v}.shape[0], 1))", "F.conv1d({v}[:, None], {w}[:1, :1, None], padding=1)", "F.max_pool1d({v}[None], 2, 1)", "F.avg_pool1d({v}[None], 2, 1, 1, count_include_pad=False)", "F.adaptive_avg_pool1d({v}, 2)", "F.adaptive_max_pool1d({v}, 2)", "F.lp_pool1d({v}[None], 2, 2, 1)", "F.interpolate({v}[None], scale_factor=2, mode='linear')", "F.interpolate({v}[None, None], size=(3, 3), mode='bilinear', align_corners=True)", "F.interpolate({v}[None, None], scale_factor=1.5, mode='bicubic')", "F.pad({v}[None], (1, 1), mode='reflect')", "F.pad({v}[None], (1, 1), mode='replicate')", "F.pad({v}[None], (1, 0), mode='circular')", "F.unfold({v}[None, None], (2, 2), padding=1)", "F.embedding(I, {v})", "F.embedding_bag(I[None], {v}, mode='mean')", "F.embedding_bag(I[None], {v}, mode='max')",
    "F.scaled_dot_product_attention({v}[None], {w}[None], {v}[None])", "F.scaled_dot_product_attention({v}[None, None], {v}[None, None], {w}[None, None], is_causal=True)", "F.pixel_shuffle({v}[None, None].expand(1, 4, -1, -1), 2)", "F.grid_sample({v}[None, None], torch.stack([{w}, {w}], -1)[None].tanh(), align_corners=False)", "F.prelu({v}, {w}[0, :1])", "F.bilinear({v}, {w}, {v}[None, :1].expand(2, {v}.shape[1], {w}.shape[1]) if False else {v}.new_ones(2, {v}.shape[1], {w}.shape[1]))", "F.local_response_norm({v}[None, None], 2)", "torch.quantile({v}, 0.3, dim={d})", "torch.nanmean({v}, {d})", "torch.nansum({v})", "{v}.nanmedian()", "torch.aminmax({v})[0] * {v}", "torch.segment_reduce({v}, 'sum', lengths=torch.tensor([{v}.shape[0]]))", "{v}.index_reduce(0, I, {w}, 'prod')", "{v}.scatter_reduce(0, I[:, None].expand_as({w}), {w}, 'amax')", "{v}.scatter_reduce(0, I[:, None].expand_as({w}), {w}, 'mean', include_self=False)", "{v}.scatter_reduce(0, I[:, None].expand_as({w}), {w}, 'prod')",
    "torch.linalg.svdvals({v})", "torch.linalg.eigvalsh({v} @ {v}.mT)", "torch.linalg.qr({v} @ {v}.mT + torch.eye({v}.shape[0], dtype={v}.dtype))[1]", "torch.linalg.det({v} @ {v}.mT + torch.eye({v}.shape[0], dtype={v}.dtype))", "torch.logdet({v} @ {v}.mT + torch.eye({v}.shape[0], dtype={v}.dtype))", "torch.linalg.matrix_exp({v} @ {v}.mT)", "torch.linalg.pinv({v})", "torch.view_as_complex(torch.stack([{v}, {w}], -1))", "torch.complex({v}, {w})", "torch.polar({v}, {w})", "torch.fft.rfft({v})", "torch.fft.fft({v}, dim={d})", "torch.fft.ihfft({v})", "torch.fft.rfft2({v}, norm='ortho')", "torch.fft.fftshift({v})", "torch.stft({v}.reshape(-1).repeat(8)[:8], 4, return_complex=True, window=torch.ones(4, dtype={v}.dtype))", "{v}.to(torch.float64)", "{v}.to(torch.bfloat16)", "torch.asarray({v})", "torch.gradient({v}, dim=0)[0]", "torch.histc({v}.detach(), 3) * {v}.sum()", "torch.bucketize({v}.detach(), {v}.detach()[0].sort()[0]) * {w}", "torch.cummax({v}, 0).indices * {v}", "{v}.argsort(0) * {w}", "({v} > {w}) * {v}", "{v} * I[:, None]", "{v} // 1 * {w}", "{v}.type_as(I[:0].to({v}.dtype))", "{v}.histc(3) if False else {v}",
)
COMPLEX = ("torch.view_as_real({v}).sum(-1)", "{v}.imag", "{v}.angle()", "{v}.abs().square()", "{v}.imag * {w}", "torch.polar({v}.abs(), {v}.angle())", "torch.fft.ifft({v})", "torch.fft.irfft({v})", "torch.fft.hfft({v}, 4)", "{v}.conj().imag", "-{v}.conj().imag", "{v}.conj_physical()", "{v}.resolve_conj() * {w}", "{v}.conj().mT @ {v}", "{v}.log()", "{v}.real * {v}.imag", "torch.linalg.eigvalsh({v} @ {v}.mH)", "{v}.pow({w})", "torch.vdot({v}.reshape(-1), {v}.reshape(-1))", "{v} * 1j", "{v} + 2j", "{v}.sinh()", "{v}.tan()", "{v}.conj().t().real", "torch.linalg.svdvals({v})", "{v}.sgn()", "{v}.mul(2j).conj()[0] * {v}", "torch.view_as_real({v}.resolve_conj())[..., 0]", "torch.real({v}) - torch.imag({v})")
WRITES = (
    "{m}.mul_(2)", "{m}.add_({w})", "{m}[0] = {w}[0]", "{m}[:1].mul_({c})", "{m}.sin_()", "{m}.t().mul_(0.5)", "{m}.diagonal().fill_({c})", "{m}.masked_fill_(M, {c})", "{m}[M] = {c}", "{m}[I] = {w}", "{m}.index_add_(0, I, {w})", "{m}[..., 0] += {w}[..., 0]", "{m}.copy_({w})", "{m}.zero_()", "{m}.exp_().neg_()", "{m}.detach().add_(1)", "{m}.clamp_(max=0.5)", "{m}.scatter_(0, I[:, None].expand_as({m}), {w})", "{m}.view(-1)[::2].mul_(3)", "{m}.real.mul_(2)", "{m}.index_fill_(0, I[:1], {c})", "{m}.cumsum_(0)", "{m}.addcmul_({w}, {w})", "{m}.lerp_({w}, 0.5)", "{m}.index_copy_(0, I[:1], {w}[:1])", "{m}.put_(I[:1], {w}.reshape(-1)[:1])", "{m}.unsqueeze(0).squeeze(0).sub_({w})", "torch.sin({w}.detach(), out={m}.detach())", "{m} *= {w}", "{m}.select(1, 0).sigmoid_()", "{m}.tril_()", "{m}.swapaxes_(0, 1)", "{m}.unsqueeze_(0); {m}.squeeze_(0)", "{m}.conj().mul_({c})", "{m}.fill_({w}.sum())", "{m}.where(M, {m}).add_(1)", "{m}.transpose_(0, 1).transpose_(0, 1)",
)
# fmt: on


def program(seed: int) -> str:
    rng = random.Random(seed)
    table = BOTH + (COMPLEX * 4 if seed % 4 == 3 else REAL)
    names, lines = ["x", "y"], []

    def filled(template: str, target: str = "") -> str:
        return template.format(
            v=rng.choice(names[-2:] if rng.random() < 0.7 else names), w=rng.choice(names if rng.random() < 0.5 else ["x", "y"]), m=target,
            c=rng.choice(("2", "0.5", "-1.5", "k", "k / 4", "1")), d=rng.choice(("0", "1", "-1", "-1", "0")),
        )  # fmt: skip

    for at in range(rng.randint(2, 6)):
        way = rng.random()
        names.append(f"v{at}")
        if way < 0.2:
            lines += [f"v{at} = {rng.choice(names[:-1])}.clone()", *(filled(rng.choice(WRITES), f"v{at}") for _ in range(rng.randint(1, 2)))]  # fmt: skip
        else:
            lines.append(f"v{at} = {filled(rng.choice(table))}")
            if way < 0.3:
                lines.append(filled(rng.choice(WRITES), f"v{at}"))
        if rng.random() < 0.1:
            lines.append(filled(rng.choice(WRITES), rng.choice(("x", "y"))))
    text = ["def f(x, y, M, I, k):", "    out = []"]
    for line in lines:
        text += ["    try:", f"        {line}"]
        if re.match(r"v\d+ = ", line):
            text += [f"        out.append({line.split(' ', 1)[0]})"]
        text += ["    except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError) as error:", "        out.append(type(error).__name__)"]  # fmt: skip
        if re.match(r"v\d+ = ", line):
            text += [f"        {line.split(' ', 1)[0]} = y * 1"]
    return "\n".join([*text, "    return out"]) + "\n"


def arguments(seed: int, kind: int) -> tuple[list[Any], list[torch.Tensor]]:
    """What a program is called with, and the leaves of it."""
    rng = random.Random(seed)
    n, m, k = rng.choice((3, 3, 4, 2, 5, 1, 0)), rng.choice((3, 3, 4, 2, 1)), rng.choice((2, 3, 1, 0))
    g = torch.Generator().manual_seed(seed)
    dtype = (torch.float64, torch.float64, torch.float32, torch.complex128)[kind % 4]
    leaves, values = [], []
    for at in range(2):
        way = rng.choice(
            ("plain", "plain", "plain", "t", "strided", "expanded", "conj", "neg", "shared", "cut", "product")
        )
        shape = {"t": (m, n), "strided": (n, 2 * m), "expanded": (1, m), "cut": (n + 1, m)}.get(way, (n, m))
        leaf = torch.randn(shape, generator=g, dtype=dtype).requires_grad_(rng.random() < (0.9 if at == 0 else 0.5))
        value = leaf
        if way == "t":
            value = leaf.t()
        elif way == "strided":
            value = leaf[:, ::2]
        elif way == "expanded":
            value = leaf.expand(n, m)
        elif way == "cut":
            value = leaf[1:]
        elif way == "conj" and dtype.is_complex:
            value = leaf.conj()
        elif way == "neg":
            value = torch._neg_view(leaf)
        elif way == "product":
            value = leaf * 1
        elif way == "shared" and values:
            leaf, value = leaves[0], values[0]
        leaves.append(leaf)
        values.append(value)
    mask, index = torch.rand(n, m, generator=g) > 0.5, torch.randint(0, max(n, 1), (n,), generator=g)
    return [*values, mask, index, k], leaves


def seen(fn: Any, seed: int, kind: int) -> Any:
    values, leaves = arguments(seed, kind)
    rng = random.Random(seed)
    try:
        results = fn(*values)
    except Exception as error:
        return ["raised", type(error).__name__, [v.detach().clone() for v in values[:4]]]
    tensors = [r for r in results if isinstance(r, torch.Tensor)]
    told: list[Any] = [[r if isinstance(r, str) else what(r) for r in results], [what(v) for v in values[:2]]]
    wanted = [leaf for leaf in dict.fromkeys(leaves) if leaf.requires_grad]
    sources = [t for t in tensors if t.requires_grad]
    if not wanted or not sources:
        return told
    sources = rng.sample(sources, max(1, len(sources) // 2)) if rng.random() < 0.5 else sources[-1:]
    try:
        loss = sum((s.abs() if s.is_complex() else s).double().mul(0.7 + i).sin().sum() for i, s in enumerate(sources))
        grads = torch.autograd.grad(loss, wanted, allow_unused=True, create_graph=seed % 2 == 0)
        told.append([g if g is None else what(g, laid_out=False) for g in grads])
        again = [g for g in grads if g is not None and g.requires_grad and g.numel()]
        if again:
            loss = sum((g.abs() if g.is_complex() else g).cos().sum() for g in again)
            again = torch.autograd.grad(loss, wanted, allow_unused=True)
            told.append([g if g is None else what(g, laid_out=False) for g in again])
    except Exception as error:
        told.append(["raised", type(error).__name__, str(error)[-200:]])
    return told


def what(t: torch.Tensor, laid_out: bool = True) -> Any:
    stride = tuple(s for n, s in zip(t.shape, t.stride()) if n > 1) if t.numel() and laid_out else ()
    return [
        str(t.dtype),
        tuple(t.shape),
        stride,
        t.requires_grad,
        t.is_conj(),
        t.is_neg(),
        t.detach().resolve_conj().resolve_neg().clone(),
    ]


def difference(text: str, seed: int, backend: str) -> str | None:
    """How the compiled program differs in calls with other sizes and layouts."""
    eager, fn = loaded(text), argand.compile(loaded(text), backend=backend, dynamic=(None, True, None)[seed % 3])
    with seeds.calls():
        for call in range(4):
            drawn = 1000 * seed + call
            want, got = seen(eager, drawn, seed), seen(fn, drawn, seed)
            if "does not compute it apart" in str(got[-1]):
                continue  # gradients of several results of which one is computed from another: refused in words
            how = snapshots.differing(want, got, tolerance=3e-4 if "bfloat16" not in text else 2e-2)
            if how is not None:
                values, leaves = arguments(drawn, seed)
                return f"call {call} {[(tuple(v.shape), v.stride(), v.dtype, v.requires_grad, v.is_conj(), v.is_neg()) for v in values[:2]]}, k={values[4]}: {how[:700]}"
    return None


def main() -> int:
    return seeds.run_programs(seeds.parser(__doc__, 200, "native").parse_args(), program, difference)


if __name__ == "__main__":
    sys.exit(main())
