"""The host module: its text runs, by itself too, and gives what the schedule means."""

import dataclasses
import threading

import pytest
import torch
from loop_programs import Builder, Const, T

import warm
from argand.codegen.host.module import KernelSource, host_module
from argand.errors import InternalError
from argand.runtime.arena import ArenaPool
from argand.runtime.host import load_module, restrided
from argand.schedule.pipeline import schedule

MM = torch.ops.aten.mm.default


def extern_module(arena=True):
    b = Builder()
    x, w = b.input(4, 8), b.input(8, 8)
    y = b.extern(MM, x, w, size=(4, 8), out_variant="torch.mm")
    z = b.extern(MM, y, w.permute(1, 0), size=(4, 8), out_variant="torch.mm")
    t = b.extern(torch.ops.aten.tanh.default, z, size=(4, 8))
    u = b.extern(MM, t.narrow(0, 1, 3), w, size=(3, 8), out_variant="torch.mm")
    made = schedule(b.program(u, t))
    return b, host_module(made, None, arena=arena, title="test")


def expected(x, w):
    t = torch.tanh((x @ w) @ w.t())
    return t[1:] @ w, t


@pytest.mark.parametrize("arena", [True, False])
def test_extern_calls(arena):
    b, text = extern_module(arena)
    call = load_module(text, {}).call
    for seed in range(3):
        x, w = b.example(seed)
        got = call([x, w])
        for one, two in zip(got, expected(x, w), strict=True):
            torch.testing.assert_close(one, two)


def test_results_of_two_calls_do_not_share_memory():
    b, text = extern_module()
    call = load_module(text, {}).call
    first = call(b.example(0))
    kept = [t.clone() for t in first]
    call(b.example(1))
    for one, two in zip(first, kept):
        assert torch.equal(one, two)


def test_arguments_are_released():
    b, text = extern_module()
    args = b.example()
    load_module(text, {}).call(args)
    assert args == []


def test_text_runs_as_a_script(tmp_path):
    _, text = extern_module()
    path = tmp_path / "output_code.py"
    path.write_text(text)
    done = warm.run([path], imported="compiler")
    assert done.returncode == 0, done.stderr
    assert "ms a call" in done.stdout


SOURCE = r"""
#include <stdint.h>
extern "C" __attribute__((visibility("default"))) void neg(void** ptrs, const int64_t* ints) {
    const float* a = (const float*)ptrs[0]; float* b = (float*)ptrs[1];
    for (int i = 0; i < 64; i++) { b[i] = -a[i]; if (a[i] > 1e6f) *(int32_t*)ptrs[2] = 1; }
}
"""


def kernel_module():
    b = Builder()
    x = b.input(8, 8)
    y = b.pointwise(lambda o, a: o.neg(a), x, name="neg")
    z = b.extern(MM, y, y, size=(8, 8), out_variant="torch.mm")
    made = schedule(b.program(z))
    (kernel,) = made.kernels()
    source = KernelSource(SOURCE, {kernel.name: "neg"}, frozenset({kernel.name}))
    return host_module(made, source)


def test_kernel_launch_and_error_flag():
    call = load_module(kernel_module(), {}).call
    x = torch.randn(8, 8)
    torch.testing.assert_close(call([x])[0], x @ x)
    with pytest.raises(IndexError, match="index out of range in self"):
        call([x * 0 + 1e7])
    torch.testing.assert_close(call([x])[0], x @ x)  # the flag was cleared


def test_two_threads_use_two_arenas():
    call = load_module(kernel_module(), {}).call
    errors = []

    def work(seed):
        x = torch.full((8, 8), float(seed))
        for _ in range(200):
            if not torch.equal(call([x])[0], x @ x):
                errors.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_the_pool_keeps_the_larger_arena():
    pool = ArenaPool()
    small = pool.take(64, lambda a: (a.tensor(0, (4,), (1,), torch.float32),))
    pool.give(small)
    large = pool.take(1 << 16, lambda a: ())
    assert large is not small and large.nbytes == 1 << 16
    pool.give(large)
    assert pool.take(64, lambda a: ()) is large


def test_constants_are_bound_when_loaded_and_random_otherwise():
    b = Builder()
    x = b.input(4, 4)
    b.constants["k"] = torch.eye(4) * 2
    k = b.buffer((4, 4), kind="constant", name="k")
    y = b.extern(MM, x, T(b, "k", k.size, k.stride).permute(1, 0), size=(4, 4), out_variant="torch.mm")
    made = schedule(b.program(y))
    text = host_module(made, None)
    (value,) = b.example()
    torch.testing.assert_close(load_module(text, made.constants).call([value])[0], value * 2)
    load_module(text, {}).call([value])


def test_a_result_in_another_layout_than_predicted_is_copied_into_it():
    b = Builder()
    x = b.input(4, 6)
    # The schedule is told that neg returns a column-major result; eager's kernel returns a row-major one.
    out = b.extern(torch.ops.aten.neg.default, x, size=(4, 6))
    b.buffers[out.buffer] = dataclasses.replace(b.buffers[out.buffer], stride=(Const(1), Const(4)))
    ref = dataclasses.replace(out.ref, stride=(Const(1), Const(4)))
    made = schedule(b.program(ref))
    (value,) = b.example()
    (got,) = load_module(host_module(made, None), {}).call([value])
    assert got.stride() == (1, 4)
    torch.testing.assert_close(got, -value)


def test_a_result_of_another_size_than_predicted_is_refused():
    with pytest.raises(InternalError, match="returned a tensor of size"):
        restrided(torch.zeros(3, 4), (4, 3), (3, 1))


def test_strides_of_single_element_dimensions_do_not_matter():
    x = torch.zeros(4, 1)
    assert restrided(x, (4, 1), (1, 77)) is x


@pytest.mark.parametrize("with_bias", [False, True])
def test_a_product_with_a_transposed_weight_is_called_as_linear(with_bias):
    b = Builder()
    x, w, bias = b.input(4, 8), b.input(6, 8), b.input(6)
    if with_bias:
        target, args, name = torch.ops.aten.addmm.default, (bias, x, w.permute(1, 0)), "torch.addmm"
    else:
        target, args, name = MM, (x, w.permute(1, 0)), "torch.mm"
    y = b.extern(target, *args, size=(4, 6), out_variant=name)
    text = host_module(schedule(b.program(y)), None)
    assert "linear_out(" in text and "as_strided(" not in text.split("def call")[1]
    values = b.example()
    want = values[0] @ values[1].t() + (values[2] if with_bias else 0)
    torch.testing.assert_close(load_module(text, {}).call(list(values))[0], want)
