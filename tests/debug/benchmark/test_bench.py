"""`argand bench`: the compiled functions of a script, eager against compiled."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import argand
import warm
from argand.debug.benchmark.bench import Recorder
from argand.debug.benchmark.bench_profile import Row, Side
from argand.debug.benchmark.bench_reasons import Measured, reasons
from argand.debug.benchmark.bench_text import as_text, table, verdict
from argand.debug.benchmark.quantities import amount, milliseconds
from argand.debug.benchmark.work import graph_work, is_library
from argand.events import bus

SECONDS = 0.05


def measured(program: Callable[[], Any]) -> list[Measured]:
    recorder = Recorder()
    with recorder.observing():
        program()
        return recorder.measured(8, SECONDS)


def pointwise(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * y + x)


def test_function_eager_against_compiled() -> None:
    def program() -> None:
        compiled = argand.compile(pointwise)
        for _ in range(3):
            compiled(torch.randn(64, 128), torch.randn(64, 128))

    (found,) = measured(program)
    assert (found.name, found.what, found.calls) == ("pointwise", "forward", 3) and __file__ in found.place
    assert found.shapes == "f32[64, 128][128, 1], f32[64, 128][128, 1]"
    eager = {row.name: row for row in found.eager.rows}
    assert {name: row.calls for name, row in eager.items()} == {"aten::mul": 1, "aten::add": 1, "aten::relu": 1}
    size = 64 * 128 * 4
    assert [eager[f"aten::{name}"].bytes for name in ("mul", "add", "relu")] == [3 * size, 3 * size, 2 * size]
    (kernel,) = found.compiled.of("kernel")
    assert kernel.calls == 1 and kernel.bytes == 3 * size and kernel.flops == 3 * 64 * 128
    assert kernel.fused == ("mul", "add", "relu") and kernel.gbs is not None and kernel.gbs > 0
    assert found.compiled.regions == 1 and found.eager.regions == 0
    assert found.eager.allocations == 3 and found.eager.allocated == 3 * size
    assert found.compiled.allocations == 1 and found.compiled.allocated == size
    assert found.eager_ms > 0 and found.compiled_ms > 0 and found.rounds >= 5


def test_reasons_add_up() -> None:
    (found,) = measured(lambda: argand.compile(lambda x: (x.sin() @ x).exp() + 1)(torch.randn(32, 32)))
    saved = {reason["kind"]: reason["saved_us"] for reason in found.reasons}
    assert set(saved) == {"fusion", "library", "dispatch", "memory traffic", "allocations"}
    difference = (found.eager_ms - found.compiled_ms) * 1e3
    assert abs(saved["fusion"] + saved["library"] + saved["dispatch"] - difference) < 1e-6 * max(1, abs(difference))
    kinds = [reason["kind"] for reason in found.reasons]
    assert kinds[kinds.index("fusion") :][1:3] == ["memory traffic", "allocations"]
    (eager,) = found.eager.of("library")
    assert (eager.name, eager.flops) == ("aten::mm", 2 * 32**3)
    (compiled,) = found.compiled.of("library")
    assert compiled.flops == 2 * 32**3 and compiled.bytes == eager.bytes == 3 * 32 * 32 * 4


def test_module_with_gradients_is_as_before() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    gradients: list[torch.Tensor | None] = []

    def program() -> None:
        argand.compile(model)(torch.randn(32, 8)).sum().backward()
        gradients.extend(p.grad for p in model.parameters())

    (found,) = measured(program)
    assert (found.name, found.what) == ("Sequential", "forward and backward")
    assert all(p.grad is before for p, before in zip(model.parameters(), gradients, strict=True))
    labels = {row.name.split("_cpp_")[0] for row in found.compiled.of("kernel")}
    assert len(labels) == 2  # of the forward's graph and of the backward's
    assert sum(row.calls for row in found.eager.of("library")) == 5


def test_usual_layout_and_settings_are_measured() -> None:
    grad: list[bool] = []

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.exp() * 2

    def program() -> None:
        compiled = argand.compile(fn)
        with torch.no_grad():
            for size in (4, 8, 8):
                compiled(torch.randn(size, requires_grad=True))
        grad.append(torch.is_grad_enabled())

    (found,) = measured(program)
    assert (found.shapes, found.what, found.calls) == ("f32[8][1]", "forward", 3) and grad == [True]


def test_graph_breaks_and_uncompiled_operations() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        x = x.sin() + 1
        argand.graph_break()
        return torch.linalg.inv(x.cos() + torch.eye(4))

    (found,) = measured(lambda: argand.compile(broken)(torch.randn(4, 4)))
    assert found.compiled.regions == 2
    assert "in 2 compiled regions" in next(r["text"] for r in found.reasons if r["kind"] == "dispatch")
    assert any("inv" in row.name for row in found.compiled.of("operation"))


def test_what_is_compiled_inside_compiled_code_is_part_of_it() -> None:
    inner = []

    def program() -> None:
        inner.append(argand.compile(pointwise))
        outer = argand.compile(lambda x: inner[0](x, x) * 2)
        outer(torch.randn(4))

    (found,) = measured(program)
    assert found.compiled.regions == 1


def test_nothing_stays_behind() -> None:
    from argand.debug.observe import JOINT

    before = (bus.sinks, bus.named)
    measured(lambda: argand.compile(pointwise)(torch.randn(4), torch.randn(4)))
    assert (bus.sinks, bus.named) == before and JOINT.observer is None
    assert not argand.config.cpp.enable_kernel_profile


def test_work_of_kernels() -> None:
    def work_of(fn: Callable[..., Any], *args: torch.Tensor) -> dict[str, Any]:
        argand.reset()
        schedules: list[Any] = []
        remove = bus.subscribe(lambda event: schedules.append(event.data["schedule"]), ("fused_graph",))
        try:
            argand.compile(fn)(*args)
        finally:
            remove()
        (schedule,) = schedules
        made = graph_work("graph_0", schedule)
        return {**made.kernels, **{name: calls for name, calls in made.calls.items()}}

    (row,) = work_of(lambda x, b: x + b, torch.randn(32, 64), torch.randn(64)).values()
    assert (row.bytes, row.flops) == ((2 * 32 * 64 + 64) * 4, 32 * 64)  # the vector is read once
    (row,) = work_of(lambda x: x.sum(1), torch.randn(32, 64)).values()
    assert (row.bytes, row.flops) == ((32 * 64 + 32) * 4, 32 * 64)
    (row,) = work_of(lambda x: x[:, ::2] * 2, torch.randn(32, 64)).values()
    assert row.bytes == 2 * 32 * 32 * 4  # half of the input
    (row,) = work_of(lambda x: torch.softmax(x, -1), torch.randn(32, 64)).values()
    assert row.bytes == 2 * 32 * 64 * 4 and row.flops >= 4 * 32 * 64
    (row,) = work_of(lambda x: (x * 2) // 3, torch.arange(8)).values()
    assert (row.bytes, row.flops) == (2 * 8 * 8, 0)  # integers
    (row,) = work_of(lambda t, i: t[i] + 1, torch.randn(1000, 8), torch.randint(1000, (4,))).values()
    assert row.bytes == (4 * 8 * 4) * 2 + 4 * 8  # the rows that are looked up, not the table
    (calls,) = work_of(lambda x, w: torch.conv2d(x, w), torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3)).values()
    assert calls[0].flops == 2 * 4 * 6 * 6 * 3 * 3 * 3
    assert is_library("aten::convolution") and is_library("aten::linear") and not is_library("aten::add")


def test_verdicts() -> None:
    def made(eager_ms: float, compiled_ms: float) -> Measured:
        one = Side([Row("aten::add", "operation", 2, eager_ms * 900, 1e6)], eager_ms * 100)
        two = Side([Row("graph_0_cpp_fused_add_0", "kernel", 1, compiled_ms * 800, 5e5)], compiled_ms * 200)
        found = Measured("f", "", "", "forward", 1, eager_ms, compiled_ms, one, two, 10.0, 1.0)
        found.reasons = reasons(found)
        return found

    assert verdict(made(2.0, 1.0)) == "The speed-up comes mostly from the fused operations."
    assert verdict(made(1.0, 2.0)) == "Compiled is slower here, mostly in the fused operations."
    assert verdict(made(1.0, 1.01)).startswith("Compiled and eager take the same time")
    text = as_text(made(2.0, 1.0))
    for part in ("eager use: 2.0000 ms/iter", "argand use: 1.0000 ms/iter", "speed up ratio: 2.0000", "50 % less"):
        assert part in text, text


def test_tables_are_aligned_and_cut() -> None:
    side = Side([Row(f"aten::op{number}", "operation", 1, 10.0 - number) for number in range(5)], 1.0)
    lines = table(side, 2)
    assert len({len(line) for line in lines}) == 1
    assert "(3 more)" in lines[5] and "(outside" in lines[6]
    assert [milliseconds(us) for us in (0.5, 1500.0, 2e6)] == ["0.500us", "1.500ms", "2.000s"]
    assert [amount(value, "B") for value in (None, 12, 1.5e3, 2e9)] == ["", "12 B", "1.50 kB", "2.00 GB"]


SCRIPT = """
import sys
import torch
def f(x):
    return x.sin() * 2 + 1
compiled = torch.compile(f)
print("hello", sys.argv[1:])
for _ in range(2):
    compiled(torch.randn(100))
if "fail" in sys.argv:
    raise ValueError("no")
"""


def bench(tmp_path: Path, *args: str, script: str = SCRIPT) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "script.py"
    path.write_text(script)
    options = [arg for arg in args if arg.startswith("--")]
    rest = [arg for arg in args if not arg.startswith("--")]
    command = ["-m", "argand.cli", "bench", "--seconds", str(SECONDS), *options, path, *rest]
    return warm.run(command, cwd=tmp_path, imported="compiler")


def test_command(tmp_path: Path) -> None:
    done = bench(tmp_path, "word")
    assert done.returncode == 0, done.stderr
    for part in (
        "hello ['word']",
        "eager use:",
        "argand use:",
        "speed up ratio:",
        "aten::sin",
        "graph_0_cpp_fused_",
        "GB/s",
    ):
        assert part in done.stdout, done.stdout
    assert "Where the difference comes from" in done.stdout and "Avoided memory traffic:" in done.stdout


def test_command_json(tmp_path: Path) -> None:
    done = bench(tmp_path, "--json", f"--output={tmp_path / 'out.json'}")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    (one,) = found["functions"]
    assert found["outcome"] == "finished" and one["function"] == "f" and one["calls"] == 2
    rows = one["compiled"]["rows"]
    assert rows[0]["fused"] == ["sin", "mul", "add"] or any(row["fused"] == ["sin", "mul", "add"] for row in rows)
    assert set(rows[0]) == {"name", "kind", "calls", "us", "share", "bytes", "flops", "gbs", "gflops", "fused"}
    shares = sum(row["share"] for row in rows) + one["compiled"]["outside_us"] / sum(
        [one["compiled"]["outside_us"], *(row["us"] for row in rows)]
    )
    assert abs(shares - 1) < 1e-6


def test_command_with_a_script_that_fails_or_compiles_nothing(tmp_path: Path) -> None:
    done = bench(tmp_path, "fail")
    assert done.returncode == 1 and "ValueError: no" in done.stderr and "nothing was measured" in done.stdout
    done = bench(tmp_path, script="print('nothing')")
    assert done.returncode == 0 and "The script compiled nothing" in done.stdout
    done = bench(tmp_path, script="import torch\ntorch.compile(lambda x: x)")
    assert "called no compiled function" in done.stdout


STEP = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())
optimizer = torch.optim.SGD(net.parameters(), 0.01)
@torch.compile
def step(x):
    optimizer.zero_grad()
    loss = net(x).square().sum()
    loss.backward()
    optimizer.step()
    return loss
calls = []
@torch.compile
def once(x):
    calls.append(x)
    if len(calls) > 2:
        raise ValueError("called too often")
    return x + 1
for _ in range(2):
    step(torch.randn(4, 8))
    once(torch.randn(4))
"""


def test_command_with_a_training_step_and_a_function_that_fails_again(tmp_path: Path) -> None:
    """Found by trying: a function with its own backward ended `argand bench` with a traceback, and what others gave."""
    done = bench(tmp_path, script=STEP)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert "call, the fastest of" in done.stdout and "aten::mm" in done.stdout
    assert re.search(
        r"^once  .*script\.py:\d+\ncould not be called again: ValueError: called too often$", done.stdout, re.M
    )
    done = bench(tmp_path, "--json", script=STEP)
    found = json.loads(done.stdout)
    assert [one["what"] for one in found["functions"]] == ["call"]
    assert [one["error"] for one in found["failed"]] == ["ValueError: called too often"]


def test_traffic_that_the_cache_took_saves_no_time() -> None:
    one = Side([Row("aten::add", "operation", 2, 900.0, 1e9)], 100.0)
    two = Side([Row("graph_0_cpp_fused_add_0", "kernel", 1, 800.0, 5e8)], 200.0)
    found = Measured("f", "", "", "forward", 1, 1.0, 1.0, one, two, 10.0, 1.0)
    (traffic,) = [reason for reason in reasons(found) if reason["kind"] == "memory traffic"]
    assert traffic["saved_us"] == 0 and "the data was in the CPU's cache" in traffic["text"]
