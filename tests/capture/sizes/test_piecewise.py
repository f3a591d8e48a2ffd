"""Sizes that no one formula gives, probes that do not fit, and many symbols at once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import argand

TWO = [(8, 5), (9, 6), (3, 7), (6, 6), (7, 3), (2, 9), (30, 4)]
ONE = [(8, 4), (9, 4), (3, 4), (2, 4), (5, 4), (30, 4)]


def filled(x):
    return (x + 0).fill_diagonal_(7.0)


BENT = {
    "diagonal": lambda x: x.diagonal() * 2,
    "diagonal-number": lambda x: x.diagonal(1) * x.diagonal(1).shape[0],
    "zeros": lambda x: torch.zeros(x.diagonal().shape[0] + 1),
    "fill_diagonal": filled,
    "svd": lambda x: torch.linalg.svdvals(x) * 2,
    "indices": lambda x: torch.tril_indices(x.shape[0], x.shape[1]).shape[1] + x,
    "slice": lambda x: x[:6] * 2,
    "chunks": lambda x: [part * 2 for part in x.tensor_split(3)],
}


@pytest.mark.parametrize("shapes", [TWO, ONE, ONE[::-1]], ids=["two", "one", "one-small-first"])
@pytest.mark.parametrize("name", BENT)
def test_the_least_of_two_sizes(name, shapes):
    compiled = argand.compile(BENT[name], backend="aot_eager")
    for shape in shapes:
        x = torch.rand(shape)
        torch.testing.assert_close(compiled(x), BENT[name](x))


@pytest.mark.parametrize("name", ["diagonal", "fill_diagonal"])
def test_the_least_of_two_sizes_in_kernels(name):
    compiled = argand.compile(BENT[name], dynamic=True)
    for shape in TWO:
        x = torch.rand(shape)
        torch.testing.assert_close(compiled(x), BENT[name](x))


@pytest.mark.parametrize("count", [1, 4, 5, 6, 7, 8, 10])
def test_many_symbols_in_one_tensor(count):
    def f(x):
        return x * 2 + x.sum(0)

    compiled = argand.compile(f, dynamic=True, backend="aot_eager", fullgraph=True)
    for add in (0, 1):
        x = torch.rand([2 + add + i % 3 for i in range(count)])
        torch.testing.assert_close(compiled(x), f(x))


def test_six_symbols_in_kernels():
    compiled = argand.compile(lambda x: x * 2 + x.sum(0), dynamic=True, fullgraph=True)
    for shape in ((2, 3, 4, 5, 6, 7), (3, 2, 5, 4, 7, 6)):
        x = torch.rand(shape)
        torch.testing.assert_close(compiled(x), x * 2 + x.sum(0))


@pytest.mark.parametrize("static", [1, 1 << 20])
def test_a_large_range_beside_large_static_sizes(static):
    x = torch.zeros(1).expand(5, 6, 4, static)
    for dim in range(3):
        argand.mark_dynamic(x, dim, max=1 << 40)
    compiled = argand.compile(lambda x: x[..., :1] + 1, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), x[..., :1] + 1)


AT_PROBES = {
    "zeros": lambda x: torch.zeros(40 - x.shape[0]) + x.sum(),
    "pad": lambda x: F.pad(x, (-20, -5)),
    "pad-by-a-size": lambda x: F.pad(x, (0, 40 - x.shape[1])),
    "narrow": lambda x: x.narrow(1, 3, 45 - x.shape[1]),
    "slice": lambda x: x[:, : x.shape[1] - 20],
    "unfold": lambda x: x.unfold(1, 40 - x.shape[1], 2).sum(-1),
    "interpolate": lambda x: F.interpolate(x[None], size=50 - x.shape[1]),
    "pool": lambda x: F.avg_pool1d(x, 36 - x.shape[1]),
    "arange": lambda x: torch.arange(x.shape[1] - 25, 40 - x.shape[1]),
    "view": lambda x: x.reshape(-1)[: 90 - x.shape[1]].view(3, -1) if x.shape[1] % 3 == 0 else x,
}


@pytest.mark.parametrize("name", AT_PROBES)
def test_what_is_valid_near_the_sizes_at_hand_only(name):
    f = AT_PROBES[name]
    compiled = argand.compile(f, dynamic=True, backend="aot_eager")
    for shape in ((3, 30), (3, 33), (4, 27), (5, 39), (5, 60)):
        x = torch.rand(shape)
        try:
            want = f(x)
        except (RuntimeError, ValueError) as error:
            with pytest.raises(type(error)):
                compiled(x)
        else:
            torch.testing.assert_close(compiled(x), want)


BOUNDED = {
    "select": lambda x, k: x.permute(2, 0, 1).select(0, 3).unsqueeze(0),
    "select-number": lambda x, k: x.select(1, k).unsqueeze(1),
    "narrow": lambda x, k: x.narrow(1, k, 3),
    "slices": lambda x, k: x[:, (x.shape[1] // 2) : k][:, 2 : (20 - x.shape[1])],
    "remainder": lambda x, k: x.narrow(2, 0, x.shape[2] % 4).std(-1, keepdim=True).nan_to_num(),
    "contiguous": lambda x, k: x.flip(2).narrow(0, 0, x.shape[0] - 2).movedim(0, -1).contiguous(),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", BOUNDED)
def test_parts_of_views(name, dynamic):
    f = BOUNDED[name]
    compiled = argand.compile(f, dynamic=dynamic, backend="aot_eager")
    shapes = [(2, 6, 8), (3, 5, 30), (4, 5, 30), (4, 5, 7), (3, 6, 3), (1, 6, 13), (2, 9, 4)]
    for shape, k in zip(shapes, (2, 3, 4, -2, 3, 7, 8), strict=True):
        x = torch.rand(shape)
        try:
            want = f(x, k)
        except (RuntimeError, IndexError) as error:
            with pytest.raises(type(error)):
                compiled(x, k)
        else:
            got = compiled(x, k)
            torch.testing.assert_close(got, want)
            assert got.stride() == want.stride() or want.numel() < 2


@pytest.mark.parametrize("dynamic", [None, True])
def test_roll_by_an_amount_of_a_size(dynamic):
    compiled = argand.compile(lambda x: x.roll(x.shape[1] * 2 - 7, 1) * 2, dynamic=dynamic)
    for n in (12, 9, 7, 30, 2):
        x = torch.rand(2, n)
        torch.testing.assert_close(compiled(x), x.roll(n * 2 - 7, 1) * 2)


def sliced(x, k):
    x = x[:, :k]
    return x, x.is_contiguous()


def of_one_size(x, k):
    x = x + x.transpose(0, 1)[: x.shape[0], : x.shape[1]].sum()
    x = x[:, : x.shape[0]]
    return x, min(x.shape)


def with_a_stride(x, k):
    x = F.conv1d(x, x.new_ones(2, 2, 2), padding=1, stride=k)
    return x, (x + 1).stride()


def of_quotients(x, k):
    x = F.max_pool1d(x, 2, 4)
    return x, (min(x.shape), max(x.shape))


def of_one_channel(x, k):
    x = F.avg_pool1d(x, 2, 1)
    return x, x.unsqueeze(-1).is_contiguous(memory_format=torch.channels_last)


def of_enough(x, k):
    try:
        F.conv1d(x, x.new_ones(2, 4, 4))
        return x, "longer"
    except RuntimeError:
        pass
    try:
        return x, x.topk(3).values.shape
    except RuntimeError:
        return x, "few"


ORDERS = {  # (sizes, number) of each call
    sliced: [((3, 10, 1), 7), ((5, 2, 3), 2), ((8, 8, 4), 7), ((7, 12, 4), 7)],
    of_one_size: [((n, m, 5), 2) for n, m in ((6, 6), (3, 6), (6, 9), (9, 9), (3, 3), (8, 4))],
    with_a_stride: [((4, 2, 3), k) for k in (1, 6, 3, 3)],
    of_quotients: [((2, 4, n), 2) for n in (23, 12, 27)],
    of_enough: [((2, 4, n), 2) for n in (8, 6, 3, 3, 4, 2, 1)],
    of_one_channel: [((5, 6, n), 2) for n in (5, 7, 8, 2, 3)],
}


@pytest.mark.parametrize("f", ORDERS)
def test_questions_for_sizes_in_other_orders(f):
    compiled = argand.compile(f, backend="eager")
    for shape, k in ORDERS[f]:
        x = torch.rand(shape)
        assert compiled(x, k)[1] == f(x, k)[1]


COUNTED = {
    "slice": lambda a, b, c: torch.zeros(40)[a // 2 : b : c * c].shape[0],
    "arange": lambda a, b, c: torch.arange(a // 2, b, c * c).shape[0],
    "down": lambda a, b, c: torch.arange(b, a // 2, step=-c * c).shape[0],
    "unfold": lambda a, b, c: torch.zeros(40)[:b].unfold(0, a // 8 + 1, c * c).shape[0],
}
PAIRS = [((17, 10, 18), (13, 6, 14)), ((11, 11, 20), (6, 14, 3)), ((4, 8, 20), (7, 15, 3)), ((8, 3, 14), (20, 2, 2))]


def outcome(count, *numbers):
    try:
        return count(*numbers)
    except RuntimeError:
        return "raised"


@pytest.mark.parametrize("name", COUNTED)
def test_how_many_steps_there_are(name):
    """All probes may take one step: that says nothing of other numbers."""
    for pair in PAIRS:
        argand.reset()
        compiled = argand.compile(COUNTED[name], backend="eager", dynamic=True)
        for numbers in pair:
            assert outcome(compiled, *numbers) == outcome(COUNTED[name], *numbers)


def test_halves_of_differences():
    """What is halved may be odd and even, where it is a difference of two sizes, too."""

    def halved(x, a, b):
        return torch.fft.irfft(torch.fft.rfft(x[: b - a])).shape[0]

    for pair in ((7, 21), (8, 15)), ((5, 9), (1, 6)), ((2, 9), (4, 18)), ((3, 18), (6, 12)):
        argand.reset()
        compiled = argand.compile(halved, backend="eager", dynamic=True)
        for a, b in pair:
            assert compiled(torch.zeros(30), a, b) == halved(torch.zeros(30), a, b)
