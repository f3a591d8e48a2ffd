"""Random programs over tensors that share memory, of many dtypes, with writes, views, grad modes and errors, against eager.

    python tests/fuzz/memory.py [--count 200] [--seed 0] [--backends aot_eager,native] [--lines 8] [--breaks] [--dynamic] [--no-reduce]

A program is made line by line while it runs eagerly, so that most lines are valid; some that raise stay, in a `try` that notes the error. Arguments
are one tensor twice, views of one memory, leaves that require gradients. Compared are results and arguments (values, dtypes, sizes, strides, what
autograd says of them), versions of arguments, which tensors share memory or are one object, errors, gradients, over three calls with other values.
"""

from __future__ import annotations

import contextlib
import io
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import seeds
import torch

import argand

SHAPES = ((3,), (2, 3), (4, 1), (), (0,), (0, 3), (2, 1, 3), (1,), (3, 3), (5,), (4, 4), (1, 1), (17,), (2, 33))
FLOATS = ("float32",) * 6 + ("float64", "float16", "bfloat16")
OTHERS = ("int64", "int64", "int32", "int16", "uint8", "int8", "bool", "bool", "complex64")

VIEWS = (
    "{v}[{i}]", "{v}[{i}:{j}]", "{v}[..., {i}]", "{v}[..., {i}:{j}]", "{v}[None]", "{v}[:, None]", "{v}.t()", "{v}.T", "{v}.mT", "{v}.transpose(0, -1)", "{v}.view(-1)",
    "{v}.reshape(-1)", "{v}.flatten()", "{v}.unsqueeze({d})", "{v}.squeeze()", "{v}.squeeze({d})", "{v}.expand(2, *{v}.shape)", "{v}.expand_as({w})", "{v}.diagonal()", "{v}.unfold({d}, 2, 1)",
    "{v}.narrow({d}, {i}, 1)", "{v}.select({d}, {i})", "{v}.detach()", "{v}.data", "{v}.view_as({v})", "{v}.split(1)[{i}]", "{v}.chunk(2)[{i}]", "{v}.unbind({d})[{i}]", "{v}[::2]",
    "{v}.as_strided(({j},), (1,))", "{v}.as_strided(({j},), ({i},), {i})", "{v}.real", "{v}.imag", "{v}.movedim(0, -1)", "torch.broadcast_to({v}, {w}.shape)", "{v}.view({v}.shape)", "{v}[...]",
    "{v}.contiguous()", "{v}.to({v}.dtype)", "torch.atleast_2d({v})", "{v}.view(torch.int32)", "{v}.view(torch.uint8)", "{v}.conj()", "{v}.swapaxes(0, {d})", "{v}.ravel()", "{v}.float()", "{v}.double()", "{v}.expand(*{v}.shape)",
    "torch.as_strided({v}, {v}.shape, {v}.stride())", "{v}.requires_grad_({b})", "{v}.tensor_split(2)[{i}]", "{v}.view(1, -1)", "{v}.view(-1, 1)", "{v}.unflatten(0, (-1, 1))", "{v}.type_as({w})", "{v}.hsplit(1)[0]",
)  # fmt: skip
POINTWISE = (
    "{v} + {w}", "{v} - {w}", "{v} * {w}", "{v} / {w}", "{v} // {w}", "{v} % {w}", "{v} ** 2", "{v} ** {w}", "-{v}", "{v}.abs()", "{v}.neg()", "{v} + {s}", "{v} * {s}", "{v} - {s}", "{s} - {v}", "{v} / {s}",
    "{v} // {s}", "{v} % {s}", "{s} // {v}", "{s} % {v}", "{s} / {v}", "{v} ** {s}", "{s} ** {v}", "torch.fmod({v}, {s})", "torch.fmod({v}, {w})", "torch.remainder({v}, {w})", "{v} << {i}", "{v} >> {k}", "{v} << {w}", "{v} >> {w}",
    "{v} & {w}", "{v} | {w}", "{v} ^ {w}", "~{v}", "{v} & {k}", "{v}.logical_not()", "torch.logical_and({v}, {w})", "torch.logical_xor({v}, {w})", "{v} > {w}", "{v} == {s}", "{v} != {w}", "{v} <= {s}", "torch.where({v} > 0, {v}, {w})",
    "torch.where({v} > 0, {s}, {w})", "torch.where({v} > 0, {s}, {k})", "{v}.clamp({s}, {t})", "{v}.clamp(min={s})", "torch.clamp({v}, {w}, {w})", "torch.clamp({v}, max={w})", "torch.maximum({v}, {w})", "torch.fmin({v}, {w})", "torch.minimum({v}, {w})",
    "torch.relu({v})", "{v}.sigmoid()", "{v}.exp()", "{v}.log()", "{v}.sqrt()", "{v}.rsqrt()", "{v}.sin()", "{v}.tanh()", "{v}.floor()", "{v}.ceil()", "{v}.round()", "{v}.trunc()", "{v}.frac()", "{v}.sign()", "{v}.sgn()", "{v}.reciprocal()",
    "{v}.round(decimals=1)", "{v}.to(torch.int8)", "{v}.to(torch.uint8)", "{v}.to(torch.int64)", "{v}.to(torch.bool)", "{v}.half()", "{v}.bfloat16()", "{v}.double()", "{v}.int()", "{v}.to(torch.complex64)", "torch.sign({v})", "{v}.isnan()", "{v}.isinf()",
    "torch.nan_to_num({v})", "{v}.erf()", "{v}.log1p()", "{v}.expm1()", "torch.atan2({v}, {w})", "torch.hypot({v}, {w})", "torch.copysign({v}, {w})", "torch.copysign({v}, {s})", "torch.lerp({v}, {w}, 0.25)", "torch.addcmul({v}, {v}, {w}, value={k})", "torch.addcdiv({v}, {v}, {w})",
    "torch.div({v}, {w}, rounding_mode='floor')", "torch.div({v}, {s}, rounding_mode='trunc')", "torch.div({v}, {w}, rounding_mode='trunc')", "torch.true_divide({v}, {s})", "torch.floor_divide({v}, {s})", "torch.gcd({v}, {w})", "torch.heaviside({v}, {w})",
    "torch.nextafter({v}, {w})", "torch.ldexp({v}, {w})", "torch.logaddexp({v}, {w})", "torch.xlogy({v}, {w})", "torch.add({v}, {w}, alpha={k})", "torch.sub({v}, {s}, alpha=2)", "torch.rsub({v}, {s})", "torch.float_power({v}, {k})",
    "F.gelu({v})", "F.silu({v})", "F.softplus({v})", "F.elu({v})", "F.leaky_relu({v}, 0.1)", "F.hardswish({v})", "F.hardtanh({v})", "F.softsign({v})", "F.threshold({v}, 0.1, 2.0)", "F.mish({v})", "F.logsigmoid({v})", "F.hardshrink({v})", "F.relu6({v})", "F.celu({v})",
    "torch.signbit({v})", "{v}.square()", "torch.isclose({v}, {w})", "{v}.clip({s}, {w}.dim())", "torch.special.entr({v})", "torch.sinc({v})", "{v}.angle()", "torch.asinh({v})", "torch.acos({v})", "{v}.logit(0.1)", "torch.exp2({v})", "{v}.masked_fill({v} > 0, {s})", "{v}.tan()", "{v}.digamma()", "{v}.lgamma()",
)  # fmt: skip
REDUCTIONS = (
    "{v}.sum()", "{v}.sum({d})", "{v}.sum({d}, keepdim=True)", "{v}.sum(())", "{v}.sum((0, -1))", "{v}.mean()", "{v}.mean({d})", "{v}.prod()", "{v}.prod({d})", "{v}.amax({d})", "{v}.amin(())", "{v}.max()", "{v}.min({d})[0]", "{v}.max({d})[1]", "{v}.argmax()",
    "{v}.argmin({d})", "{v}.argmax({d}, keepdim=True)", "{v}.all()", "{v}.any({d})", "{v}.std()", "{v}.var({d}, correction=0)", "{v}.var({d})", "{v}.norm()", "{v}.norm(1, {d})", "{v}.logsumexp({d})", "{v}.softmax({d})", "{v}.log_softmax({d})", "{v}.cumsum({d})", "{v}.cumprod({d})", "{v}.cummax({d})[1]", "{v}.cummin({d})[0]",
    "{v}.sort({d})[0]", "{v}.sort({d}, descending=True)[1]", "{v}.argsort({d}, stable=True)", "{v}.median()", "{v}.median({d})[0]", "{v}.kthvalue(1, {d})[0]", "{v}.topk(1, {d})[0]", "{v}.aminmax()[1]", "{v}.count_nonzero()", "{v}.count_nonzero({d})", "{v}.nansum()", "{v}.nanmean({d})", "{v}.logcumsumexp({d})", "torch.linalg.vector_norm({v}, float('inf'))",
    "{v}.sum(dtype=torch.int32)", "{v}.sum({d}, dtype=torch.float64)", "{v}.diff(dim={d})", "{v}.std_mean({d})[1]", "{v}.quantile(0.5)", "{v}.mode({d})[0]", "torch.linalg.vector_norm({v}, 0)", "{v}.trace()", "{v}.var_mean()[0]", "{v}.renorm(2, 0, 1.0)", "{v}.unique()", "{v}.nonzero()",
)  # fmt: skip
LAYOUTS = (
    "torch.cat([{v}, {w}])", "torch.cat([{v}, {v}], {d})", "torch.stack([{v}, {w}])", "{v} @ {w}", "{v}.flip({d})", "{v}.roll(1, {d})", "{v}.repeat(2, 1)", "{v}.repeat_interleave(2, {d})", "{v}.tile(2)", "{v}.tril()", "{v}.triu(1)", "{v}.gather({d}, torch.zeros_like({v}, dtype=torch.int64))",
    "{v}[torch.tensor([0, -1])]", "{v}[..., torch.tensor([0, 0])]", "{v}[{v} > 0]", "{v}.index_select({d}, torch.tensor([0, 0]))", "{v}.clone()", "{v}.new_zeros({w}.shape)", "torch.zeros_like({v})", "torch.full_like({v}, {s})", "{v}.new_full((2,), {s})", "torch.arange({k})", "torch.full((2, 3), {s})",
    "torch.tensor({s})", "torch.tensor([{s}, {k}])", "torch.ones({j}, dtype={v}.dtype)", "torch.empty(2, 3).copy_({v})", "torch.linspace(0, {k}, 3)", "torch.eye(3)", "{v}.masked_select({v} > 0)", "{v}.take(torch.tensor([0, -1]))", "{v}.diag()", "torch.diag_embed({v})", "{v}.outer({w})", "torch.einsum('...i,...i->...', {v}, {v})",
    "F.pad({v}, (1, 1), value={s})", "F.pad({v}, (-1, 0))", "{v}.scatter({d}, torch.zeros_like({v}, dtype=torch.int64), {s})", "{v}.index_add(0, torch.tensor([0]), {v}[:1])", "{v}.index_fill({d}, torch.tensor([0]), {s})", "torch.meshgrid({v}, {v}, indexing='ij')[1]", "{v}.scatter_add({d}, torch.zeros_like({v}, dtype=torch.int64), {v})", "torch.zeros({v}.shape[0], 2)",
    "F.one_hot({v}.abs().long(), 300)", "torch.bucketize({v}, torch.tensor([-1.0, 0.0, 1.0]))", "F.layer_norm({v}, {v}.shape[-1:])", "{v}.clone(memory_format=torch.contiguous_format)", "torch.empty_like({v}).fill_({s})", "{v}.new_tensor([1, 2])", "torch.block_diag({v}, {v})", "torch.cdist({v}, {v})", "{v}.matmul({v}.mT)", "torch.searchsorted({v}.sort()[0], {v})", "torch.vander({v})", "torch.cov({v})",
)  # fmt: skip
# What `resize_` adds holds whatever was in that memory: it adds none, or all is filled.
# Of rrelu, eager's kernel writes as much noise as there are elements, one behind the other: past the memory of a noise that is expanded.
WRITES = (
    "{v}.add_({s})", "{v}.add_({w})", "{v}.mul_({w})", "{v}.mul_({s})", "{v}.zero_()", "{v}.fill_({s})", "{v}.copy_({w})", "{v}[{i}] = {s}", "{v}[{i}:{j}] = {w}", "{v}[..., {i}] = {s}", "{v}[{v} > 0] = {s}", "{v}[{v} > 0] *= 2", "{v} += {w}", "{v} *= {s}", "{v} -= {s}", "{v}[{i}] += {w}", "{v}.sub_({w})",
    "{v}.data.mul_(2)", "{v}.detach().add_(1)", "{v}.data.copy_({w})", "{v}.data[{i}] = {s}", "{v}.clamp_({s}, {t})", "{v}.masked_fill_({v} > 0, {s})", "{v}.index_add_(0, torch.tensor([0]), {w})", "{v}.index_fill_({d}, torch.tensor([0]), {s})", "{v}.scatter_({d}, torch.zeros_like({v}, dtype=torch.int64), {s})", "{v}.relu_()", "{v}.div_({s})", "{v}.neg_()",
    "{v}.t_()", "{v}.unsqueeze_({d})", "{v}.squeeze_()", "{v}.transpose_(0, -1)", "{v}.set_({w})", "{v}.data = {w}", "{v}.resize_(min({j}, {v}.numel()))", "{v}.resize_(2, 3).fill_({s})", "torch.add({v}, {w}, out={w})", "torch.mul({v}, 2, out={w})", "torch.sum({v}, out={w})", "torch.cat([{v}, {v}], out={w})", "{v}.detach_()", "{v}.requires_grad_({b})", "{v}.swapaxes_(0, {d})",
    "{v}[:-1].copy_({v}[1:])", "{v}[1:] = {v}[:-1]", "{v}[1:].add_({v}[:-1])", "{v}.expand(2, *{v}.shape).add_(1)", "{v}.view(-1)[{i}] = {s}", "{v}.flatten()[{i}] = {s}", "{v}.t().add_({w})", "{v}.copy_({v}.t())", "{v}.floor_()", "{v}.round_()", "{v}.sigmoid_()", "{v}.exp_()", "{v}.pow_(2)", "{v}.remainder_({s})", "{v}.bitwise_and_({k})", "{v}.logical_not_()",
    "{v}.lerp_({w}, 0.5)", "{v}.addcmul_({v}, {w})", "{v}.index_put_((torch.tensor([0, 0]),), {w}, accumulate=True)", "{v}.fill_diagonal_({s})", "{v}.tril_()", "{v}.cumsum_({d})", "{v}[[0, 0]] += 1", "{v}[torch.tensor([0, -1])] = {w}", "{v}[None] = {w}", "{v}[...] = {w}", "torch.relu_({v})", "{v}.unbind()[0].add_({s})", "{v}.chunk(2)[1].mul_({s})",
    "{v}.masked_scatter_({v} > 0, {w})", "{v}.put_(torch.tensor([0]), {w}.view(-1)[:1])", "{v}.copysign_({w})", "{v} //= {s}", "{v} %= {s}", "{v} **= 2", "{v} &= {k}", "{v} <<= 1", "{v}.as_strided_({v}.shape, {v}.stride())", "torch.sub({v}, {w}, out={v})", "torch.stack([{v}, {v}], out={w})", "{v}.view_as({v}).add_(1)", "torch.amax({v}, {d}, out={w})",
    "torch._foreach_add_([{v}, {w}], 1)", "torch._foreach_mul_([{v}, {v}], 2)", "{v}.scatter_add_({d}, torch.zeros_like({v}, dtype=torch.int64), {v}.clone())", "{v}.index_copy_(0, torch.tensor([0]), {v}[-1:])", "{v}.real.add_(1)", "{v}.retain_grad()", "{v}.data = {v}.data[:1]", "{v}.grad = None",
    "F.batch_norm(torch.stack([{v}.flatten(), {v}.flatten() * 2]), {w}.flatten(), {w}.flatten(), training=True)", "F.batch_norm(torch.ones(2, {v}.numel()), {v}.view(-1), {w}.view(-1), training=True)",
    "F.instance_norm(torch.eye(2).expand({v}.numel(), 2, 2)[None], {v}.view(-1), {w}.view(-1))", "torch._amp_foreach_non_finite_check_and_unscale_([{v}], {w}, torch.ones(()))", "F.embedding(torch.tensor([0]), {v}, max_norm=1.0)",
    "torch._C._nn.rrelu_with_noise({v}, {w}.contiguous(), 0.1, 0.3, True)", "torch.ops.aten.max.dim_max({v}, {d}, max={w}, max_values=torch.empty(0, dtype=torch.int64))", "torch._foreach_copy_([{v}], [{w}])", "{v}.numpy()[...] = {s}",
)  # fmt: skip
QUERIES = (
    "{v}.requires_grad", "{v}.is_leaf", "{v}.stride()", "{v}.storage_offset()", "{v}.is_contiguous()", "{v} is {w}", "{v}.grad_fn is None", "{v}._base is {w}", "{v}.dtype", "{v}.shape", "{v}._version", "{v}._is_view()", "{v}.sum().item()", "{v}.tolist()", "bool({v}.sum() > 0)", "int({v}.numel())",
    "{v}.data_ptr() == {w}.data_ptr()", "str({v}.detach())", "f'{{{v}.sum():.3f}}'", "{v}.untyped_storage().nbytes()", "torch.equal({v}, {w})", "{v}.is_set_to({w})", "torch.result_type({v}, {w})", "torch.is_complex({v})", "{v}.element_size()", "{v}.nonzero().shape", "len({v})", "{v}.grad is None", "hash({v}) == hash({w})", "{v}.is_inference()", "list({v}.shape)",
)  # fmt: skip
KNOWN = (
    "torch.zeros(3)", "torch.ones(2, 3)", "torch.full((4,), {s})", "torch.tensor({s})", "torch.tensor([1.0, 2.0, 3.0])", "torch.arange(3.0)", "torch.eye(3)", "torch.zeros(3, dtype=torch.int64)", "torch.tensor(True)",
)  # fmt: skip
"""Tensors whose values capture knows until something writes to them."""
SCALARS = (
    "0",
    "1",
    "2",
    "-1",
    "3",
    "0.5",
    "-2.5",
    "2.0",
    "True",
    "7",
    "float('nan')",
    "float('inf')",
    "-float('inf')",
    "300",
    "1e10",
    "2**31",
    "-3",
    "1e-8",
    "64",
    "n",
    "n * 0.5",
    "n - 1",
)
MODES = (
    "torch.no_grad()",
    "torch.enable_grad()",
    "torch.inference_mode()",
    "torch.autocast('cpu', dtype=torch.bfloat16)",
    "torch.set_grad_enabled(n > 3)",
)


def scalar(rng: random.Random) -> str:
    return rng.choice(SCALARS)


class Maker:
    """One program being made, with the eager run that says which lines are valid."""

    def __init__(self, seed: int, lines: int, breaks: bool = False) -> None:
        self.rng, self.breaks = random.Random(seed), breaks
        self.specs = self.arguments()
        self.body: list[str] = []
        self.names = [f"x{i}" for i in range(len(self.specs))]
        self.lines = lines
        self.count = 0
        self.restart()

    def arguments(self) -> list[str]:
        """An expression for each argument, over `T(shape, dtype, requires_grad)` and the arguments before it."""
        rng, specs = self.rng, []
        for i in range(rng.choice((1, 2, 2, 3, 3))):
            kind = rng.random()
            shape = rng.choice(SHAPES)
            if i and kind < 0.35:
                before = f"x{rng.randrange(i)}"
                specs.append(
                    rng.choice(
                        (
                            "{0}",
                            "{0}.detach()",
                            "{0}[:1]",
                            "{0}[1:]",
                            "{0}.view(-1)",
                            "{0}.t()",
                            "{0}.view_as({0})",
                            "{0}.detach()[...,:1]",
                            "{0}.data",
                        )
                    ).format(before)
                )
                continue
            dtype = rng.choice(FLOATS) if rng.random() < 0.75 else rng.choice(OTHERS)
            grad = rng.random() < 0.4 and ("float" in dtype)
            text = f"T({shape}, '{dtype}', {grad})"
            if rng.random() < 0.3:
                text += rng.choice(
                    ("*1", "[:2]", ".t()", "[None]", ".expand(2, *" + repr(shape) + ")", "[::2]", ".detach()")
                )
            specs.append(text)
        return specs

    def restart(self) -> None:
        self.env = environment(self.specs, 0)
        self.env["n"] = 3
        self.env["q"] = []
        for line in self.body:
            exec(line, self.env)

    def fill(self, template: str) -> str:
        rng = self.rng
        v, w = rng.choice(self.names[-8:]), rng.choice(self.names)
        return template.format(
            v=v, w=w, i=rng.choice((0, 0, 1, 1, 2, -1)), j=rng.choice((1, 2, 3)), d=rng.choice((0, 0, 1, -1, -2)),
            s=scalar(rng), t=scalar(rng), k=rng.choice((0, 1, 2, 3, 7, 31, 33, 64, -1)), b=rng.choice((True, False)),
        )  # fmt: skip

    def statement(self) -> tuple[str, str | None]:
        """One line, and the name that it defines."""
        rng, kind = self.rng, self.rng.random()
        if self.breaks and rng.random() < 0.1:
            return "argand.graph_break()", None
        if kind < 0.30:
            return self.fill(rng.choice(WRITES)), None
        if kind < 0.38:
            return f"q.append({self.fill(rng.choice(QUERIES))})", None
        name = f"v{self.count}"
        self.count += 1
        if kind < 0.42:
            return f"{name} = {self.fill(rng.choice(KNOWN))}", name
        templates = VIEWS if kind < 0.6 else POINTWISE if kind < 0.82 else REDUCTIONS if kind < 0.9 else LAYOUTS
        return f"{name} = {self.fill(rng.choice(templates))}", name

    def make(self) -> str:
        tries = 0
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            while len(self.body) < self.lines and tries < 60:
                tries += 1
                line, name = self.statement()
                if self.rng.random() < 0.08:
                    line = f"with {self.rng.choice(MODES)}:\n    {line}"
                try:
                    exec(line, self.env)
                    ok = name is None or isinstance(self.env[name], torch.Tensor)
                    if name and self.env[name].numel() > 20000:
                        ok = False
                except Exception:
                    ok = False
                    if self.rng.random() < 0.12:
                        inner = "\n".join("    " + part for part in line.split("\n"))
                        line = f"try:\n{inner}\nexcept Exception as error:\n    q.append(f'{{type(error).__name__}}: {{error}}')"
                        if self.rng.random() < 0.3:
                            line = line.split("\n", 1)[0] + "\n" + inner + "\nfinally:\n    q.append('finally')"
                            self.body.append(line)
                            break
                        self.body.append(line)
                    name = None
                if ok:
                    self.body.append(line)
                    if name:
                        self.names.append(name)
                else:
                    self.restart_quietly()
        used = [n for n in self.names if n.startswith("v")]
        self.rng.shuffle(used)
        out = used[: self.rng.randrange(1, 5)]
        if self.rng.random() < 0.3:
            out.append(self.names[0])
        lines = [f"def f({', '.join(f'x{i}' for i in range(len(self.specs)))}, n):", "    q = []"]
        for line in self.body:
            lines += ["    " + part for part in line.split("\n")]
        lines.append(f"    return [{', '.join(out)}], q")
        return "\n".join(lines) + "\n"

    def restart_quietly(self) -> None:
        with contextlib.suppress(Exception):
            self.restart()


def tensor(g: torch.Generator) -> Callable[..., torch.Tensor]:
    def make(shape: tuple[int, ...], dtype: str, grad: bool) -> torch.Tensor:
        kind = getattr(torch, dtype)
        values = torch.randn(shape, generator=g) * 3
        if kind.is_floating_point or kind.is_complex:
            made = values.to(kind)
        elif kind == torch.bool:
            made = values > 0
        else:
            made = values.round().to(torch.int64).to(kind)
        return made.requires_grad_() if grad else made

    return make


def environment(specs: list[str], seed: int) -> dict[str, Any]:
    g = torch.Generator().manual_seed(seed)
    env: dict[str, Any] = {"torch": torch, "argand": argand, "F": torch.nn.functional, "T": tensor(g)}
    for i, spec in enumerate(specs):
        try:
            env[f"x{i}"] = eval(spec, env)
        except Exception:  # a view that the tensor before does not have
            env[f"x{i}"] = env["T"]((3,), "float32", False)
    return env


def describe(value: Any, seen: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        seen.append(value)
        strides = [stride for stride, size in zip(value.stride(), value.shape) if size != 1 and value.numel()]
        try:
            told: Any = value.requires_grad, value.is_leaf, value.grad_fn is None
        except RuntimeError as error:  # a view whose history has to be made anew, and may not
            told = str(error)
        place = value.storage_offset() if value.numel() else 0
        return (
            "tensor",
            str(value.dtype),
            tuple(value.shape),
            strides,
            place,
            told,
            value.is_conj(),
            value.detach().clone(),
        )
    if isinstance(value, (list, tuple)):
        return [describe(v, seen) for v in value]
    if isinstance(value, float):
        return ("float", value)
    return repr(value).partition("Exception raised from")[0]  # what follows are addresses in torch's libraries


LOOSE = {torch.float16: 2e-2, torch.bfloat16: 1e-1, torch.float32: 2e-4, torch.float64: 1e-7, torch.complex64: 2e-4}


def different(a: Any, b: Any, path: str = "") -> str | None:
    if isinstance(a, torch.Tensor):
        if a.dtype in LOOSE:
            tol = LOOSE[a.dtype]
            same = torch.allclose(a, b, rtol=tol, atol=tol, equal_nan=True)
        else:
            same = (
                torch.equal(a, b) if a.dtype != torch.complex32 else torch.equal(a.view(torch.half), b.view(torch.half))
            )
        return None if same else f"{path}: eager {a.tolist()}, compiled {b.tolist()}"
    if isinstance(a, tuple) and a and a[0] == "float" and isinstance(b, tuple) and b[0] == "float":
        p, q = a[1], b[1]
        return (
            None
            if p == q or (p != p and q != q) or abs(p - q) <= 1e-3 * max(1, abs(p))
            else f"{path}: eager {p}, compiled {q}"
        )
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
        for i, (p, q) in enumerate(zip(a, b)):
            if found := different(p, q, f"{path}.{i}"):
                return found
        return None
    return None if a == b else f"{path}: eager {a!r:.400}, compiled {b!r:.400}"


def run(fn: Callable[..., Any], specs: list[str], seed: int) -> Any:
    """All that a caller can see of a call, with a backward through its results."""
    env = environment(specs, seed)
    args = [env[f"x{i}"] for i in range(len(specs))]
    versions = [a._version for a in args]
    out = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(out):
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message="argand: capturing .* failed inside argand")
        try:
            result: Any = ("returned", fn(*args, 3 + seed % 2))
        except Exception as error:
            result = ("raised", f"{type(error).__name__}: {error}")
    seen: list[torch.Tensor] = []
    found = [describe(result, seen), describe(args, seen)]
    found.append([None if a.is_inference() else a._version > before for a, before in zip(args, versions)])
    found.append([[a is b for b in seen] for a in seen])
    found.append([[a.untyped_storage()._cdata == b.untyped_storage()._cdata for b in seen] for a in seen])
    found.append(out.getvalue())
    losses = [t for t in seen if t.requires_grad and t.numel()]
    backward: Any = None
    if losses:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                sum(((t.abs() if t.is_complex() else t) * 1.0).double().sum() for t in losses).backward()
            backward = [describe(a.grad, []) if a.is_leaf else None for a in args]
        except RuntimeError as error:
            backward = f"{type(error).__name__}: {error}"
    found.append(backward)
    return found


NAMES = ("result", "arguments", "versions", "same objects", "shared memory", "printed", "gradients")


def compiled_function(source: str, number: str) -> Any:
    space: dict[str, Any] = {"torch": torch, "argand": argand, "F": torch.nn.functional}
    exec(compile(source, f"<memory {number}>", "exec"), space)
    return space["f"]


def difference(specs: list[str], source: str, backend: str, dynamic: bool | None = None) -> str | None:
    eager = compiled_function(source, "eager")
    fn = argand.compile(compiled_function(source, backend), backend=backend, dynamic=dynamic)
    try:
        for seed in (0, 1, 2):
            torch.manual_seed(0)
            want = run(eager, specs, seed)
            if different(want, run(eager, specs, seed)):
                return None  # eager differs from itself (memory that nobody wrote)
            try:
                got = run(fn, specs, seed)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                return f"call {seed}: {type(error).__name__}: {error}"
            for name, a, b in zip(NAMES, want, got):
                if found := different(a, b):
                    return f"call {seed}, {name}{found}"
        return None
    finally:
        argand.reset()


def reduced(specs: list[str], source: str, backend: str, dynamic: bool | None = None) -> str:
    """The program without the lines that the difference does not need."""
    lines = source.rstrip("\n").split("\n")
    blocks: list[list[str]] = []
    for line in lines[2:-1]:
        if blocks and line.startswith(("        ", "    except", "    finally")):
            blocks[-1].append(line)
        else:
            blocks.append([line])
    changed = True

    def text(parts: list[list[str]], last: str) -> str:
        return "\n".join([*lines[:2], *(line for part in parts for line in part), last]) + "\n"

    last = lines[-1]
    while changed:
        changed = False
        for i in reversed(range(len(blocks))):
            fewer = blocks[:i] + blocks[i + 1 :]
            try:
                if difference(specs, text(fewer, last), backend, dynamic) is not None:
                    blocks, changed = fewer, True
            except Exception:
                continue
        names = last[last.index("[") + 1 : last.index("]")].split(", ")
        for name in names if len(names) > 1 else []:
            shorter = f"    return [{', '.join(n for n in names if n != name)}], q"
            if difference(specs, text(blocks, shorter), backend, dynamic) is not None:
                last, changed = shorter, True
                break
    return text(blocks, last)


def main() -> int:
    parser = seeds.parser(__doc__, 200, "aot_eager,native")
    parser.add_argument("--lines", type=int, default=8)
    parser.add_argument("--breaks", action="store_true", help="break graphs in the middle")
    options = parser.parse_args()
    dynamic = True if options.dynamic else None

    def trial(seed: int, backend: str) -> str | None:
        maker = Maker(seed, options.lines, options.breaks)
        source = maker.make()
        how = difference(maker.specs, source, backend, dynamic)
        shown = source if how is None or options.no_reduce else reduced(maker.specs, source, backend, dynamic)
        return how and f"{maker.specs}\n{how[:1500]}\n{shown}"

    return seeds.run(options, trial)


if __name__ == "__main__":
    sys.exit(main())
