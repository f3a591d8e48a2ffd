"""Which variants of kernels calls of many sizes get, and how many there are."""

from __future__ import annotations

from typing import Any

import pytest

from argand.runtime.gpu.kernels import load, variants
from argand.runtime.gpu.kernels.spec import LaunchSpec
from argand.runtime.gpu.kernels.variants import MAX_VARIANTS, NARROW, TritonVariants

SPECS = {
    "rows": ((("*fp32", "*fp32", "i64", "i64"), (("XBLOCK", 128), ("WIDE", 1)), 4, 1, False), {2: 0, 3: 1}),
    "one": ((("*fp32", "i64", "i64"), (("XBLOCK", 1), ("WIDE", 1)), 1, 1, True), {2: 1}),
}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, LaunchSpec]]:
    """What was asked to be compiled, one table for each variant."""
    found: list[dict[str, LaunchSpec]] = []

    def loaded(text: str, specs: Any, device: str) -> list[Any]:
        assert (text, device) == ("text", "cuda:1")
        found.append(dict(specs))
        return list(specs)

    monkeypatch.setattr(load, "load_triton_kernels", loaded)
    return found


def graph(likely: tuple[int, int] = (5, 7)) -> TritonVariants:
    return TritonVariants("text", SPECS, lambda s0, s1: s0 * s1, "cuda:1", likely)


def test_small_sizes_have_positions_of_32_bits_and_multiples_are_promised(made: list[Any]) -> None:
    kernels = graph()
    assert len(made) == 1  # before the first call
    assert kernels(5, 7) is kernels(6, 9) and len(made) == 1
    rows = made[0]["rows"]
    assert rows.signature == ("*fp32", "*fp32", "i32", "i32") and dict(rows.constants) == {"XBLOCK": 128, "WIDE": 0}
    assert rows.multiples == () and not rows.checks
    assert kernels(5, 32) == ["rows", "one"] and len(made) == 2
    assert made[1]["rows"].multiples == (3,)
    one = made[1]["one"]  # whose first integer is no size
    assert one.signature == ("*fp32", "i64", "i32") and one.multiples == (2,) and one.checks
    kernels(16, 48)
    assert made[2]["rows"].multiples == (2, 3)


def test_large_sizes_have_positions_of_64_bits(made: list[Any]) -> None:
    kernels = graph()
    for sizes, bits in (((NARROW - 1, 1), "i32"), ((NARROW, 1), "i64"), ((1 << 20, 1 << 20), "i64")):
        kernels(*sizes)
        found = kernels.variant(sizes)
        assert found[0] is (bits == "i64")
    assert [table["rows"].signature[2] for table in made] == ["i32", "i64", "i64"]
    assert [dict(table["rows"].constants)["WIDE"] for table in made] == [0, 1, 1]


def test_there_are_few_variants_and_what_is_remembered_of_sizes_is_bounded(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ((("*fp32", *["i64"] * 5), (("WIDE", 1),), 1, 1, False), {place: place - 1 for place in range(1, 6)})
    kernels = TritonVariants("text", {"k": spec}, lambda *sizes: max(sizes), "cuda:1", (1,) * 5)
    monkeypatch.setattr(variants, "_MAX_SIZES", 20)
    for number in range(64):
        kernels(*[16 if number >> bit & 1 else 1 + (number >> 5) for bit in range(5)])
        assert len(kernels._by_sizes) <= 20
    assert len(made) == MAX_VARIANTS
    kernels(16, 16, 16, 16, 17 * 16)
    assert len(made) == MAX_VARIANTS  # it promises nothing, as the first variant
    kernels(16, 16, 16, 16, 1 << 40)
    assert len(made) == MAX_VARIANTS + 1  # and this one needs 64 bits


def test_an_error_of_the_compiler_comes_when_the_graph_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(text: str, specs: Any, device: str) -> list[Any]:
        raise ValueError("refused")

    monkeypatch.setattr(load, "load_triton_kernels", refused)
    with pytest.raises(ValueError, match="refused"):
        graph()
