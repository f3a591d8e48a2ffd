"""Writes at positions that tensors hold: plain ones (the last stays), and those that combine values."""

import pytest
import torch
from lowering_helpers import check

import argand
import sweeps

NAN, INF = float("nan"), float("inf")
positions = torch.randint(0, 5, (6, 7, 3))
rows = torch.tensor([3, 0, 3, 4, 0, 3, 1])


def compiled(function, *args, dynamic=False):
    """What argand's kernels make of it."""
    argand.reset()
    return argand.compile(function, fullgraph=True, dynamic=dynamic)(*args)


def same(function, *args, **options):
    want, made = function(*args), compiled(function, *args, **options)
    assert made.dtype is want.dtype and made.stride() == want.stride()
    torch.testing.assert_close(made, want, equal_nan=True)


@pytest.mark.parametrize(
    ("dim", "dtype"),
    sweeps.chessboard([0, 1, 2, -1], [torch.float32, torch.bfloat16, torch.int8, torch.int64, torch.bool]),
)
def test_the_last_value_written_to_a_place_stays(dim, dtype):
    x, source = (torch.randint(-9, 9, size).to(dtype) for size in ((8, 9, 5), (6, 7, 3)))
    index = torch.randint(0, x.shape[dim], (6, 7, 3)) % 4
    for function in (
        lambda x, index, source: x.scatter(dim, index, source),
        lambda x, index, source: x.scatter(dim, index.int().long(), 1),
        lambda x, index, source: x.scatter(dim, index % 2, source, reduce="multiply"),
        lambda x, index, source: x.scatter(dim, index, 2.5, reduce="add"),
    )[: 2 if dtype in (torch.bool, torch.bfloat16) else 4]:  # eager rounds each of several sums
        check(function, x, index, source, loops_only=True, exact=True)
        assert torch.equal(compiled(function, x, index, source), function(x, index, source))


@pytest.mark.parametrize(
    ("mode", "itself", "dim"), sweeps.combinations(["sum", "prod", "mean", "amax", "amin"], [True, False], [0, 1])
)
def test_values_that_are_combined(mode, itself, dim):
    x, source = torch.randn(8, 9), torch.randn(6, 7)
    source[0, :3] = torch.tensor([NAN, INF, -INF])
    x[1, 2] = NAN

    def function(x, index, source):
        return torch.scatter_reduce(x * 2, dim, index, source + 1, mode, include_self=itself) + 1

    check(function, x, positions[:, :, 0], source, loops_only=True)
    same(function, x, positions[:, :, 0], source)
    same(function, x.t().contiguous().t(), positions[:, :, 1], source, dynamic=True)
    same(function, x, rows[:6].view(-1, 1).expand(6, 7), source)


@pytest.mark.parametrize(
    ("mode", "dtype"), sweeps.chessboard(["amax", "amin", "prod"], [torch.int32, torch.int64, torch.float64])
)
def test_slices_that_are_combined(mode, dtype):
    x, source = (torch.randint(-9, 9, size).to(dtype) for size in ((5, 4), (7, 4)))
    for itself in (True, False):
        same(lambda x, source, itself=itself: x.index_reduce(0, rows, source, mode, include_self=itself), x, source)
        same(lambda x, i, source: torch.scatter_reduce(x, 0, i, source, mode), x, positions[:, :4, 0], source[:6])


def test_extrema_of_halves_and_small_integers():
    for dtype in (torch.bfloat16, torch.float16, torch.uint8, torch.int8):
        x, source = (torch.randint(0, 99, size).to(dtype) for size in ((8, 9), (6, 7)))
        same(lambda x, source: torch.scatter_reduce(x, 0, positions[:, :, 0], source, "amax"), x, source)
        same(lambda x, source: torch.scatter_reduce(x, 1, positions[:, :, 0], source, "amin"), x, source)


@pytest.mark.parametrize("name", ["copy", "fill", "fill by a tensor", "put", "put in the middle"])
def test_slices_that_are_written(name):
    x, source = torch.randn(5, 6, 5), torch.randn(7, 6, 5)
    function = {
        "copy": lambda x, i, source: (x * 2).index_copy(0, i, source + 1),
        "fill": lambda x, i, source: x.index_fill(-1, i - 5, 3),
        "fill by a tensor": lambda x, i, source: x.index_fill(0, i, source[0, 0, 0]),
        "put": lambda x, i, source: torch.index_put(x, (i, i - 5), source[0, :5].sum()),
        "put in the middle": lambda x, i, source: torch.index_put(x, (torch.arange(5)[:, None], i), source[:, 0]),
    }[name]
    check(function, x, rows, source, loops_only=name != "put in the middle" or None)
    same(function, x, rows, source)
    same(function, x, rows, source, dynamic=True)


@pytest.mark.parametrize("position", [5, -1])
def test_positions_out_of_bounds_raise_as_in_eager(position):
    x, source = torch.randn(5, 4), torch.randn(2, 4)
    for function in (
        lambda x, i, source: x.scatter(0, i.view(-1, 1).expand(2, 4), source),
        lambda x, i, source: torch.scatter_reduce(x, 0, i.view(-1, 1).expand(2, 4), source, "amax"),
        lambda x, i, source: x.index_copy(0, i, source),
    ):
        index = torch.tensor([1, position])
        with pytest.raises((RuntimeError, IndexError)) as want:
            function(x, index, source)
        with pytest.raises(want.type, match="out of (bounds|range)"):
            compiled(function, x, index, source)


@pytest.mark.parametrize("mode", ["sum", "prod", "mean", "amax", "amin"])
def test_gradients(mode):
    def loss(x, source):
        return (torch.scatter_reduce(x, 0, positions[:, :, 0], source, mode, include_self=False) ** 2).sum()

    args = [torch.randn(size, requires_grad=True) for size in ((8, 9), (6, 7))]
    want = torch.autograd.grad(loss(*args), args)
    for made, expected in zip(torch.autograd.grad(compiled(loss, *args), args), want):
        torch.testing.assert_close(made, expected)


def test_on_several_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        x, source = torch.zeros(512, 64), torch.randn(4096, 64)
        index = torch.randint(0, 512, (4096,))
        for mode in ("sum", "amax"):
            for wide in (index.view(-1, 1).expand(-1, 64), torch.randint(0, 512, (4096, 64))):
                same(lambda x, source, wide=wide, mode=mode: x.scatter_reduce(0, wide, source, mode), x, source)
                same(lambda x, source, wide=wide: x.scatter(0, wide, source), x, source)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("dynamic", [False, True])
def test_values_written_where_a_mask_says(dtype, dynamic):
    x = torch.arange(2 * 5 * 3).view(2, 5, 3).to(dtype)
    whole, front, inner = x.float() % 3 > 1, x[:, :, 0].float() % 2 > 0, torch.tensor([True, False, True])

    def put(x, whole, front, inner, one, row):
        return (
            torch.index_put(x, (whole,), one), torch.index_put(x, (front,), row), torch.index_put(x, (front,), one),
            torch.ops.aten.index_put(x, (None, None, inner), one), torch.index_put(x.transpose(1, 2), (whole.mT,), one),
        )  # fmt: skip

    given = (x, whole, front, inner, torch.tensor(7).to(dtype), torch.tensor([4, 5, 6]).to(dtype))
    if not dynamic:
        check(put, *given, loops_only=True, passes=True, exact=True)
    for want, made in zip(put(*given), compiled(put, *given, dynamic=dynamic)):
        assert torch.equal(made, want) and made.stride() == want.stride()


def test_sums_where_a_mask_says():
    x, mask, value = torch.randn(4, 5), torch.randn(4, 5) > 0, torch.randn(())
    same(lambda x, mask, value: torch.index_put(x, (mask,), value, accumulate=True), x, mask, value)


def test_no_places_to_write_to():
    x, nowhere = torch.randn(4, 5), torch.zeros(0, dtype=torch.int64)

    def put(x, nowhere, value):
        return torch.index_put(x, (nowhere, nowhere), value), torch.index_put(
            x, (nowhere,), value[None], accumulate=True
        )

    check(put, x, nowhere, torch.tensor(1.0), loops_only=True, exact=True)


SUMS = {
    "index_add": lambda x, i, source: x.index_add(0, i[:, 0], source),
    "index_add of columns": lambda x, i, source: x.index_add(-1, i[:6, 1], source[:5, :6]),
    "index_add scaled": lambda x, i, source: x.index_add(0, i[:, 0], source, alpha=3),
    "scatter_add": lambda x, i, source: x.scatter_add(0, i, source),
    "scatter_add to the same": lambda x, i, source: x.scatter_add(0, i[:, :1].expand(7, 6), source),
    "index_put": lambda x, i, source: x.index_put((i[:, 0] - 5,), source, accumulate=True),
    "scatter_reduce": lambda x, i, source: x.scatter_reduce(0, i, source, "sum"),
    "scatter_reduce of products": lambda x, i, source: x.scatter_reduce(0, i, source, "prod", include_self=False),
    "embedding's gradient": lambda x, i, source: torch.ops.aten.embedding_dense_backward(source, i[:, 0], 5, 2, False),
}
NARROW = [torch.int8, torch.uint8, torch.int16, torch.bfloat16, torch.float16]


@pytest.mark.parametrize(("name", "dtype"), sweeps.chessboard(list(SUMS), NARROW))
def test_sums_of_8_and_16_bits(name, dtype):
    function = SUMS[name]
    if not dtype.is_floating_point and name == "embedding's gradient":
        return
    x, source = (torch.randint(0, 100, size).to(dtype) for size in ((5, 6), (7, 6)))
    if dtype.is_floating_point:
        x, source = x / 7, source / 7
        source[0, 0], source[1, 1], x[2, 2] = INF, NAN, -INF
    index = torch.randint(0, 5, (7, 6))
    layouts = [(x, source), (x.t().contiguous().t(), source), (x[:1].expand(5, 6), source[::2].repeat(2, 1)[:7])]
    which = (list(SUMS).index(name) + NARROW.index(dtype) // 2) % 3  # one for each dtype of a function
    for x, source in layouts if sweeps.WHOLE else layouts[which : which + 1]:
        check(function, x, index, source, loops_only=True)
        want, made = function(x, index, source), compiled(function, x, index, source)
        assert made.dtype is want.dtype and made.stride() == want.stride()
        if not dtype.is_floating_point:
            assert torch.equal(made, want)
            continue
        exact = function(x.double(), index, source.double())  # eager rounds after every step
        torch.testing.assert_close(made.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-3, equal_nan=True)


def test_means_of_16_bits():
    x, source = (torch.rand(size).bfloat16() for size in ((5, 6), (70, 6)))
    index = torch.randint(0, 4, (70, 6))
    for itself in (True, False):

        def function(x, source, itself=itself):
            return x.scatter_reduce(0, index, source, "mean", include_self=itself)

        made = compiled(function, x, source)
        assert made.dtype is torch.bfloat16
        torch.testing.assert_close(made.double(), function(x.double(), source.double()), rtol=2**-8, atol=1e-3)


def test_ranges_of_floats_as_integers():
    def function(x):
        return [
            torch.arange(0.9, 5.5, 1.0, dtype=torch.int64) + x, torch.arange(5, -3, -1.0, dtype=torch.int64) + x,
            torch.arange(0.5, 10, 2.7, dtype=torch.int32) + x, torch.arange(-1.5, 4, 1.5, dtype=torch.uint8) + x,
        ]  # fmt: skip

    x = torch.tensor(1, dtype=torch.uint8)
    for want, made in zip(function(x), compiled(function, x)):
        assert torch.equal(want, made) and want.dtype is made.dtype


@pytest.mark.parametrize("accumulate", [False, True])
def test_positions_in_separate_dimensions(accumulate):
    x = torch.randn(4, 3, 5, 6)
    one, other = torch.tensor([[0, 3, 0], [-1, 2, 0]]), torch.tensor([1, -5, 4])
    for at, size in (
        ((one, None, other), (2, 3, 3, 6)), ((None, one % 3, None, other), (2, 3, 4, 5)), ((one, None, other), (6,)),
        ((one, None, None, other), ()), ((one, None, other, one), (2, 1, 3)), ((None, one % 3, None, other), (3, 4, 1)),
    ):  # fmt: skip

        def function(x, values, at=at):
            return torch.ops.aten.index_put(x * 2, at, values, accumulate) + 1

        values = torch.randn(size)
        check(function, x, values, loops_only=True)
        same(function, x, values)
        same(function, x.transpose(0, 3).contiguous().transpose(0, 3), values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_counts_of_values_in_parts_of_a_range(dtype):
    x = torch.cat([torch.randn(50) * 4, torch.arange(9.0), torch.linspace(-1, 2, 31), torch.tensor([NAN, INF, -INF])])
    x = x.to(dtype)

    def function(x):
        ranges = (8, 0, 7), (30, -1, 2), (1, 0.5, 0.7), (7, -3, -0.1)
        return [torch.histc(x * 1, *each) for each in ranges]

    for x in (x, x[:90].view(9, 10).t(), x[::3], x[:1].expand(7)):
        for want, made in zip(function(x), compiled(function, x)):
            assert torch.equal(want, made) and want.dtype is made.dtype
