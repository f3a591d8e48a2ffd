"""Kernel: C functions called with pointers and integers."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from typing import Any

import pytest

from argand._core import _C

CALL = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64))


def kernel(fn: Any, tensors: int, ints: int, **options: Any) -> _C.Kernel:
    c = CALL(fn)
    address = ctypes.cast(c, ctypes.c_void_p).value
    assert address is not None
    return _C.Kernel(address, "k", tensors, ints, owner=c, **options)


@pytest.mark.parametrize("release_gil", [False, True])
@pytest.mark.parametrize(("tensors", "ints"), [(0, 0), (1, 0), (0, 3), (3, 2), (40, 60)])
def test_pointers_and_ints_arrive(tensors: int, ints: int, release_gil: bool) -> None:
    seen: list[Any] = []

    def fn(pointers: Any, integers: Any) -> None:
        seen.append(([pointers[i] for i in range(tensors)], [integers[i] for i in range(ints)]))

    k = kernel(fn, tensors, ints, release_gil=release_gil)
    addresses = [0x1000 + i for i in range(tensors)]
    values = [(-1) ** i * (i + (1 << 40)) for i in range(ints)]
    assert k(*addresses, *values) is None
    assert seen == [(addresses, values)]
    assert (k.num_tensors, k.num_ints, k.release_gil, k.name, k.calls) == (tensors, ints, release_gil, "k", 1)
    assert repr(k) == f"<argand kernel k({tensors} tensors, {ints} ints)>"


def test_null_pointer_and_integer_limits() -> None:
    seen: list[Any] = []
    k = kernel(lambda p, i: seen.append((p[0], i[0], i[1])), 1, 2)
    k(None, -(1 << 63), (1 << 63) - 1)
    assert seen == [(None, -(1 << 63), (1 << 63) - 1)]
    with pytest.raises(OverflowError):
        k(None, 0, 1 << 63)
    with pytest.raises(OverflowError):
        k(1 << 70, 0, 0)
    assert len(seen) == 1 and k.calls == 1


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((1,), {}, r"kernel k takes 1 tensors and 1 ints \(1 arguments given\)"),
        ((1, 2, 3), {}, r"kernel k takes 1 tensors and 1 ints \(3 arguments given\)"),
        ((1, 2), {"x": 1}, "no keyword arguments"),
        (("s", 2), {}, "kernel k: argument 0 must be a tensor.*, not str"),
        ((1, 2.0), {}, "kernel k: argument 1 must be an int, not float"),
    ],
)
def test_wrong_arguments(args: tuple[Any, ...], kwargs: dict[str, Any], message: str) -> None:
    called: list[int] = []
    k = kernel(lambda p, i: called.append(1), 1, 1)
    with pytest.raises(TypeError, match=message):
        k(*args, **kwargs)
    assert called == [] and k.calls == 0


def test_constructor_errors() -> None:
    for bad in [(0, "k", 1, 1), (1, "k", -1, 1), (1, "k", 1, -1)]:
        with pytest.raises(ValueError):
            _C.Kernel(*bad)
    for bad in [("a", "k", 1, 1), (1, 5, 1, 1), (1, "k", "x", 1), ()]:
        with pytest.raises(TypeError):
            _C.Kernel(*bad)


def test_owner_lives_as_long_as_the_kernel() -> None:
    class Library:
        pass

    library = Library()
    ref = weakref.ref(library)
    k = _C.Kernel(0x1000, "k", 0, 0, owner=library)
    del library
    gc.collect()
    assert k.owner is ref() is not None and k.address == 0x1000
    del k
    gc.collect()
    assert ref() is None


def test_release_gil_lets_other_threads_run() -> None:
    libc = ctypes.CDLL(None)
    usleep = ctypes.cast(libc.getpid, ctypes.c_void_p).value
    assert usleep is not None
    ran = threading.Event()
    waiting = threading.Event()

    def fn(
        pointers: Any, integers: Any
    ) -> None:  # runs with the GIL (ctypes takes it back) while the caller gave it up
        waiting.set()
        assert ran.wait(120)

    thread = threading.Thread(target=lambda: (waiting.wait(120), ran.set()))
    thread.start()
    kernel(fn, 0, 0, release_gil=True)()
    thread.join()
    _C.Kernel(usleep, "getpid", 0, 0, release_gil=True)()


def test_tensors() -> None:
    torch = pytest.importorskip("torch")
    _C.set_exchange_api(torch.Tensor.__dlpack_c_exchange_api__)
    seen: list[Any] = []
    k = kernel(lambda p, i: seen.append([p[0], p[1], p[2]]), 3, 1)
    base = torch.arange(10.0)
    param = torch.nn.Parameter(torch.ones(2, 3))
    view = base[3:]

    class Sub(torch.Tensor):
        pass

    sub = torch.ones(2).as_subclass(Sub)
    k(base, view, param, 5)
    k(sub, base.requires_grad_(), torch.empty(0), 5)
    assert seen[0] == [base.data_ptr(), base.data_ptr() + 12, param.data_ptr()]
    assert seen[1] == [sub.data_ptr(), base.data_ptr(), None]
    with pytest.raises(TypeError, match="argument 1 must be a tensor, not list"):
        k(base, [1.0], base, 5)
    for bad in (torch.eye(2).to_sparse(), torch.ones(2, device="meta")):
        with pytest.raises((TypeError, RuntimeError, BufferError)):
            k(base, bad, base, 5)
    assert len(seen) == 2


def test_a_kernel_computes() -> None:
    torch = pytest.importorskip("torch")
    _C.set_exchange_api(torch.Tensor.__dlpack_c_exchange_api__)

    def axpy(pointers: Any, integers: Any) -> None:
        n = integers[0]
        x, y = (ctypes.cast(pointers[i], ctypes.POINTER(ctypes.c_float)) for i in range(2))
        for i in range(n):
            y[i] += 2 * x[i]

    x, y = torch.rand(8), torch.rand(8)
    want = y + 2 * x
    kernel(axpy, 2, 1)(x, y, 8)
    assert torch.equal(y, want)
