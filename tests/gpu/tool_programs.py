"""Each tool on graphs whose kernels are Triton's: on a GPU, or without one in Triton's interpreter.

    python tests/gpu/tool_programs.py NAME ...       (TRITON_INTERPRET=1 where there is no GPU; without names: all)

Run by `test_tools.py` and `run.py`, each program in a process of its own. A program prints what it found and raises
where a tool does not do what its page says. One that takes too long ends with the stacks of its threads, and of the
command that it waited for.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import re
import resource
import runpy
import signal
import subprocess
import sys
import tempfile
import textwrap
import traceback
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import argand
from argand.codegen.triton import overrides

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import warm
from helpers import collected

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
# What a script begins with: kernels are Triton's there too.
HEAD = "import torch, argand\n" + ("" if HAS_GPU else "argand.config.triton.on_cpu = True\n")
SECONDS = 240.0  # of a program: the doctor tries a graph out in some forty processes
PROGRAMS: dict[str, Callable[[Path], None]] = {}


def program(function: Callable[[Path], None]) -> Callable[[Path], None]:
    PROGRAMS[function.__name__] = function
    return function


def rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = torch.softmax(x.sin() + y, -1)
    return z.sum(0) * 2


def negated(x: torch.Tensor, y: torch.Tensor) -> Any:
    a = torch.relu(x) * 2
    b = torch.neg(y)
    return torch.maximum(a, y) + b, a.sum()


def alone(x: torch.Tensor) -> torch.Tensor:
    return torch.neg(x)


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(5, 40, device=DEVICE), torch.randn(40, device=DEVICE)


def close(one: Any, two: Any) -> None:
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def command(
    *arguments: str, check: bool = True, seconds: float | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """`python` with these arguments, kernels as here. Raises where it takes too long, and says where it was.

    Arguments:
        seconds: None is SECONDS - 30 on a GPU; without one it is a fork of a warm process, which has none.
    """
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1", **variables}
    if not HAS_GPU and seconds is None:
        done = warm.run(arguments, env=environment, nested=True)
        assert not check or done.returncode == 0, done.stderr[-3000:]
        return done
    seconds = SECONDS - 30 if seconds is None else seconds
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        start_new_session=True,
    )  # fmt: skip
    try:
        said, wrong = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # faulthandler prints the stacks
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        said, wrong = process.communicate()
        text = f"no end within {seconds:.0f} s: python {' '.join(arguments)[:300]}\n{said[-1000:]}\n{wrong[-3000:]}"
        raise AssertionError(text) from None
    assert not check or process.returncode == 0, wrong[-3000:]
    return subprocess.CompletedProcess(arguments, process.returncode, said, wrong)


def script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(HEAD + textwrap.dedent(text))
    return str(path)


# ----------------------------------------------------------------------- what was made


@program
def debug_directory(folder: Path) -> None:
    """Every file; the two programs run as they are, and edited; statements carry node and line."""
    from argand.debug.directory import writing

    with writing(folder):
        x, y = inputs()
        close(argand.compile(negated)(x, y), negated(x, y))
    (made,) = [path for path in folder.glob("run_*/native/model__*") if path.is_dir()]
    assert {path.name for path in made.iterdir()} >= {
        "debug.log", "fx_graph_readable.py", "fx_graph_runnable.py", "fx_graph_transformed.py", "ir_post_fusion.txt",
        "ir_pre_fusion.txt", "output_code.py",
    }  # fmt: skip
    text = (made / "output_code.py").read_text()
    kernel = text[text.index("@triton.jit\ndef triton_fused") : text.index("\n'''", text.index("def triton_fused"))]
    said = ""
    for line in map(str.strip, kernel.splitlines()):
        if line.startswith("#"):
            said = line
        elif re.match(r"(all|acc)?tmp\d", line):
            assert "<- " in said and __file__ in said, line
    assert "b = torch.neg(y)" in kernel
    assert f"group.device = {torch.empty(0, device=DEVICE).device}\n" in (made / "ir_post_fusion.txt").read_text()
    assert "ms a call" in run_file(made / "output_code.py")
    (made / "edited.py").write_text(text.replace("tmp0_", "other0_"))
    assert "ms a call" in run_file(made / "edited.py")
    assert "2 results" in run_file(made / "fx_graph_runnable.py")


def run_file(path: Path) -> str:
    argand.reset()
    with redirect_stdout(io.StringIO()) as said:
        runpy.run_path(str(path), run_name="__main__")
    return said.getvalue()


@program
def programs_run_alone(folder: Path) -> None:
    """`ARGAND_COMPILE_DEBUG=1 python repro.py`, then each file in a new process, as the troubleshooting guide goes."""
    done = command(
        script(
            folder,
            f"""
            @argand.compile()
            def test_model(x):
                model = torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.LayerNorm(10), torch.nn.ReLU()).to("{DEVICE}")
                return model(x)

            y = test_model(torch.ones(10, 10, device="{DEVICE}"))
            """,
        ),
        ARGAND_COMPILE_DEBUG="1",
        ARGAND_BASE_DIR=str(folder),
        TORCH_COMPILE_DEBUG_DIR=str(folder),
    )
    assert "debug trace" in done.stderr
    # Where the parameters move to the GPU the graph breaks: what makes them has a program of its own, without kernels.
    (made,) = (path for path in folder.rglob("output_code.py") if "@triton.jit" in path.read_text())
    assert "ms a call" in command(str(made)).stdout
    assert "results" in command(str(made.with_name("fx_graph_runnable.py"))).stdout


@program
def provenance(folder: Path) -> None:
    """The report lights up every statement of a kernel with its FX node and the user's line."""
    trace = folder / "trace"
    path = script(
        folder,
        f"""
        def f(x, y):
            z = torch.softmax(x.sin() + y, -1)
            return z.sum(0) * 2

        argand.compile(f)(torch.randn(5, 20000, device="{DEVICE}"), torch.randn(20000, device="{DEVICE}"))
        """,
    )
    command(path, ARGAND_TRACE=str(trace))
    from argand.report.html.build import build

    build(trace, folder / "report")
    (page,) = folder.glob("report/*/provenance.html")
    text = page.read_text()
    linked: dict[str, list[str]] = {}
    for numbers, body in re.findall(r'<div[^>]*?(?: data-n="([\d ]*)")?>((?:(?!</div>|<div).)*)</div>', text, re.S):
        plain = re.sub(r"<[^>]*>", "", body).strip()
        linked.setdefault(plain, []).append(numbers)
    statements = {line: found for line, found in linked.items() if re.match(r"(all|acc)?tmp\d+_\d+ = |tl\.store", line)}
    assert len(statements) > 8, text[-3000:]
    assert all(all(found) for found in statements.values()), statements
    positions = {line: found for line, found in linked.items() if re.match(r"[rx]\d* = |[rx]mask\d* = ", line)}
    assert positions and not any(any(found) for found in positions.values()), positions
    sine = next(found for line, found in statements.items() if "sin" in line)
    user = next(
        found for line, found in linked.items() if "z = torch.softmax(x.sin() + y, -1)" in line and line[0] != "#"
    )
    assert set(sine[0].split()) <= set(user[0].split()), (sine, user)


@program
def logs(folder: Path) -> None:
    """`ARGAND_LOGS=output_code` and `config.debug` show the Triton code, each statement with the line it came from."""
    text = f"""
        def f(x):
            return torch.relu(x) + 1

        argand.compile(f)(torch.randn(8, device="{DEVICE}"))
        """
    for variables in ({"ARGAND_LOGS": "output_code"}, {"ARGAND_LOGS": "kernel_code"}):
        said = command(script(folder, text), **variables).stderr
        assert "@triton.jit" in said and "return torch.relu(x) + 1" in said, said[-2000:]
    assert "@triton.jit" in command(script(folder, "argand.config.debug = True\n" + textwrap.dedent(text))).stderr
    fused = command(script(folder, text), ARGAND_LOGS="fusion,schedule,inductor").stderr
    assert "triton_fused" in fused or "Step 3" in fused, fused[-2000:]


# ----------------------------------------------------------------------- what is wrong


@program
def kernel_overrides(folder: Path) -> None:
    """`neg1`, `neg2`, `neg3` of the debugging guide, for Triton."""
    x, y = inputs()
    with collected("kernel_code") as seen:
        overrides.neg = lambda x: f"(0 - {x})"
        close(argand.compile(negated)(x, y), negated(x, y))
        argand.reset()
        overrides.neg = lambda x: f"(2 * {x})"
        wrong = argand.compile(negated)(x, y)[0]
        argand.reset()
        del overrides.neg
        close(argand.compile(negated)(x, y), negated(x, y))
    close(wrong, negated(x, y)[0] + 3 * y)
    texts = [event.text() for event in seen]
    assert "(0 - " in texts[0] and "(2 * tmp" in texts[1] and "(-tmp" in texts[2], texts
    if not HAS_GPU:
        return  # the interpreter compiles nothing
    argand.reset()
    overrides.neg = lambda x: f"tl.nothing({x})"
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        close(argand.compile(negated)(x, y), negated(x, y))  # eager's kernels
    (said,) = [str(each.message) for each in warned if "tl.nothing" in str(each.message)]
    assert "b = torch.neg(y)" in said and "torch.ops.aten.neg.default" in said, said
    del overrides.neg


@program
def numerics(folder: Path) -> None:
    """The first wrong kernel is named, with node and line; right ones pass, random numbers and backward included."""
    from argand.debug.numerics import CheckedGraph, NumericsError

    seen: list[str] = []
    check = CheckedGraph._check

    def counted(self: Any, kernel: str, name: str, ref: Any, buffer: Any) -> None:
        seen.append(kernel)
        check(self, kernel, name, ref, buffer)

    CheckedGraph._check = counted  # type: ignore[method-assign]
    x, y = inputs()
    with argand.config.patch(check_numerics=True):
        close(argand.compile(rows)(x, y), rows(x, y))
        before = len(seen)
        assert before >= 2 and all(name.startswith("triton_fused") for name in seen), seen
        for n in (5, 7):
            close(argand.compile(rows, dynamic=True)(torch.ones(n, 9, device=DEVICE), torch.ones(9, device=DEVICE)),
                  rows(torch.ones(n, 9, device=DEVICE), torch.ones(9, device=DEVICE)))  # fmt: skip
        w = x.clone().requires_grad_()
        argand.compile(rows)(w, y).pow(2).sum().backward()
        assert len(seen) > before + 2 and w.grad is not None
        torch.manual_seed(3)
        want = torch.nn.functional.dropout(x * 2, 0.5)
        torch.manual_seed(3)
        close(argand.compile(lambda x: torch.nn.functional.dropout(x * 2, 0.5))(x), want)
        argand.reset()
        overrides.neg = lambda x: f"(2 * {x})"
        try:
            argand.compile(alone)(x)
        except NumericsError as error:
            text = str(error)
        else:
            raise AssertionError("the wrong kernel was not found")
        finally:
            del overrides.neg
    assert "the kernel triton_fused" in text and "return torch.neg(x)" in text and "aten.neg" in text, text


@program
def audit(folder: Path) -> None:
    """Sampled calls are compared with eager, and leave the random numbers of the device alone."""
    from argand.debug.audit import AuditWarning

    x, y = inputs()
    overrides.neg = lambda x: f"(2 * {x})"
    with argand.config.patch(audit_rate=1.0), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        compiled = argand.compile(negated)
        compiled(x, y), compiled(x, y)
    del overrides.neg
    assert [each for each in warned if issubclass(each.category, AuditWarning)], warned

    def draws(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5)

    found = []
    for rate in (0.0, 1.0):
        argand.reset()
        torch.manual_seed(1)
        with argand.config.patch(audit_rate=rate, fallback_random=True):
            compiled = argand.compile(draws)
            found.append([compiled(x) for _ in range(3)])
    close(found[0], found[1])


@program
def fallback_random(folder: Path) -> None:
    x = torch.ones(500, device=DEVICE)

    def draws(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5) * torch.rand_like(x)

    torch.manual_seed(7)
    want = draws(x)
    with argand.config.patch(fallback_random=True):
        torch.manual_seed(7)
        close(argand.compile(draws)(x), want)


@program
def minifier(folder: Path) -> None:
    """The accuracy example of the guides: reduced to its one `neg`, in a file that fails by itself."""
    path = script(
        folder,
        f"""
        from argand.codegen.triton import overrides
        overrides.neg = lambda x: f"(2 * {{x}})"

        def foo(x1, x2):
            a = torch.neg(x1)
            b = torch.maximum(x2, a)
            return torch.cat([b], dim=0)

        argand.compile(foo)(torch.randn(1, 8, device="{DEVICE}"), torch.randn(30, 8, device="{DEVICE}"))
        """,
    )
    done = command(
        path, check=False, ARGAND_REPRO_AFTER="aot", ARGAND_REPRO_LEVEL="4", ARGAND_BASE_DIR=str(folder / "made")
    )
    found = list(folder.rglob("argand_minifier/*/repro.py")) or list(Path.cwd().glob("argand_minifier/*/repro.py"))
    assert done.returncode == 1 and found, done.stderr[-3000:]
    text = found[0].read_text()
    body = text[text.index("class Repro(") :]
    assert "aten.neg" in body and "maximum" not in body and f"'{DEVICE}" in body, body
    again = command(str(found[0]), check=False)
    assert again.returncode == 1 and "AccuracyError" in again.stderr, again.stderr[-2000:]


# What the commands do, without the package that reads command lines: a machine with a GPU may lack it.
DOCTOR = """
import json, sys
from pathlib import Path
from argand.debug.doctor.child import Allowed, Script, one_thread
from argand.debug.doctor.procedure import Doctor

allowed = Allowed(120.0, threads=one_thread())
doctor = Doctor(Script(sys.argv[1]), Path(sys.argv[2]), allowed, lambda text: print(text, file=sys.stderr))
print(json.dumps(doctor.examine().as_dict()))
"""
# Reproductions run alone in forks of a process that has imported torch, as those of `tests/debug` do.
IN_FORKS = """
import subprocess, types, warm
from argand.debug.doctor import reproduction

def run(command, *, cwd, timeout, **_):
    return warm.run(command[1:], cwd=cwd, timeout=timeout)

reproduction.subprocess = types.SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired)
"""
BENCH = """
import json, runpy, sys
from argand.api import answer_torch_compile
from argand.debug.benchmark.bench import Recorder

recorder = Recorder()
with answer_torch_compile(), recorder.observing():
    runpy.run_path(sys.argv[1], run_name="__main__")
    found = recorder.measured(8, 1.0)
assert not recorder.failed, recorder.failed
print(json.dumps([one.as_dict() for one in found]))
"""


def doctors(folder: Path, plant: str, body: str) -> dict[str, Any]:
    """The doctor's verdict on a script in which something is planted."""
    faults = Path(__file__).resolve().parents[1] / "faults"
    head = f"import sys\nsys.path.insert(0, {str(faults)!r})\nimport plants_gpu\nplants_gpu.install({plant!r})\n"
    path = script(folder, head + textwrap.dedent(body).replace("DEVICE", repr(DEVICE)))
    done = command("-c", ("" if HAS_GPU else IN_FORKS) + DOCTOR, path, str(folder / "found"))
    found: dict[str, Any] = json.loads(done.stdout)
    print(plant, {key: found[key] for key in ("kind", "stage", "part", "operations", "fails_alone", "seconds")})
    return found


BODY = """
def fn(x, y):
    a = torch.relu(x) * 2
    b = torch.neg(y)
    c = torch.maximum(a, y) + 1
    return b + c, a.sum()

argand.compile(fn)(torch.rand(6, 8, device=DEVICE), torch.rand(6, 8, device=DEVICE))
"""


@program
def doctor(folder: Path) -> None:
    """A wrong Triton lowering is named: stage, kernel, operation, line."""
    found = doctors(folder, "triton_wrong_neg", BODY)
    assert (found["stage"], found["kind"]) == ("codegen", "wrong value"), found
    assert "Triton code generation" in found["text"] and "b = torch.neg(y)" in found["text"], found["text"]
    assert found["part"].startswith("triton_fused") and found["operations"] == ["torch.neg"] and found["fails_alone"]


@program
def doctor_of_what_is_not_codegen(folder: Path) -> None:
    """Lowering that is wrong on GPUs alone, and host code: neither is the kernels' fault."""
    found = doctors(folder, "triton_wrong_lowering", BODY)
    assert found["stage"] == "lowering" and found["operations"] == ["torch.neg"], found
    found = doctors(folder, "triton_swapped_inputs", BODY)
    assert found["stage"] == "host", found


@program
def replay(folder: Path) -> None:
    """A frame whose capture failed is captured again by itself, its tensors where they were."""
    path = script(
        folder,
        f"""
        argand.config.replay_record_enabled = True
        argand.config.base_dir = {str(folder)!r}

        @argand.compile(fullgraph=True)
        def bad(x, w):
            y = (x * w).sum()
            print("no")
            return y

        try:
            bad(torch.ones(3, device="{DEVICE}"), torch.nn.Parameter(torch.ones(3, device="{DEVICE}")))
        except Exception as error:
            print(type(error).__name__)
        """,
    )
    done = command(path)
    (record,) = folder.rglob("*.argand")
    from argand.debug.frame_records.record_reader import call_of, open_record, rebuild

    function, raw = rebuild(open_record(record))
    x, w = call_of(function, raw)(lambda x, w: (x, w))
    assert x.device.type == w.device.type == DEVICE and isinstance(w, torch.nn.Parameter), (x.device, w.device)
    code = "import sys; from argand.debug.frame_records.replay import replay_record; replay_record(sys.argv[1])"
    done = command("-c", code, str(record), check=False)
    assert done.returncode == 1 and "print() writes to the terminal" in done.stderr, done.stderr[-2000:]


# ----------------------------------------------------------------------- what takes the time


@program
def kernel_profile(folder: Path) -> None:
    """Kernels by name in torch.profiler; on a GPU also what ran there, and for how long."""
    x, y = torch.randn(64, 512, device=DEVICE), torch.randn(512, device=DEVICE)
    compiled = argand.compile(rows)
    compiled(x, y)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if HAS_GPU else [])]
    with profile(activities=activities) as prof:
        compiled(x, y)
    assert not [event for event in prof.events() if event.name.startswith("graph_")]
    with argand.config.patch({"cpp.enable_kernel_profile": True}), profile(activities=activities) as prof:
        compiled(x, y)
        torch.cuda.synchronize() if HAS_GPU else None
    ranges = [event for event in prof.events() if event.name.startswith("graph_") and "triton_fused" in event.name]
    assert len({event.name for event in ranges}) >= 2, [event.name for event in prof.events()]
    assert "triton_fused" in prof.key_averages().table(sort_by="self_cpu_time_total")
    if HAS_GPU:
        on_gpu = {event.name for event in prof.events() if event.device_type.name == "CUDA"}
        assert any(name.startswith("triton_fused") for name in on_gpu), on_gpu
        timed = [event for event in ranges if event.device_type.name == "CPU"]
        assert all(event.device_time_total > 0 for event in timed), [(e.name, e.device_time_total) for e in timed]


@program
def bench(folder: Path) -> None:
    """`argand bench`: kernels by name, with time, bytes and bandwidth."""
    size = 1 << 20 if HAS_GPU else 64
    path = script(
        folder,
        f"""
        def f(x, y):
            z = torch.softmax(x.sin() + y, -1)
            return z.sum(0) * 2

        compiled = argand.compile(f)
        for _ in range(3):
            compiled(torch.randn(32, {size}, device="{DEVICE}"), torch.randn({size}, device="{DEVICE}"))
        """,
    )
    (one,) = json.loads(command("-c", BENCH, path).stdout.splitlines()[-1])
    made = [row for row in one["compiled"]["rows"] if row["kind"] == "kernel"]
    assert made and all("triton_fused" in row["name"] and row["us"] > 0 and row["bytes"] > 0 for row in made), made
    print(f"{one['speedup']:.2f}x", [(row["name"], round(row["us"], 1), round(row["gbs"], 1)) for row in made],
          f"copy {one['copy_gbs']:.0f} GB/s")  # fmt: skip
    if HAS_GPU:
        assert all(row["gbs"] < 1.5 * one["copy_gbs"] for row in made) and one["copy_gbs"] > 200, one


@program
def compile_times(folder: Path) -> None:
    """Compiling kernels is a stage of its own, also in the report's metrics."""
    x, y = inputs()
    argand.compile(rows)(x, y)
    text = argand.compile_times("flat")
    assert "codegen" in text and (not HAS_GPU or "triton_compile" in text), text


def main() -> int:
    failed = 0
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    for name in sys.argv[1:] or PROGRAMS:
        argand.config.triton.on_cpu = not HAS_GPU
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        try:
            with tempfile.TemporaryDirectory(prefix=f"argand-{name}-") as folder:
                PROGRAMS[name](Path(folder))
            print(f"{name}: ok", flush=True)
        except Exception:
            failed += 1
            print(f"{name}: FAILED\n{traceback.format_exc()[-3000:]}", flush=True)
        faulthandler.cancel_dump_traceback_later()
        argand.reset()
        argand.config.reset()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
