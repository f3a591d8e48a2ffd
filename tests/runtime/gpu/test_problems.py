"""What a graph does when its kernels cannot be had: one message, the program's own code, nothing lost."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import argand
from argand.backends import native
from argand.backends.programs import generation
from argand.errors import GpuError
from argand.runtime.gpu.device import target
from argand.runtime.gpu.device.target import GpuTarget
from argand.runtime.gpu.kernels import entries, load, triton_compile
from argand.runtime.gpu.kernels.entries import Request
from argand.runtime.gpu.kernels.spec import launch_spec
from helpers import collected
from runtime.gpu.kernel_texts import HEAD

H100 = GpuTarget("cuda", 90, 32)


def compiled_image(text: str, spec: Any, kind: Any, *, aligned: bool, filename: str = "") -> Any:
    """Machine code, without Triton."""
    params = tuple(8 if one != "i32" else 4 for one in spec.signature)
    return triton_compile.Image(spec.name, 32 * spec.num_warps, 0, (*params, 8, 8), f"code {aligned}".encode())


@pytest.fixture
def gpu(fake: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[Any]:
    """CPU tensors are a GPU's, as far as code generation and the fake driver are asked."""

    def loaded(text: str, wanted: Any, device: str) -> Any:
        texts = entries.single_texts(text, [spec.name for spec in wanted])
        return load.load_on([Request(texts[spec.name], spec, H100) for spec in wanted], fake.place())

    load._loaded.cache_clear()
    native.reset()
    monkeypatch.setattr(load, "_load", loaded)
    monkeypatch.setattr(triton_compile, "compile_image", compiled_image)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    with argand.config.patch({"triton.on_cpu": True, "cache_dir": str(tmp_path / "cache"), "verify_ir": False}):
        yield fake
    load._loaded.cache_clear()
    native.reset()


def rows(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2, -1).sum(0)


def expect(said: str) -> None:
    """Every call is right; one warning and the events say why; later calls try nothing again."""
    x, w = torch.randn(6, 40), torch.randn(6, 40, requires_grad=True)
    compiled = argand.compile(rows)
    with collected("fallback", "span_begin") as seen, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert torch.equal(compiled(x), rows(x))
        assert torch.equal(compiled(x[:5]), rows(x[:5]))
        result = compiled(w)
        before = len(seen)
        for call in (x, x, x[:4], x[:3]):
            assert torch.equal(compiled(call), rows(call))
        assert not seen[before:], seen[before:]
    assert torch.equal(result, rows(w)) and "CompiledFunction" not in type(result.grad_fn).__name__
    result.sum().backward()
    assert w.grad is not None
    told = [str(each.message) for each in warned if said in str(each.message)]
    assert len(told) == 1 and "Graphs run with eager's kernels" in told[0] and "Traceback" not in told[0], told
    assert any(said in event.data.get("reason", "") for event in seen)


def test_kernels_reach_the_driver_where_nothing_is_wrong(gpu: Any) -> None:
    """What the tests below change is what makes the difference."""
    with collected("fallback") as seen:
        argand.compile(rows)(torch.randn(6, 40))
    assert gpu.get("count") >= 1 and gpu.get("loads") >= 1 and not seen


@pytest.mark.parametrize(
    ("code", "said"),
    [(2, "the GPU has no memory left"), (222, "the driver is too old"), (218, "the driver is too old"), (200, "damaged"),
     (209, "for another kind of GPU"), (999, "the driver reported an error (error 999")],
)  # fmt: skip
def test_the_driver_does_not_load_kernels(gpu: Any, code: int, said: str) -> None:
    gpu.set(fail_load=code, fail_loads=1000)
    expect(said)


def test_a_block_that_is_too_large(gpu: Any) -> None:
    gpu.set(max_threads=16)
    expect("a block of")


def test_a_block_that_needs_too_much_shared_memory(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        triton_compile,
        "compile_image",
        lambda *args, **kwargs: replace(compiled_image(*args, **kwargs), shared=300_000),
    )
    expect("a block needs 300000 bytes of shared memory, and this GPU has 232448")


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "said"),
    [(MemoryError("no memory"), "Triton refused kernel"), (ImportError("No module named 'triton'"), "pip install triton"),
     (RuntimeError("PTXAS error"), "PTXAS error"), (OSError(2, "ptxas"), "ptxas"), (SystemError("pass failed"), "pass failed")],
)  # fmt: skip
def test_triton_cannot_compile(gpu: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str) -> None:
    monkeypatch.undo()  # of compile_image: Triton's compiler itself fails

    def loaded(text: str, wanted: Any, device: str) -> Any:
        texts = entries.single_texts(text, [spec.name for spec in wanted])
        return load.load_on([Request(texts[spec.name], spec, H100) for spec in wanted], gpu.place())

    monkeypatch.setattr(load, "_load", loaded)
    monkeypatch.setattr(triton_compile, "ast_source", raising(error))
    expect(said)


def test_no_memory_while_compiling(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8 GiB"
    monkeypatch.setattr(load, "_load", raising(torch.OutOfMemoryError(text)))
    expect("a graph could not be compiled: CUDA out of memory")


def test_the_backward_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the forward has run already, the backward's graph runs by eager's kernels: no gradient is lost."""
    made, loads = generation.load_module, []

    def second_fails(*args: Any, **kwargs: Any) -> Any:
        loads.append(args)
        if len(loads) > 1:
            raise GpuError("loading kernel k on cuda:0: the GPU has no memory left")
        return made(*args, **kwargs)

    native.reset()
    monkeypatch.setattr(generation, "load_module", second_fails)
    x, y = torch.randn(6, 40, requires_grad=True), torch.randn(6, 40)
    other = x.detach().clone().requires_grad_()
    compiled = argand.compile(lambda x, y: torch.softmax(x * 2, -1) * y)
    with argand.config.patch(verify_ir=False), pytest.warns(UserWarning, match="no memory left") as warned:
        for _ in range(2):
            compiled(x, y).sum().backward()
    for _ in range(2):
        (torch.softmax(other * 2, -1) * y).sum().backward()
    assert len(loads) == 2 and len([each for each in warned if "no memory" in str(each.message)]) == 1
    torch.testing.assert_close(x.grad, other.grad)
    native.reset()


MIXED = (
    HEAD
    + """

@triton.jit
def mixed(in_ptr0, in_ptr1, out_ptr0, out_ptr1, n, BLOCK: tl.constexpr):
    pass
"""
)


def test_the_variant_for_other_pointers_cannot_be_loaded(
    fake: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """It is first needed in the middle of a call: the kernel then runs on copies, and what it wrote is copied back."""
    monkeypatch.setattr(triton_compile, "compile_image", compiled_image)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    load._loaded.cache_clear()
    spec = launch_spec("mixed", (("*fp32",) * 4 + ("i32",), (("BLOCK", 16),), 4, 1))
    with argand.config.patch(cache_dir=str(tmp_path / "cache")), collected("fallback") as seen:
        (kernel,) = load.load_on([Request(MIXED, spec, H100)], fake.place())
        fake.set(num_params=7, fail_load=2, fail_loads=100)
        base = torch.arange(64.0)
        read, spread, even, odd = base[1:9], base[3:4].expand(8), base[20:28], base[33:49:2]
        before = base.clone()
        for _ in range(2):
            kernel(1, 1, 1, read, spread, even, odd, 8)
    assert (
        len(seen) == 1 and "the GPU has no memory left" in seen[0].data["reason"] and seen[0].data["scope"] == "kernel"
    )
    assert torch.equal(base, before)
    words = [each.words[:5] for each in fake.launches]
    assert len(words) == 2 and all(word % 16 == 0 for launch in words for word in launch[:4])
    assert all(
        launch[2] == even.data_ptr() and launch[4] & 0xFFFFFFFF == 8 for launch in words
    )  # what is aligned stays
    load._loaded.cache_clear()


def test_what_a_kernel_writes_to_copies_is_copied_back() -> None:
    from argand.runtime.gpu.kernels.copies import OnAlignedCopies

    spec = launch_spec("mixed", (("*fp32",) * 4 + ("i32",), (("BLOCK", 16),), 4, 1))
    seen: list[torch.Tensor] = []

    def kernel(gx: int, gy: int, gz: int, *args: Any) -> None:
        x, spread, one, two, n = args
        seen.extend(args[:4])
        one.copy_(x + spread)
        two.copy_(one * n)

    base = torch.arange(64.0)
    x, spread, one, two = base[1:9], base[3:4].expand(8), base[9:17], base[33:49:2].requires_grad_()
    want = base.clone().detach()
    want[9:17] = want[1:9] + 3
    want[33:49:2] = want[9:17] * 8
    OnAlignedCopies(kernel, MIXED, spec, 16)(1, 1, 1, x, spread, one, two, 8)
    assert torch.equal(base.detach(), want)
    assert all(tensor.data_ptr() % 16 == 0 for tensor in seen)
    assert [tensor.stride() for tensor in seen] == [(1,), (0,), (1,), (2,)]


# ----------------------------------------------------------------------- devices that cannot be used at all

PROBLEMS: dict[str, tuple[str, Any, str]] = {
    "no triton": ("triton_version", lambda: "", "pip install triton"),
    "an old triton": ("triton_version", lambda: "3.1.0", "triton 3.1.0 is too old"),
    "an old GPU": ("torch.cuda.get_device_capability", lambda index: (6, 1), "compute capability 6.1"),
    "no library of the driver": ("LIBCUDA", "libnothing.so.1", "driver's library cannot be loaded"),
}


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_a_gpu_that_lacks_something(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, what, said = PROBLEMS[name]
    for cached in (target._problem, target._target):
        cached.cache_clear()
    native.reset()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr(target, "triton_version", lambda: "3.9.0+17")
    monkeypatch.setattr(target, "LIBCUDA", "libm.so.6")
    monkeypatch.setattr(native, "devices_of", lambda gm, inputs: {"cuda"})
    owner, _, attribute = where.rpartition(".")
    monkeypatch.setattr(torch.cuda if owner else target, attribute, what)
    expect(said)
    for cached in (target._problem, target._target):
        cached.cache_clear()
    native.reset()


@pytest.mark.parametrize("kind", ["mps", "xpu", "hpu", "mtia", "privateuseone", "vulkan"])
def test_a_device_that_no_target_knows(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its graphs are the program's own calls, and nobody is warned of what is no mistake."""
    monkeypatch.setattr(native, "devices_of", lambda gm, inputs: {kind})
    calls: list[str] = []
    stacks: list[str] = []

    class Counting(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(getattr(func, "__name__", str(func)))
            stacks.append("".join(traceback.format_stack(limit=8)))
            return func(*args, **(kwargs or {}))

    x = torch.randn(6, 40)
    compiled = argand.compile(rows)
    with collected("fallback") as seen, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(compiled(x), rows(x))
        with Counting():
            rows(x)
            eager = list(calls)
            calls.clear()
            stacks.clear()
            compiled(x)
    assert [name.strip("_") for name in calls] == [name.strip("_") for name in eager], stacks[0]
    assert seen[0].data["reason"] == f"no code is generated for tensors on {kind}"


def test_a_methods_name_is_a_device() -> None:
    from argand.graph.nodes.devices import devices_of

    for name in ("cuda", "xpu", "hpu", "mtia"):
        graph = torch.fx.Graph()
        graph.output(graph.call_method(name, (graph.placeholder("x"),)))
        assert devices_of(torch.fx.GraphModule({}, graph), [torch.ones(2)]) == {"cpu", name}


# ----------------------------------------------------------------------- several GPUs

COUNTED = HEAD + "\n\n@triton.jit\ndef counted(n, BLOCK: tl.constexpr):\n    pass\n"


def test_each_device_has_its_own_context_stream_and_code(
    fake: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Whichever was used last: a launch goes to the device and to the current stream of its kernel."""
    monkeypatch.setattr(triton_compile, "compile_image", compiled_image)
    load._loaded.cache_clear()
    fake.set(num_params=3)
    spec = launch_spec("counted", (("i64",), (("BLOCK", 16),), 4, 1))
    streams = {0: 0x50, 1: 0x60, 2: 0x70}
    with argand.config.patch(cache_dir=str(tmp_path / "cache")):
        kernels = {
            index: load.load_on(
                [Request(COUNTED, spec, H100)], replace(fake.place(), index=index, stream_of=streams.get)
            )[0]
            for index in streams
        }
    assert fake.get("loads") == 3  # the code is compiled once, and loaded on each
    order = [0, 1, 1, 0, 2, 1]
    for index in order:
        kernels[index](1, 1, 1, index)
    streams[1] = 0x61
    kernels[1](1, 1, 1, 1)
    found = [(each.context, each.stream, each.words[0]) for each in fake.launches]
    assert found[:-1] == [(0xC000 + 100 + index, 0x50 + 0x10 * index, index) for index in order]
    assert found[-1] == (0xC000 + 101, 0x61, 1)
    assert len({each.function for each in fake.launches}) == 3
    load._loaded.cache_clear()
