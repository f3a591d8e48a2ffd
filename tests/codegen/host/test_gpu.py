"""Host modules that launch Triton kernels: what they say, with kernels that write down their arguments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from loop_programs import Builder, T, softmax

from argand.codegen.host import gpu as gpu_text
from argand.codegen.host.kernels import kernel_source
from argand.codegen.host.memory import plan_memory
from argand.codegen.host.module import KernelSource, host_module
from argand.codegen.host.products import choose_products
from argand.codegen.triton.spec import KernelSpec, TritonSource
from argand.errors import InternalError
from argand.graph.sizes.expr import Const, Sym
from argand.ir.target import cpu, gpu
from argand.runtime import host
from argand.runtime.gpu.kernels import load
from argand.schedule.pipeline import schedule

MM = torch.ops.aten.mm.default
CPU, FIRST, SECOND = torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1)


def relu(o: Any, a: Any) -> Any:
    return o.maximum(a, o.constant(0, torch.float32))


def target_of(device: torch.device) -> Any:
    return cpu(1) if device == CPU else gpu(132)


def spec(name: str, points: tuple[Any, ...], blocks: tuple[int, ...], **more: Any) -> KernelSpec:
    return KernelSpec(name, ("*fp32", "*fp32"), (("XBLOCK", 128),), 4, 2, points, blocks, **more)


def interpreted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls of kernels from now on, which compute nothing."""
    calls: list[Any] = []

    def loaded(text: str, specs: Any, device: str) -> list[Any]:
        return [lambda *args, name=name: calls.append((name, device, args)) for name in specs]

    monkeypatch.setattr(load, "load_triton_kernels", loaded)
    return calls


def test_a_launch_covers_the_points_and_passes_workspaces_and_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = interpreted(monkeypatch)
    n = Sym("s0")
    b = Builder()
    x: T = b.input(n, 6)
    program = b.program(softmax(b, x))
    program.inputs.append("s0")
    program.input_symbols = [("s0", "", 0)]
    made = schedule(program, targets=lambda _: gpu(132))
    (plan,) = made.kernels()
    workspaces = (("*fp64", Const(6)), ("i1", n))
    one = spec(plan.name, (n, Const(1000)), (4, 128), workspaces=workspaces)
    text = host_module(made, KernelSource("", {}, triton={CPU: TritonSource("import triton", {plan.name: one})}))
    module = host.load_module(text, {}, graph="graph_0")
    (result,) = module.call([torch.ones(9, 6), 9])
    ((name, device, args),) = calls
    assert (name, device, args[:3]) == (plan.name, "cpu", (3, 8, 1))
    given, out, doubles, flags, size = args[3:]
    assert torch.equal(given, torch.ones(9, 6)) and out is result and size == 9
    assert doubles.dtype is torch.float64 and doubles.shape == (54,) and flags.dtype is torch.bool
    assert flags.shape == (81,) and "del workspace0, workspace1" in text
    assert "(('*fp32', '*fp32'), (('XBLOCK', 128),), 4, 2, False)" in text


def test_kernels_of_many_sizes_are_taken_by_the_sizes_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = interpreted(monkeypatch)
    n, m = Sym("s0"), Sym("s1")
    b = Builder()
    program = b.program(b.pointwise(relu, b.input(n, m)), b.pointwise(relu, b.input(64)))
    program.inputs += ["s0", "s1"]
    program.input_symbols = [("s0", "", 0), ("s1", "", 0)]
    program.hints = {"s0": 48, "s1": 5}
    made = schedule(program, targets=lambda _: gpu(132))
    text = host_module(made, kernel_source(made))
    assert text.count("triton_variants(") == 1 and "triton_reach, 'cpu', (48, 5))" in text.replace("\n", "")
    module = host.load_module(text, {}, graph="graph_0")
    for size in ((9, 6), (32, 16)):
        module.call([torch.ones(9, 6), torch.ones(64), *size])
    names = [name for name, _, _ in calls]
    assert len(set(names)) == 2 and len(names) == 4
    assert module.triton_reach(1 << 40, 1) >= 1 << 40 > module.triton_reach(9, 6)


def test_grids_of_constant_sizes_are_numbers() -> None:
    assert [str(gpu_text.programs(Const(n), 128)) for n in (0, 1, 128, 129)] == ["0", "1", "1", "2"]
    assert str(gpu_text.programs(Sym("s0") * 3, 1)) == "3*s0"


@pytest.mark.parametrize("kind", ["fp64", "fp32", "fp16", "bf16", "i64", "i32", "i16", "i8", "u8", "i1"])
def test_types_of_workspaces_are_those_of_the_generator(kind: str) -> None:
    from argand.codegen.triton.types import pointer_type

    assert pointer_type(gpu_text.dtype_of(f"*{kind}")) == f"*{kind}"


def two_devices() -> tuple[Any, Any]:
    b = Builder()
    x, y = b.input(1 << 16), b.input(1 << 16)
    one, two = b.pointwise(relu, x), b.pointwise(relu, y)
    late = b.extern(torch.ops.aten.neg.default, two, size=(1 << 16,))
    last = b.pointwise(relu, late)
    for each in (y, two, late, last):
        b.buffers[each.buffer] = replace(b.buffers[each.buffer], device=FIRST)
    return b, schedule(b.program(one, last), targets=target_of)


def test_one_module_has_kernels_of_two_devices() -> None:
    _, made = two_devices()
    kernels = kernel_source(made)
    assert kernels is not None and set(kernels.triton) == {FIRST} and len(kernels.symbols) == 1
    assert "@triton.jit" in kernels.all_text and 'extern "C"' in kernels.all_text
    text = host_module(made, kernels)
    assert "load_kernels(kernel_source, kernels)" in text
    assert "load_triton_kernels(triton_source, triton_kernels, 'cuda:0')" in text
    assert "call = on_device(call, 'cuda:0')" in text
    assert "rand_strided((65536,), (1,), torch.float32, device='cuda:0'),  # arg1" in text
    assert "arena_pool_cuda_0 = device_arenas('cuda:0')" in text


def test_what_is_the_hosts_is_not_for_other_devices() -> None:
    _, made = two_devices()
    elsewhere = {name for name, buffer in made.buffers.items() if buffer.device != CPU}
    assert elsewhere.isdisjoint(made.host_buffers()) and choose_products(made) == 0


def on_gpu(b: Builder, *outputs: T) -> Any:
    """The schedule, with all its buffers on a GPU."""
    for name, buffer in b.buffers.items():
        b.buffers[name] = replace(buffer, device=FIRST)
    return schedule(b.program(*outputs), targets=target_of)


def text_of(made: Any) -> str:
    return host_module(made, kernel_source(made))


def test_large_temporaries_are_given_back_at_once() -> None:
    """In an arena their memory would be nobody else's between their last use and the call's next."""
    b = Builder()
    w = b.input(2048, 2048)
    first = b.extern(MM, w, w, size=(2048, 2048), out_variant="torch.mm")  # 16 MiB
    second = b.extern(MM, first, w, size=(2048, 2048), out_variant="torch.mm")
    small = b.extern(MM, b.input(64, 64), b.input(64, 64), size=(64, 64), out_variant="torch.mm")
    made = on_gpu(b, b.extern(MM, second, second, size=(2048, 2048), out_variant="torch.mm"), b.pointwise(relu, small))
    plan = plan_memory(made)
    assert set(plan.offsets) == {small.buffer} and plan.spaces[FIRST].nbytes == 64 * 64 * 4
    assert {first.buffer, second.buffer} <= set(plan.allocated)
    lines = [line.strip() for line in text_of(made).splitlines()]
    gone = lines.index(f"del {first.buffer}, arg0")
    assert lines[gone - 1] == f"{second.buffer} = torch_mm_out({first.buffer}, arg0)"
    assert f"del {second.buffer}" in lines[gone:]


def test_each_device_has_an_arena_for_temporaries() -> None:
    b = Builder()
    x, y = b.input(64, 64), b.input(64, 64)
    here, there = (b.extern(MM, each, each, size=(64, 64), out_variant="torch.mm") for each in (x, y))
    results = [b.pointwise(relu, here), b.pointwise(relu, there)]
    for each in (y, there, results[1]):
        b.buffers[each.buffer] = replace(b.buffers[each.buffer], device=FIRST)
    made = schedule(b.program(*results), targets=target_of)
    plan = plan_memory(made)
    assert plan.offsets == {here.buffer: 0, there.buffer: 0} and set(plan.spaces) == {CPU, FIRST}
    assert plan.spaces[CPU].nbytes == plan.spaces[FIRST].nbytes == 64 * 64 * 4
    text = text_of(made)
    for line in (
        "arena_pool_cuda_0 = device_arenas('cuda:0')",
        "def layout_cuda_0(arena):",
        "    arena = arena_pool.take(16384, layout)",
        "    arena_cuda_0 = arena_pool_cuda_0.take(16384, layout_cuda_0)",
        "    arena_pool_cuda_0.give(arena_cuda_0)",
        f"    {results[1].buffer} = new_on_gpu((64, 64), (64, 1), torch.float32)",
    ):
        assert line + "\n" in text, line


def test_products_return_what_leaves_the_graph_and_fill_what_does_not() -> None:
    b = Builder()
    x = b.input(64, 64)
    inner = b.extern(MM, x, x, size=(64, 64), out_variant="torch.mm")
    last = b.extern(MM, inner, inner, size=(64, 64), out_variant="torch.mm")
    text = text_of(on_gpu(b, last))
    assert f"torch_mm_out(arg0, arg0, out={inner.buffer})" in text
    assert f"{last.buffer} = torch_mm_out({inner.buffer}, {inner.buffer})" in text


def test_what_other_streams_may_use_is_allocated() -> None:
    def program(target: Any) -> Any:
        b = Builder()
        made = b.pointwise(relu, b.input(8, 8))
        return plan_memory(on_gpu(b, b.extern(target, made, size=(8, 8))))

    def of_the_program(x: torch.Tensor) -> torch.Tensor:
        return x

    assert program(torch.ops.aten.neg.default).offsets
    for target in (of_the_program, torch.ops.argand_test.elsewhere.default, torch.ops.aten.record_stream.default):
        plan = program(target)
        assert not plan.offsets and plan.allocated


torch.library.define("argand_test::elsewhere", "(Tensor x) -> Tensor")


def test_memory_that_a_result_views_is_allocated() -> None:
    b = Builder()
    made = b.pointwise(relu, b.input(8, 8))
    view = b.extern(torch.ops.aten.t.default, made, size=(8, 8))
    again = b.extern(torch.ops.aten.t.default, view, size=(8, 8))
    for outputs, kept in (((again,), True), ((b.extern(torch.ops.aten.neg.default, again, size=(8, 8)),), False)):
        plan = plan_memory(schedule(b.program(*outputs)))
        assert (made.buffer in plan.allocated) is kept and (made.buffer in plan.offsets) is not kept


def test_views_are_made_once() -> None:
    b = Builder()
    x = b.input(64, 64)
    first = b.extern(MM, x.permute(1, 0), x, size=(64, 64), out_variant="torch.mm")
    second = b.extern(MM, x.permute(1, 0), first, size=(64, 64), out_variant="torch.mm")
    b.extern(torch.ops.aten.neg.default, x, size=(64, 64))
    text = text_of(on_gpu(b, second))
    assert text.count("arg0_view0 = view_of(arg0, (64, 64), (1, 64), 0)") == 1
    assert "torch_mm_out(arg0_view0, arg0," in text and "torch_mm_out(arg0_view0, " in text
    assert "del arg0, arg0_view0" in text


def test_a_buffer_is_held_as_the_tensor_that_calls_take() -> None:
    b = Builder()
    x = b.input(4, 16, 64)
    kept = b.pointwise(relu, x)
    flat = kept.view(64, 64)
    results = [b.extern(MM, flat, b.input(64, 64), size=(64, 64), out_variant="torch.mm") for _ in range(2)]
    text = text_of(on_gpu(b, kept, *results))
    assert f"{kept.buffer} = new_on_gpu((64, 64), (64, 1), torch.float32)" in text
    assert f"return (as_strided({kept.buffer}, (4, 16, 64), (1024, 64, 1))," in text
    assert f"torch_mm_out({kept.buffer}, arg1)" in text


def test_tables_of_two_gpus_have_different_names() -> None:
    sources = {d: TritonSource("import triton", {f"k{d.index}": spec(f"k{d.index}", (), ())}) for d in (FIRST, SECOND)}
    lines = "\n".join(gpu_text.loading(sources, {}))
    assert "[k0] = load_triton_kernels(triton_source, triton_kernels, 'cuda:0')" in lines
    assert "[k1] = load_triton_kernels(triton_source_1, triton_kernels_1, 'cuda:1')" in lines
    assert gpu_text.current_device(sources) is None and gpu_text.current_device({}) is None
    assert gpu_text.current_device({SECOND: sources[SECOND]}) == SECOND


def test_the_current_device_is_switched_only_where_it_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    switched: list[int] = []
    current = [0]

    class Switch:
        def __init__(self, index: int) -> None:
            self.index = index

        def __enter__(self) -> None:
            switched.append(self.index)

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "device", Switch)
    call = host.on_device(lambda args: tuple(args), "cuda:0")
    assert call([1]) == (1,) and not switched
    current[0] = 1
    assert call([2]) == (2,) and switched == [0]


def test_a_target_that_nobody_prints_for_is_an_error() -> None:
    b = Builder()
    made = schedule(b.program(b.pointwise(relu, b.input(8))), targets=lambda _: replace(gpu(1), name="other"))
    with pytest.raises(InternalError, match="nobody prints"):
        kernel_source(made)


HALF = torch.bfloat16


def half(b: Builder, *size: int) -> T:
    return b.input(*size, dtype=HALF)


def direct_targets(device: torch.device) -> Any:
    return gpu(132, direct_products=True)


def direct(b: Builder, *outputs: T) -> Any:
    """A schedule on a GPU whose products go to the library."""
    for name, buffer in b.buffers.items():
        b.buffers[name] = replace(buffer, device=FIRST)
    made = schedule(b.program(*outputs), targets=direct_targets)
    choose_products(made)
    return made


def product(b: Builder, left: T, right: T, bias: T | None = None) -> T:
    size = (int(left.size[0]), int(right.size[1]))
    if bias is None:
        return b.extern(MM, left, right, size=size, dtype=HALF, out_variant="torch.mm")
    return b.extern(torch.ops.aten.addmm.default, bias, left, right, size=size, dtype=HALF, out_variant="torch.addmm")


def test_products_go_to_the_library_with_the_tensors_that_have_the_memory() -> None:
    b = Builder()
    x, w, row = half(b, 4, 16, 64), half(b, 32, 64), half(b, 32)
    inner = product(b, x.view(64, 64), w.permute(1, 0), row)
    last = product(b, inner.permute(1, 0), x.view(64, 64))
    text = text_of(direct(b, last))
    for line in (
        "from argand.runtime.gpu.operators.blas import load_products",
        "    'product0': (64, 32, 64, torch.bfloat16, (64, 1), (1, 64), True),",
        "    'product1': (32, 64, 64, torch.bfloat16, (1, 32), (64, 1), False),",
        "[product0, product1], workspace_bytes_cuda_0 = load_products(products_cuda_0, 'cuda:0')",
        "    workspace_cuda_0 = arena_cuda_0.workspace(workspace_bytes_cuda_0)",
        f"    product0(arg0, arg1, arg2, {inner.buffer}, workspace_cuda_0)",
        f"    product1({inner.buffer}, arg0, {last.buffer}, workspace_cuda_0)",
    ):
        assert line + "\n" in text, line
    assert "view_of" not in text and "as_strided(" not in text and "torch_mm" not in text


def test_one_product_has_one_name_and_needs_no_temporaries() -> None:
    b = Builder()
    w = half(b, 64, 64)
    text = text_of(direct(b, product(b, half(b, 64, 64), w), product(b, half(b, 64, 64), w)))
    assert text.count("    product0(") == 2 and "product1" not in text
    assert "arena_cuda_0 = arena_pool_cuda_0.take(1, layout_cuda_0)" in text


@pytest.mark.parametrize("case", ["float32", "offset", "odd columns", "odd steps", "small", "matrix added", "symbolic"])
def test_other_products_are_atens(case: str) -> None:
    b = Builder()
    n = Sym("s0") if case == "symbolic" else 64
    dtype = torch.float32 if case == "float32" else HALF
    width = {"odd columns": 63, "small": 4}.get(case, 64)
    x = b.input(n, 65 if case == "odd steps" else 128, dtype=dtype).narrow(1, 8 if case == "offset" else 0, 64)
    args = [x, b.input(64, width, dtype=dtype)]
    target, variant = MM, "torch.mm"
    if case == "matrix added":
        target, variant, args = torch.ops.aten.addmm.default, "torch.addmm", [b.input(64, 64, dtype=dtype), *args]
    made = direct(b, b.extern(target, *args, size=(n, width), dtype=dtype, out_variant=variant))
    assert [step.out_variant for step in made.steps] == [variant]


def test_a_target_without_the_library_has_none() -> None:
    b = Builder()
    made = on_gpu(b, product(b, half(b, 64, 64), half(b, 64, 64)))
    assert choose_products(made) == 0


def test_a_module_of_products_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With tensors of the CPU in place of a GPU's, and ATen in place of the library."""
    from argand.runtime.gpu.device import arena
    from argand.runtime.gpu.device.arena import DeviceArenas
    from argand.runtime.gpu.operators import blas

    class Streams:
        def lasting(self) -> int:
            return 0

        def most_held(self) -> int:
            return 1 << 20

    pool = DeviceArenas("cpu", Streams())
    monkeypatch.setattr(arena, "device_arenas", lambda device: pool)
    monkeypatch.setattr(blas, "_library", lambda: None)
    b = Builder()
    x, w, row = half(b, 64, 64), half(b, 32, 64), half(b, 32)
    inner = product(b, x, w.permute(1, 0), row)
    text = text_of(direct(b, product(b, inner.permute(1, 0), x)))
    text = text.replace(", device='cuda:0'", "")
    module = host.load_module(text, {})
    given = [torch.randn(64, 64).to(HALF), torch.randn(32, 64).to(HALF), torch.randn(32).to(HALF)]
    expected = torch.addmm(given[2], given[0], given[1].t()).t() @ given[0]
    for _ in range(2):
        (result,) = module.call(list(given))
        torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("case", ["even", "columns", "terms", "steps of left", "steps of right"])
def test_rows_that_begin_at_odd_places_get_zeros(case: str) -> None:
    b = Builder()
    m, k, n = 1024, 1025 if case == "terms" else 1024, 1025 if case == "columns" else 1024
    left, right = half(b, m, k), half(b, k, n)
    if case == "steps of left":
        left = half(b, k, 1025).narrow(1, 0, m).permute(1, 0)
    if case == "steps of right":
        right = half(b, k, 1025).narrow(1, 0, n)
    made = on_gpu(b, product(b, left, right))
    assert choose_products(made) == (case != "even")
    assert [step.out_variant for step in made.steps] == ["torch.mm" if case == "even" else "padded_product"]
