"""Kernels on a real GPU: results, streams, variants, errors, time of a launch, warm starts."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

import argand
from argand.errors import GpuError
from argand.runtime.gpu.device.driver import driver
from argand.runtime.gpu.device.target import device_index, gpu_problem
from argand.runtime.gpu.kernels import launch, load
from runtime.gpu.kernel_texts import ADD, ADD_SPEC, HEAD, unary

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or gpu_problem("cuda") is not None, reason="there is no GPU for kernels"
)
HERE = Path(__file__).resolve().parent


@pytest.fixture(autouse=True)
def own_cache(tmp_path):
    with argand.config.patch(cache_dir=str(tmp_path / "cache")):
        yield


def add_kernel(device="cuda"):
    return load.load_triton_kernels(ADD, {"add": ADD_SPEC}, device)[0]


def test_results() -> None:
    kernel = add_kernel()
    x, y, out = torch.randn(1000, device="cuda"), torch.randn(1000, device="cuda"), torch.zeros(1001, device="cuda")
    kernel(8, 1, 1, x, y, out, 1000)
    assert torch.equal(out[:1000], x + y) and out[1000] == 0
    for shift in (1, 2, 4, 5):  # 4 floats are 16 bytes
        kernel(8, 1, 1, x[shift:], y, out, 1000 - shift)
        assert torch.equal(out[: 1000 - shift], x[shift:] + y[:-shift])
    kernel(0, 1, 1, x, y, out, 1000)
    torch.cuda.synchronize()


def test_device_library_as_eager() -> None:
    x = torch.randn(4096, device="cuda") * 3
    names = {"tanh": torch.tanh, "erf": torch.erf, "log1p": torch.log1p, "expm1": torch.expm1, "rsqrt": torch.rsqrt}
    for name, eager in names.items():
        specs = {"f": (("*fp32", "*fp32", "i32"), (("BLOCK", 128),), 4, 1)}
        (kernel,) = load.load_triton_kernels(unary(f"libdevice.{name}(x)"), specs, "cuda")
        out = torch.empty_like(x)
        kernel(32, 1, 1, x, out, 4096)
        torch.testing.assert_close(out, eager(x), rtol=2e-6, atol=1e-7, equal_nan=True)


def test_current_stream_is_used() -> None:
    kernel = add_kernel()
    x, out = torch.ones(1 << 20, device="cuda"), torch.zeros(1 << 20, device="cuda")
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        kernel(1 << 13, 1, 1, x, x, out, 1 << 20)
    assert not stream.query()  # it waits behind the sleep, and this thread did not
    stream.synchronize()
    assert (out == 2).all()


def test_in_a_thread_and_in_a_graph() -> None:
    kernel = add_kernel()
    x, out = torch.ones(256, device="cuda"), torch.zeros(256, device="cuda")
    failures = []

    def work() -> None:
        try:
            kernel(2, 1, 1, x, x, out, 256)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert not failures and (out == 2).all()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(2, 1, 1, x, x, out, 256)
        kernel(2, 1, 1, x[1:], x, out, 255)  # this variant is compiled and loaded while the stream is captured
    x.fill_(3)
    graph.replay()
    torch.cuda.synchronize()
    assert (out == 6).all()


def test_every_device() -> None:
    for index in range(torch.cuda.device_count()):
        kernel = add_kernel(f"cuda:{index}")
        x, out = torch.ones(256, device=f"cuda:{index}"), torch.zeros(256, device=f"cuda:{index}")
        kernel(2, 1, 1, x, x, out, 256)  # while another device may be current
        torch.cuda.synchronize(index)
        assert (out == 2).all()
    with pytest.raises(ValueError, match="device"):
        kernel(2, 1, 1, x, torch.ones(256), out, 256)


def test_shared_memory_beyond_the_usual() -> None:
    text = (
        HEAD
        + """

@triton.jit
def product(x, y, out, BLOCK: tl.constexpr):
    rows, columns = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, 512, BLOCK):
        left = tl.load(x + rows * 512 + columns + k)
        right = tl.load(y + (rows + k) * BLOCK + columns)
        acc = tl.dot(left, right, acc)
    tl.store(out + rows * BLOCK + columns, acc)
"""
    )
    spec = (("*bf16", "*bf16", "*fp32"), (("BLOCK", 128),), 8, 3)
    (kernel,) = load.load_triton_kernels(text, {"product": spec}, "cuda")
    x, y = torch.randn(128, 512, device="cuda").bfloat16(), torch.randn(512, 128, device="cuda").bfloat16()
    out = torch.empty(128, 128, device="cuda")
    kernel(1, 1, 1, x, y, out)
    torch.testing.assert_close(out, x.float() @ y.float(), rtol=1e-2, atol=1e-2)


def test_a_damaged_image_is_told() -> None:
    place = launch.cuda_place(driver(), device_index("cuda"))
    image = launch.Image("k", 128, 0, (8,), b"\x7fELF no machine code at all" + bytes(4096))
    with pytest.raises(GpuError, match="cuda:"):
        place.driver.load(image, place.index)
    kernel, x = add_kernel(), torch.ones(128, device="cuda")
    kernel(1, 1, 1, x, x, x, 128)
    assert (x == 2).all()  # nothing else is harmed


def test_a_launch_takes_little_time() -> None:
    kernel = add_kernel()
    x, out = torch.ones(128, device="cuda"), torch.zeros(128, device="cuda")
    best = 1.0
    for _ in range(30):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(200):
            kernel(1, 1, 1, x, x, out, 128)
        best = min(best, (time.perf_counter() - start) / 200)
    print(f"{best * 1e6:.2f} us a launch")
    assert best < 5e-6, f"{best * 1e6:.2f} us"


def test_a_warm_process(tmp_path) -> None:
    code = f"""
import sys, time; sys.path.insert(0, {str(HERE.parent.parent)!r})
import torch
torch.ones(1, device="cuda")
from runtime.gpu.kernel_texts import *
from argand.runtime.gpu.kernels.load import load_triton_kernels
imported, start = "triton" in sys.modules, time.perf_counter()
kernel, = load_triton_kernels(ADD, {{"add": ADD_SPEC}}, "cuda")
taken = time.perf_counter() - start
x = torch.ones(128, device="cuda"); out = torch.zeros(128, device="cuda")
kernel(1, 1, 1, x, x, out, 128)
assert (out == 2).all()
print("triton" in sys.modules and not imported, taken)
"""
    environment = {**os.environ, "ARGAND_CACHE_DIR": str(tmp_path / "warm")}
    said = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment).stdout
        for _ in range(2)
    ]
    print("cold, warm:", *said)
    assert said[1].split()[0] == "False" and float(said[1].split()[1]) < 0.1


def test_an_assertion_that_fails_is_told(tmp_path) -> None:
    code = f"""
import sys; sys.path.insert(0, {str(HERE.parent.parent)!r})
import torch
from runtime.gpu.kernel_texts import *
from argand.runtime.gpu.kernels.load import load_triton_kernels
text = ADD.replace("    mask = at < n", "    mask = at < n\\n    tl.device_assert(n < 100, 'n is too large')")
kernel, = load_triton_kernels(text, {{"add": (*ADD_SPEC, True)}}, "cuda")
x = torch.ones(128, device="cuda"); out = torch.zeros(128, device="cuda")
kernel(1, 1, 1, x, x, out, 99)
torch.cuda.synchronize()
assert out.sum() == 198
kernel(1, 1, 1, x, x, out, 128)
try:
    torch.cuda.synchronize()
except RuntimeError:
    try:
        kernel(1, 1, 1, x, x, out, 99)
    except RuntimeError as error:
        print(error)
"""
    environment = {**os.environ, "ARGAND_CACHE_DIR": str(tmp_path / "own")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert "n is too large" in done.stderr + done.stdout, done.stderr[-2000:]
    assert "CUDA_LAUNCH_BLOCKING" in done.stdout, done.stdout
