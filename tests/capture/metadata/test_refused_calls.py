"""What eager refuses is not compiled: the same exception comes out, although torch's metadata kernels accept the call."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import argand

Z, O = torch.zeros, torch.ones


def in_place(name, *args):
    def run(x, *rest):
        return getattr(x + 0, name)(*rest, *args)

    return run


def assigned(x, y):
    x = x + 0
    x[1:4] = y
    return x


def copied(x, y):
    return (x + 0).copy_(y)


def into(x, y):
    return torch.add(x, y, out=torch.empty(x.shape, dtype=torch.int64))


CASES = {
    "slice_scatter": (lambda x, y: torch.slice_scatter(x, y, 0, 0, 2), Z(4), O(1)),
    "slice_scatter-method": (lambda x, y: x.slice_scatter(y, 1, 0, 3), Z(4, 5), O(4, 1)),
    "select_scatter": (lambda x, y: torch.select_scatter(x, y, 0, 0), Z(4, 4), O(1)),
    "diagonal_scatter": (torch.diagonal_scatter, Z(4, 4), O(1)),
    "as_strided_scatter": (lambda x, y: torch.as_strided_scatter(x, y, (4, 2), (2, 1)), Z(20), O(1, 2)),
    "as_strided_scatter-unread": (
        lambda x, y: (torch.as_strided_scatter(x, y, (1,), (1,)), y + 1)[1],
        Z(1, 3).requires_grad_().expand(3, 3),
        O(1),
    ),
    "as_strided": (lambda x: (x * 2).as_strided((3,), (1,)), Z(0, 3)),
    "as_strided-function": (lambda x: torch.as_strided(x * 2, (2, 3), (1, 1)), Z(3, 0)),
    "setitem": (assigned, Z(6), O(2)),
    "copy": (copied, Z(6, 3), O(4, 3)),
    "index_copy": (lambda x, y: x.index_copy(0, torch.arange(3), y), Z(6, 3), O(2, 3)),
    "index_put": (lambda x, y: x.index_put((torch.arange(3),), y), Z(6, 3), O(2, 3)),
    "out-dtype": (into, Z(3), O(3)),
    "where-out": (lambda m, x: torch.where(m, x, x, out=torch.empty(3, dtype=torch.int64)), Z(3).bool(), O(3)),
    "cross_entropy": (F.cross_entropy, Z(2, 3, 2, 2), Z(2, 1, 2).long()),
    "group_norm-dtypes": (lambda x, w: F.group_norm(x, 2, w, w), Z(1, 6, 3), O(6).double()),
    "layer_norm-dtypes": (lambda x, w: F.layer_norm(x, (3,), w), Z(1, 3), O(3).double()),
    "instance_norm-dtypes": (lambda x, w: F.instance_norm(x, weight=w), Z(1, 3, 4), O(3).double()),
    "difference-of-bools": (F.margin_ranking_loss, Z(5).bool(), Z(5).bool(), O(5)),
    "silu-of-ints": (F.silu, Z(9).long()),
    "hardsigmoid-of-ints": (F.hardsigmoid, Z(9).long()),
    "floor-of-bools": (torch.floor, Z(9).bool()),
    "softmax-of-ints": (lambda x: x.softmax(0), Z(9).long()),
    "max_pool1d-of-ints": (lambda x: F.max_pool1d(x, 2), Z(1, 1, 9).long()),
    "max-of-nothing": (torch.max, Z(3, 0)),
    "min-of-nothing": (lambda x: x.min(1), Z(3, 0)),
    "max-of-nothing-unread": (lambda x: (x.max(0)[1], x + 1)[1], Z(0, 5)),
    "addcmul-into-ints": (in_place("addcmul_"), Z(3).long(), O(3), O(3)),
    "addmv-other-size": (in_place("addmv_"), Z(1), O(4, 5), O(5)),
    "bitwise-of-floats": (torch.bitwise_and, Z(3), O(3)),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), Z(1, 1, 3, 4)),
    "linear-bias": (F.linear, Z(2, 4), O(3, 4), O(3, 3)),
}


@pytest.mark.parametrize("name", CASES)
def test_refused(name):
    run, *args = CASES[name]
    with pytest.raises(Exception) as eager:
        run(*args)
    for dynamic in (None, True):
        argand.reset()
        with pytest.raises(eager.type):
            argand.compile(run, dynamic=dynamic)(*args)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("method", ["as_strided", "as_strided_", "as_strided_copy"])
def test_elements_past_the_memory_of_a_tensor(method, dynamic):
    """Stand-ins have no memory that could be too small: the error belongs into the program's own `except`."""

    def f(x, size):
        made = x * 2
        try:
            return getattr(torch, method)(made, (size,), (2,), 1)
        except RuntimeError:
            return made - 1

    compiled = argand.compile(f, dynamic=dynamic)
    for size in (1, 2, 3, 4, 3, 9):
        assert torch.equal(compiled(O(6), size), f(O(6), size))


def test_large_tensors_of_a_dtype_without_a_kernel():
    with pytest.raises(NotImplementedError):
        argand.compile(F.silu)(Z(1 << 21).long())


def test_trying_out_leaves_the_random_state_alone():
    def f(x):
        return F.rrelu(x, training=True) + torch.bernoulli(x)

    torch.manual_seed(3)
    want = f(O(6)), torch.rand(2)
    torch.manual_seed(3)
    got = argand.compile(f, backend="eager")(O(6)), torch.rand(2)
    for a, b in zip(want, got, strict=True):
        assert torch.equal(a, b)


def test_values_do_not_count():
    """Zeros have no inverse and ones neither: what the program computes has."""

    def f(x):
        return torch.linalg.inv(x) @ torch.linalg.cholesky(x)

    x = torch.eye(3) * 2
    torch.testing.assert_close(argand.compile(f, fullgraph=True)(x), f(x))


SERIES = {
    "slice_scatter": (lambda x, y: torch.slice_scatter(x, y, 1, 0, y.shape[1]), [((3, n + 1), (3, n)) for n in (4, 5, 7)]
                      + [((3, 8), (2, 7)), ((3, 5), (3, 1))]),
    "select_scatter": (lambda x, y: torch.select_scatter(x, y, 0, 1), [((3, n), (m,)) for n, m in ((4, 4), (5, 5), (6, 1), (7, 7))]),
    "diagonal_scatter": (torch.diagonal_scatter, [((n, n), (m,)) for n, m in ((4, 4), (5, 5), (6, 1), (7, 7), (7, 6))]),
    "setitem": (assigned, [((n,), (m,)) for n, m in ((6, 3), (7, 3), (8, 1), (3, 2), (9, 2))]),
    "copy": (copied, [((n, 3), (m, 3)) for n, m in ((4, 4), (5, 5), (6, 1), (6, 5), (7, 7))]),
    "pixel_unshuffle": (lambda x, y: F.pixel_unshuffle(x[None], 2) + y.sum(), [((1, n, 4), (2,)) for n in (4, 6, 7, 8)]),
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", SERIES)
def test_sizes_that_vary(name, dynamic):
    """Right where they fit, eager's exception where they do not."""
    run, shapes = SERIES[name]
    compiled = argand.compile(run, dynamic=dynamic)
    for one, two in shapes:
        x, y = torch.randn(one), torch.randn(two)
        try:
            want = run(x, y)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                compiled(x, y)
        else:
            torch.testing.assert_close(compiled(x, y), want)


@pytest.mark.parametrize("dynamic", [None, True])
def test_slice_scatter_up_to_a_number_that_varies(dynamic):
    compiled = argand.compile(lambda x, y, n: torch.slice_scatter(x, y, 0, 0, n), dynamic=dynamic)
    for n in (2, 3, 5, 4):
        assert compiled(Z(n + 1), torch.arange(1.0, n + 1), n).tolist() == [*range(1, n + 1), 0]


def test_large_calls_that_eager_accepts_are_not_refused_for_what_they_would_be_at_smaller_sizes() -> None:
    def cached(cache, new):
        cache[:, 40:, :1000] = new
        return cache[:, 39:41, 999:1001] * 2

    cache, new = Z(2, 512, 1030), O(2, 472, 1000)
    want = cached(cache.clone(), new)
    assert torch.equal(argand.compile(cached, backend="eager", fullgraph=True)(cache, new), want)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_what_a_call_has_resized_before_it_raises_is_its_argument(backend):
    def caught(x, *calls):
        said = []
        for call in calls:
            try:
                call(x)
            except (IndexError, RuntimeError) as error:
                said.append(str(error))
        return said, x.shape

    def of_views(x):
        view = x[None]
        torch.cat([view, view], out=x)

    def resized_before(x):
        torch.mul(Z(5, 2), 2, out=x)
        return caught(x, lambda x: x[:-1].copy_(x[1:]))

    def reshaped_before(x):
        x.unsqueeze_(1)
        return caught(x, lambda x: x.long() % x.long())

    compiled = argand.compile(caught, backend=backend)
    for calls in ((lambda x: torch.amax(x, 1, out=x), lambda x: torch.cat([x, x], out=x)), (of_views,)):
        assert compiled(Z(2, 3), *calls) == caught(Z(2, 3), *calls)
    for program in (resized_before, reshaped_before):
        assert argand.compile(program, backend=backend)(Z(2, 3)) == program(Z(2, 3))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_writes_that_memory_or_a_mask_forbids(backend):
    """Stand-ins do not refuse them: who reads what it writes to at computed places, who fills by a mask of other sizes."""
    rows = torch.tensor([0, -1])
    writes = (
        lambda x, m: x.__setitem__(rows, x),
        lambda x, m: x.__setitem__(..., x),
        lambda x, m: x.index_copy_(0, rows, x),
        lambda x, m: x.scatter_(0, rows.view(1, 2).abs(), x),
        lambda x, m: x.__setitem__(m, -1.5),
    )

    def caught(x, m):
        said = []
        for write in writes:
            v = x.exp()
            try:
                write(v, m)
            except (IndexError, RuntimeError) as error:
                said.append(str(error))
        return said

    compiled = argand.compile(caught, backend=backend)
    for masked in (O(2, 2) > 0, O(1, 2) > 0, O(2) > 0, O(3) > 0):
        assert compiled(O(2, 2), masked) == caught(O(2, 2), masked)


SIZED_BY_DATA = {
    "masked_select": (torch.masked_select, O(3, 2), O(3, 3).bool()),
    "repeat_interleave": (lambda x, n: x.repeat_interleave(n, 0), O(3, 3), O(2).long()),
    "repeat_interleave-of-floats": (lambda x, n: x.repeat_interleave(n, 0), O(3, 3), O(3)),
    "bincount": (torch.bincount, O(3, 2).long()),
    "bincount-weights": (torch.bincount, O(3).long(), O(2)),
    "one_hot-of-ints": (F.one_hot, O(3).int()),
    "unique-of-complex": (torch.unique, O(3).cfloat()),
    "packed": (lambda x, n: torch.nn.utils.rnn.pack_padded_sequence(x, n, batch_first=True).data, O(3, 3), O(2).long()),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", SIZED_BY_DATA)
def test_refused_whatever_the_data(name, dynamic):
    """Where data decide how much comes out, too: the program's own `except` gets the error."""
    run, *args = SIZED_BY_DATA[name]

    def caught(*args):
        try:
            return run(*args)
        except (NotImplementedError, RuntimeError) as error:
            return type(error), str(error)

    assert argand.compile(caught, backend="eager", dynamic=dynamic)(*args) == caught(*args)
