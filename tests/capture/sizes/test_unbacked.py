"""Numbers and sizes that depend on data, as symbols of one graph: against eager at several data, empty results too."""

from __future__ import annotations

import pytest
import torch

import argand
from argand.config import config
from helpers import CountingBackend, assert_same, collected

T = torch.tensor


def outcome(fn, args):
    try:
        return fn(*[a.clone() if isinstance(a, torch.Tensor) else a for a in args])
    except Exception as error:  # compared with eager's
        return type(error)


def check(fn, inputs, backend="eager"):
    """One graph whose every call equals eager's, also in what it raises."""
    argand.reset()
    graphs = CountingBackend()
    compiled = argand.compile(fn, backend=graphs if backend == "eager" else backend, fullgraph=True)
    for args in inputs:
        args = args if isinstance(args, tuple) else (args,)
        assert_same(outcome(fn, args), outcome(compiled, args))
    if backend == "eager":
        assert len(graphs.graphs) == 1
    return graphs


def refused(fn, *args, match):
    """fullgraph=True raises, at the line and for the reason `match`; otherwise the graph breaks and eager's result comes."""
    argand.reset()
    with pytest.raises(argand.errors.Unsupported, match=match):
        argand.compile(fn, backend="eager", fullgraph=True)(*args)
    argand.reset()
    with config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        assert_same(outcome(fn, args), outcome(argand.compile(fn, backend="eager"), args))


MATRIX = -torch.arange(1.0, 17.0).view(4, 4)


def filled(*cells):
    """4 x 4, with as many positive elements."""
    made = MATRIX.clone()
    for row, column in cells:
        made[row, column] = row + 2.0 * column + 1
    return made


DATA = [filled((1, 2), (1, 3), (3, 0)), filled(), filled((2, 2)), filled((0, 0), (3, 3)), MATRIX.abs()]


def masked(x):
    y = x[x > 0]
    return y * 2 + y, y.sum(), y.shape, torch.zeros(y.shape[0], 3), y.numel()


def indices(x):
    i, j = torch.where(x > 0)
    pairs = (x > 0).nonzero()
    a, b = pairs.unbind(1)
    return x[i, j] + 1, x[a, b], x[pairs[:, 0]], pairs.T.contiguous(), pairs.shape, torch.cat([pairs, pairs])


def rows(x):
    y = x[x.sum(1) > 0]
    z = torch.nn.functional.linear(y, x)
    sizes = z.view(z.shape[0], 2, 2), z.reshape(-1, 2).shape, z.numel(), torch.zeros_like(z), y.expand(3, -1, -1)
    return z.softmax(-1), z.sum(0), z.view(-1), z.transpose(0, 1) @ z, sizes, y.argmax(1), y.topk(2)[0], y.cumsum(0)


def slices(x):
    y = x[x > 0]
    return y[:3], y[1:], y[:-1], y[::2], y[-2:], y[:3].shape, y[:100].sum()


def clamped(x):
    y = x[x > 0]
    n = y.shape[0]
    return torch.diag(y), y.diff(), torch.triu(torch.ones(n, n)), torch.tril_indices(n, 3), torch.ones(n, 2).diagonal()


def written(x):
    m = x > 0
    x[m] = x[m].exp()
    x.masked_scatter_(~m, torch.ones(16))
    return x, x[m].shape[0] >= 0, x[m].shape[0] + 1 > 0


def uniques(x):
    r = x.clamp(0, 3).round()
    return torch.unique(r), torch.unique(r, dim=0, return_inverse=True, return_counts=True), r.unique_consecutive()


def broadcast_to_constant(x):
    return x[x > 0] + torch.ones(3)


def with_gradients(x):
    w = torch.ones(4, requires_grad=True)
    made = x[x > 0][:, None] * w
    return made.sum(0), made.requires_grad


def raises_when_empty(x):
    return x[x > 0].max(), x[x > 0][0]


@pytest.mark.parametrize(
    "fn",
    [
        masked,
        indices,
        rows,
        slices,
        clamped,
        written,
        pytest.param(
            uniques,
            marks=pytest.mark.xfail(torch.__version__ < "2.12", reason="unique breaks the graph there", strict=False),
        ),
        broadcast_to_constant,
        with_gradients,
        raises_when_empty,
    ],
)
def test_sizes_that_depend_on_data(fn):
    check(fn, DATA)


def test_sum_of_two_selections_of_any_sizes():
    def f(x, y):
        both = x[x > 0] + y[y > 0]
        return both, both.shape, both * both

    none, one, two = DATA[1], DATA[2], DATA[3]
    check(f, [(two, two), (one, two), (two, one), (none, one), (one, none), (none, none), (two, none), (DATA[0], two)])


def test_checked_sizes_agree():
    def f(x):
        y, z = x[x > 0], x[x <= 0]
        torch._check(y.shape[0] == z.shape[0])
        return y + z, y.shape[0] == z.shape[0]

    check(f, [T([1.0, -1, -2, 3]), T([1.0, -1, 1, 1]), T([-1.0, -1, -2, -3])])


def test_arithmetic_of_items():
    def f(x, t):
        n = t.item()
        return [n, n * n, n // 2, n / 2, -n, n > 3, max(n, 2), abs(n), n % 3], x + n, x * float(t), int(t) + 1

    check(f, [(DATA[0], T(n)) for n in (3, 0, -7, 100, 1)])
    check(lambda x, t: (x * t.item(), int(t), t.item() / 2), [(DATA[0], T(n)) for n in (2.5, -2.5, 0.0)])


def test_sizes_from_items():
    def f(x, t):
        a, b, c = t.tolist()
        return x.split([a, b, c]), torch.arange(a), torch.zeros(b, 2).sum(0), x[:a], x.narrow(0, a, b), x[:, a]

    x = torch.randn(6, 5)
    check(f, [(x, T(sizes)) for sizes in ([1, 2, 3], [0, 0, 6], [4, 1, 1], [6, 0, 0], [3, 3, -1], [2, 2, 1])])


def test_a_size_that_may_be_minus_one():
    def f(x, t):
        y = x.view(t.item(), 4)
        return y, y.shape, y + y, y.sum(0)

    check(f, [(DATA[0], T(n)) for n in (4, -1, 3)])


def test_slice_whose_bound_is_checked():
    def f(x, t):
        n = t.item()
        torch._check(n >= 0)
        torch._check(n <= x.shape[0], lambda: "too many")
        return x[:n] + 1, x[:n].shape[0] == n, x[n:]

    check(f, [(DATA[0], T(n)) for n in (2, 0, 1, 4, 5, -1)])


def test_repeats_counts_and_classes():
    def f(t):
        x = torch.arange(6.0).view(3, 2)
        return x.repeat_interleave(t, 0), t.bincount(), t.bincount(minlength=5).shape, torch.nn.functional.one_hot(t)

    check(f, [T([1, 0, 2]), T([0, 0, 0]), T([1, 0, 0]), T([7, 1, 1])])


ASSERTING = """
def f(x, t):
    assert t.max().item() <= 5
    assert t.min().item() >= 0, "negative"
    return x[: t.min().item()]
"""


def test_assertion_stays_in_the_graph():
    scope = {}
    exec(ASSERTING, scope)  # pytest rewrites the assertions of this file
    check(scope["f"], [(DATA[0], T(v)) for v in ([2, 3], [0, 7], [-1, 3], [0, 1])])


def test_the_same_question_has_one_symbol():
    def f(x):
        m = x > 0
        return x[m] * m.nonzero()[:, 0] + x.masked_select(m)

    check(f, DATA)


def test_uses_that_need_the_value_break_at_their_line():
    t = T(2)
    refused(lambda t: [i for i in range(t.item())], t, match="known only when the program runs")
    refused(lambda t: f"{t.item()}", t, match="Python needs the number u0")
    refused(lambda t: [1, 2, 3][t.item()], t, match="Python needs the number u0")
    refused(lambda t: {t.item(): 1}, t, match="u0")
    refused(lambda t: t + 1 if t.item() > 1 else t - 1, t, match=r"u0 > 1(.|\n)*torch\._check(.|\n)*torch\.where")


def test_results_whose_rank_depends_on_data_break():
    for x in DATA:
        refused(lambda x: x[x > 0].squeeze() + 1, x, match="squeeze")
        refused(lambda x: [row + 1 for row in x.nonzero()], x, match="unbind")
        refused(lambda x: x if x[x > 0].numel() == 0 else x + 1, x, match="u0 == 0")
        refused(lambda x: x[x > 0].stride(), x, match="stride")


def test_without_the_settings_the_graph_breaks():
    def f(x):
        return x[x > 0] * x.sum().item()

    argand.reset()
    backend = CountingBackend()
    compiled = argand.compile(f, backend=backend)
    for x in DATA:
        assert_same(f(x), compiled(x))
    assert len(backend.graphs) > 1


def test_settings_without_fullgraph():
    def f(x):
        n = x.sum().item()
        y = x[x > 0] * n
        argand.graph_break()
        return y + 1, n, y.shape[0]

    argand.reset()
    backend = CountingBackend()
    with config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        compiled = argand.compile(f, backend=backend)
        for x in DATA:
            assert_same(f(x), compiled(x))
    assert sum(node.target == "item" for node in backend.graphs[0].graph.nodes) == 1


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_compiling_backends_run_such_graphs_eagerly(backend):
    with collected("fallback") as events:
        check(masked, DATA, backend)
    assert any("depend on the data" in event.text() for event in events)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_errors_of_sizes_that_depend_on_data(backend):
    """What raises for some sizes does where the program would be told, also if nothing reads the result."""

    def f(x, y):
        log = []
        picked, values = x[x > 0], x.unique()
        for attempt in range(3):
            try:
                if attempt == 0:
                    picked != y  # noqa: B015
                elif attempt == 1:
                    values[2:2] = x
                else:
                    torch.zeros(picked.shape[0] - 3)
            except RuntimeError as error:
                log.append(str(error))
        return x.cumsum(0), x.abs(), log

    compiled = argand.compile(f, backend=backend)
    for x in DATA:
        for size in (1, 2, 3):
            assert_same(f(x, torch.arange(size)), compiled(x, torch.arange(size)))


def test_with_sizes_that_vary_from_call_to_call():
    def f(x):
        y = x[x > 0]
        return torch.cat([x.reshape(-1), y]), x.shape[0] + y.shape[0], y.view(-1, 1) * x.new_ones(x.shape[1])

    argand.reset()
    compiled = argand.compile(f, backend="eager", fullgraph=True, dynamic=True)
    for rows in (4, 3, 7, 2):
        for sign in (1, -1):
            x = torch.rand(rows, 5) * sign
            assert_same(f(x), compiled(x))


def test_stand_ins_of_many_sizes_are_not_larger_than_memory():
    def blocks(x, a, b, c):
        n, m, k = a.item(), b.item(), c.item()
        places = torch.arange(n)[:, None, None] * torch.arange(m)[:, None] * torch.arange(k)
        return x.new_zeros(n, m, k, 4).sum() + places

    check(blocks, [(T([1.0]), T(2), T(3), T(4)), (T([2.0]), T(5), T(1), T(3))])


@pytest.mark.parametrize("kind", (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN))
@pytest.mark.parametrize("way", ("sorted", "unsorted", "steps first", "states"))
def test_packed_sequences(kind, way):
    """Of any lengths, in batches of any size: one graph, with its gradients."""
    rnn, first = kind(4, 3, 2, batch_first=way != "steps first", bidirectional=way == "unsorted"), way != "steps first"

    def f(x, lengths, state):
        packed = torch.nn.utils.rnn.pack_padded_sequence(x * 2, lengths, first, way == "sorted")
        given = ((state, state) if kind is torch.nn.LSTM else state) if way == "states" else None
        rows, states = rnn(packed, given)
        y, of = torch.nn.utils.rnn.pad_packed_sequence(rows, first, 5.0, total_length=7 if way == "states" else None)
        return y.sin(), of, states, rows.batch_sizes

    argand.reset()
    graphs = CountingBackend()
    compiled = argand.compile(f, backend=graphs, fullgraph=True)
    for lengths in ([3, 2], [6, 6, 1], [4, 3, 3, 2], [5, 1], [2, 0]):
        order = lengths if way == "sorted" else lengths[::-1]
        x = torch.randn(len(order), 7, 4) if first else torch.randn(7, len(order), 4)
        seen = []
        for call in (f, compiled):
            given = x.clone().requires_grad_()
            result = outcome(lambda *args, call=call: call(given, *args), (T(order), torch.ones(2, len(order), 3)))
            if isinstance(result, tuple):
                (result[0].square().sum() + result[0].mean()).backward()
            seen.append((result, given.grad, rnn.weight_hh_l0.grad))
            rnn.zero_grad()
        assert_same(*seen)
    assert len(graphs.graphs) == 2
