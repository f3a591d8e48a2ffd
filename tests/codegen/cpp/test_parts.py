"""A long file of kernels is cut into parts that compile at the same time; the prelude has each part of its own once."""

from __future__ import annotations

from pathlib import Path

import pytest

from argand.codegen.cpp import kernel, prelude


@pytest.mark.parametrize(
    "lengths, most, parts",
    [
        ([4_000] * 5, 8, 0),
        ([60_000], 8, 0),
        ([5_000] * 5, 8, 2),
        ([9_000] * 6, 8, 4),
        ([20_000] * 6, 2, 2),
        ([20_000] * 6, 1, 0),
    ],
)
def test_as_many_parts_as_save_time(lengths: list[int], most: int, parts: int) -> None:
    texts = [f"void f{number}() {{}}  // {'x' * length}\n" for number, length in enumerate(lengths)]
    files = kernel._parts(texts, {text: prelude.words(text) for text in texts}, most)
    assert len(files) == parts
    if parts:
        assert all(sum(text in file for file in files) == 1 for text in texts)
        sizes = sorted(map(len, files))
        assert sizes[-1] - sizes[0] <= max(lengths) + 1000


def test_sections_of_the_prelude_have_names_of_their_own() -> None:
    folder = Path(prelude.__file__).parent
    heads = [line for name in prelude._FILES for line in (folder / name).read_text().splitlines() if line[:4] == "//@ "]
    assert len(heads) == len(set(heads)) == len(prelude._sections()[0])
