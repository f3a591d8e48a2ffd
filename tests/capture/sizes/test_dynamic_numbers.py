"""Python ints and floats that vary from call to call: arguments, attributes, globals, closures; marks; side effects."""

from __future__ import annotations

import copy
import functools
import math

import numpy
import pytest
import torch

import argand
from argand import errors
from helpers import CountingBackend, assert_same

SCALE = 3


def run(fn, inputs, compiles=2, fullgraph=True, **options):
    argand.reset()
    backend = CountingBackend()
    compiled = argand.compile(fn, backend=backend, fullgraph=fullgraph, **options)
    for args in inputs:
        assert_same(fn(*args), compiled(*args))
    assert len(backend.graphs) <= compiles, f"{len(backend.graphs)} compiles, not {compiles}"
    return backend


X = torch.arange(24.0).view(4, 6)


NUMBERS = {
    "add": lambda x, n: x + n,
    "scale": lambda x, n: x * n * 2 + n // 3 - n % 4,
    "divide": lambda x, n: x / n + 1 / n,
    "power": lambda x, n: x + n**2 + n**0.5,
    "powers that are one": lambda x, n: (x + n * (n + 1) ** 0.0, n**0.0, 1.0**n, n**-0.0, (n / 2) ** 0),
    "repeat": lambda x, n: x.repeat(n, 1),
    "zeros": lambda x, n: torch.zeros(n, n) + x[0, 0],
    "arange": lambda x, n: torch.arange(n) * 2,
    "full": lambda x, n: torch.full((2, 3), n) + x[0, 0],
    "slice": lambda x, n: x.flatten()[:n],
    "index": lambda x, n: x.flatten()[n],
    "compare": lambda x, n: x + 1 if n > 1 else x,
    "max": lambda x, n: x + max(n, 3) + min(n, 2),
    "abs": lambda x, n: x + abs(-n),
    "sqrt": lambda x, n: x * math.sqrt(n) + math.floor(n / 2) + math.ceil(n / 3) + round(n / 4),
    "powers": lambda x, n: x + math.pow(n, 0.5) + math.pow(0.9, n) + math.log(n, 3) + math.log(10, n) + math.isqrt(n),
    "powers of constants": lambda x, n: (x + 2**n - 3**n + (5 << n), 2**n, 1 if 2**n > 7 else n),
    "float": lambda x, n: x + float(n) + int(n * 1.5),
    "returned": lambda x, n: (x + 1, n, n + 1, n / 2, [n * 3], {"n": n}),
    "part": lambda x, n: (torch.arange(1) + n)[None, :, None] * 2 + (x * n)[1:3, :] + torch.split(x + n, 2)[1],
    "clamp": lambda x, n: x.clamp(max=n).clamp(-n, n),
    "masked_fill": lambda x, n: x.masked_fill(x > n, n),
    "tensor": lambda x, n: torch.tensor(n) + x,
    "bits": lambda x, n: x + (n & 3) + (n | 8) + (n ^ 5) + (n >> 1) + (~n),
    "truth": lambda x, n: x + 1 if n else x,
    "bool": lambda x, n: x + bool(n),
    "reversed operands": lambda x, n: 10 - n + x - (100 // n) + n * x + (n - x),
    "compare tensor": lambda x, n: (x > n) & (n >= x) | (x == n),
    "in place": lambda x, n: x.clone().add_(n).mul_(n),
}


OF_SIZES = {
    "bytes and length": lambda x: (x + x.nbytes, len(x), x.dim_order()),
    "product": lambda x: (x + math.prod(x.shape), math.prod((x.size(0), 2)), x.shape.numel()),
    "largest": lambda x: (x + max(x.shape), sorted(x.shape), min(x.size(0), 5)),
    "rounded": lambda x: (x, *[f(x.size(0) / 2) for f in (round, math.floor, math.ceil, math.trunc, float, bool, abs)]),
    "conversions": lambda x: (x, *[f(+x.size(0)) for f in (float, complex, math.trunc, math.ceil, hex, str, hash)]),
    "copied": lambda x: (x, copy.copy(x.size(0)), copy.deepcopy({"size": x.shape})),
}


@pytest.mark.parametrize("name", OF_SIZES)
def test_numbers_made_of_sizes(name):
    run(OF_SIZES[name], [(torch.ones(size, 4),) for size in (3, 5, 7)], 3, fullgraph=False, dynamic=True)


@pytest.mark.parametrize("name", NUMBERS)
def test_an_int_argument(name):
    run(NUMBERS[name], [(X, n) for n in (5, 6, 7, 11, 9)], 3 if name == "max" else 2)


FUNCTIONS = (
    math.cbrt, math.exp, math.exp2, math.expm1, math.log, math.log2, math.log10, math.log1p, math.sin, math.cos, math.tan,
    math.tanh, math.atan, math.erf, math.fabs, math.degrees, math.radians,
)  # fmt: skip
FLOATS = {
    "scale": lambda x, f: x * f + f,
    "arithmetic": lambda x, f: x + f * 2 - f / 3 + f**2 + (1 - f) + f // 0.25 + f % 0.3,
    "returned": lambda x, f: (x + f, f, f * 2),
    "math": lambda x, f: x + math.sqrt(f) + math.floor(f) + int(f * 10) + round(f),
    "functions": lambda x, f: x + sum(function(f) for function in FUNCTIONS),
    "compare": lambda x, f: x * f if f > 0.1 else x,
    "lerp": lambda x, f: torch.lerp(x, x + 1, f),
    "alpha": lambda x, f: torch.add(x, x, alpha=f),
}


@pytest.mark.parametrize("name", FLOATS)
def test_a_float_argument(name):
    backend = run(FLOATS[name], [(X, f) for f in (0.5, 0.75, 0.3, 1.25, 2.5)])
    assert len(backend.graphs) == 2


@pytest.mark.parametrize("base", [-2.0, 0.0])
def test_a_power_that_eager_may_refuse(base):
    run(lambda x, n: x + math.pow(base, n), [(X, n) for n in (2, 3, 4)], 3)
    with pytest.raises(ValueError, match="math domain error"):
        argand.compile(lambda x, n: x + math.pow(base, n), backend="eager")(X, -0.5)


def test_an_int_that_indexes_python_is_a_constant():
    run(lambda x, n: x + [10, 20, 30, 40, 50, 60][n], [(X, n) for n in (2, 3, 4, 5)], 4)


def test_range_of_an_int_is_a_constant():
    run(lambda x, n: sum(x * i for i in range(n)), [(X, n) for n in (2, 3, 4)], 3)


def test_an_array_of_an_int_is_a_constant():
    run(lambda x, n: x + torch.tensor(numpy.array([n, [n, 1][0]])).sum(), [(X, 5), (X, 6), (X, 5)], 2)


def test_zero_and_one_are_constants():
    run(lambda x, n: x * n, [(X, n) for n in (5, 0, 1, 6, 7, 8, 0, 1)], 4)


def test_bools_are_constants():
    run(lambda x, b: x + 1 if b else x, [(X, b) for b in (True, False, True)], 2)


def test_int_then_float_is_another_version():
    run(lambda x, n: x * n, [(X, n) for n in (2, 2.0, 3, 3.5, 4, 4.5)], 4)


def test_negative_ints():
    run(lambda x, n: x * n, [(X, n) for n in (-2, -3, -4, -5)], 2)


def test_a_step_counter():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.step = 0

        def forward(self, x):
            self.step += 1
            return x * self.step

    argand.reset()
    backend = CountingBackend()
    eager, model = Model(), Model()
    compiled = argand.compile(model, backend=backend, fullgraph=True)
    for _ in range(8):
        assert_same(eager(X), compiled(X))
        assert model.step == eager.step and type(model.step) is int
    assert len(backend.graphs) <= 4  # 0, 1, 2 (0 and 1 are constants), then any


def test_a_global_counter():
    global SCALE

    def f(x):
        global SCALE
        SCALE = SCALE + 2
        return x + SCALE

    argand.reset()
    backend = CountingBackend()
    compiled = argand.compile(f, backend=backend, fullgraph=True)
    SCALE = 3
    for i in range(5):
        assert_same(X + 5 + 2 * i, compiled(X))
        assert SCALE == 5 + 2 * i
    assert len(backend.graphs) == 2


def test_a_closure_counter():
    def make():
        count = 5

        def f(x):
            nonlocal count
            count += 1
            return x * count

        return f

    argand.reset()
    backend = CountingBackend()
    eager, compiled = make(), argand.compile(make(), backend=backend, fullgraph=True)
    for _ in range(5):
        assert_same(eager(X), compiled(X))
    assert len(backend.graphs) == 2


def test_ints_in_containers():
    run(lambda x, d: x * d["n"] + d["l"][0], [(X, {"n": n, "l": [n + 1]}) for n in (4, 5, 6, 9)])


def test_side_effects_hold_plain_numbers():
    log: list = []

    def f(x, n):
        log.append((x.shape[0], n + 1))
        return x * n

    argand.reset()
    compiled = argand.compile(f, backend="eager", fullgraph=True)
    for n in (3, 4, 5):
        compiled(torch.ones(n, 2), n)
    assert log == [(3, 4), (4, 5), (5, 6)]
    assert all(type(v) is int for item in log for v in item)


@pytest.mark.filterwarnings("error")
def test_graph_breaks_with_symbols_live_across_them():
    def f(x, n):
        a = x.shape[0] * 2 + n
        b = x * a
        argand.graph_break()
        c = b + x.shape[0] / 2 + a
        argand.graph_break()
        return c.view(x.shape[0], -1) * n, a

    argand.reset()
    backend = CountingBackend()
    compiled = argand.compile(f, backend=backend)
    for n in (4, 5, 6, 7, 9):
        x = torch.randn(n, 3)
        assert_same(f(x, n + 1), compiled(x, n + 1))
    assert 2 < len(backend.graphs) <= 6  # three parts, twice


@pytest.mark.filterwarnings("error")
def test_data_dependent_branch_with_symbols():
    def f(x):
        n = x.shape[0]
        if x.sum() > 0:
            return x * n
        return x - n

    argand.reset()
    compiled = argand.compile(f, backend="eager")
    for n in (4, 5, 6, 7):
        for sign in (1, -1):
            x = sign * torch.ones(n, 3)
            assert_same(f(x), compiled(x))


# ---- marks ----------------------------------------------------------------------------------------------------------


def test_mark_dynamic():
    argand.reset()
    backend = CountingBackend()
    compiled = argand.compile(lambda x: x * x.shape[0], backend=backend, fullgraph=True)
    for i, n in enumerate((4, 5, 9, 64)):
        x = torch.randn(n, 3)
        if not i:
            argand.mark_dynamic(x, 0, min=2, max=64)
        assert_same(x * n, compiled(x))
    assert len(backend.graphs) == 1


def test_mark_dynamic_range_is_guarded():
    argand.reset()
    backend = CountingBackend()
    compiled = argand.compile(lambda x: x * x.shape[0], backend=backend, fullgraph=True)
    x = torch.randn(8, 3)
    argand.mark_dynamic(x, 0, min=4, max=16)
    compiled(x)
    compiled(torch.randn(16, 3))
    assert len(backend.graphs) == 1
    compiled(torch.randn(17, 3))
    assert len(backend.graphs) == 2


def test_mark_dynamic_of_a_size_that_the_program_fixes():
    def f(x):
        total = x[0]
        for i in range(x.shape[0]):  # the line to name
            total = total + x[i]
        return total

    argand.reset()
    x = torch.randn(8, 3)
    argand.mark_dynamic(x, 0)
    with pytest.raises(errors.ConstraintViolation, match=r"L\['x'\].size\(\)\[0\] == 8") as caught:
        argand.compile(f, backend="eager")(x)
    assert "the line to name" in str(caught.value)


def test_mark_dynamic_outside_of_its_range():
    argand.reset()
    x = torch.randn(8, 3)
    argand.mark_dynamic(x, 0, max=4)
    with pytest.raises(errors.ConstraintViolation, match="between 2 and 4, and is 8"):
        argand.compile(lambda x: x + 1, backend="eager")(x)


def test_mark_static():
    argand.reset()
    backend = CountingBackend()
    compiled = argand.compile(lambda x: x * x.shape[0], backend=backend, fullgraph=True)
    for n in (4, 5, 6):
        x = torch.randn(n, 3)
        argand.mark_static(x, 0)
        assert_same(x * n, compiled(x))
    assert len(backend.graphs) == 3


def test_settings():
    for setting, value in (("automatic_dynamic_shapes", False),):
        with argand.config.patch(**{setting: value}):
            backend = run(lambda x: x + x.shape[0], [(torch.randn(n, 2),) for n in (3, 4, 5)], 3)
            assert len(backend.graphs) == 3
    with argand.config.patch(assume_static_by_default=False):
        run(lambda x: x + x.shape[0], [(torch.randn(n, 2),) for n in (3, 4, 5)], 1)
    with argand.config.patch(specialize_int=True):
        assert len(run(lambda x, n: x + n, [(X, n) for n in (3, 4, 5)], 3).graphs) == 3
    with argand.config.patch(specialize_float=True):
        assert len(run(lambda x, n: x + n, [(X, n) for n in (0.3, 0.4, 0.5)], 3).graphs) == 3


# ---- guards ---------------------------------------------------------------------------------------------------------


def guards_of(fn, inputs):
    from helpers import collected

    argand.reset()
    compiled = argand.compile(fn, backend="eager", fullgraph=True)
    with collected("guards") as seen:
        for args in inputs:
            compiled(*args)
    return str(seen[-1].payload)


def test_guards_in_the_users_terms():
    text = guards_of(lambda x: x.view(8, -1), [(torch.randn(8, 3),), (torch.randn(16, 3),)])
    assert "L['x'].size()[0] >= 2" in text and "L['x'].size()[0] % 8 == 0" in text
    text = guards_of(lambda x, y: x + y, [(torch.randn(n, 3), torch.randn(n, 3)) for n in (4, 5)])
    assert "L['y'].size()[0] == L['x'].size()[0]" in text

    def branch(x):
        return x + 1 if x.shape[0] * 2 > 8 else x

    text = guards_of(branch, [(torch.randn(n, 3),) for n in (6, 7)])
    assert "L['x'].size()[0] >= 5" in text and text.count("size()[0] >=") == 1


def test_recompiles_name_the_condition():
    from helpers import collected

    def branch(x):
        return x + 1 if x.shape[0] > 8 else x

    argand.reset()
    compiled = argand.compile(branch, backend="eager", fullgraph=True)
    for n in (10, 11):
        compiled(torch.randn(n))
    with collected("recompiles") as seen:
        compiled(torch.randn(4))
    assert "x.size()[0] >= 9" in str(seen[0].payload)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: sum(x.unbind(0)),
        lambda x: x + len("%d" % x.shape[0]),
        lambda x: x + torch.ones(8, 3),
        lambda x: x.view(2, 4, 3),
    ],
)
def test_operations_that_fix_a_marked_size(fn):
    argand.reset()
    x = torch.randn(8, 3)
    argand.mark_dynamic(x, 0)
    with pytest.raises(errors.ConstraintViolation, match=r"L\['x'\].size\(\)\[0\]"):
        argand.compile(fn, backend="eager")(x)


def test_singledispatch_on_a_number_that_varies_behind_a_break() -> None:
    @functools.singledispatch
    def chosen(value: object, x: torch.Tensor) -> torch.Tensor:
        return x

    chosen.register(int, lambda value, x: x + value)
    counted = functools.lru_cache(lambda size: size)

    def f(x: torch.Tensor, value: object) -> object:
        return counted(x.shape[0]), chosen(value, x), counted.cache_info().maxsize

    compiled = argand.compile(f, backend="eager")
    for value in (None, 2, 3, 4):
        assert str(compiled(torch.ones(2), value)) == str(f(torch.ones(2), value))


def _experts(x, sizes):
    return torch.cat([part.sin() * number for number, part in enumerate(x.split(sizes, dim=0))])


SPLITS = {
    "list": _experts,
    "tuple and dim": lambda x, sizes: torch.split(x, tuple(sizes), dim=-2),
    "method": lambda x, sizes: x.split_with_sizes(sizes),
    "rest": lambda x, sizes: torch.split(x, (sizes[0], x.size(0) - sizes[0]), dim=-2),
}


@pytest.mark.parametrize("name", SPLITS)
def test_parts_whose_sizes_vary(name):
    """Tokens by expert, boxes by image: numbers that add up to a size, whether that varies or not."""
    of_16 = [[3, 5, 8], [4, 4, 8], [2, 6, 8], [9, 2, 5], [5, 8, 3]]
    of_others = [[each * sizes[0] for each in sizes] for sizes in of_16]
    for lists in (of_16, of_others):
        run(SPLITS[name], [(torch.randn(sum(sizes), 4), sizes) for sizes in lists], compiles=1, dynamic=True)


@pytest.mark.parametrize("name", SPLITS)
def test_sizes_that_are_no_parts(name):
    """Parts that are empty, of one row, negative, or too small or large together, after a version for parts of a whole."""
    argand.reset()
    compiled = argand.compile(SPLITS[name], backend="eager", dynamic=True)
    for sizes in ([3, 5, 4], [4, 4, 4], [1, 2, 3], [-1, 5, 8], [20, 20, -28], [0, 12, 0], [1, 11, 0], [2, 2, 8]):
        x, outcomes = torch.randn(12, 4), []
        for fn in (SPLITS[name], compiled):
            try:
                outcomes.append(fn(x, sizes))
            except RuntimeError as error:
                outcomes.append(str(error))
        assert_same(*outcomes)


LIMITED = {
    "both": lambda x, n: x * max(min(n, 5), 0),
    "of a list": lambda x, n: x + min([n, 6]) - max((4, n)),
    "returned": lambda x, n: (x * 2, min(n, 5), max(9, n) - 1),
    "sizes": lambda x, n: (x.flatten()[: min(n, 7)], torch.ones(max(n, 5)), x.repeat(min(n, 4), 1)),
}


@pytest.mark.parametrize("backend", [None, "native"])
@pytest.mark.parametrize("name", LIMITED)
def test_one_graph_for_numbers_on_both_sides_of_a_limit(name, backend):
    inputs = [(X, n) for n in (7, 3, 11, 2, 4, 5, 6, 9)]
    if backend is None:
        run(LIMITED[name], inputs)
        return
    compiled = argand.compile(LIMITED[name], backend=backend, fullgraph=True)
    for args in inputs:
        assert_same(LIMITED[name](*args), compiled(*args))


def test_a_number_that_is_its_limit_first() -> None:
    run(lambda x, n: x * min(n, 9) - max(9, n), [(X, n) for n in (5, 9, 12, 3, 8, 10)])


def test_one_graph_for_floats_on_both_sides_of_a_limit() -> None:
    run(lambda x, v: (x * min(v, 5.0) - max(0.5, v), max(min(v, 6.5), -0.0)), [(X, a / 2) for a in (6, 5, 14, 11, 3)])


def test_a_branch_with_few_numbers_on_one_side_does_not_fix_those_of_the_other():
    run(lambda x, n: x * n if n > 5 else x + n, [(X, n) for n in range(2, 14)], 3)
    run(lambda x, n: x * n if n > 4 else x - n, [(X, n) for n in (2, 3, 8, 4, 11, 12, 13, 14, 15)], 3)
    run(lambda x, n: x * n if n == 3 else x - n, [(X, n) for n in (2, 3, 4, 5, 6, 7)], 3)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_remainders_of_numbers_that_both_vary(backend: str) -> None:
    """A remainder that is one number in all traces is a constant of no other call, be one of its terms a constant."""

    def filled(y: torch.Tensor, n: int, k: int) -> torch.Tensor:
        y[: n % k] = 3.0
        return y

    compiled = argand.compile(filled, backend=backend, dynamic=True)
    for n, k in ((5, 3), (4, 3), (3, 3), (7, 4), (2, 3)):
        y = -torch.arange(n * 5.0).view(n, 5)
        assert torch.equal(compiled(y.clone(), n, k), filled(y.clone(), n, k))


EQUAL = {
    "view": lambda x, a, b: x.view(a, b, 8) + b,
    "size": lambda x, a, b: x.view(torch.Size([a, b, 8])) * a,
    "zeros": lambda x, a, b: x + torch.zeros(a, b, 1),
}
WITHIN = {
    "kthvalue": lambda x, k: x.kthvalue(k, 0, keepdim=True)[0] + x,
    "largest": lambda x, k: x.topk(k, dim=0).values,
}


@pytest.mark.parametrize("name", WITHIN)
def test_numbers_that_are_no_larger_than_a_size(name: str) -> None:
    compiled = run(WITHIN[name], [(torch.randn(a, 3), k) for a, k in ((8, 7), (6, 6), (9, 2), (4, 3))])
    with pytest.raises(RuntimeError, match="out of range"):
        argand.compile(WITHIN[name], backend=compiled)(torch.ones(4, 3), 5)


def test_the_size_that_a_number_is_within() -> None:
    """In the second call it is within the other one too."""
    calls = [((5, 8), 6), ((8, 9), 4), ((2, 15), 3), ((6, 11), 2)]
    run(lambda x, k: x + x.topk(k, 1).values.sum(1, keepdim=True), [(torch.randn(shape), k) for shape, k in calls])


def test_numbers_that_are_no_larger_than_a_constant_size() -> None:
    calls = [(torch.randn(2, 20), t, k) for t, k in ((0.7, 5), (0.8, 5), (1.0, 10), (0.9, 3), (0.5, 7), (0.6, 20))]
    run(lambda x, t, k: (x / t).topk(k).values[..., -1:], calls, 3)


@pytest.mark.parametrize("name", EQUAL)
def test_numbers_that_equal_two_sizes_at_once(name: str) -> None:
    run(EQUAL[name], [(torch.ones(a, b, 8), a, b) for a, b in ((6, 14), (4, 17), (7, 15))])


def test_a_size_found_outside_varies() -> None:
    inputs = [torch.ones(a, b, 2) for a, b in ((6, 14), (4, 17), (7, 15))]
    run(lambda x, size: (x.view(size) + size[1], size, size.numel()), [(x, x.shape) for x in inputs])


def test_a_size_carried_across_a_break() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        size = x.shape
        argand.graph_break()
        return x.view(size) + size[1]

    run(f, [(torch.ones(a, b),) for a, b in ((6, 14), (4, 17), (7, 15))], fullgraph=False)
