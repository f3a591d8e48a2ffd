"""One native program for many sizes: compiled once, compared with eager at sizes of every kind."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from dynamic_helpers import check_sizes, dynamic_graph
from native_helpers import as_module
from tests.helpers import assert_same, collected
from torch import nn

import argand
import warm
from argand.backends.native import native

# the first is what is compiled for; then less than a vector, primes, whole vectors, more than a block
LENGTHS = [(8,), (3,), (2,), (17,), (128,), (1001,), (4100,)]
SHORT = [(8,), (4,), (5,), (33,), (64,)]
PAIRS = [(8, 16), (3, 5), (2, 2), (17, 31), (64, 3), (16, 8), (33, 33)]
EVEN = [(8,), (4,), (6,), (18,), (130,)]

ROWS = {0: {0: "n"}}
COLUMNS = {0: {1: "n"}}
BOTH = {0: {0: "n", 1: "m"}}


def rand(*size):
    return torch.rand(*size)


WEIGHT, SCALE, TABLE, FILTER = rand(64, 64) - 0.5, rand(64), rand(100, 32), rand(8, 3, 3, 3) - 0.5


def attention(x):
    q = x.view(x.shape[0], x.shape[1], 4, 16).transpose(1, 2)
    scores = (q @ q.transpose(-1, -2) / 4).softmax(-1)
    return (scores @ q).transpose(1, 2).reshape(x.shape)


def causal(x):
    mask = torch.ones(x.shape[0], x.shape[0], dtype=torch.bool).triu(1)
    return x.masked_fill(mask, float("-inf")).softmax(-1)


def rotated(x):
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], -1)


CASES = {
    "pointwise": (lambda x: F.gelu(x) * 2 + x, lambda n: [rand(n, 64)], ROWS, LENGTHS),
    "pointwise_vector": (lambda x: torch.tanh(x) + 1, lambda n: [rand(n)], ROWS, LENGTHS),
    "pointwise_columns": (lambda x: torch.relu(x - 0.5), lambda n: [rand(5, n)], COLUMNS, LENGTHS),
    "transposed": (lambda x, y: x + y.t(), lambda n, m: [rand(n, m), rand(m, n)], {**BOTH, 1: {0: "m", 1: "n"}}, PAIRS),
    "broadcast_row": (lambda x, y: x + y, lambda n, m: [rand(n, m), rand(m)], {**BOTH, 1: {0: "m"}}, PAIRS),
    "outer": (lambda x, y: x[:, None] * y, lambda n, m: [rand(n), rand(m)], {**ROWS, 1: {0: "m"}}, PAIRS),
    "sum_rows": (lambda x: x.sum(-1), lambda n: [rand(5, n)], COLUMNS, LENGTHS),
    "sum_columns": (lambda x: x.sum(0), lambda n: [rand(n, 70)], ROWS, LENGTHS),
    "sum_all": (lambda x: x.sum(), lambda n, m: [rand(n, m)], BOTH, PAIRS),
    "mean_two": (lambda x: x.mean((0, 1)), lambda n, m: [rand(n, m, 7)], BOTH, PAIRS),
    "variance": (lambda x: x.var(-1), lambda n: [rand(5, n)], COLUMNS, LENGTHS),
    "extrema": (lambda x: (x.argmax(-1), x.max(0), x.amin(1)), lambda n: [rand(5, n)], COLUMNS, LENGTHS),
    "softmax_rows": (lambda x: x.softmax(-1), lambda n: [rand(5, n)], COLUMNS, LENGTHS),
    "softmax_columns": (lambda x: x.softmax(0), lambda n: [rand(n, 33)], ROWS, LENGTHS),
    "log_softmax": (lambda x: x.log_softmax(-1), lambda n, m: [rand(n, m)], BOTH, PAIRS),
    "layer_norm": (lambda x: F.layer_norm(x, (64,), SCALE, SCALE), lambda n: [rand(n, 64)], ROWS, LENGTHS),
    "layer_norm_dynamic": (lambda x: F.layer_norm(x, x.shape[-1:]), lambda n: [rand(3, n)], COLUMNS, LENGTHS),
    "group_norm": (lambda x: F.group_norm(x, 4), lambda n, m: [rand(n, 8, m)], {0: {0: "n", 2: "m"}}, PAIRS),
    "linear": (lambda x: F.linear(x, WEIGHT, SCALE).relu(), lambda n, m: [rand(n, m, 64)], BOTH, PAIRS),
    "bmm": (
        lambda x, y: torch.bmm(x, y) * 2,
        lambda n, m: [rand(n, m, 16), rand(n, 16, m)],
        {**BOTH, 1: {0: "n", 2: "m"}},
        PAIRS,
    ),
    "sdpa": (
        lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True),
        lambda n, m: [rand(n, 4, m, 16)],
        {0: {0: "n", 2: "m"}},
        PAIRS,
    ),
    "attention": (attention, lambda n, m: [rand(n, m, 64)], BOTH, PAIRS),
    "convolution": (
        lambda x: F.conv2d(x, FILTER, padding=1, stride=2).relu(),
        lambda n, m: [rand(n, 3, m + 4, m + 4)],
        {0: {0: "n", 2: "m", 3: "m"}},
        PAIRS,
    ),
    "pooling": (
        lambda x: F.max_pool2d(F.conv2d(x, FILTER).relu(), 2),
        lambda n, m: [rand(n, 3, m + 4, 12)],
        {0: {0: "n", 2: "m"}},
        PAIRS,
    ),
    "embedding": (lambda i: F.embedding(i, TABLE) * 2, lambda n, m: [torch.randint(0, 100, (n, m))], BOTH, PAIRS),
    "cat_rows": (
        lambda x, y: torch.cat([x, y]) * 2,
        lambda n, m: [rand(n, 9), rand(m, 9)],
        {**ROWS, 1: {0: "m"}},
        PAIRS,
    ),
    "cat_columns": (
        lambda x, y: torch.cat([x, y], 1).sum(1),
        lambda n, m: [rand(9, n), rand(9, m)],
        {**COLUMNS, 1: {1: "m"}},
        PAIRS,
    ),
    "arange": (lambda x: torch.arange(x.shape[0]) + x, lambda n: [rand(n)], ROWS, LENGTHS),
    "causal_mask": (causal, lambda n: [rand(n, n)], {0: {0: "n", 1: "n"}}, SHORT),
    "triangle": (torch.tril, lambda n: [rand(n, n)], {0: {0: "n", 1: "n"}}, SHORT),
    "expand": (lambda x, y: x.expand(y.shape[0], -1) + y, lambda n: [rand(1, 32), rand(n, 32)], {1: {0: "n"}}, LENGTHS),
    "slice_inside": (lambda x: x[1:-1] * 2, lambda n: [rand(n, 5)], ROWS, SHORT),
    "select_last": (lambda x: x[:, -1] + x[:, 0], lambda n: [rand(5, n)], COLUMNS, SHORT),
    "slice_to_size": (lambda x, p: x + p[:, : x.shape[1]], lambda n: [rand(2, n), rand(1, 80)], COLUMNS, SHORT),
    "slice_by_number": (lambda x, k: x[:k] * 2, lambda n: [rand(200, 5), n], {1: "k"}, SHORT),
    "halves": (rotated, lambda n: [rand(3, n)], COLUMNS, EVEN),
    "chunks": (lambda x: [c * 2 for c in x.relu().chunk(2, 0)], lambda n: [rand(n, 6)], ROWS, EVEN),
    "view_of_pairs": (lambda x: x.view(-1, 2, 6).sum(1), lambda n: [rand(n, 6)], ROWS, EVEN),
    "reshape_copies": (lambda x: x.transpose(0, 1).reshape(-1) * 2, lambda n, m: [rand(n, m)], BOTH, PAIRS),
    "number": (lambda x, k: x * k + k, lambda n: [rand(n, 5), n], {**ROWS, 1: "k"}, SHORT),
    "with_holes": (lambda x: x * 2 + 1, lambda n: [rand(n, 128)[:, ::2]], ROWS, SHORT),
    "column_major": (lambda x: (x + 1).sum(-1), lambda n: [rand(64, n).t()], ROWS, SHORT),
    "mutation": (lambda x: x.mul_(2).sum(0), lambda n: [rand(n, 16)], ROWS, SHORT),
    "sizes_returned": (lambda x: (x * 2, x.shape[0], x.numel()), lambda n: [rand(n, 16)], ROWS, SHORT),
    "views_returned": (lambda x: (x.view(-1), x[1:]), lambda n: [rand(n, 16)], ROWS, SHORT),
    "gather": (
        lambda x, i: x.gather(1, i),
        lambda n: [rand(n, 16), torch.randint(0, 16, (n, 4))],
        {**ROWS, 1: {0: "n"}},
        SHORT,
    ),
    "index": (
        lambda x, i: x[i],
        lambda n, m: [rand(n, 16), torch.randint(0, n, (m,))],
        {**ROWS, 1: {0: "m"}},
        PAIRS,
    ),
    "extern_calls": (
        lambda x: x.cumsum(-1) + x.sort(-1)[0] + x.topk(2, -1)[0].sum(),
        lambda n: [rand(3, n)],
        COLUMNS,
        SHORT,
    ),
    "grouped_heads": (
        lambda k: k[:, :, None].expand(k.shape[0], 2, 3, k.shape[2], 8).reshape(k.shape[0], 6, k.shape[2], 8) * 2,
        lambda n, m: [rand(n, 2, m, 8)],
        {0: {0: "n", 2: "m"}},
        PAIRS,
    ),
    "lengths": (
        lambda x, l: x * (torch.arange(x.shape[1])[None] < l[:, None]),
        lambda n, m: [rand(n, m), torch.randint(0, m, (n,))],
        {**BOTH, 1: {0: "n"}},
        PAIRS,
    ),
    "shifted_triangle": (
        lambda x: torch.triu(torch.ones(x.shape), x.shape[1] - x.shape[0] + 1) + x,
        lambda n, m: [rand(n, m)],
        BOTH,
        PAIRS,
    ),
    "write_by_size": (
        lambda x, y: (x[:, : y.shape[1]].copy_(y), x * 2)[1],
        lambda n: [rand(3, 70), rand(3, n)],
        {1: {1: "n"}},
        SHORT,
    ),
    "padding": (lambda x: F.pad(x, (1, 2)) * 2, lambda n: [rand(3, n)], COLUMNS, SHORT),
    "moves": (lambda x: x.flip(-1) + x.roll(1, -1) + x.roll(-2, -1), lambda n: [rand(3, n)], COLUMNS, SHORT),
    "repeat": (lambda x: x.repeat(2, 3) * 2, lambda n: [rand(3, n)], COLUMNS, SHORT),
    "enlarged": (lambda x: F.interpolate(x, scale_factor=2) * 2, lambda n: [rand(1, 3, n, 5)], {0: {2: "n"}}, SHORT),
    "diagonal": (lambda x: x.diagonal() * 2, lambda n: [rand(n, n)], {0: {0: "n", 1: "n"}}, SHORT),
    "windows": (lambda x: x.unfold(0, 2, 1).sum(-1), lambda n: [rand(n)], ROWS, SHORT),
    "bfloat16": (lambda x: F.layer_norm(x, (64,)) * x.shape[0], lambda n: [rand(n, 64).bfloat16()], ROWS, SHORT),
    "integers": (lambda x: (x * x.shape[0] + 3) % 7, lambda n: [torch.randint(0, 50, (n, 5))], ROWS, SHORT),
    "filled": (lambda x: torch.full((x.shape[0],), x.shape[0] + 0.0) + x[:, 0], lambda n: [rand(n, 5)], ROWS, SHORT),
    "standardised": (
        lambda x: (x - x.mean(-1, True)) / x.std(-1, keepdim=True),
        lambda n: [rand(3, n)],
        COLUMNS,
        SHORT,
    ),
    "loss": (
        F.cross_entropy,
        lambda n: [rand(n, 10), torch.randint(0, 10, (n,))],
        {**ROWS, 1: {0: "n"}},
        SHORT,
    ),
    "write_to_slice": (
        lambda x, y: x.clone().narrow(0, 1, 3).copy_(y),
        lambda n: [rand(n, 4), rand(3, 4)],
        ROWS,
        SHORT,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_program_serves_every_size(name):
    fn, make, dims, sizes = CASES[name]
    check_sizes(fn, make, dims, sizes)


@pytest.mark.parametrize("name", [*CASES][::4])
def test_aot_eager_serves_every_size(name):
    fn, make, dims, sizes = CASES[name]
    check_sizes(fn, make, dims, sizes, backend="aot_eager")


def test_the_first_of_equal_extremes_is_found_however_a_tensor_lies():
    """Lanes and pieces of an inner loop are not in the order of positions."""

    def f(x):
        return x.argmax(), (x * 2).argmin()

    compiled = argand.compile(f, dynamic=True, fullgraph=True)
    for sizes in ((4, 40, 7), (3, 5, 35)):
        x = torch.arange(sizes[0] * sizes[1] * sizes[2]).remainder(13).view(sizes)
        for y in (x, x.mT.contiguous().mT, x.permute(2, 0, 1).contiguous().permute(1, 2, 0)):
            assert_same(compiled(y), f(y))
    y = torch.arange(700).remainder(9).view(7, 100).t()
    assert_same(argand.compile(f, dynamic=False, fullgraph=True)(y), f(y))


def test_writes_to_strided_slices_of_any_length():
    """In loops: what ATen's kernel returns lies where its argument did, which was memory of many temporaries."""

    def f(x):
        y, z = x * 2, (x + 1).t()
        y[1::3] *= 3
        z[:, ::2] = y[-1, :, None]
        return y, z[:-1:4] + 1, torch.slice_scatter(z + 1, z[::2], 0, None, None, 2)

    texts = []
    stop = argand.events.bus.subscribe(lambda event: texts.append(event.text()), ("fallback",))
    compiled = argand.compile(f, dynamic=True, fullgraph=True)
    for rows, columns in ((7, 4), (6, 6), (2, 9), (9, 3)):
        x = rand(rows, columns)
        for got, want in zip(compiled(x), f(x), strict=True):
            assert torch.equal(got, want) and got.stride() == want.stride() and not got.storage_offset()
    stop()
    assert not texts


# ---------------------------------------------------------------------- numbers outside of tensors


def test_a_float_computed_from_a_size_is_a_double_argument():
    fn = lambda x: x / (x.shape[-1] ** 0.5)  # noqa: E731
    check_sizes(fn, lambda n: [rand(3, n)], COLUMNS, SHORT, traced=True, exact=True)


def test_a_float_input_is_an_argument():
    fn = lambda x, f: x * f + torch.exp(x * (f / 2))  # noqa: E731
    sizes = [(8, 0.5), (5, 0.25), (9, -2.0), (9, float("inf"))]
    check_sizes(fn, lambda n, f: [rand(3, n), f], {**COLUMNS, 1: "f"}, sizes, traced=True)


def test_a_float_meets_reduced_precision_as_in_eager():
    fn = lambda x: x * (1.0 / x.shape[0])  # noqa: E731
    check_sizes(fn, lambda n: [rand(n, 3).bfloat16()], ROWS, SHORT, traced=True, exact=True)


def test_random_numbers_are_eagers_where_that_is_asked_for():
    import argand

    with argand.config.patch(fallback_random=True):
        check_sizes(lambda x: F.dropout(x, 0.5), lambda n: [rand(n, 10)], ROWS, SHORT)


def test_random_numbers_are_drawn_for_every_size():
    x = rand(8, 10)
    fn = lambda x: F.dropout(torch.ones_like(x), 0.25) + x * 0  # noqa: E731
    with torch.no_grad(), collected("aot_inference_graph", "fallback") as seen:
        call = native(dynamic_graph(fn, [x], ROWS), [x])
        exact = native(as_module(fn, 1), [rand(1001, 10)])
        for n in (8, 3, 1001):
            first, second = call(rand(n, 10)), call(rand(n, 10))
            assert first.shape == (n, 10) and not torch.equal(first, second)
        assert abs(float((first == 0).double().mean()) - 0.25) < 0.02
        torch.manual_seed(3)
        one = call(rand(1001, 10))
        torch.manual_seed(3)
        assert torch.equal(one, exact(rand(1001, 10)))
    assert not [e for e in seen if e.name == "fallback"]


# ---------------------------------------------------------------------- what a program was compiled for


def test_sizes_that_do_not_divide_get_a_program_of_their_own():
    """The graph works for even sizes; for an odd one eager raises, and so does the compiled graph."""
    fn = lambda x: x.view(x.shape[0] // 2, 2, 3) * 2  # noqa: E731
    x = rand(8, 3)
    gm = dynamic_graph(fn, [x], ROWS)
    with torch.no_grad():
        call = native(gm, [x])
        for n in (8, 12, 30):
            y = rand(n, 3)
            assert_same(fn(y), call(y))
        with pytest.raises(RuntimeError, match="invalid for input of size"):
            call(rand(7, 3))


def test_a_slice_that_is_clamped_at_other_sizes_is_right():
    """x[:10] has ten rows or fewer: a size below ten is another program."""
    events = check_sizes(lambda x: x[:10] * 2, lambda n: [rand(n, 3)], ROWS, [(16,), (11,), (7,), (10,)], general=False)
    assert sum(e.name == "aot_inference_graph" for e in events) == 2


def test_a_slice_that_is_clamped_now_is_right():
    check_sizes(lambda x: x[:10] * 2, lambda n: [rand(n, 3)], ROWS, [(7,), (11,), (5,), (30,)], general=False)


def test_a_negative_bound_beyond_the_start_is_right():
    check_sizes(lambda x: x[-10:] * 2, lambda n: [rand(n, 3)], ROWS, [(16,), (11,), (7,), (10,)], general=False)


def test_a_size_that_equals_a_static_one_is_no_rule():
    """Compiled at n = 64, where x.view(n, 64) changes nothing; at other sizes it must not be taken for that."""
    fn = lambda x, y: x.view(x.shape[1], x.shape[0]).t() + y  # noqa: E731
    check_sizes(fn, lambda n: [rand(64, n), rand(64, n)], {0: {1: "n"}, 1: {1: "n"}}, [(64,), (3,), (17,)])


def test_sizes_of_one_inside_are_another_program():
    """x[1:] of two rows has one row, which broadcasts."""
    fn = lambda x, y: x[1:] + y  # noqa: E731
    check_sizes(fn, lambda n: [rand(n, 4), rand(1, 4)], ROWS, [(5,), (2,), (3,)], general=False)


def test_a_number_of_operations_that_depends_on_a_size_is_compiled_for_each_size():
    fn = lambda x: sum(row * k for k, row in enumerate(x))  # noqa: E731
    events = check_sizes(fn, lambda n: [rand(n, 3)], ROWS, [(3,), (5,), (3,)], general=False)
    assert sum(e.name == "aot_inference_graph" for e in events) == 2
    assert any("depends on the sizes" in str(e.data.get("reason")) for e in events if e.name == "fallback")


def test_one_symbol_too_many_leaves_the_others():
    """The loop runs over the first dimension: that is constant, the second stays a symbol."""
    fn = lambda x: sum(row * k for k, row in enumerate(x))  # noqa: E731
    events = check_sizes(fn, lambda n, m: [rand(n, m)], BOTH, [(3, 5), (3, 9), (3, 40), (4, 9)], general=False)
    assert sum(e.name == "aot_inference_graph" for e in events) == 2


def test_sizes_beyond_the_limit_run_eagerly():
    import argand

    fn = lambda x: sum(row * k for k, row in enumerate(x))  # noqa: E731
    with argand.config.patch(exact_sizes_limit=2):
        events = check_sizes(fn, lambda n: [rand(n, 3)], ROWS, [(3,), (5,), (7,), (9,)], general=False)
    assert sum(e.name == "aot_inference_graph" for e in events) == 2
    assert any("exact_sizes_limit" in str(e.data.get("reason")) for e in events if e.name == "fallback")


def test_sizes_beyond_the_limit_are_told_of_once(monkeypatch):
    """And where each call has others, none looks for its sizes any more."""
    import argand

    monkeypatch.setattr("argand.backends.dynamic._MOST_MISSES", 3)
    fn = lambda x: sum(row * k for k, row in enumerate(x))  # noqa: E731
    with argand.config.patch(exact_sizes_limit=1):
        sizes = [(3,), (5,), (7,), (3,), (5,), (9,), (11,), (13,), (3,)]
        events = check_sizes(fn, lambda n: [rand(n, 3)], ROWS, sizes, general=False)
    assert sum("exact_sizes_limit" in str(e.data.get("reason")) for e in events if e.name == "fallback") == 1


def test_a_power_that_is_one_leaves_the_program_one_for_all_sizes():
    check_sizes(lambda x: x * (x.shape[0] + 1) ** 0.0, lambda n: [rand(n, 3)], ROWS, [(3,), (5,), (7,)])


def test_a_graph_that_needs_gradients_is_right_at_every_size():
    weight = rand(4, 4).requires_grad_()
    fn = lambda x, weight: (x @ weight).sum(0)  # noqa: E731
    x = rand(5, 4)
    call = native(dynamic_graph(fn, [x, weight], ROWS), [x, weight])
    for n in (5, 3, 9):
        y = rand(n, 4)
        grad = torch.autograd.grad(fn(y, weight).sum(), weight)[0]
        torch.testing.assert_close(torch.autograd.grad(call(y, weight).sum(), weight)[0], grad)


# ---------------------------------------------------------------------- the program itself


def test_kernels_take_sizes_as_arguments_and_are_reused():
    x = rand(6, 32)
    with torch.no_grad(), collected("output_code") as seen:
        first = native(dynamic_graph(lambda x: x.exp() * 3, [x], ROWS), [x])
        y = rand(50, 32)
        second = native(dynamic_graph(lambda x: x.exp() * 3, [y], ROWS), [y])
        assert_same(y.exp() * 3, first(y))
        assert_same(x.exp() * 3, second(x))
    text = seen[0].payload
    assert "const i64 s0 = ints[0];" in text and "arg0_1, s0 = args" in text
    assert len(seen) == 1, "the second graph is the first one"


def test_the_host_module_runs_by_itself(tmp_path):

    x = rand(6, 32)
    with torch.no_grad(), collected("output_code") as seen:
        native(dynamic_graph(lambda x: (x @ x.t()).softmax(-1).relu() * 2, [x], ROWS), [x])
    path = tmp_path / "output_code.py"
    path.write_text(seen[-1].payload)
    done = warm.run([path], imported="compiler")
    assert "ms a call" in done.stdout, done.stderr


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(32, 4, batch_first=True)
        self.norm = nn.LayerNorm(32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        x = self.norm(x + self.attend(x, x, x, need_weights=False)[0])
        return x + self.down(F.gelu(self.up(x)))


def test_a_transformer_layer_shares_memory_between_temporaries():
    model = Layer().eval()
    events = check_sizes(model, lambda n, m: [rand(n, m, 32)], BOTH, [(2, 12), (3, 7), (5, 33), (2, 12), (7, 130)])
    text = next(e.payload for e in events if e.name == "output_code")
    assert "def arena_bytes(s0, s1):" in text and "slot0" in text


def test_threads_of_different_sizes_do_not_share_memory():
    import threading

    fn = lambda x: ((x @ x.t()).softmax(-1) @ x).relu()  # noqa: E731
    x = rand(6, 16)
    with torch.no_grad():
        call = native(dynamic_graph(fn, [x], ROWS), [x])
    wrong = []

    def work(n):
        with torch.no_grad():
            y = rand(n, 16)
            want = fn(y)
            for _ in range(50):
                if not torch.allclose(call(y), want, atol=1e-5):
                    wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in (3, 20, 65)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_bound_that_is_a_sum_is_rounded_to_whole_vectors() -> None:
    """Buckets of distances over one element more than the input has, as attention with a cache reads its bias.

    A loop that ran over its end would write beyond the result, which no comparison of results sees.
    """
    table = torch.randn(32, 4)

    def bias(x: torch.Tensor) -> torch.Tensor:
        seen = x.shape[0]
        ahead = torch.arange(seen + 1)[None, :] - (torch.arange(1)[:, None] + seen)
        away = -torch.min(ahead, torch.zeros_like(ahead))
        far = (16 + (away.float() / 16).log() / 2.0794415416798357 * 16).long()
        buckets = torch.where(away < 16, away, torch.min(far, torch.full_like(far, 31)))
        return F.embedding(buckets, table).permute(2, 0, 1).unsqueeze(0).contiguous()

    with collected("output_code") as seen:
        compiled = argand.compile(bias, backend="native", dynamic=True)
        for length in (3, 7, 8, 15, 16, 40, 41):
            x = torch.zeros(length)
            torch.testing.assert_close(compiled(x), bias(x))
    code = "".join(event.text() for event in seen)
    assert re.search(r"< \(s0 \+ 1\) / \d+ \* \d+;", code) and not re.search(r"s0 \+ 1 [/%]", code)


def test_numbers_that_vary_are_divided_by_negative_ones_as_python_does():
    def program(x, a, b):
        return x + a // b, x + a % b, x * (a // b * b)

    compiled = argand.compile(program, dynamic=True)
    for a, b in ((7, 2), (7, -2), (-7, 2), (-7, -2), (8, -3), (6, -3)):
        assert_same(program(torch.ones(3), a, b), compiled(torch.ones(3), a, b))
