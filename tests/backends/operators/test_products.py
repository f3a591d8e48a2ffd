"""Which library computes a matrix product: same results, and only products that it is meant for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

import argand
from argand import events
from argand.codegen.host import products

onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Host modules written; products of any size may go to oneDNN."""
    monkeypatch.setattr(products, "LEAST_TERMS", 1 << 10)
    monkeypatch.setattr(products, "WIDE", 32)
    argand.reset()
    texts: list[str] = []
    stop = events.bus.subscribe(lambda e: texts.append(e.text()) if e.name == "output_code" else None)
    with argand.config.patch({"cpp.onednn_products": True, "cpp.own_products": False}):
        yield texts
    stop()
    argand.reset()


@onednn
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("right", [False, True])
def test_layouts(left: bool, right: bool, code: list[str]) -> None:
    a = torch.randn(48, 40).t() if left else torch.randn(40, 48)
    b = torch.randn(64, 48).t() if right else torch.randn(48, 64)
    bias = torch.randn(64)
    torch.testing.assert_close(argand.compile(lambda a, b: a @ b)(a, b), a @ b, rtol=1e-4, atol=1e-4)
    want = torch.addmm(bias, a, b).relu() * 2
    got = argand.compile(lambda c, a, b: torch.addmm(c, a, b).relu() * 2)(bias, a, b)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert all("linear_pointwise" in text for text in code) and len(code) == 2


@onednn
def test_gradients_and_kept_results(code: list[str]) -> None:
    x, w, b = torch.randn(64, 64), torch.randn(96, 64, requires_grad=True), torch.randn(96, requires_grad=True)

    def loss(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(F.gelu(F.linear(x, w, b)), w.t())).sum()

    argand.compile(loss)(x, w, b).backward()
    want = torch.autograd.grad(loss(x, w, b), (w, b))
    torch.testing.assert_close((w.grad, b.grad), want, rtol=1e-3, atol=1e-3)
    assert any("product_into" in text for text in code)


@onednn
def test_other_products_stay(code: list[str]) -> None:
    a, b = torch.randn(40, 48), torch.randn(48, 64)
    calls = (
        lambda: argand.compile(lambda a, b: a @ b)(a.double(), b.double()),
        lambda: argand.compile(lambda a, b: a @ b)(a[:, ::2], b[::2]),
        lambda: argand.compile(lambda c, a, b: torch.addmm(c, a, b, beta=2))(torch.randn(64), a, b),
        lambda: argand.compile(lambda c, a, b: torch.addmm(c, a, b))(torch.randn(40, 64), a, b),
        lambda: argand.compile(lambda a, b: a @ b)(a[:8], b),
    )
    for call in calls:
        call()
    assert not any("linear_pointwise" in text or "product_into" in text for text in code)


def test_it_can_be_turned_off() -> None:
    with argand.config.patch({"cpp.onednn_products": False}):
        assert not products.onednn_wanted()


SIZES = [
    (512, 512, 512), (600, 600, 600), (256, 1024, 400), (64, 2048, 256), (128, 4096, 128), (2048, 64, 512),
    (2048, 512, 64), (32, 4096, 512), (300, 768, 300), (96, 300, 1000),
]  # fmt: skip


@pytest.mark.parametrize(("m", "k", "n"), SIZES)
def test_products_are_as_exact_as_eagers(m: int, k: int, n: int) -> None:
    """Wherever they are computed; float64 is the truth."""
    generator = torch.Generator().manual_seed(m + k + n)
    rows, columns = torch.randn(m, k, generator=generator), torch.randn(k, n, generator=generator)
    bias = torch.randn(n, generator=generator)
    layouts = [
        (rows, columns, None),
        (rows, columns.t().contiguous().t(), bias),
        (rows.t().contiguous().t(), columns, None),
    ]
    compiled = argand.compile(lambda a, b, c: a @ b if c is None else torch.addmm(c, a, b), dynamic=False)
    for a, b, c in layouts:
        exact = a.double() @ b.double() + (0 if c is None else c.double())
        got, want = compiled(a, b, c), a @ b if c is None else torch.addmm(c, a, b)
        mine, eagers = (one.double().sub(exact).abs() for one in (got, want))
        assert float(mine.mean()) <= 1.02 * float(eagers.mean())
        assert float(mine.max()) <= 1.3 * float(eagers.max())  # one of thousands of errors


def test_onednn_is_used_where_it_is_asked_for_only() -> None:
    assert not products.onednn_wanted()
