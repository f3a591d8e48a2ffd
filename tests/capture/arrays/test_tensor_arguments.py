"""numpy's functions of tensors, and those that numpy itself computes in a graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests import sweeps
from tests.capture.arrays.numpy_calls_of_tensors import DTYPES, LAYOUTS, compared, functions
from tests.helpers import CountingBackend

import argand

_NAMES = list(functions())
_SAMPLE = sweeps.diagonal(_NAMES[::2], [(d, l, a) for d in DTYPES for l in range(len(LAYOUTS)) for a in (False, True)])


@pytest.mark.parametrize("part", range(4))
def test_a_call_gives_what_numpy_gives(part: int) -> None:
    whole = 0
    for name, (dtype, layout, as_array) in _SAMPLE[part::4]:
        differs, one_graph = compared(name, dtype, layout, as_array)
        assert not differs, (name, dtype, layout, as_array, differs)
        whole += one_graph
    assert whole > len(_SAMPLE) // 8


@pytest.mark.parametrize("name", ["positive", "conjugate", "around"])
def test_what_is_computed_of_one_item_is_a_copy(name: str) -> None:
    assert not compared(name, torch.int64, 2, False)[0]


def test_a_function_of_a_tensor_is_part_of_the_graph() -> None:
    backend = CountingBackend()
    fn = argand.compile(lambda t: np.log(t + 1) * 2 + t, backend=backend, fullgraph=True)
    for x in (torch.arange(4.0), torch.arange(4.0) + 3):
        torch.testing.assert_close(fn(x), torch.log(x + 1) * 2 + x)
    assert len(backend.graphs) == 1


def test_an_array_shares_the_tensors_memory() -> None:
    def fn(t: torch.Tensor) -> torch.Tensor:
        array = np.asarray(t)
        array += 1
        return t * 2

    x = torch.zeros(3)
    torch.testing.assert_close(argand.compile(fn, backend="eager", fullgraph=True)(x), torch.full((3,), 2.0))
    torch.testing.assert_close(x, torch.ones(3))


def test_a_tensor_with_history_raises_as_in_eager() -> None:
    fn = argand.compile(lambda t: np.log(t), backend="eager")
    with pytest.raises(RuntimeError, match="requires grad"):
        fn(torch.ones(3, requires_grad=True))


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_numpy_itself_computes_in_a_graph(backend: str) -> None:
    def fn(t: torch.Tensor, a: np.ndarray) -> tuple[object, ...]:
        matrix = (t @ t.T + 3).numpy()
        values, vectors = np.linalg.eigh(matrix + np.eye(2, dtype=np.float32))
        put = matrix.copy()
        np.put(put, [0], [5])
        assert np.fft.rfft(matrix).dtype == np.complex64 or np.__version__ < "2"
        return np.interp(a, [0.0, 2.0, 4.0], [1.0, 5.0, 2.0]) * 2, abs(vectors) * values, np.linalg.inv(matrix), put

    compiled = argand.compile(fn, backend=backend, fullgraph=True)
    for x, a in ((torch.eye(2), np.arange(3.0)), (torch.eye(2) * 3, np.arange(3.0)[::1] - 1)):
        for got, want in zip(compiled(x, a), fn(x, a)):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_an_error_of_numpys_is_raised() -> None:
    fn = argand.compile(lambda t: np.linalg.inv(t.numpy() * 1) + 1, backend="eager")
    np.testing.assert_allclose(fn(torch.eye(2)), np.eye(2) + 1)
    with pytest.raises(np.linalg.LinAlgError):
        fn(torch.zeros(2, 2))


def test_what_decides_about_sizes_is_no_array_of_the_graph() -> None:
    fn = argand.compile(lambda t: np.sort(t.numpy(), axis=np.max(t.numpy().astype(int))), backend="eager")
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    np.testing.assert_array_equal(fn(x), np.sort(x.numpy(), axis=1))
    np.testing.assert_array_equal(fn(x * 0), np.sort(x.numpy() * 0, axis=0))


_NAMES_OF_DTYPES = {np.dtype("uint16"): "short", np.dtype("float32"): "single"}


def test_dtypes_are_values() -> None:
    """As keys of a table that was there before, too, which is another table once one is added."""

    def fn(a: np.ndarray) -> object:
        kind = np.result_type(a, np.float64) if np.iterable(a) else a.dtype
        return (a + len(_NAMES_OF_DTYPES)).astype(kind) * len(_NAMES_OF_DTYPES[a.dtype]), kind

    compiled, a = argand.compile(fn, backend="eager", fullgraph=True), np.ones(3, dtype=np.float32)
    for _ in range(2):
        for got, want in zip(compiled(a), fn(a)):
            assert got.dtype == want.dtype if isinstance(want, np.ndarray) else got == want
            assert not isinstance(want, np.ndarray) or got.tolist() == want.tolist()
        _NAMES_OF_DTYPES[np.dtype("int8")] = "tiny"
    del _NAMES_OF_DTYPES[np.dtype("int8")]


def test_a_dtype_with_fields_may_be_changed() -> None:
    kind = np.dtype([("a", np.float32), ("b", np.float32)])
    compiled = argand.compile(lambda x: x * (2 if kind.names[0] == "a" else 3), backend="eager")
    x = torch.ones(2)
    assert compiled(x).tolist() == [2, 2]
    kind.names = ("c", "d")
    assert compiled(x).tolist() == [3, 3]


def test_items_of_a_constant_array_by_an_array_of_the_graph() -> None:
    fn = argand.compile(lambda i: np.eye(4, dtype=np.float32)[i] * 2, backend="eager", fullgraph=True)
    for index in ([1, 3], [0, 0]):
        np.testing.assert_array_equal(fn(np.array(index)), np.eye(4)[index] * 2)


def test_ufuncs_of_scipy() -> None:
    special = pytest.importorskip("scipy.special")
    fn = argand.compile(lambda t: special.expit(t.numpy()) + special.gammaln(t.numpy() + 1), backend="native")
    x = torch.linspace(-0.5, 3, 7)
    np.testing.assert_allclose(fn(x), special.expit(x.numpy()) + special.gammaln(x.numpy() + 1), rtol=1e-5)
