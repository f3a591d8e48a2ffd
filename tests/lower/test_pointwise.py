"""Pointwise lowerings against eager: every dtype, promotion, NaN and infinities, empty and 0-d tensors."""

import math

import pytest
import torch
import torch.nn.functional as F
from lowering_helpers import check

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


def sample(dtype, *shape):
    torch.manual_seed(sum(shape) + 1)
    if dtype is torch.bool:
        return torch.rand(shape) > 0.5
    if not dtype.is_floating_point:
        return torch.randint(0 if dtype is torch.uint8 else -60, 60, shape).to(dtype)
    return (torch.randn(shape) * 2).to(dtype)


UNARY = [
    "exp exp2 expm1 sigmoid tanh erf erfc sin cos tan asin acos atan sinh cosh asinh atanh".split(),
    "log log2 log10 log1p sqrt rsqrt acosh reciprocal".split(),
    "neg abs sign sgn floor ceil round trunc frac square".split(),
    "isnan isinf isfinite isposinf isneginf signbit logical_not".split(),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("names", UNARY, ids=lambda names: names[0])
def test_unary_floats(names, dtype):
    x = sample(dtype, 5, 7)
    special = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 0.0, 0.5, -1.0], dtype=dtype)
    for name in names:
        check(getattr(torch, name), x, loops_only=True)
        check(getattr(torch, name), special, loops_only=True)
        check(getattr(torch, name), x.abs() + 0.5, loops_only=True)


@pytest.mark.parametrize("dtype", INTS)
def test_unary_integers(dtype):
    x = sample(dtype, 4, 5)
    for name in "abs sign floor round sqrt exp sigmoid isnan isfinite signbit logical_not bitwise_not square".split():
        check(getattr(torch, name), x, loops_only=True, passes=True)
    info = torch.iinfo(dtype)
    check(torch.neg, torch.tensor([info.min, info.max, 1], dtype=dtype), loops_only=True)


@pytest.mark.parametrize("dtype", FLOATS + INTS)
def test_arithmetic(dtype):
    x, y = sample(dtype, 3, 4), sample(dtype, 4) + 1
    for op in (torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, torch.true_divide):
        check(op, x, y, loops_only=True)
        check(op, x, y[:1].reshape(()), loops_only=True)
    for number in (3, 1.2345, True):
        check(lambda a: a + number, x, loops_only=True)
        if number is not True:
            check(lambda a: number - a, x, loops_only=True)
        check(lambda a: a * number, x, loops_only=True)
        check(lambda a: a / number, x, loops_only=True)
    check(lambda a, b: torch.add(a, b, alpha=3), x, y, loops_only=True)
    check(lambda a, b: torch.sub(a, b, alpha=2), x, y, loops_only=True)


def test_integers_wrap():
    for dtype in INTS:
        info = torch.iinfo(dtype)
        x = torch.tensor([info.max, info.min, 7], dtype=dtype)
        check(lambda a: a + 1, x, loops_only=True, exact=True)
        check(lambda a: a * a, x, loops_only=True, exact=True)
        check(lambda a: a - 3, x, loops_only=True, exact=True)
    check(lambda a: a + 300, torch.tensor([1, 2], dtype=torch.int8), exact=True)


MIXED = [
    (torch.int64, torch.float32),
    (torch.bool, torch.int64),
    (torch.uint8, torch.int8),
    (torch.float16, torch.bfloat16),
    (torch.float32, torch.float64),
    (torch.bfloat16, torch.float32),
    (torch.bool, torch.bfloat16),
]


@pytest.mark.parametrize("left, right", MIXED)
def test_promotion(left, right):
    x, y = sample(left, 3, 4), sample(right, 3, 4)
    scalar_x, scalar_y = sample(left, 1).reshape(()), sample(right, 1).reshape(())
    for a, b in ((x, y), (y, x), (x, scalar_y), (scalar_x, y), (scalar_x, scalar_y)):
        check(torch.add, a, b, loops_only=True)
        check(torch.mul, a, b, loops_only=True)
        check(torch.eq, a, b, loops_only=True)
        check(torch.lt, a, b, loops_only=True)
        check(lambda p, q: torch.where(p > 0, p, q), a, b, loops_only=True)


def test_wrapped_numbers():
    i, f = torch.arange(6), torch.tensor([0.1] * 4)
    check(lambda a: a + 2.5, i, loops_only=True)
    check(lambda a: a > 2.5, i, loops_only=True)
    check(lambda a: a == 0.1, f, loops_only=True)
    check(lambda a: a < torch.tensor(0.1, dtype=torch.float64), f, loops_only=True)
    check(lambda a: a.bool() + True, i, loops_only=True)
    check(lambda a: a.to(torch.uint8) * 2.0, i, loops_only=True)
    check(lambda a: a.to(torch.bfloat16) + 1.2345, f, loops_only=True, exact=True)
    check(lambda a: a.to(torch.bfloat16) * 1.2345, f, loops_only=True, exact=True)
    check(lambda a: a.to(torch.bfloat16) / torch.tensor(1.2345), f, loops_only=True, exact=True)


@pytest.mark.parametrize("dtype", FLOATS)
def test_division_family_floats(dtype):
    x = sample(dtype, 40)
    y = torch.where(x.flip(0).abs() < 0.3, torch.ones_like(x), x.flip(0))
    for op in (torch.floor_divide, torch.remainder, torch.fmod, torch.atan2, torch.copysign, torch.fmax, torch.fmin):
        check(op, x, y, loops_only=True)
    check(lambda a, b: torch.div(a, b, rounding_mode="trunc"), x, y, loops_only=True)
    check(lambda a, b: torch.div(a, b, rounding_mode="floor"), x, y, loops_only=True)
    check(torch.remainder, torch.tensor([1.0, -1.0, math.inf, math.nan, 5.0], dtype=dtype), -2.5, loops_only=True)
    check(torch.floor_divide, torch.tensor([1.0, -1.0, 0.0, 5.0], dtype=dtype), torch.zeros(4, dtype=dtype))


@pytest.mark.parametrize("dtype", INTS)
def test_division_family_integers(dtype):
    x = sample(dtype, 40)
    for divisor in (3, 7) if dtype is torch.uint8 else (3, -7):
        for op in (torch.floor_divide, torch.remainder, torch.fmod):
            check(op, x, divisor, loops_only=True, exact=True)
        check(lambda a: torch.div(a, divisor, rounding_mode="trunc"), x, loops_only=True, exact=True)
    # a tensor may hold a zero, at which eager raises: the kernel reports one
    check(torch.floor_divide, x, torch.full_like(x, 3), loops_only=True, exact=True)


@pytest.mark.parametrize("dtype", FLOATS)
def test_powers(dtype):
    x = sample(dtype, 30).abs() + 0.25
    for exponent in (0, 1, 2, 3, -1, -2, 0.5, -0.5, 2.5, 4):
        check(lambda a: a**exponent, x, loops_only=True)
    inf, nan, tiny = math.inf, math.nan, torch.finfo(dtype).smallest_normal
    ends = torch.tensor([0.0, -0.0, inf, -inf, nan, -1.0, 1.0, tiny, 1 / tiny, tiny**0.5, tiny**-0.25], dtype=dtype)
    for exponent in (-2.5, -1.5, 1.5, 2.5, 4):
        check(lambda a: a**exponent, torch.cat((x, ends)), loops_only=True)
    check(torch.pow, x, sample(dtype, 30), loops_only=True)
    check(lambda a: 2.0**a, x, loops_only=True)


@pytest.mark.parametrize("dtype", [*FLOATS[:2], torch.int64, torch.bool, torch.complex64])
def test_complex_numbers_with_real_tensors(dtype):
    x = (sample(torch.float32, 8).abs() + 1).to(dtype)
    for op in (torch.pow, torch.float_power, torch.mul, torch.add, torch.div, torch.eq, lambda a, b: b**a):
        check(op, x, 1 + 0.5j, loops_only=False)


def test_integer_powers():
    x = sample(torch.int64, 10)
    for exponent in (0, 1, 2, 3):
        check(lambda a: a**exponent, x, loops_only=True, exact=True)
    check(torch.pow, x.abs(), torch.full_like(x, 2), loops_only=False, exact=True)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool])
def test_bits(dtype):
    x, y = sample(dtype, 6), sample(dtype, 6).flip(0)
    for op in (torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor, torch.logical_and, torch.logical_xor):
        check(op, x, y, loops_only=True, exact=True)
    if dtype is not torch.bool:
        check(lambda a: a << 2, x, loops_only=True, exact=True)
        check(lambda a: a >> 2, x, loops_only=True, exact=True)
        check(lambda a, b: a << b, x, torch.full_like(x, 1), exact=True)


def test_comparisons_with_nan():
    x = torch.tensor([1.0, math.nan, -math.inf, 0.0])
    y = torch.tensor([math.nan, math.nan, 1.0, -0.0])
    for op in (torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge, torch.maximum, torch.minimum):
        check(op, x, y, loops_only=True, exact=op not in (torch.maximum, torch.minimum))
    tiny = torch.tensor(1e-308, dtype=torch.float64)  # zero as a float32
    for op in (torch.logical_and, torch.logical_or, torch.logical_xor):
        check(op, x, tiny, loops_only=True, exact=True)
        check(op, sample(torch.int8, 6), torch.tensor(1 << 31), loops_only=True, exact=True)  # zero as an int8
    check(lambda a: torch.xlogy(a, 1 << 31), x.half().nan_to_num(), exact=True, passes=True)  # infinity as a float16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_selection(dtype):
    x, y = sample(dtype, 4, 5), sample(dtype, 5)
    mask = sample(torch.bool, 4, 1)
    check(torch.where, mask, x, y, loops_only=True, exact=True)
    check(lambda m, a: torch.where(m, a, 2), mask, x, loops_only=True, exact=True, passes=True)
    check(lambda a, m: a.masked_fill(m, 3), x, mask, loops_only=True, exact=True)
    check(lambda a: a.clamp(-1, 2), x, loops_only=True, exact=True)
    check(lambda a: a.clamp(min=1), x, loops_only=True, exact=True)
    check(lambda a, b: torch.clamp(a, b, b + 2), x, y, loops_only=True, exact=True)
    if dtype.is_floating_point:
        check(lambda a: a.masked_fill(a > 0, float("-inf")), x, loops_only=True, exact=True)
        check(torch.nan_to_num, torch.tensor([math.nan, math.inf, -math.inf, 1.0], dtype=dtype), loops_only=True)
        check(lambda a, b: torch.lerp(a, a * 2, 0.3), x, y, loops_only=True)
        check(torch.addcmul, x, x, y, loops_only=True)
        check(torch.addcdiv, x, x, y.abs() + 1, loops_only=True)


@pytest.mark.parametrize("source", [*FLOATS, *INTS, torch.bool])
def test_casts(source):
    x = sample(source, 4, 6)
    if source.is_floating_point:
        x = x.abs() * 10  # a negative float as uint8 is undefined
    for target in [*FLOATS, *INTS, torch.bool]:
        check(lambda a: a.to(target) if a.dtype is not target else a + a, x, loops_only=True)
    check(lambda a: a.to(torch.float32).to(torch.bfloat16).to(torch.float64) + 0, x, loops_only=True)


ACTIVATIONS = [
    F.relu,
    F.gelu,
    lambda x: F.gelu(x, approximate="tanh"),
    F.silu,
    F.mish,
    F.softplus,
    F.leaky_relu,
    F.elu,
    F.selu,
    F.celu,
    F.hardtanh,
    F.hardsigmoid,
    F.hardswish,
    F.relu6,
    F.logsigmoid,
    F.softsign,
    F.tanhshrink,
    lambda x: F.threshold(x, 0.5, 3.0),
    lambda x: F.glu(x, dim=-1),
]


@pytest.mark.parametrize("dtype", FLOATS)
def test_activations(dtype):
    x = sample(dtype, 6, 8)
    x[0, :3] = torch.tensor([math.nan, math.inf, -math.inf])
    for function in ACTIVATIONS:
        # eager's vectorised gelu gives nan at inf, its scalar one inf
        check(function, x[1:] if function is F.gelu else x, passes=True)


BACKWARD = [
    ("tanh_backward", 0.5),
    ("sigmoid_backward", 0.5),
    ("silu_backward", 1.0),
    ("gelu_backward", 1.0),
]


@pytest.mark.parametrize("name, scale", BACKWARD)
def test_activation_gradients(name, scale):
    op = getattr(torch.ops.aten, name).default
    for dtype in (torch.float32, torch.bfloat16):
        check(op, sample(dtype, 4, 5), (sample(dtype, 4, 5) * scale).clamp(-0.9, 0.9), loops_only=True)
    check(torch.ops.aten.threshold_backward.default, sample(torch.float32, 9), sample(torch.float32, 9), 0.1)
    check(lambda g, x: torch.ops.aten.gelu_backward(g, x, approximate="tanh"), *[sample(torch.float32, 9)] * 2)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (1, 1)])
def test_empty_and_scalar(shape):
    x = torch.ones(shape)
    check(lambda a: (a + 1) * a.exp(), x, loops_only=True)
    check(lambda a: a.to(torch.int32) + a, x, loops_only=True)


def test_layouts_of_results():
    x = torch.randn(2, 3, 4, 5)
    for layout in (
        x,
        x.to(memory_format=torch.channels_last),
        x.transpose(1, 3),
        x[:, :, ::2],
        x[:1].expand(2, 3, 4, 5),
    ):
        check(lambda a: a * 2 + 1, layout, loops_only=True)
        check(lambda a: a.clone(memory_format=torch.channels_last), layout, loops_only=True)
        check(lambda a: a.clone(memory_format=torch.contiguous_format), layout, loops_only=True)
        check(lambda a, b: a + b, layout, torch.randn(1, layout.shape[1], 1, 1), loops_only=True)
    check(lambda a, b: a + b, x.transpose(0, 1), x.transpose(0, 1).contiguous(), loops_only=True)


@pytest.mark.parametrize("ends", [(0, 1), (-1.5, 2.25), (3, 3), (5, -5), (0.1, 1e6)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_that_are_evenly_spaced(ends, dtype):
    one = torch.zeros(1, dtype=dtype)
    exact = dtype == torch.float32  # floors and comparisons may follow
    for steps in (1, 2, 7, 20, 100):
        check(lambda x, steps=steps: x + torch.linspace(*ends, steps, dtype=dtype), one, loops_only=True, exact=exact)


def test_whether_all_is_true():
    for value in (True, False):
        x = torch.full((5,), value)
        check(lambda x: torch._is_all_true(x), x, loops_only=True, passes=True)


def test_what_is_repeated_is_computed_once():
    def of_means(gradient, scale):
        repeated = gradient[:, None].expand(4, 9, 6)
        return (repeated * scale.expand(4, 9, 6) / 9).exp(), repeated.to(torch.bfloat16) / 3, scale.expand(9, 6) + 1

    run = check(of_means, torch.randn(4, 6), torch.randn(6), loops_only=True)
    points = {value.op: math.prod(map(int, node.body.sizes)) for node in run.loops for value in node.body.statements}
    assert points["truediv"] == points["exp"] == 24 and points["store"] > 24
