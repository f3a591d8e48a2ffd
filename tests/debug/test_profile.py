"""Compiled code in torch's profiler, as `cpu-debugging-and-profiling.txt` shows it; and the times of stages."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, schedule

import argand
import warm
from argand._core import _C
from argand.errors import ConfigError
from argand.graph import profiler_compat
from argand.runtime import profile as kernel_profile
from helpers import assert_same


def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * y + x) @ y


def compiled_function(*, backend: Any = "native") -> tuple[Callable[..., Any], tuple[torch.Tensor, torch.Tensor]]:
    compiled = argand.compile(function, backend=backend)
    inputs = torch.randn(16, 16), torch.randn(16, 16)
    compiled(*inputs)
    return compiled, inputs


def names_of(run: Callable[[], Any], **options: Any) -> list[str]:
    with profile(activities=[ProfilerActivity.CPU], **options) as prof:
        run()
    return [event.name for event in prof.events()]


def kernels_in(names: list[str]) -> list[str]:
    return [name for name in names if "cpp_fused" in name]


def test_kernels_appear_by_name() -> None:
    compiled, inputs = compiled_function()
    with argand.config.patch({"cpp.enable_kernel_profile": True}):
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
            result = compiled(*inputs)
    assert_same(function(*inputs), result)
    (kernel,) = [event for event in prof.events() if "cpp_fused" in event.name]
    assert kernel.name.startswith("graph_") and kernel.name.endswith("_cpp_fused_mul_add_relu_0")
    assert kernel.input_shapes == [[16, 16]] * 3
    assert kernel.cpu_parent.name.startswith("Argand-Compiled Region:")
    assert kernel.name in prof.key_averages().table(sort_by="self_cpu_time_total")


def test_kernels_do_not_appear_without_the_setting() -> None:
    compiled, inputs = compiled_function()
    assert kernels_in(names_of(lambda: compiled(*inputs))) == []


def test_setting_at_compile_time_is_enough() -> None:
    with argand.config.patch({"cpp.enable_kernel_profile": True}):
        compiled, inputs = compiled_function()
    assert len(kernels_in(names_of(lambda: compiled(*inputs)))) == 1


def test_kernels_of_two_graphs_have_names_of_their_own() -> None:
    one, two = (argand.compile(fn) for fn in (lambda x: x * 2 + 1, lambda x: x * 3 + 1))
    x = torch.randn(8)
    one(x), two(x)
    with argand.config.patch({"cpp.enable_kernel_profile": True}):
        names = kernels_in(names_of(lambda: (one(x), two(x))))
    assert len(set(names)) == 2 and len({name.split("_cpp_")[1] for name in names}) == 1


def test_backward_kernels_appear() -> None:
    compiled = argand.compile(lambda x: (x.sin() * x).exp())
    x = torch.randn(8, requires_grad=True)
    compiled(x).sum().backward()
    with argand.config.patch({"cpp.enable_kernel_profile": True}):
        names = kernels_in(names_of(lambda: compiled(x).sum().backward()))
    assert len({name.split("_cpp_")[0] for name in names}) == 2


@pytest.mark.parametrize("backend", ["native", "eager", "aot_eager"])
def test_regions_are_annotated(backend: str) -> None:
    compiled, inputs = compiled_function(backend=backend)
    names = [name for name in names_of(lambda: compiled(*inputs)) if name.startswith("Argand-Compiled")]
    assert len(names) == 1
    region, _, rest = names[0].partition(": ")
    assert region == "Argand-Compiled Region" and rest.split()[0].count("/") == 1 and rest.endswith("(function)")


def test_each_part_of_a_broken_function_is_a_region() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        argand.graph_break()
        return x * 2

    compiled, x = argand.compile(broken), torch.randn(4)
    compiled(x)
    names = [name for name in names_of(lambda: compiled(x)) if name.startswith("Argand-Compiled")]
    assert len(names) == 2 and names[0] != names[1]


def test_region_of_a_call_that_raises_ends() -> None:
    def raises(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return table[index + 1] * 2

    compiled, table = argand.compile(raises), torch.randn(8)
    compiled(table, torch.zeros(1, dtype=torch.int64))
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        with pytest.raises(IndexError):
            compiled(table, torch.full((1,), 100))
        torch.zeros(1)
    assert [event.cpu_parent for event in prof.events() if event.name == "aten::zeros"] == [None]


def test_old_and_new_profilers(tmp_path: Path) -> None:
    compiled, inputs = compiled_function()
    with argand.config.patch({"cpp.enable_kernel_profile": True}), torch.autograd.profiler.profile() as prof:
        compiled(*inputs)
    assert len(kernels_in([event.name for event in prof.function_events])) == 1
    assert kernels_in(names_of(lambda: compiled(*inputs))) == []


def test_nothing_is_called_without_a_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def refuse(name: str, values: tuple[Any, ...] = ()) -> Any:
        calls.append(name)
        return profiler_compat.profiler_range(name, values)

    compiled, inputs = compiled_function()
    try:
        _C.set_profiler(*profiler_compat.profiler_flag(), refuse, lambda: bool(calls.append("wanted")) or True)
        for _ in range(3):
            compiled(*inputs)
        assert calls == []
        names_of(lambda: compiled(*inputs))
        assert len(calls) == 3 and calls[1] == "wanted"  # the region, and one kernel
        compiled(*inputs)
        assert len(calls) == 3
    finally:
        _C.set_profiler(*profiler_compat.profiler_flag(), profiler_compat.profiler_range, kernel_profile.kernels_wanted)


@pytest.mark.parametrize("where", ["make", "enter", "exit"])
def test_a_range_that_fails_does_not_fail_the_program(where: str) -> None:
    class Range:
        def __init__(self, name: str, values: tuple[Any, ...]) -> None:
            self.fail("make")

        def fail(self, now: str) -> None:
            if now == where:
                raise RuntimeError(now)

        def __enter__(self) -> None:
            self.fail("enter")

        def __exit__(self, *exc: object) -> None:
            self.fail("exit")

    compiled, inputs = compiled_function()
    space = {"on": True}
    try:
        _C.set_profiler(space, "on", Range, lambda: True)
        assert_same(function(*inputs), compiled(*inputs))
        space["on"] = False
        assert_same(function(*inputs), compiled(*inputs))
    finally:
        _C.set_profiler(*profiler_compat.profiler_flag(), profiler_compat.profiler_range, kernel_profile.kernels_wanted)


def test_set_profiler_refuses_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="set_profiler takes"):
        _C.set_profiler({}, "on", 3, lambda: True)  # type: ignore[arg-type]
    kernel = _C.Kernel(1, "k", 0, 0)
    assert kernel.label == "k" and kernel.annotated is False
    with pytest.raises(TypeError, match="label"):
        kernel.label = 3  # type: ignore[assignment]


def test_kernels_of_others_appear_too() -> None:
    ran: list[Any] = []
    kernel = kernel_profile.ProfiledKernel(lambda *args: ran.append(args), "plain")
    kernel_profile.label(kernel, "graph_7_plain")
    kernel(1)
    with argand.config.patch({"cpp.enable_kernel_profile": True}):
        assert names_of(lambda: kernel(2)) == ["graph_7_plain"]
    assert names_of(lambda: kernel(3)) == [] and ran == [(1,), (2,), (3,)]


BENCH_PY = """
import timeit
import torch
import argand
from transformers import MobileBertConfig, MobileBertForQuestionAnswering
from torch.profiler import profile, schedule, ProfilerActivity
from argand import config
config.cpp.enable_kernel_profile = True
small = MobileBertConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32,
    embedding_size=16, true_hidden_size=16, intra_bottleneck_size=16)
model = MobileBertForQuestionAnswering(small).eval()
input_dict = {"input_ids": torch.randint(0, 64, (2, 8), dtype=torch.int64)}
compiled_model = argand.compile(model)
with torch.no_grad():
    compiled_model(**input_dict)
NUM_ITERS = 5
with torch.no_grad():
    for _ in range(2):
        model(**input_dict)
    eager_t = timeit.timeit("model(**input_dict)", number=NUM_ITERS, globals=globals())
with torch.no_grad():
    for _ in range(2):
        compiled_model(**input_dict)
    compiled_t = timeit.timeit("compiled_model(**input_dict)", number=NUM_ITERS, globals=globals())
print(f"eager use: {eager_t * 1000 / NUM_ITERS} ms/iter")
print(f"argand use: {compiled_t * 1000 / NUM_ITERS} ms/iter")
print(f"speed up ratio: {eager_t / compiled_t}")
RESULT_DIR = "."
my_schedule = schedule(skip_first=2, wait=1, warmup=1, active=1, repeat=2)
def trace_handler(p):
    output = p.key_averages().table(sort_by="self_cpu_time_total", row_limit=20)
    print(output)
    p.export_chrome_trace(f"{RESULT_DIR}/{p.step_num}.json")
with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], schedule=my_schedule, on_trace_ready=trace_handler) as p:
    for _ in range(10):
        compiled_model(**input_dict)
        p.step()
"""


def test_bench_py_of_the_document(tmp_path: Path) -> None:
    """The document's program: times, profiling tables in which fused kernels have names, Chrome traces."""
    path = tmp_path / "bench.py"
    path.write_text(BENCH_PY)
    done = warm.run([path], cwd=tmp_path, imported="compiler")
    assert done.returncode == 0, done.stderr
    for part in ("eager use:", "argand use:", "speed up ratio:", "ProfilerStep", "# of Calls", "Self CPU time total"):
        assert part in done.stdout, done.stdout
    assert "graph_0_cpp_fused_" in done.stdout and "Argand-Compiled Region: 0/0" in done.stdout
    traces = list(tmp_path.glob("*.json"))
    assert len(traces) == 2
    events = json.loads(traces[0].read_text())["traceEvents"]
    kernels = [event for event in events if str(event.get("name", "")).startswith("graph_0_cpp_fused_")]
    assert kernels and all(event["ph"] == "X" and event["dur"] >= 0 for event in kernels)


def test_flat_table_of_stages() -> None:
    assert argand.compile_times("flat") == "argand has compiled nothing yet."
    argand.compile(lambda x: x.sin() + 1)(torch.randn(4, requires_grad=True)).sum().backward()
    lines = argand.compile_times("flat").splitlines()
    names = [line.split()[0] for line in lines]
    assert names[0] == "stage" and names[-1] == "total" and len(names) == len(set(names))
    rows = [line.split() for line in lines[1:-1]]
    assert [float(row[2]) for row in rows] == sorted((float(row[2]) for row in rows), reverse=True)
    assert {row[0]: int(row[1]) for row in rows}["lower"] == 2  # the forward and the backward
    total = sum(row["own"] for row in argand.compile_times("dict"))
    assert abs(float(lines[-1].split()[1]) - total) < 1e-3
    with pytest.raises(ConfigError, match="flat"):
        argand.compile_times("rows")


@pytest.mark.filterwarnings("ignore:Profiler clears events")
def test_schedule_of_the_profiler() -> None:
    """Only what runs while the profiler records is annotated; between cycles nothing is."""
    compiled, inputs = compiled_function()
    seen: list[int] = []

    def ready(prof: Any) -> None:
        seen.append(sum(event.name.startswith("Argand-Compiled") for event in prof.events()))

    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
        on_trace_ready=ready,
    ) as prof:
        for _ in range(10):
            compiled(*inputs)
            prof.step()
    assert seen == [2, 2]


def test_output_code_alone_in_a_profiler(tmp_path: Path) -> None:
    """A host module that runs by itself shows its kernels too."""
    with argand.config.patch({"cpp.enable_kernel_profile": True}):
        from helpers import collected

        with collected("output_code") as events:
            compiled_function()
    path = tmp_path / "output_code.py"
    path.write_text(events[0].text())
    program = f"""
        import runpy, torch, argand
        argand.config.cpp.enable_kernel_profile = True
        module = runpy.run_path({str(path)!r})
        with torch.profiler.profile() as prof:
            module["call"](module["example_inputs"]())
        print([event.name for event in prof.events()])
    """
    done = warm.run(["-c", textwrap.dedent(program)], imported="compiler")
    assert "cpp_fused_mul_add_relu_0" in done.stdout, done.stderr
