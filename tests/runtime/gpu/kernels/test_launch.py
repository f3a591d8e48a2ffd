"""Launches: what reaches the driver, with a driver that writes it down."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest
import torch

from argand.errors import GpuError
from argand.runtime.gpu.device.kernel_image import Image
from argand.runtime.gpu.kernels import launch
from argand.runtime.gpu.kernels.spec import launch_spec

SPEC = launch_spec("k", (("*fp32", "*bf16", "i32", "i64"), (("BLOCK", 64),), 4, 1))
IMAGE = Image("k", 128, 0, (8, 8, 4, 8, 8, 8), b"machine code")


@pytest.fixture
def make(fake):
    """Makes kernels over the fake."""
    fake.set(num_params=6)

    def made(spec=SPEC, image=IMAGE, unaligned=None, **place):
        return launch.make_device_kernel(spec, image, fake.driver.load(image, 0), fake.place(**place), unaligned)

    return made


def test_what_reaches_the_driver(make, fake) -> None:
    kernel = make()
    x, y = torch.zeros(100), torch.zeros(100, dtype=torch.bfloat16)
    assert kernel(7, 5, 3, x[4:], y, -5, 1 << 40) is None
    (got,) = fake.launches
    assert (got.gx, got.gy, got.gz, got.threads, got.shared, got.stream) == (7, 5, 3, 128, 0, 0x57)
    assert got.function == 0xF01 and got.context == 0xC000 + 100
    assert got.words[0] == x.data_ptr() + 16 and got.words[1] == y.data_ptr()
    assert got.words[2] & 0xFFFFFFFF == 0xFFFFFFFB and got.words[3] == 1 << 40
    assert got.words[4] == got.words[5] == 0  # scratch memory, which these kernels have none of
    assert fake.get("depth") == 0 and fake.get("capture_mode") == 0


def test_leaves_and_parameters_are_taken(make, fake) -> None:
    kernel = make()
    leaf = torch.nn.Parameter(torch.zeros(8))
    kernel(1, 1, 1, leaf, torch.zeros(8, dtype=torch.bfloat16), 0, 0)
    assert fake.launches[0].words[0] == leaf.data_ptr()


def test_dtypes_that_dlpack_lacks_are_taken(make, fake) -> None:
    kernel = make()
    for dtype in (torch.float8_e5m2, torch.float8_e4m3fn, torch.bool, torch.int8, torch.complex64):
        x = torch.zeros(64).to(dtype)
        kernel(1, 1, 1, x, x, 0, 0)
        assert fake.launches[-1].words[0] == x.data_ptr()


def test_an_empty_grid_launches_nothing(make, fake) -> None:
    kernel = make()
    empty = torch.zeros(0)
    for grid in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        kernel(*grid, empty, empty, 0, 0)
    assert not fake.launches
    kernel(1, 1, 1, empty, empty, 0, 0)
    assert fake.launches[0].words[0] == 0


def test_pointers_that_are_not_aligned_go_to_the_other_variant(make, fake) -> None:
    calls = []

    def unaligned():
        calls.append("made")
        return make()

    kernel = make(unaligned=unaligned)
    x, y = torch.zeros(100), torch.zeros(100, dtype=torch.bfloat16)
    kernel(1, 1, 1, x[4:], y[8:], 0, 0)
    assert not calls and fake.launches[-1].function == 0xF01
    for _ in range(3):
        kernel(2, 1, 1, x[1:], y, 3, 4)
        kernel(2, 1, 1, x, y[1:], 3, 4)
    assert calls == ["made"] and len(fake.launches) == 7
    got = fake.launches[-1]
    assert got.function == 0xF02 and got.words[1] == y.data_ptr() + 2 and got.words[3] == 4 and got.gx == 2
    kernel(1, 1, 1, x, y, 0, 0)
    assert fake.launches[-1].function == 0xF01


def test_an_error_of_the_other_variant_is_told(make) -> None:
    def unaligned():
        raise GpuError("no variant")

    with pytest.raises(GpuError, match="no variant"):
        make(unaligned=unaligned)(1, 1, 1, torch.zeros(9)[1:], torch.zeros(9), 0, 0)


def test_wrong_arguments(make, fake) -> None:
    kernel = make()
    x = torch.zeros(8)
    with pytest.raises(TypeError, match="takes .*2 tensors and 2 ints"):
        kernel(1, 1, 1, x, x, 0)
    with pytest.raises(OverflowError):
        kernel(1, 1, 1, x, x, 1 << 31, 0)
    with pytest.raises(OverflowError):
        kernel(1, 1, 1, x, x, 0, 1 << 63)
    kernel(1, 1, 1, x, x, -(1 << 31), -(1 << 63))
    assert fake.launches[0].words[3] == -(1 << 63) and len(fake.launches) == 1


def test_wrong_objects_and_grids() -> None:
    from argand._core import _C

    _C.set_exchange_api(torch.Tensor.__dlpack_c_exchange_api__)
    kernel = _C.DeviceKernel(
        1, 1, (1, 0), "k", "pi", 32, 0, 0, (1, 1, 1, 1), lambda index: 0, lambda code, name: None
    )  # fmt: skip
    x = torch.zeros(8)
    with pytest.raises(TypeError, match="argument 0 must be a tensor, not list"):
        kernel(1, 1, 1, [], 0)
    with pytest.raises(TypeError, match="argument 1 must be an int, not float"):
        kernel(1, 1, 1, x, 0.5)
    with pytest.raises(ValueError, match="argument 0 is on device"):
        kernel(1, 1, 1, torch.zeros(8, device="meta"), 0)
    for grid in ((-1, 1, 1), (1 << 31, 1, 1), (1, 1 << 16, 1), (1, 1, 1 << 16), (1.5, 1, 1)):
        with pytest.raises(ValueError, match="cannot be launched"):
            kernel(*grid, x, 0)
    with pytest.raises(TypeError):
        kernel(1, 1, 1, x, n=0)
    assert "kernel k" in repr(kernel) and kernel.calls == 0 and (kernel.num_tensors, kernel.num_ints) == (1, 1)
    for bad in ({"kinds": "ip"}, {"kinds": "x"}, {"driver": (1, 2)}, {"driver": (0, 1, 1, 1)}, {"scratch": -1}):
        given = {"kinds": "pi", "driver": (1, 1, 1, 1), "scratch": 0, **bad}
        with pytest.raises((ValueError, TypeError)):
            _C.DeviceKernel(
                1, 1, (1, 0), "k", given["kinds"], 32, 0, given["scratch"], given["driver"], lambda index: 0, print
            )


def test_many_arguments(make, fake) -> None:
    spec = launch_spec("k", (("*fp32",) * 50 + ("i64",) * 12, (), 1, 1))
    wide = launch_spec("k", (("*fp32",) * 150 + ("i64",) * 12, (), 1, 1))
    fake.set(num_params=62)
    x = torch.zeros(1000)
    for each in (spec, wide):
        count = each.num_tensors
        kernel = make(each, Image("k", 32, 0, (8,) * (count + 12 + 2), b""))
        kernel(1, 1, 1, *[x[4 * i :] for i in range(count)], *range(12))
        got = fake.launches[-1].words
        assert list(got[:50]) == [x.data_ptr() + 16 * i for i in range(50)]
    assert list(fake.launches[0].words[50:62]) == list(range(12))


def test_streams_are_asked_for_at_each_launch(fake) -> None:
    streams = iter([0, 0xFFFF_FFFF_FFFF, 5])
    place = launch.Place(fake.driver, 1, 0, lambda index: next(streams))
    kernel = launch.make_device_kernel(SPEC, IMAGE, fake.driver.load(IMAGE, 0), place, None)
    x = torch.zeros(8)
    for _ in range(3):
        kernel(1, 1, 1, x, x, 0, 0)
    assert [each.stream for each in fake.launches] == [0, 0xFFFF_FFFF_FFFF, 5]
    with pytest.raises(StopIteration):
        kernel(1, 1, 1, x, x, 0, 0)


def test_errors_of_a_launch(make, fake) -> None:
    kernel = make()
    x = torch.zeros(8)
    for code, text in (
        (2, "no memory left"),
        (700, "CUDA_LAUNCH_BLOCKING"),
        (701, "registers"),
        (12345, "error 12345"),
    ):
        fake.set(fail_launch=code)
        with pytest.raises(GpuError, match=text) as caught:
            kernel(1, 1, 1, x, x, 0, 0)
        assert "kernel k" in str(caught.value) and "the fake's words" in str(caught.value) and caught.value.remedy
        assert isinstance(caught.value, RuntimeError) and fake.get("depth") == 0
    fake.set(fail_launch=0)
    kernel(1, 1, 1, x, x, 0, 0)


def test_errors_of_loading(fake) -> None:
    for code, text in ((2, "no memory left"), (200, "damaged"), (209, "another kind of GPU"), (222, "too old")):
        fake.set(fail_load=code, fail_loads=1)
        with pytest.raises(GpuError, match=text):
            fake.driver.load(IMAGE, 0)
        assert fake.get("depth") == 0 and fake.get("capture_mode") == 0
    fake.set(fail_load=0, max_threads=64)
    with pytest.raises(GpuError, match="128 threads does not fit"):
        fake.driver.load(IMAGE, 0)
    fake.set(max_threads=1024)
    with pytest.raises(GpuError, match="cuda:7"):
        fake.driver.load(IMAGE, 7)


def test_shared_memory(fake) -> None:
    fake.driver.load(Image("k", 32, 48 << 10, (8,), b""), 0)
    assert fake.get("shared_set") == -1
    fake.driver.load(Image("k", 32, 100_000, (8,), b""), 0)
    assert fake.get("shared_set") == 100_000
    with pytest.raises(GpuError, match="300000 bytes of shared memory, and this GPU has 232448"):
        fake.driver.load(Image("k", 32, 300_000, (8,), b""), 0)


def test_no_driver(tmp_path) -> None:
    from argand.runtime.gpu.device.driver import Driver

    with pytest.raises(GpuError, match="driver"):
        Driver(str(tmp_path / "libcuda.so.1"))
    with pytest.raises(GpuError, match="cuLaunchKernel"):
        Driver("libm.so.6")


def test_kernels_are_collected(make) -> None:
    def in_a_cycle() -> weakref.ref:
        cycle = []

        def unaligned():
            return cycle[0]

        cycle.append(make(unaligned=unaligned))
        x = torch.zeros(9)
        cycle[0](1, 1, 1, x, x, 0, 0)
        return weakref.ref(unaligned)

    gone = in_a_cycle()
    gc.collect()
    assert gone() is None


def test_threads(make, fake) -> None:
    kernel = make()
    x = torch.zeros(8)

    def work():
        for i in range(40):
            kernel(1, 1, 1, x, x, i, i)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert fake.get("count") == 160


def test_labels(make) -> None:
    from argand.runtime.profile import label

    kernel = make()
    label(kernel, "graph_0_k")
    assert kernel.label == "graph_0_k" and not kernel.annotated
    kernel.annotated = True
    x = torch.zeros(8)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        kernel(1, 1, 1, x, x, 0, 0)
    assert "graph_0_k" in {event.key for event in profile.key_averages()}


def test_a_launch_takes_little_time(fake) -> None:
    spec = launch_spec("k", (("*fp32",) * 6 + ("i32",) * 2, (), 4, 1))
    image = Image("k", 128, 0, (8,) * 6 + (4, 4, 8, 8), b"")
    kernel = launch.make_device_kernel(spec, image, fake.driver.load(image, 0), fake.place(), None)
    tensors = [torch.zeros(8) for _ in range(6)]
    best = min(_launch_time(kernel, tensors) for _ in range(20))
    assert best < 3e-6, f"{best * 1e6:.2f} us"


def _launch_time(kernel, tensors) -> float:
    start = time.perf_counter()
    for _ in range(500):
        kernel(4, 1, 1, *tensors, 1, 2)
    return (time.perf_counter() - start) / 500
