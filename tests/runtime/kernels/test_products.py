"""argand's own products of matrices and weight gradients: eager's results, for every layout and size."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import argand
from argand.backends import layouts
from argand.codegen.host import convolutions
from argand.codegen.host import products as choice
from argand.runtime.kernels import products, timed_choice
from argand.runtime.profile import Kernel
from forks import fork
from helpers import texts_of

pytestmark = pytest.mark.skipif(not products.available(), reason="needs AVX-512 and GCC")


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Host modules written; products of any size may go to argand's kernel."""
    monkeypatch.setattr(choice, "OWN_LEAST_TERMS", 1 << 10)
    monkeypatch.setattr(convolutions, "LEAST_TERMS", 1 << 10)
    argand.reset()
    with argand.config.patch({"cpp.own_products": True}), texts_of("output_code") as texts:
        yield texts
    argand.reset()


def close(got: torch.Tensor, want: torch.Tensor, added: float = 0.0) -> None:
    """Within rounding of the largest result, or of the largest number that was `added` to make one."""
    assert float((got - want).abs().max()) <= 2e-6 * max(float(want.abs().max()), added)


@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (14, 32, 16), (27, 17, 31), (77, 75, 130), (33, 1100, 530), (100, 64, 1030)]
)
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_product(m: int, n: int, k: int, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        lefts = (torch.randn(m, k), torch.randn(k, m).t(), torch.randn(m, k + 512 - k % 512 + 512)[:, :k])
        rights = (torch.randn(k, n), torch.randn(n, k).t(), torch.randn(k, n + 3)[:, 1 : n + 1])
        for left in lefts:
            for right in rights:
                for bias in ((), (torch.randn(n),)):
                    room = torch.full((m, n + 5), 7.0)
                    products.matrix_product(*bias, left, right, out=room[:, :n])
                    want = left.double() @ right.double()
                    added = float(bias[0].abs().max()) if bias else 0.0
                    close(room[:, :n], want + bias[0] if bias else want, added)
                    assert bool((room[:, n:] == 7).all())
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("batch", "m", "n", "k"), [(1, 5, 33, 40), (7, 16, 40, 9), (9, 27, 27, 32), (3, 90, 130, 520), (2, 3, 4, 0)]
)
@pytest.mark.parametrize("threads", [1, 2])
def test_batches_of_products(batch: int, m: int, n: int, k: int, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        lefts = (torch.randn(batch, m, k), torch.randn(m, batch, k).transpose(0, 1), torch.randn(batch, k, m).mT)
        rights = (torch.randn(batch, k, n), torch.randn(batch, n, k).mT, torch.randn(1, k, n).expand(batch, k, n))
        for left in lefts:
            for right in rights:
                room = torch.full((batch, m, n + 5), 7.0)
                products.matrix_product(left, right, out=room[..., :n])
                close(room[..., :n], left.double() @ right.double(), 1e-30)
                assert bool((room[..., n:] == 7).all())
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_while_the_kernels_are_being_compiled() -> None:
    """The thread that compiles them is not in the child, which must not wait for it."""
    products._compiled.cache_clear()
    products.prepare()
    child = fork()
    if not child:
        signal.alarm(60)
        left, right, out = torch.randn(40, 40), torch.randn(40, 40), torch.empty(40, 40)
        products.matrix_product(left, right, out=out)
        os._exit(0 if torch.allclose(out, left @ right, atol=1e-4) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_numbers_that_are_none() -> None:
    left, right = torch.randn(40, 40), torch.randn(40, 40)
    left[3, 4], left[7, 1], right[5, 6] = float("nan"), float("inf"), float("-inf")
    out = torch.empty(40, 40)
    products.matrix_product(left, right, out=out)
    torch.testing.assert_close(out, left @ right, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize(
    ("channels", "features", "size", "window", "stride", "padding", "dilation"),
    [
        (5, 7, (9, 11), (3, 3), (1, 1), (1, 1), (1, 1)),
        (3, 16, (20, 17), (5, 4), (2, 3), (2, 0), (1, 1)),
        (17, 33, (11, 12), (3, 2), (1, 2), (2, 4), (2, 3)),
        (40, 20, (7, 7), (1, 1), (2, 2), (0, 0), (1, 1)),
    ],
)
def test_weight_gradient(
    channels: int,
    features: int,
    size: tuple[int, int],
    window: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> None:
    x, weight = torch.randn(3, channels, *size), torch.randn(features, channels, *window)
    rest = (list(stride), list(padding), list(dilation), False, [0, 0], 1)
    y = torch.ops.aten.convolution(x, weight, None, *rest)
    given, out = torch.randn_like(y), torch.empty_like(weight)
    products.weight_gradient_into(given, x, weight, [0], *rest, [False, True, False], out=out)
    mask = [False, True, False]
    doubles = (given.double(), x.double(), weight.double())
    close(out, torch.ops.aten.convolution_backward(*doubles, [0], *rest, mask)[1])


def test_compiled_products(code: list[str]) -> None:
    x, w, b = torch.randn(64, 64), torch.randn(96, 64, requires_grad=True), torch.randn(96, requires_grad=True)

    def loss(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(F.gelu(F.linear(x, w, b)), w.t())).sum()

    argand.compile(loss)(x, w, b).backward()
    want = torch.autograd.grad(loss(x, w, b), (w, b))
    torch.testing.assert_close((w.grad, b.grad), want, rtol=1e-3, atol=1e-3)
    assert len(code) == 2 and all("matrix_product" in text for text in code)


@pytest.mark.parametrize("input_too", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_compiled_weight_gradient(input_too: bool, bias: bool, code: list[str]) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(16, 32, 3, padding=1, bias=bias), torch.nn.ReLU())
    x = torch.randn(2, 16, 9, 8, requires_grad=input_too)
    inputs = [*model.parameters(), *([x] if input_too else [])]
    want = torch.autograd.grad(model(x).square().sum(), inputs)
    got = torch.autograd.grad(argand.compile(model)(x).square().sum(), inputs)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)
    assert "weight_gradient_into" in code[-1]
    calls = [line for line in code[-1].splitlines() if " = aten_convolution_backward_default(" in line]
    assert [call.endswith("[True, False, False])") for call in calls] == [True] * input_too  # nothing is computed twice


@pytest.mark.parametrize("faster", [False, True])
def test_the_faster_kernel_computes(
    faster: bool, code: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """While nobody knows which is faster both are timed; a graph that is compiled later is made for the faster."""

    def model() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Conv2d(32, 32, 3), torch.nn.Flatten(), torch.nn.Linear(32 * 49, 64))

    def gradients(call: object, net: torch.nn.Module) -> list[torch.Tensor]:
        return list(torch.autograd.grad(call(x).square().sum(), list(net.parameters())))  # type: ignore[operator]

    x = torch.randn(64, 32, 9, 9)
    both = (products.PRODUCTS, products.WEIGHT_GRADIENTS)
    monkeypatch.setattr(timed_choice, "_KINDS", 1)
    monkeypatch.setattr(layouts, "_can_time", lambda target, nodes: False)  # channels stay outside
    for each in both:
        each.forget()
        monkeypatch.setattr(each, "_gain", 1e9 if faster else 0.0)
    with argand.config.patch({"cpp.own_products": None, "cache_dir": str(tmp_path)}):
        net = model()
        compiled = argand.compile(net)
        torch.testing.assert_close(gradients(compiled, net), gradients(net, net), rtol=1e-3, atol=1e-2)
        products._compiled().result()
        for _ in range(12):
            torch.testing.assert_close(gradients(compiled, net), gradients(net, net), rtol=1e-3, atol=1e-2)
        assert [each.known() for each in both] == [faster, faster]
        assert any("MeasuredProduct" in text for text in code)
        assert any("measured_weight_gradient" in text for text in code)
        code.clear()
        argand.reset()
        net = model()
        torch.testing.assert_close(gradients(argand.compile(net), net), gradients(net, net), rtol=1e-3, atol=1e-2)
        assert any("MeasuredProduct" in text for text in code) == faster
        assert any("measured_weight_gradient" in text for text in code) == faster
    for each in both:
        each.forget()


def test_nobody_waits_for_kernels_that_are_to_be_timed(
    code: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The library computes until they are compiled."""
    compiling: Future[dict[str, Kernel]] = Future()
    made = products._compiled()
    monkeypatch.setattr(products, "_compiled", lambda: compiling)
    monkeypatch.setattr(layouts, "_can_time", lambda target, nodes: False)  # channels stay outside
    both = (products.PRODUCTS, products.WEIGHT_GRADIENTS)
    model = torch.nn.Sequential(torch.nn.Conv2d(8, 32, 3), torch.nn.Flatten(), torch.nn.Linear(32 * 49, 64))
    x = torch.randn(64, 8, 9, 9)
    with argand.config.patch({"cpp.own_products": None, "cache_dir": str(tmp_path)}):
        for each in both:
            each.forget()
        compiled = argand.compile(model)
        want = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
        for _ in range(2):
            got = torch.autograd.grad(compiled(x).square().sum(), list(model.parameters()))
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-2)
        assert all(any(what in text for text in code) for what in ("MeasuredProduct", "measured_weight_gradient"))
        assert not any(each._trials or each._taken for each in both)  # nothing was timed
        compiling.set_result(made.result())
        got = torch.autograd.grad(compiled(x).square().sum(), list(model.parameters()))
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-2)
        assert all(each._trials or each._taken for each in both)
    for each in both:
        each.forget()


@pytest.mark.parametrize("faster", [False, True])
def test_products_of_sizes_that_vary(
    faster: bool, code: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Sizes that are alike are timed once; what is too small for argand's kernel is the library's."""
    products.PRODUCTS.forget()
    monkeypatch.setattr(products.PRODUCTS, "_gain", 1e9 if faster else 0.0)
    monkeypatch.setattr(timed_choice, "_SHORT", 1e9)  # one call decides
    products._compiled().result()

    def attend(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, w, b)
        return torch.bmm((torch.bmm(y, y.mT) * 0.01).softmax(-1), x)

    w, b = torch.randn(64, 64), torch.randn(64)
    with argand.config.patch({"cpp.own_products": None, "cache_dir": str(tmp_path)}):
        compiled = argand.compile(attend, dynamic=True)
        for batch, length in ((3, 129), (3, 130), (2, 145), (3, 0), (3, 1), (1, 600)):
            x = torch.randn(batch, length, 64)
            torch.testing.assert_close(compiled(x, w, b), attend(x, w, b), rtol=1e-4, atol=1e-4)
        assert any("varying_product" in text for text in code)
        kinds = list(products.PRODUCTS._taken.values())
        assert kinds and set(kinds) == {faster}
        compiled(torch.randn(3, 131, 64), w, b)
        assert list(products.PRODUCTS._taken.values()) == kinds
    products.PRODUCTS.forget()


def test_what_is_faster_is_asked_for_once_for_each_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    products.PRODUCTS.forget()
    products._compiled().result()
    monkeypatch.setattr(timed_choice, "_SHORT", 1e9)  # one call decides
    product, out = products.MeasuredProduct(), torch.empty(40, 64)
    left, right, before = torch.randn(40, 128), torch.randn(128, 64), torch.get_num_threads()
    asked: list[object] = []
    taken = products.PRODUCTS.taken
    monkeypatch.setattr(products.PRODUCTS, "taken", lambda kind: (asked.append(kind), taken(kind))[1])
    with argand.config.patch({"cache_dir": str(tmp_path)}):
        try:
            for threads in (1, 2):
                torch.set_num_threads(threads)
                for calls in range(3):
                    product(left, right, out=out.fill_(7))
                    close(out, left.double() @ right.double())
                    if not calls:
                        asked.clear()
                assert not asked
        finally:
            torch.set_num_threads(before)
    products.PRODUCTS.forget()


def test_few_rows_against_a_large_matrix(code: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN is faster there."""
    monkeypatch.setattr(choice, "LEAST_TERMS", 1 << 16)
    a, b = torch.randn(64, 64), torch.randn(64, 96)
    with argand.config.patch({"cpp.onednn_products": True}):
        torch.testing.assert_close(argand.compile(lambda a, b: a @ b)(a, b), a @ b, rtol=1e-4, atol=1e-4)
    assert "linear_pointwise" in code[-1] and "matrix_product" not in code[-1]


def test_other_gradients_stay(code: list[str]) -> None:
    convs = (
        (torch.nn.Conv2d(32, 32, 3, groups=2), torch.randn(2, 32, 9, 9)),
        (torch.nn.ConvTranspose2d(32, 32, 3), torch.randn(2, 32, 9, 9)),
        (torch.nn.Conv2d(32, 32, 3).to(memory_format=torch.channels_last), torch.randn(2, 32, 9, 9)),
        (torch.nn.Conv2d(32, 32, 3).double(), torch.randn(2, 32, 9, 9).double()),
        (torch.nn.Conv2d(32, 32, 3, padding=1), torch.randn(1, 32, 40, 40)),
    )
    for conv, x in convs:
        want = torch.autograd.grad(conv(x).square().sum(), list(conv.parameters()))
        got = torch.autograd.grad(argand.compile(conv)(x).square().sum(), list(conv.parameters()))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)
    assert not any("weight_gradient_into" in text for text in code)


def test_a_kernel_that_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failed:
        def result(self) -> dict[str, object]:
            return {}

    monkeypatch.setattr(products, "_compiled", Failed)
    left, right, bias, out = torch.randn(8, 9), torch.randn(9, 7), torch.randn(7), torch.empty(8, 7)
    products.matrix_product(bias, left, right, out=out)
    torch.testing.assert_close(out, torch.addmm(bias, left, right))
    products.matrix_product(left, right, out=out)
    torch.testing.assert_close(out, left @ right)
