"""Products that go to cuBLASLt itself, with a library that multiplies on the CPU: which elements meet, and when ATen is asked."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import sweeps
from argand.runtime.gpu.kernels.launch import Place
from argand.runtime.gpu.operators import blas
from argand.runtime.gpu.operators.blas import Blas, ProductSpec, TorchProduct, load_products

HALF = torch.float16


class FakeBlas:
    """The fake, and the products made of it."""

    def __init__(self, path: Path, place: Place) -> None:
        self.library = ctypes.CDLL(str(path))
        self.blas = Blas(str(path))
        self.place = place

    def get(self, name: str, kind: Any = ctypes.c_int) -> Any:
        return kind.in_dll(self.library, f"fake_{name}").value

    def set(self, kind: Any = ctypes.c_int, **values: int) -> None:
        for name, value in values.items():
            kind.in_dll(self.library, f"fake_{name}").value = value


@pytest.fixture(scope="session")
def fake_blas_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("blas") / "libcublasLt.so"
    source = Path(__file__).resolve().parents[1] / "fake_blas.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-w", "-o", str(made), str(source)], check=True)
    return made


@pytest.fixture
def library(fake_blas_path: Path, tmp_path: Path, fake: Any) -> FakeBlas:
    mine = tmp_path / "libcublasLt.so.13"
    mine.write_bytes(fake_blas_path.read_bytes())
    return FakeBlas(mine, fake.place())


def numbers(*size: int) -> torch.Tensor:
    """Integers in the memory of float16."""
    return torch.randint(-5, 6, size, dtype=torch.int16)


def laid_out(matrix: torch.Tensor, transposed: bool, gap: int = 0) -> torch.Tensor:
    """The same numbers, by rows or by columns, which begin `gap` elements further apart than they must."""
    matrix = matrix.t() if transposed else matrix
    wide = torch.full((matrix.shape[0], matrix.shape[1] + gap), 99, dtype=torch.int16)
    wide[:, : matrix.shape[1]] = matrix
    view = wide[:, : matrix.shape[1]]
    return view.t() if transposed else view


@pytest.mark.parametrize(
    ("bias", "gap", "right_by_columns", "left_by_columns"),
    sweeps.combinations([False, True], [0, 8], [False, True], [False, True]),
)
def test_elements_meet_as_in_a_product(
    library: FakeBlas, left_by_columns: bool, right_by_columns: bool, gap: int, bias: bool
) -> None:
    left, right, row = numbers(16, 24), numbers(24, 8), numbers(8)
    expected = left @ right + (row if bias else 0)
    left, right = laid_out(left, left_by_columns, gap), laid_out(right, right_by_columns, gap)
    spec = ProductSpec(16, 8, 24, HALF, left.stride(), right.stride(), bias)  # type: ignore[arg-type]
    product, workspace = library.blas.product(spec, library.place)
    result = torch.full((16, 8), -1, dtype=torch.int16)
    rows = [row.view(HALF)] if bias else []
    product(left.view(HALF), right.view(HALF), *rows, result.view(HALF), None)
    assert torch.equal(result, expected) and workspace == 0
    assert library.get("epilogue") == (4 if bias else 0) and library.get("matmuls") == 1


@pytest.mark.parametrize("activation, epilogue", [("relu", 6), ("gelu", 36)])
def test_an_activation_is_the_librarys(library: FakeBlas, activation: str, epilogue: int) -> None:
    spec = ProductSpec(16, 8, 24, HALF, (24, 1), (8, 1), True, activation)
    product, _ = library.blas.product(spec, library.place)
    product(
        numbers(16, 24).view(HALF), numbers(24, 8).view(HALF), numbers(8).view(HALF), numbers(16, 8).view(HALF), None
    )
    assert library.get("epilogue") == epilogue
    left, right, row = torch.randn(16, 24), torch.randn(24, 8), torch.randn(8)
    result = torch.empty(16, 8)
    TorchProduct(replace(spec, dtype=torch.float32))(left, right, row, result, None)
    function = torch.relu if activation == "relu" else torch.nn.functional.gelu
    torch.testing.assert_close(result, function(torch.addmm(row, left, right)), rtol=1e-3, atol=1e-3)


SPEC = ProductSpec(16, 8, 24, HALF, (24, 1), (8, 1), False)


def operands() -> list[torch.Tensor]:
    return [numbers(16, 24).view(HALF), numbers(24, 8).view(HALF), numbers(16, 8).view(HALF)]


def test_what_the_library_is_told(library: FakeBlas) -> None:
    library.set(ctypes.c_uint64, workspace=4096)
    product, nbytes = library.blas.product(SPEC, library.place)
    assert nbytes == 4096 and library.get("limit", ctypes.c_uint64) == blas.WORKSPACE
    assert library.get("reductions") == 2 and library.get("alignment", ctypes.c_uint64) == 16
    workspace = torch.empty(nbytes, dtype=torch.uint8)
    product(*operands(), workspace)
    assert library.get("stream", ctypes.c_void_p) == 0x57 and library.get("kind") == 2
    assert library.get("given", ctypes.c_void_p) == workspace.data_ptr()
    assert library.get("given_bytes", ctypes.c_size_t) == 4096
    assert bytes((ctypes.c_char * 64).in_dll(library.library, "fake_algorithm").raw) == b"\xa1" * 64
    library.blas.product(ProductSpec(16, 8, 24, torch.bfloat16, (24, 1), (8, 1), False), library.place)
    assert library.get("kind") == 14


def test_products_that_are_alike_are_one(library: FakeBlas) -> None:
    first, _ = library.blas.product(SPEC, library.place)
    assert library.blas.product(SPEC, library.place)[0] is first
    assert library.blas.product(ProductSpec(16, 8, 32, HALF, (32, 1), (8, 1), False), library.place)[0] is not first


def test_tensors_that_the_choice_is_not_for_go_to_aten(library: FakeBlas) -> None:
    library.set(ctypes.c_uint64, workspace=64)
    product, _ = library.blas.product(SPEC, library.place)
    left, right, result = operands()
    left.fill_(2), right.fill_(3), result.fill_(0)
    space = torch.empty(64, dtype=torch.uint8)
    shifted = torch.empty(16 * 24 + 1, dtype=HALF)[1:].view(16, 24)
    shifted.fill_(2)
    for args in ((shifted, right, result, space), (left, right, result, None), (left, right, result, space[1:])):
        result.fill_(0)
        product(*args)
        assert library.get("matmuls") == 0 and torch.equal(result, torch.full((16, 8), 144, dtype=HALF))
    with pytest.raises((RuntimeError, NotImplementedError)):
        product(left.to("meta"), right, result, space)
    with pytest.raises(TypeError, match="takes 3 tensors and a workspace"):
        product(left, right, result)


def test_a_library_that_refuses_is_not_asked_again(library: FakeBlas) -> None:
    product, _ = library.blas.product(SPEC, library.place)
    left, right, result = operands()
    left.fill_(2), right.fill_(3)
    library.set(refuses=1)
    for _ in range(2):
        result.fill_(0)
        product(left, right, result, None)
        assert torch.equal(result, torch.full((16, 8), 144, dtype=HALF)) and product.broken  # type: ignore[attr-defined]
    library.set(refuses=0)
    product(left, right, result, None)
    assert library.get("matmuls") == 0


def test_what_the_heuristic_does_not_know_is_atens(library: FakeBlas) -> None:
    for trouble in ({"found": 0}, {"status": 15}):
        library.set(found=1, status=0)
        library.set(**trouble)
        library.blas._products.clear()
        product, _ = library.blas.product(SPEC, library.place)
        assert isinstance(product, TorchProduct)
    library.blas._handles.clear()
    library.set(found=1, status=0, refuses=1)
    library.blas._products.clear()
    assert isinstance(library.blas.product(SPEC, library.place)[0], TorchProduct)
    single = ProductSpec(16, 8, 24, torch.float32, (24, 1), (8, 1), False)
    assert isinstance(library.blas.product(single, library.place)[0], TorchProduct)


def test_threads_do_not_mix_up_their_rows(library: FakeBlas) -> None:
    spec = ProductSpec(8, 8, 8, HALF, (8, 1), (8, 1), True)
    product, _ = library.blas.product(spec, library.place)
    wrong: list[int] = []

    def work(seed: int) -> None:
        left, right, row = numbers(8, 8), numbers(8, 8), torch.full((8,), seed, dtype=torch.int16)
        expected, result = left @ right + seed, torch.empty(8, 8, dtype=torch.int16)
        for _ in range(300):
            result.fill_(0)
            product(left.view(HALF), right.view(HALF), row.view(HALF), result.view(HALF), None)
            if not torch.equal(result, expected):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_nothing_leaks(library: FakeBlas) -> None:
    product, _ = library.blas.product(SPEC, library.place)
    given = operands()
    product(*given, None)
    gc.collect()
    before = [ctypes.c_ssize_t.from_address(id(each)).value for each in (*given, product)]
    for _ in range(50):
        product(*given, None)
    assert [ctypes.c_ssize_t.from_address(id(each)).value for each in (*given, product)] == before


@pytest.mark.parametrize("bias", [False, True])
def test_without_the_library_a_table_is_run_by_aten(bias: bool) -> None:
    left, right, row = torch.randn(16, 24), torch.randn(8, 24), torch.randn(8)
    table = {"product0": (16, 8, 24, torch.float32, (24, 1), (1, 24), bias)}
    (product,), nbytes = load_products(table, "cpu")
    result = torch.empty(2, 8, 8)
    product(left.view(4, 4, 24), right, *([row] if bias else []), result, None)
    torch.testing.assert_close(result.view(16, 8), left @ right.t() + (row if bias else 0))
    assert nbytes == 0


def test_the_library_is_the_one_that_is_loaded(library: FakeBlas, monkeypatch: pytest.MonkeyPatch) -> None:
    assert blas._loaded_path().endswith("libcublasLt.so.13")
    blas._library.cache_clear()
    assert blas.available() is (not torch.version.hip)
    monkeypatch.setattr(blas, "_loaded_path", lambda: "")
    blas._library.cache_clear()
    assert not blas.available()
    monkeypatch.setattr(blas, "_loaded_path", lambda: "/nowhere/libcublasLt.so")
    blas._library.cache_clear()
    assert not blas.available()
    blas._library.cache_clear()
