"""Sizes that vary from call to call: values against eager at several sizes, compiles counted."""

from __future__ import annotations

import math
import operator
import warnings

import pytest
import torch
import torch.nn.functional as F

import argand
from helpers import CountingBackend, assert_same

T = torch.Tensor


def calls_of(fn, inputs, compiles=2, **options):
    """Every call equals eager's; at most `compiles` compiles in all. Returns the backend."""
    argand.reset()
    backend = CountingBackend()
    compiled = argand.compile(fn, backend=backend, fullgraph=True, **options)
    for args in inputs:
        args = args if isinstance(args, tuple) else (args,)
        expected = fn(*[a.clone() if isinstance(a, T) else a for a in args])
        found = compiled(*[a.clone() if isinstance(a, T) else a for a in args])
        assert_same(expected, found)
    assert len(backend.graphs) <= compiles, f"{len(backend.graphs)} compiles, not {compiles}"
    return backend


def batches(*rest, sizes=(4, 6, 7, 11, 3)):
    return [torch.randn(size, *rest) for size in sizes]


def test_the_example_of_the_issue():
    backend = calls_of(lambda x: (x.view(x.shape[0] * 2, -1) + x.size(1)).sum(0), batches(6))
    assert len(backend.graphs) == 2


FUNCTIONS = {
    "pointwise": lambda x: (x + 1).relu() * x,
    "reduce": lambda x: x.sum(0) / x.shape[0],
    "numel": lambda x: x * x.numel(),
    "flatten": lambda x: x.flatten().view(x.shape[0], -1),
    "unflatten": lambda x: x.view(*x.shape[:-1], 2, -1).transpose(1, 2),
    "reshape -1": lambda x: x.reshape(-1, 3) * 2,
    "cat": lambda x: torch.cat([x, x[1:]], 0),
    "stack": lambda x: torch.stack([x, x + 1]).sum(1),
    "zeros": lambda x: torch.zeros(x.shape[0], 5, dtype=x.dtype) + x[:, :5],
    "arange": lambda x: torch.arange(x.shape[0]) + x[:, 0],
    "arange step": lambda x: torch.arange(0, 2 * x.shape[0], 2) + x[:, 0],
    "ones_like": lambda x: torch.ones_like(x) * x.mean(),
    "expand": lambda x: torch.ones(1, 6).expand(x.shape[0], 6) * x,
    "repeat": lambda x: x.repeat(2, 1)[: x.shape[0]],
    "slice to half": lambda x: x[: x.shape[0] // 2],
    "slice from end": lambda x: x[:-1] + x[1:],
    "index": lambda x: x[2] + x[-1],
    "chunk": lambda x: sum(c.sum() for c in x.chunk(2, dim=1)),
    "matmul": lambda x: x @ x.t(),
    "einsum": lambda x: torch.einsum("bi,bj->ij", x, x),
    "softmax": lambda x: F.softmax(x, dim=0),
    "layer_norm": lambda x: F.layer_norm(x, (6,)),
    "linear": lambda x: F.linear(x, torch.ones(3, 6)),
    "pad": lambda x: F.pad(x, (1, 2)),
    "mask": lambda x: torch.full((x.shape[0], x.shape[0]), float("-inf")).triu(1) + x @ x.t(),
    "where": lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
    "sqrt of size": lambda x: x / math.sqrt(x.shape[0]),
    "size to the power": lambda x: x * x.shape[0] ** -0.5 + x.shape[0] ** 2,
    "true division": lambda x: x * (1 / x.shape[0]),
    "float of size": lambda x: x + float(x.shape[0]) + int(x.shape[0]),
    "max of sizes": lambda x: x + max(x.shape[0], 2) - min(x.size(0), 1000),
    "len": lambda x: x * len(x),
    "unpack": lambda x: (lambda b, c: x.reshape(c, b))(*x.shape),
    "shape arithmetic": lambda x: x.new_zeros(x.shape[:1] + (3,)) + x.sum(),
    "shape tuple": lambda x: torch.zeros(x.shape).add(x).view(x.shape[::-1]),
    "divmod": lambda x: x * divmod(x.shape[0], 3)[1],
    "shift": lambda x: x * (x.shape[0] << 1),
    "cumsum": lambda x: x.cumsum(0) + x.flip(0),
    "sort": lambda x: x.sort(0).values + x.argsort(0),
    "topk": lambda x: x.topk(2, dim=0).values,
    "gather": lambda x: x.gather(0, torch.zeros(x.shape, dtype=torch.int64)),
    "scatter": lambda x: torch.zeros_like(x).scatter_(0, torch.zeros(x.shape, dtype=torch.int64), x),
    "inplace": lambda x: x.add_(x.shape[0]).mul_(2),
    "setitem": lambda x: _set(x),
    "interpolate": lambda x: F.interpolate(x[None, None], scale_factor=2).squeeze(),
    "conv": lambda x: (
        F.conv1d(x[None], torch.ones(2, x.shape[0], 3)) if False else F.conv1d(x[:, None], torch.ones(2, 1, 3))
    ),
    "comparison": lambda x: x * 2 if x.shape[0] > 2 else x * 3,
    "stride": lambda x: x.t().contiguous() * x.stride(0),
    "is_contiguous": lambda x: x + 1 if x.is_contiguous() else x,
    "one_hot": lambda x: F.one_hot(x.argmax(1), 6) * 2,
    "embedding": lambda x: F.embedding(x.argmax(1), torch.ones(6, 4)),
    "dropout": lambda x: F.dropout(x, 0.5, training=False),
    "meshgrid": lambda x: torch.meshgrid(torch.arange(x.shape[0]), torch.arange(3), indexing="ij")[0],
    "nested size": lambda x: {"a": [x.shape[0], x * 2]},
}


def _set(x):
    y = torch.zeros_like(x)
    y[: x.shape[0] // 2] = 1.0
    y[:, 1] = x.shape[0]
    return y


@pytest.mark.parametrize("name", FUNCTIONS)
def test_two_compiles_for_all_sizes(name):
    calls_of(FUNCTIONS[name], batches(6))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_dynamic_true_compiles_once(name):
    calls_of(
        FUNCTIONS[name], batches(6, sizes=(4, 7, 11)), compiles=1 if name not in ("reshape -1",) else 2, dynamic=True
    )


def test_dynamic_false_compiles_each():
    argand.reset()
    backend = CountingBackend()
    compiled = argand.compile(lambda x: x + 1, backend=backend, dynamic=False)
    for x in batches(6):
        compiled(x)
    assert len(backend.graphs) == 5


def test_both_dims():
    calls_of(
        lambda x: x.transpose(0, 1).reshape(-1, 2) + x.shape[0] * x.shape[1],
        [torch.randn(4, 8), torch.randn(6, 8), torch.randn(6, 10), torch.randn(3, 12), torch.randn(8, 8)],
        compiles=4,
    )


LIMITED = {
    "window": lambda x, y: torch.cat([x, y])[-512:] * 2,
    "sum": lambda x, y: x.sum() * y.sum() if x.shape[0] + 2 * y.shape[0] < 200 else x.sum(),
    "product": lambda x, y: x.sum() * y.sum() if x.shape[0] * y.shape[0] < 1000 else x.sum(),
    "quotients": lambda x, y: x.sum() * y.sum() if x.shape[0] // 4 < 80 // y.shape[0] else x.sum(),
}


@pytest.mark.parametrize("name", LIMITED)
def test_sizes_that_are_limited_together(name):
    sizes = ((12, 5), (3, 11), (2, 12), (4, 14), (2, 15), (7, 16), (2, 2), (19, 12))
    calls_of(LIMITED[name], [(torch.randn(a, 2), torch.randn(b, 2)) for a, b in sizes])


def test_two_sizes_that_are_equal_in_one_call():
    calls_of(lambda x: x * sum(x.shape), [torch.randn(*size) for size in ((7, 14), (6, 6), (8, 18), (4, 11), (5, 5))])
    shapes = ((3, 4), (6, 6), (6, 7), (8, 5))
    calls_of(lambda x, y: x.sum() * len(x) - len(y), [(torch.randn(a), torch.randn(b)) for a, b in shapes])


def test_two_tensors_of_one_size():
    calls_of(lambda x, y: x + y, [(torch.randn(n, 3), torch.randn(n, 3)) for n in (4, 5, 9)])


def test_broadcast_against_a_size_that_varies_alike():
    calls_of(lambda x, y: x[:, :-1] + y, [(torch.randn(2, n), torch.randn(2, n - 1)) for n in (8, 9, 12, 5)])


def test_divisibility_is_guarded():
    backend = calls_of(lambda x: x.view(4, -1), batches(3, sizes=(4, 8, 12, 16, 20)))
    assert len(backend.graphs) == 2


def test_size_one_and_zero_get_their_own_code():
    calls_of(lambda x: x.sum(0) + x.shape[0], batches(3, sizes=(4, 5, 1, 0, 9, 1)), compiles=4)


def test_branches_on_sizes():
    def f(x):
        if x.shape[0] > 8:
            return x * 2
        return x - 1

    calls_of(f, batches(3, sizes=(4, 5, 20, 8, 9, 100)), compiles=3)


def test_equality_of_sizes_in_a_branch():
    def f(x, y):
        return x + y if x.shape[0] == y.shape[0] else x.sum() + y.sum()

    sizes = [(4, 4), (5, 5), (7, 7), (6, 8), (9, 3), (5, 6)]
    calls_of(f, [(torch.randn(a, 2), torch.randn(b, 2)) for a, b in sizes], compiles=4)


def test_modulo_in_a_branch():
    def f(x):
        return x.view(-1, 2) if x.shape[0] % 2 == 0 else x[:-1].view(-1, 2)

    calls_of(f, [torch.randn(n) for n in (4, 6, 8, 7, 9, 11, 10)], compiles=3)


def test_loops_over_a_size_take_it_as_constant():
    def f(x):
        total = x[0]
        for i in range(1, x.shape[0]):
            total = total + x[i] * i
        return total

    calls_of(f, batches(3, sizes=(2, 3, 4)), compiles=3)


def test_unbind_and_split_take_the_size_as_constant():
    calls_of(lambda x: sum(x.unbind(0)), batches(3, sizes=(3, 4, 5)), compiles=3)
    calls_of(lambda x: [p.sum() for p in x.split(2)], batches(3, sizes=(3, 4, 8)), compiles=3)


@pytest.mark.parametrize(
    "take_apart",
    [lambda x: list(x), lambda x: x.split(3), lambda x: x.chunk(len(x) // 2), lambda x: x.tensor_split(len(x), dim=0)],
)
def test_products_of_sizes_are_taken_apart_without_millions_of_tensors(take_apart):
    inputs = [torch.randn(sizes) for sizes in ((2, 3), (3, 4), (2, 5), (4, 6))]
    calls_of(lambda x: sum(part.sum() for part in take_apart(x.flatten())), inputs, compiles=4)


def test_text_of_a_size_is_constant():
    calls_of(lambda x: {f"n{x.shape[0]}": x + 1}, batches(3, sizes=(3, 4, 5)), compiles=3)


def test_a_text_of_a_size_that_nobody_reads():
    def f(x):
        torch._assert(x.dim() == 2, f"expected (rows, 3), not {x.shape}, in all {x.shape[0]:>4}")
        if x.shape[1] != 3:
            raise ValueError(f"{x.shape}")
        return x * 2

    calls_of(f, batches(3))
    calls_of(lambda x: (x * 2, f"{len(x)}"), batches(3, sizes=(3, 4, 5)), compiles=3)
    calls_of(lambda x: x * {"3": 1, "4": 2, "5": 3}[f"{len(x)}"], batches(3, sizes=(3, 4, 5)), compiles=3)
    calls_of(lambda x: x * len(f"{x.shape}" + f"{len(x):03}"), batches(3, sizes=(3, 40, 5)), compiles=3)


def test_position_embeddings():
    table = torch.arange(32).expand(1, -1)

    def f(ids):
        return table[:, : ids.shape[1]] + ids

    backend = calls_of(f, [torch.randint(0, 9, (2, n)) for n in (8, 12, 5, 31, 32)])
    assert len(backend.graphs) == 2


def test_strided_convolutions():
    w = torch.ones(4, 3, 3, 3), torch.ones(4, 4, 3, 3)

    def f(x):
        for weight in w:
            x = F.conv2d(x, weight, stride=2, padding=1)
        return x.view(x.shape[0], -1).sum(1), x.shape

    calls_of(f, [torch.randn(2, 3, n, n) for n in (16, 18, 21, 33, 40)])


def conv(count, kernel, stride, weight=0.1):
    """So many convolutions of one channel, one after the other."""

    def f(x):
        for _ in range(count):
            x = F.conv2d(x, torch.full((1, 1, kernel, kernel), weight), stride=stride, padding=kernel // 3)
        return x.flatten(1) * x.shape[-1], x.shape[-2] / x.shape[-1]

    return f


QUOTIENTS = {
    "patches": conv(1, 4, 4),
    "large patches": conv(1, 16, 16),
    "overlapping": conv(1, 7, 4),
    "five": conv(5, 3, 2),
    "pools": lambda x: (y := F.avg_pool2d(F.max_pool2d(x, 3, 2, 1), 3, 3, ceil_mode=True)) * y.shape[-1],
    "windows": lambda x: (y := F.unfold(x, 3, stride=2)) * y.shape[-1],
    "dilated windows": lambda x: F.unfold(x, 3, 2, 1, (2, 5)).transpose(1, 2).flatten(0, 1),
    "frames": lambda x: (y := x.flatten().unfold(0, 400, 160)) * y.shape[0],
}


@pytest.mark.parametrize("name", QUOTIENTS)
def test_sizes_that_are_quotients_are_found(name):
    sizes = ((64, 64), (71, 83), (65, 129), (127, 66), (161, 95), (97, 223))
    calls_of(QUOTIENTS[name], [torch.randn(1, 1, *size) for size in sizes])


@pytest.mark.parametrize("scale, sizes", [(0.2501, (64, 71, 97, 20001)), (1 / 49, (56, 100, 150, 245, 441))])
def test_a_size_that_is_nearly_a_quotient_is_none(scale, sizes):
    rows = [torch.randn(1, 1, n) for n in sizes]
    calls_of(lambda x: F.interpolate(x, scale_factor=scale).shape, rows, compiles=len(sizes))


def test_transposed_inputs():
    calls_of(lambda x: x.contiguous() * x.stride(0) + x.stride(1), [torch.randn(5, n).t() for n in (4, 6, 9)])


def test_slices_of_larger_tensors():
    big = torch.randn(64, 32)
    calls_of(lambda x: x * 2 + x.stride(0), [big[:n, :5] for n in (4, 9, 31)])


@pytest.mark.parametrize("dynamic", [None, True])
def test_rows_that_lie_elsewhere_than_those_of_a_dense_matrix(dynamic):
    """That a stride is a size is asked of each call, where the size varies by itself too."""
    layouts = [torch.randn(2, 4), torch.randn(3, 5), torch.randn(4, 9)[:, :6], torch.randn(1, 6).expand(4, 6)]
    calls_of(lambda x: x * 2 + x.stride(0), layouts, compiles=4, dynamic=dynamic)
    compiled = argand.compile(lambda x, y: x * y, backend="native", dynamic=dynamic)
    for x in layouts:
        y = torch.randn(x.shape)
        assert_same(x * y, compiled(x, y))


@pytest.mark.parametrize("name", ("values", "layouts", "contiguous", "views"))
@pytest.mark.parametrize("heads", (1, 2))
def test_parts_of_tensors_of_varying_sizes(name, heads):
    """As a cache that was cropped: nothing but its strides tells how long it was."""
    functions = {
        "values": lambda k: torch.cat([k, k.sin()], -2) @ k.transpose(-1, -2),
        "layouts": lambda k: (torch.empty_like(k).fill_(3) + k.stride(0), k.clone()),
        "contiguous": lambda k: k + 1 if k.is_contiguous() else k - 1,
        "views": lambda k: (k.transpose(1, 2), k[..., 2:], k.flatten(0, 1)),
    }
    backend = CountingBackend()
    compiled = argand.compile(functions[name], backend=backend, fullgraph=True)
    for most, n in ((7, 5), (8, 6), (9, 7), (30, 4), (13, 9), (9, 9)):
        part = torch.randn(1, heads, most, 8)[:, :, :n]
        assert_same(functions[name](part), compiled(part))
    assert len(backend.graphs) == 1 + heads  # with two, the whole is laid out otherwise than its parts


def test_results_are_plain_numbers():
    argand.reset()
    compiled = argand.compile(lambda x: (x.shape, x.shape[0], x.shape[0] / 2, x.numel() + 1, x + 1), backend="eager")
    for n in (4, 5, 6):
        shape, size, half, more, _ = compiled(torch.randn(n, 3))
        assert (shape, size, half, more) == ((n, 3), n, n / 2, 3 * n + 1)
        assert type(shape) is torch.Size and type(size) is int and type(half) is float and type(more) is int


def test_isinstance_and_type_of_a_size():
    def f(x):
        n = x.shape[0]
        return x + isinstance(n, int) + (type(n) is int) + isinstance(x.shape, tuple) + (n in (4, 5))

    calls_of(f, batches(3), compiles=4)


def test_grad_through_dynamic_sizes():
    def f(x):
        return (x * x.shape[0]).pow(2).mean()

    argand.reset()
    compiled = argand.compile(f, backend="eager")
    for n in (3, 4, 6):
        a = torch.randn(n, 2, requires_grad=True)
        b = a.detach().clone().requires_grad_()
        compiled(a).backward()
        f(b).backward()
        torch.testing.assert_close(a.grad, b.grad)


def test_padding_to_a_multiple():
    """The padded size was taken for `s0 + 5` where all probes had the residue of the call at hand."""

    def f(x):
        if x.shape[0] % 8 != 0:
            x = F.pad(x, (0, 8 - x.shape[0] % 8))
        return x.view(-1, 8).sum(1)

    calls_of(f, [torch.randn(n) for n in (16, 24, 35, 20, 37, 41, 32, 9)], compiles=3)


def test_padding_without_a_branch():
    def f(x):
        x = F.pad(x, (0, -x.shape[0] % 8))
        return x.view(-1, 8).sum(1), x.shape[0] // 8

    calls_of(f, [torch.randn(n) for n in (16, 24, 35, 20, 37, 41, 32, 9)], compiles=3)


def test_residues_of_products():
    def f(x):
        return x.sum() if (x.shape[0] * 3) % 6 == 0 else x.view(-1, 3).sum(1)

    calls_of(f, [torch.randn(n) for n in (4, 6, 8, 9, 15, 21, 10)], compiles=5)


def test_a_size_made_by_hand():
    calls_of(lambda x: torch.zeros(torch.Size([x.shape[0], 2])) + x[:, :2], batches(3))
    calls_of(lambda x: x.new_zeros(torch.Size(list(x.shape))) + x, batches(3))


def _raises_symbolic(x: torch.Tensor) -> torch.Tensor:
    raise NameError("Symbolic")


REFUSED = {
    "size of floats": lambda x, v: (x * 1.0, torch.Size(v)),
    "text of the program's": lambda x, v: (x * 1.0, operator.getitem({}, "Symbolic numbers")),
    "raised by the program": lambda x, v: (x * 1.0, _raises_symbolic(x)),
    "with a size": lambda x, v: (x * x.shape[0], torch.Size([x.shape[0], *v])),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_of_the_programs_own_while_sizes_may_vary(name):
    """What a frame raises is the program's, whether or not one of its numbers is symbolic."""

    def outcome(fn, *args):
        try:
            return fn(*args)
        except Exception as error:
            return type(error), str(error)

    fn = REFUSED[name]
    argand.reset()
    compiled = argand.compile(fn, backend="eager")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="argand: capturing .* failed inside argand")
        for n, value in ((3, [6.0]), (2, [6.0]), (2, [7.0]), (5, [4]), (4, [8])):
            x = torch.ones(n, 4)
            expected, found = outcome(fn, x, value), outcome(compiled, x, value)
            assert str(found) == str(expected)


NATIVE = {
    "list times": lambda x: x + len([0] * x.shape[0]),
    "text": lambda x: x + len("%d" % x.shape[0] + str(x.shape[0]) + f"{x.shape[0]:03}" + repr(x.shape[0])),
    "shape as text": lambda x: x + len(str(x.shape)),
    "key": lambda x: x + {3: 1, 4: 2, 5: 3}[x.shape[0]],
    "set": lambda x: x + len({x.shape[0], 3}),
    "bytes": lambda x: x + len(bytes(x.shape[0])),
    "bit_length": lambda x: x + x.shape[0].bit_length(),
    "math": lambda x: x + math.gcd(x.shape[0], 12) + math.factorial(x.shape[0]) + math.comb(x.shape[0], 2),
    "range": lambda x: x + sum(range(x.shape[0])),
    "hash of a tuple": lambda x: x + {(3, 1): 1, (4, 1): 2, (5, 1): 3}[x.shape[0], 1],
    "sorted": lambda x: x + sorted([x.shape[0], 4, 9])[0],
    "complex": lambda x: x + complex(x.shape[0], 1).real,
    "round": lambda x: x + round(x.shape[0] / 3, 2),
    "match": lambda x: _match(x),
    "enum of ints": lambda x: x + list(range(10)).index(x.shape[0]),
    "chr": lambda x: x + ord(chr(x.shape[0])),
    "int to bytes": lambda x: x + len(x.shape[0].to_bytes(4, "little")),
}


def _match(x):
    match x.shape[0]:
        case 3:
            return x + 1
        case int(n) if n > 4:
            return x + n
        case _:
            return x - 1


@pytest.mark.parametrize("name", NATIVE)
def test_native_code_that_knows_only_ints(name):
    calls_of(NATIVE[name], batches(3, sizes=(3, 4, 5)), compiles=3)


def test_tuples_and_sizes_added():
    calls_of(lambda x: x.new_zeros((x.shape[0], 2) + torch.ones(3, 4).shape) + 1, batches(3))
    calls_of(lambda x: x.new_zeros(torch.ones(3, 4).shape + (x.shape[0],)) + 1, batches(3))
    calls_of(lambda x: x.new_zeros((2,) + x.shape[:-1] + x.shape) + 1, batches(3))
    calls_of(lambda x: x.new_zeros(torch.ones(3, 4).shape + x.shape) + 1, batches(3))
    calls_of(lambda x: x.new_zeros(2 * x.shape[:1] + x.sum().shape) + 1, batches(3))


def test_a_number_of_blocks_that_is_the_same_for_a_range_of_sizes():
    def f(x):
        blocks = (x.shape[0] + 63) // 64
        total = x.sum()
        for i in range(blocks):
            total = total + i * x.shape[0]
        return total

    calls_of(f, [torch.randn(n) for n in (16, 24, 35, 64, 20, 65, 100)], compiles=3)


# ------------------------------------------------------------------ arithmetic that raises


def _divides(x):
    try:
        1 // (x.shape[0] % 2)
    except ZeroDivisionError:
        return x - 1
    return x + 1


def _divides_exactly(x):
    try:
        y = x * (6 / (x.shape[0] - 2))
    except ZeroDivisionError:
        return x - 1
    return y


def _shifts(x):
    try:
        return x * (1 << (x.shape[0] - 3))
    except ValueError:
        return x - 1


def _square_root(x):
    try:
        return x * math.sqrt(x.shape[0] - 3)
    except ValueError:
        return x - 1


def _power(x):
    try:
        return x * (x.shape[0] - 2) ** -1
    except ZeroDivisionError:
        return x - 1


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("fn", [_divides, _divides_exactly, _shifts, _square_root, _power])
def test_arithmetic_on_sizes_that_raises_is_guarded(fn, dynamic):
    """Seed 70276 of the fuzzer: the exception of one size was replayed for others."""
    compiled = argand.compile(fn, backend="eager", dynamic=dynamic)
    for rows in (3, 5, 2, 7, 4, 2, 6, 3):
        x = torch.randn(rows, 2)
        torch.testing.assert_close(compiled(x), fn(x))


def test_sizes_that_an_earlier_call_had_unequal_share_no_symbol():
    step = lambda x, y: (x.sum() + y, x * 2)  # noqa: E731
    sizes = [(2, 5, 3), (2, 6, 3), (3, 3, 3), (4, 3, 3), (4, 5, 6), (7, 7, 7)]
    calls_of(step, [(torch.randn(a, b), torch.randn(c)) for a, b, c in sizes], 4)
    calls_of(step, [(torch.randn(a, a), torch.randn(a)) for a in (2, 3, 4)])
