"""The native backend against eager on small functions: one line each, many layouts and dtypes."""

import math

import pytest
import torch
import torch.nn.functional as F
from native_helpers import check, compiled

import argand
import sweeps

pytestmark = pytest.mark.slow

nan, inf = float("nan"), float("inf")


def r(*size, dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(*size, generator=g, dtype=torch.float64).to(dtype)
    if dtype is torch.bool:
        return torch.rand(*size, generator=g) < 0.5
    return torch.randint(-5 if dtype.is_signed else 0, 6, size, generator=g).to(dtype)


SPECIAL = torch.tensor([nan, inf, -inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-38, -1e-45, 3e38, 88.8, -104.0])

UNARY = (
    "neg abs sign floor ceil round trunc square reciprocal sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos "
    "atan sinh cosh tanh asinh acosh atanh erf erfc sigmoid isnan isinf isfinite signbit logical_not relu frac"
).split()


@pytest.mark.parametrize("name", UNARY)
def test_unary_special_values(name):
    check(getattr(torch, name), SPECIAL, rtol=2e-6, atol=1e-30)


@pytest.mark.parametrize("name", "add sub mul div maximum minimum pow atan2 copysign".split())
def test_binary_special_values(name):
    n = len(SPECIAL)
    check(getattr(torch, name), SPECIAL.repeat(n), SPECIAL.repeat_interleave(n), rtol=3e-6, atol=1e-30)


@pytest.mark.parametrize("name", ["fmod", "remainder"])
def test_remainders_of_special_values(name):
    # Eager's vectorised fmod answers NaN where the quotient overflows; the generated code has the exact remainder there.
    values = torch.tensor([nan, inf, -inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 88.8, -104.0])
    n = len(values)
    check(getattr(torch, name), values.repeat(n), values.repeat_interleave(n))
    exact = compiled(getattr(torch, name), [r(1), r(1)])(torch.tensor([3e38]), torch.tensor([0.5]))
    assert exact.item() == math.fmod(3e38, 0.5)


@pytest.mark.parametrize("name", "eq ne lt le gt ge logical_and logical_or logical_xor".split())
def test_comparisons(name):
    n = len(SPECIAL)
    check(getattr(torch, name), SPECIAL.repeat(n), SPECIAL.repeat_interleave(n))


DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int32,
    torch.int64,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


# Sizes that differ keep the loops of one graph apart: as many kernels as graphs, of which each took a C++ compiler.


# Each dtype with half of the others.
OTHERS = {one: [two for each, two in sweeps.chessboard(DTYPES, DTYPES) if each is one] for one in DTYPES}


@pytest.mark.parametrize("one", DTYPES, ids=str)
def test_type_promotion(one):
    def fn(*inputs):
        pairs = zip(inputs[::2], inputs[1::2])
        return [(a + b, a * b, torch.maximum(a, b), a == b, a * 2, b + 1.5) for a, b in pairs]

    pairs = [(r(3, 5 + k, dtype=one), r(3, 5 + k, dtype=two, seed=1)) for k, two in enumerate(OTHERS[one])]
    check(fn, *[x for pair in pairs for x in pair])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_conversions(dtype):
    def fn(*inputs):
        return [(x.to(to), (x.to(to) == x.to(to)).sum()) for x, to in zip(inputs, OTHERS[dtype])]

    check(fn, *[r(4, 9 + k, dtype=dtype) for k in range(len(OTHERS[dtype]))])


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64], ids=str)
def test_integer_overflow_wraps(dtype):
    info = torch.iinfo(dtype)
    x = torch.tensor([info.max, info.min, info.max - 1, 3, 0], dtype=dtype)
    check(lambda a: (a + a, a * a, a - 1, a + 1, -a, a.abs(), a.sum(), a.prod()), x)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8], ids=str)
def test_integer_division_and_bits(dtype):
    def fn(a):
        return a // 3, a % 3, torch.div(a, 2, rounding_mode="trunc"), a & 6, a | 1, a ^ 3, ~a, a << 2, a >> 1, a / 4

    check(fn, r(50, dtype=dtype))


# --- shapes and layouts

# Each has `n` for its last size, which differs in a graph of them all: its loops stay apart.
LAYOUTS = {
    "contiguous": lambda n: r(2, 3, 4, n),
    "transposed": lambda n: r(2, 3, n, 4).transpose(2, 3),
    "channels_last": lambda n: r(2, 3, 4, n).contiguous(memory_format=torch.channels_last),
    "expanded": lambda n: r(2, 1, 4, 1).expand(2, 3, 4, n),
    "strided": lambda n: r(4, 3, 4, 2 * n)[::2, :, :, ::2],
    "offset": lambda n: r(3, 3, 4, n)[1:],
    "permuted": lambda n: r(n, 4, 3, 2).permute(3, 2, 1, 0),
    "empty": lambda n: r(2, 3, 0, n),
    "one": lambda n: r(1, 1, 1, 1),
}


def laid_out(*without):
    """A tensor of each layout, each of a size of its own."""
    return [make(5 + k) for k, (name, make) in enumerate(LAYOUTS.items()) if name not in without]


SHAPED = {
    "pointwise": lambda x: torch.tanh(x) * 2 + x,
    "sum_last": lambda x: x.sum(-1),
    "sum_first": lambda x: x.sum(0),
    "sum_middle": lambda x: x.sum((1, 2), keepdim=True),
    "sum_all": lambda x: x.sum(),
    "mean": lambda x: x.mean((2, 3)),
    "softmax": lambda x: torch.softmax(x, 1),
    "softmax_last": lambda x: torch.softmax(x, -1),
    "var": lambda x: x.var(1, correction=0),
    "view_ops": lambda x: (x.permute(0, 2, 3, 1) * 2).flatten(1) + 1,
    "reshape": lambda x: (x + 1).reshape(x.shape[0], -1),
    "cat": lambda x: torch.cat([x, x * 2, x[:, :1]], 1),
    "stack": lambda x: torch.stack([x, -x], 2),
    "slice": lambda x: (x + 1)[:, 1:] * 2,
    "select": lambda x: (x * 3)[:, 0],
    "flip": lambda x: torch.flip(x, [1]) + 1,
    "contiguous": lambda x: x.contiguous(),
    "channels_last": lambda x: (x * 2).contiguous(memory_format=torch.channels_last),
    "clone": lambda x: x.clone(),
    "expand": lambda x: x.sum(1, keepdim=True).expand(-1, 3, -1, -1) + x,
    "pad": lambda x: F.pad(x, (1, 2, 0, 1), value=3.0),
    "roll": lambda x: torch.roll(x, 1, 1) + x,
    "where": lambda x: torch.where(x > 0, x, x.exp()),
    "masked_fill": lambda x: x.masked_fill(x < 0, -inf),
    "tril": lambda x: torch.tril(x) + torch.triu(x, 1),
    "cumulative": lambda x: x.cumsum(1) * 2,
    "repeat": lambda x: x.repeat(1, 2, 1, 1) + 1,
    "unbind": lambda x: x.unbind(1)[0] * 2,
    "chunk": lambda x: [c * 2 for c in x.chunk(3, 1)],
    "any_all": lambda x: ((x > 0).any(1), (x > -9).all(1)),
    "norm": lambda x: x / (x.norm(dim=1, keepdim=True) + 1),
}


@pytest.mark.parametrize("name", SHAPED)
def test_layouts(name):
    check(lambda *inputs: [SHAPED[name](x) for x in inputs], *laid_out(), rtol=1e-5, atol=1e-6)


REDUCE_NONEMPTY = {
    "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin((0, 2)),
    "argmax": lambda x: x.argmax(1),
    "argmin_all": lambda x: x.argmin(),
    "max_dim": lambda x: x.max(1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "group_norm": lambda x: F.group_norm(x, 3),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "logsumexp": lambda x: x.logsumexp(1),
    "std": lambda x: x.std(-1),
    "var_mean": lambda x: torch.var_mean(x, (1, 3)),
    "prod": lambda x: x.prod(1),
}


@pytest.mark.parametrize("name", REDUCE_NONEMPTY)
def test_reductions(name):
    check(lambda *inputs: [REDUCE_NONEMPTY[name](x) for x in inputs], *laid_out("empty", "one"), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["amax", "amin", "argmax", "argmin_all", "max_dim"])
def test_reductions_propagate_nan(name):
    x = r(2, 3, 4, 5)
    x[0, 1, 2, 3] = nan
    x[1, 2, 0] = inf
    check(REDUCE_NONEMPTY[name], x)


def test_zero_dimensional_tensors():
    check(lambda a, b: (a + b, a * 2, a.sum(), (a > b), a.view(1), a.expand(3)), torch.tensor(1.5), torch.tensor(-2.0))


def test_empty_tensors():
    check(lambda a: (a + 1, a.sum(), a.sum(0), a.sum(1), a.prod(), a.mean(1)), torch.empty(0, 3))
    check(lambda a: (a * 2, a.sum(1), a.reshape(0)), torch.empty(3, 0))


def test_odd_sizes_reach_the_tails_of_vector_loops():
    for n in (1, 2, 7, 15, 16, 17, 31, 33, 63, 65, 127, 1001):
        check(lambda a: (torch.sigmoid(a), a.sum(-1), a.amax(-1), torch.softmax(a, -1)), r(3, n), rtol=1e-5, atol=1e-6)


def test_large_parallel_kernels():
    check(
        lambda a, b: (a * b + 1, (a + b).sum(0), (a - b).sum(1), (a * b).sum()),
        r(300, 700),
        r(300, 700, seed=1),
        rtol=1e-4,
        atol=1e-3,
    )


# --- neural network ops

NETWORK = {
    "gelu": (lambda x: F.gelu(x), (4, 33)),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), (4, 33)),
    "silu": (lambda x: F.silu(x) * x, (4, 33)),
    "mish": (lambda x: F.mish(x), (4, 33)),
    "elu": (lambda x: F.elu(x), (4, 33)),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.2), (4, 33)),
    "hardswish": (lambda x: F.hardswish(x), (4, 33)),
    "hardsigmoid": (lambda x: F.hardsigmoid(x), (4, 33)),
    "softplus": (lambda x: F.softplus(x * 30), (4, 33)),
    "relu6": (lambda x: F.relu6(x * 4), (4, 33)),
    "clamp": (lambda x: x.clamp(-0.5, 0.5), (4, 33)),
    "glu": (lambda x: F.glu(x, -1), (4, 34)),
    "layer_norm": (lambda x: F.layer_norm(x, (33,)), (4, 33)),
    "rms_norm": (lambda x: F.rms_norm(x, (33,)), (4, 33)),
    "batch_norm": (lambda x: F.batch_norm(x, x.new_zeros(6), x.new_ones(6)), (3, 6, 5, 5)),
    "instance_norm": (lambda x: F.instance_norm(x), (3, 6, 5, 5)),
    "max_pool": (lambda x: F.max_pool2d(x + 1, 3, 2, 1) * 2, (2, 3, 9, 9)),
    "avg_pool": (lambda x: F.avg_pool2d(x + 1, 2) * 2, (2, 3, 8, 8)),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x + 1, 1) * 2, (2, 3, 8, 8)),
    "interpolate": (lambda x: F.interpolate(x + 1, scale_factor=2.0) * 2, (2, 3, 4, 4)),
    "one_hot_like": (lambda x: (x.argmax(-1, keepdim=True) == torch.arange(7)).float(), (5, 7)),
    "dropout_eval": (lambda x: F.dropout(x, 0.5, training=False) + 1, (4, 33)),
    "cross_entropy": (lambda x: F.cross_entropy(x, torch.zeros(4, dtype=torch.long)), (4, 33)),
    "mse": (lambda x: F.mse_loss(x, x * 2), (4, 33)),
    "cosine": (lambda x: F.cosine_similarity(x, x + 1, dim=-1), (4, 33)),
    "normalize": (lambda x: F.normalize(x, dim=-1), (4, 33)),
    "topk": (lambda x: torch.topk(x * 2, 3)[0] + 1, (4, 33)),
    "sort": (lambda x: torch.sort(x * 2)[0] + 1, (4, 33)),
    "rotary": (lambda x: torch.cat([-x[..., 16:], x[..., :16]], -1) * x.cos() + x * x.sin(), (4, 32)),
    "einsum": (lambda x: torch.einsum("ij,kj->ik", x, x * 2) + 1, (4, 33)),
    "bmm": (lambda x: torch.softmax(x @ x.transpose(-1, -2) / 3, -1) @ x, (2, 3, 8, 4)),
    "linspace": (lambda x: x + torch.linspace(0, 1, 33) + torch.arange(33), (4, 33)),
}


PRECISIONS = [([torch.float32, torch.float64], 1e-5), ([torch.bfloat16], 2e-2)]


@pytest.mark.parametrize(("name", "precision"), sweeps.chessboard(NETWORK, PRECISIONS), ids=str)
def test_network_ops(name, precision):
    (fn, size), (dtypes, close) = NETWORK[name], precision
    check(lambda *inputs: [fn(x) for x in inputs], *[r(*size, dtype=dtype) for dtype in dtypes], rtol=close, atol=close)


def test_linear_and_conv_with_fused_surroundings():
    def fn(x, w, b, k):
        y = F.gelu(F.linear(x, w, b)) + x
        z = F.relu(F.conv1d(y.unsqueeze(1), k, padding=1)) * 2
        return z.sum(1), y

    check(fn, r(8, 16), r(16, 16), r(16), r(4, 1, 3), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("channels_last", [False, True])
def test_conv2d_batch_norm_relu(channels_last):
    def fn(x, w, m, v):
        y = F.conv2d(x, w, padding=1)
        return F.relu(F.batch_norm(y, m, v)) + x

    x = r(2, 8, 9, 9)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    check(fn, x, r(8, 8, 3, 3), r(8), r(8).abs(), rtol=1e-4, atol=1e-4)


def test_attention():
    def fn(q, k, v, m):
        return F.scaled_dot_product_attention(q, k, v), F.scaled_dot_product_attention(q, k, v, attn_mask=m) * 2

    q = r(2, 3, 10, 8)
    check(fn, q, r(2, 3, 10, 8, seed=1), r(2, 3, 10, 8, seed=2), torch.ones(10, 10).tril().bool(), rtol=1e-4, atol=1e-5)


# --- indexing


def test_embedding_gather_index():
    def fn(table, idx):
        g = torch.gather(table, 0, idx)
        return F.embedding(idx, table) * 2, g + 1, table[idx], table[idx, idx] * 2, table.index_select(0, idx[0])

    check(fn, r(7, 5), torch.tensor([[0, 3, 1, 2, 4], [4, 4, 0, 1, 2]]))


def test_negative_indices_wrap():
    check(lambda t, i: t[i] * 2, r(7, 5), torch.tensor([-1, -7, 0, 6]))


@pytest.mark.parametrize("bad", [7, -8, 1 << 40])
def test_an_index_out_of_range_raises(bad):
    call = check(lambda t, i: t[i] * 2, r(7, 5), torch.tensor([-1, 3]))
    with pytest.raises(IndexError):
        call(r(7, 5), torch.tensor([0, bad]))
    call(r(7, 5), torch.tensor([0, 1]))


def test_embedding_out_of_range_raises():
    call = check(lambda t, i: F.embedding(i, t) * 2, r(7, 5), torch.tensor([1, 3]))
    with pytest.raises(IndexError, match="index out of range in self"):
        call(r(7, 5), torch.tensor([0, 7]))


def test_scatter_and_index_put():
    def fn(x, idx, src):
        a = x.clone()
        a[idx] = src
        b = torch.zeros_like(x).scatter(0, idx.unsqueeze(1).expand(-1, 5), src)
        c = x.index_add(0, idx, src)
        d = torch.zeros_like(x).scatter_add(0, idx.unsqueeze(1).expand(-1, 5), src)
        return a, b, c, d

    check(fn, r(7, 5), torch.tensor([0, 3, 6]), r(3, 5))


def test_slice_scatter_by_assignment():
    def fn(x):
        y = x.clone()
        y[1:3] = 5.0
        y[:, 0] += 2
        return y * 2

    check(fn, r(4, 5))


@pytest.mark.parametrize("value", [math.pi, 7, True])
def test_scalar_arguments_are_constants(value):
    check(lambda x: x * value + value, r(4, 5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batch_norm_that_updates_statistics(dtype):
    """Its results and what it writes, of an argument that does not lie row by row."""
    x = torch.randn(5, 7, 6).transpose(0, 2).contiguous().transpose(0, 2).to(dtype)

    def function(x, weight, bias, mean, var):
        return torch.ops.aten._batch_norm_with_update(x, weight, bias, mean, var, 0.1, 1e-5)

    sides = []
    for run in (function, argand.compile(function)):
        rest = [torch.full((7,), number).to(dtype) for number in (1.0, 0.5, 0.0, 1.0)]
        sides.append((*run(x, *rest), *rest))
    for want, made in zip(*sides):
        assert (made.dtype, made.stride(), made.shape) == (want.dtype, want.stride(), want.shape)
        torch.testing.assert_close(made, want, rtol=2e-2, atol=2e-2 if dtype is torch.bfloat16 else 1e-5)
