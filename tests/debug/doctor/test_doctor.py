"""`argand doctor`: planted faults, leaks, torch's backends, and the pieces."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sweeps
import warm
from argand.debug.doctor.differences import first_difference
from argand.debug.doctor.records import CallRecord, Difference, Run
from argand.debug.doctor.repetition import Tally, tally
from argand.debug.doctor.setup import setup_of
from argand.debug.trial.outcome import Outcome

FAULTS = Path(__file__).resolve().parents[2] / "faults"
sys.path.insert(0, str(FAULTS))
import healthy  # noqa: E402
import run as faults_run  # noqa: E402
import suite  # noqa: E402

sys.path[:] = [place for place in sys.path if place != str(FAULTS)]
QUICK = [fault for fault in suite.FAULTS if fault.quick]
pytestmark = pytest.mark.slow


# Reproductions are run alone in forks of what the doctor is a fork of; after "--new-process" in processes of their own.
PROGRAM = """
import subprocess, sys, types
import argand.cli, warm
from argand.debug.doctor import reproduction

def run(command, *, cwd, timeout, **_):
    assert command[0] == sys.executable
    return warm.run(command[1:], cwd=cwd, timeout=timeout)

if "--new-process" in sys.argv:
    sys.argv.remove("--new-process")
else:
    reproduction.subprocess = types.SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired)
argand.cli.main()
"""


def doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`argand doctor`."""
    return warm.run(["-c", PROGRAM, "doctor", *arguments], imported="compiler", nested=True)


@pytest.mark.parametrize("name", [fault.name for fault in QUICK[:: 1 if sweeps.WHOLE else 3]])
def test_planted_fault(name: str, tmp_path: Path) -> None:
    fault = next(fault for fault in QUICK if fault.name == name)
    path = tmp_path / "script.py"
    path.write_text(fault.source(str(FAULTS)))
    done = doctor("--json", "--output", str(tmp_path), "--time-limit", "60", str(path))
    from argand.debug.doctor.verdict import Verdict

    assert done.stdout.strip(), done.stderr
    verdict = Verdict(**json.loads(done.stdout))
    assert faults_run.problems(fault, verdict) == [], verdict
    assert done.returncode == 1


def test_suite_has_faults_of_all_stages_and_kinds() -> None:
    names = [fault.name for fault in suite.FAULTS]
    assert len(names) == len(set(names)) >= 40
    stages = {
        "capture",
        "guards",
        "autograd",
        "passes",
        "lowering",
        "fusion",
        "codegen",
        "vector",
        "host",
        "cache",
        "backend",
    }
    assert {fault.stage for fault in suite.FAULTS} == stages
    kinds = {
        "wrong value",
        "wrong stride",
        "wrong dtype",
        "exception",
        "C++ compile error",
        "crash",
        "hang",
        "leak",
        "NaN",
    }
    assert kinds <= {fault.kind for fault in suite.FAULTS}


def test_last_line_is_the_path(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(
        "import torch\n"
        "from argand.codegen.cpp import overrides\n"
        "def neg3(x):\n    return f'decltype({x})(2 * {x})'\n"
        "overrides.neg = neg3\n"
        "def fn(x):\n    y = torch.neg(x)\n    return torch.relu(y + 1)\n"
        "torch.compile(fn)(torch.randn(5))\n"
    )
    done = doctor("--new-process", "--output", str(tmp_path), str(path))
    text, last = done.stdout.strip().splitlines()[-2:]
    assert "C++ code generation" in text and "torch.neg" in text and "script.py:7 in fn" in text
    assert Path(last).name == "repro.py" and Path(last).exists()


def test_leak(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(
        "import torch\nkept = []\n"
        "def backend(gm, inputs):\n"
        "    def call(*args):\n"
        "        kept.append(gm.forward(*args))\n"
        "        return kept[-1]\n"
        "    return call\n"
        "def fn(x):\n    return x.sin() + 1\n"
        "compiled = torch.compile(fn, backend=backend)\n"
        "for _ in range(8):\n    compiled(torch.randn(4))\n"
    )
    done = doctor("--output", str(tmp_path), str(path))
    assert "leaves 1 more tensor alive" in done.stdout and "the backend" in done.stdout, done.stdout + done.stderr


def test_right_script(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text("import torch\nprint(torch.compile(lambda x: x.sin() + 1)(torch.ones(3)))\n")
    done = doctor(str(path))
    assert done.returncode == 0 and "does what the eager one does" in done.stdout


@pytest.mark.parametrize("end", ["sys.exit(4)", "raise KeyError(1)", "pass"])
def test_script_whose_forked_child_comes_to_its_end(end: str, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(
        "import os, sys, torch, argand\n"
        "argand.compile(lambda x: x + 1, backend='eager')(torch.ones(3))\n"
        "child = os.fork()\n"
        f"if child == 0:\n    {end}\n"
        "else:\n    assert os.waitpid(child, 0)[1] >> 8 == {'s': 4, 'r': 1, 'p': 0}[sys.argv[1][0]]\n"
    )
    done = doctor(str(path), end)
    assert done.returncode == 0 and "does what the eager one does" in done.stdout, done.stdout


@pytest.mark.parametrize("line", ["sys.stdout.close()", "sys.stdout = sys.stderr = None", "os.close(1)"])
def test_script_that_takes_its_output_away(line: str, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(f"import os, sys\n{line}\n")
    done = doctor(str(path))
    assert done.returncode == 0 and "does what the eager one does" in done.stdout, done.stdout


def test_script_that_removes_itself(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text("import os\nos.remove(__file__)\n")
    done = doctor(str(path))
    assert "is gone after its first run" in done.stdout + done.stderr and "To blame" not in done.stdout


def test_what_a_script_says_is_escaped(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text("raise ValueError('\\x1b[31m')\n")
    done = doctor(str(path))
    assert "\x1b" not in done.stdout + done.stderr


def test_script_that_fails_eagerly(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text("import torch\ntorch.compile(lambda x: x @ x)(torch.ones(2, 3))\n")
    done = doctor(str(path))
    assert "when it is not compiled" in done.stdout, done.stdout


def test_recompiles(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(
        "import torch\ndef fn(x, name):\n    return x.sin() + len(name)\n"
        "compiled = torch.compile(fn)\n"
        "for n in range(7):\n    compiled(torch.ones(3), 'abc' + str(n))\n"
    )
    done = doctor(str(path))
    assert "fn is compiled 7 times" in done.stdout, done.stdout


def test_slow_kernel(tmp_path: Path) -> None:
    """Fewer numbers than eager shares among threads: on a loaded machine each of its calls would wait for those."""
    path = tmp_path / "script.py"
    path.write_text(
        "import torch\nfrom argand.codegen.cpp import overrides\n"
        "overrides.neg = lambda x: f'({{ for (volatile int i = 0; i < 300; ++i) {{}} decltype({x})(-{x}); }})'\n"
        "def fn(x):\n    return torch.relu(torch.neg(x) + 1)\n"
        "compiled = torch.compile(fn)\nx = torch.randn(300, 100)\n"
        "for _ in range(12):\n    compiled(x)\n"
    )
    done = doctor(str(path))
    assert done.returncode == 1, done.stdout + done.stderr
    found = re.search(r"kernel cpp_fused_neg_add_relu_0 is (\d+)% of the time in graphs, at (\d+)% of", done.stdout)
    assert found and int(found[1]) > 50 and int(found[2]) < 50, done.stdout + done.stderr
    assert "script.py:5 in fn" in done.stdout


def test_leak_of_memory_in_few_calls(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(
        "import torch\nkept = []\n"
        "def backend(gm, inputs):\n"
        "    def call(*args):\n"
        "        kept.append(bytearray(500_000))\n"
        "        return gm.forward(*args)\n"
        "    return call\n"
        "torch.compile(lambda x: x.sin() + 1, backend=backend)(torch.randn(4))\n"
    )
    done = doctor("--output", str(tmp_path), str(path))
    assert "more bytes alive" in done.stdout and "the backend" in done.stdout, done.stdout + done.stderr


def test_script_handles_signals_and_hooks_are_run(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(
        "import os, signal, torch\nfrom argand.codegen.cpp import overrides\n"
        "signal.signal(signal.SIGUSR1, lambda *args: print('signal'))\n"
        "overrides.neg = lambda x: f'decltype({x})(2 * {x})'\n"
        "class Model(torch.nn.Module):\n    def forward(self, x):\n        return torch.neg(x) + 1\n"
        "model = Model()\nmodel.register_forward_hook(lambda module, args, out: out * 2)\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\n"
        "torch.compile(model)(torch.randn(64, 64) @ torch.randn(64, 64))\n"
    )
    done = doctor("--output", str(tmp_path), str(path))
    assert "In call 1 of Model.forward" in done.stdout and "torch.neg" in done.stdout, done.stdout + done.stderr


def test_program_that_ends_in_a_compiled_call(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(
        "import torch\ndef backend(gm, inputs):\n"
        "    def call(*args):\n        raise SystemExit(0)\n    return call\n"
        "torch.compile(lambda x: torch.relu(x) + 1, backend=backend)(torch.ones(3))\n"
    )
    done = doctor("--output", str(tmp_path), str(path))
    assert done.returncode == 1 and "the backend" in done.stdout, done.stdout + done.stderr


def test_results_that_later_calls_change(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(
        "import torch\ndef backend(gm, inputs):\n    kept = []\n"
        "    def call(*args):\n        kept.append(gm.forward(*args))\n"
        "        return [a.copy_(b) for a, b in zip(kept[0], kept[-1])]\n    return call\n"
        "def fn(x):\n    return torch.relu(x) + 1\n"
        "compiled = torch.compile(fn, backend=backend)\n"
        "for n in range(3):\n    compiled(torch.full((3,), n + 1.0))\n"
    )
    done = doctor("--output", str(tmp_path), str(path))
    assert "what the call before returned" in done.stdout and "the backend" in done.stdout, done.stdout + done.stderr


def test_what_the_script_changes_inside_functions_is_changed_in_the_reproduction(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(
        "import dataclasses, torch\n"
        "def main():\n"
        "    from argand.codegen import cpp\n"
        "    generate = cpp.generate\n"
        "    def wrong(*args, **kwargs):\n"
        "        made = generate(*args, **kwargs)\n"
        "        return dataclasses.replace(made, text=made.text.replace('erf(tmp', '-erf(tmp'))\n"
        "    cpp.generate = wrong\n"
        "    torch.compile(lambda x: torch.erf(x) + torch.cos(x))(torch.rand(6, 8))\n"
        "main()\n"
    )
    done = doctor("--output", str(tmp_path), str(path))
    assert "C++ code generation" in done.stdout and "torch.erf" in done.stdout, done.stdout + done.stderr
    assert "run_setup(" in Path(done.stdout.strip().splitlines()[-1]).read_text()
    assert "does not fail when run alone" not in done.stdout


def test_names_torchs_backend(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(
        "import torch\ndef broken(gm, inputs):\n    return lambda *args: [v + 1 for v in gm.forward(*args)]\n"
        "def fn(x):\n    return torch.relu(x)\n"
        "torch.compile(fn, backend=broken)(torch.ones(3))\n"
    )
    done = doctor("--torch", "--output", str(tmp_path), str(path))
    assert done.returncode == 1 and "the backend" in done.stdout, done.stdout + done.stderr


def test_a_fault_that_some_runs_do_not_show_is_called_flaky(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(
        f"import torch\nRUNS = {str(tmp_path / 'runs')!r}\n"
        "def backend(gm, inputs):\n"
        "    with open(RUNS, 'a+') as file:\n        file.write('x')\n        wrong = file.tell() % 3 == 2\n"
        "    return lambda *args: tuple(v + wrong for v in gm.forward(*args))\n"
        "def fn(x):\n    return torch.relu(x) * 2\n"
        "torch.compile(fn, backend=backend)(torch.ones(3))\n"
    )
    done = doctor("--output", str(tmp_path), str(path))
    assert re.search(r"It is flaky: 3 of 10 runs go wrong", done.stdout) and "the backend" in done.stdout, done.stdout
    assert done.returncode == 1 and "caches" not in done.stdout


def test_right_scripts_are_called_right(tmp_path: Path) -> None:
    """Gradients that are zero but for rounding, times, addresses, threads; `python tests/faults/healthy.py` runs all."""
    chosen = ("bias before InstanceNorm", "sum of a LayerNorm", "key bias of attention", "log of one minus")
    programs = {name: healthy.GRADIENTS[name] for name in chosen} | {
        name: healthy.CHANCES[name] for name in ("times", "addresses", "threads")
    }
    path = tmp_path / "script.py"
    path.write_text(healthy.joined(programs))
    done = doctor("--output", str(tmp_path), str(path))
    assert done.returncode == 0 and "does what the eager one does" in done.stdout, done.stdout + done.stderr


def a_run(values: dict[str, object], *variants: dict[str, object], printed: str = "") -> Run:
    made = Run("", Outcome("passed"), [CallRecord("backward", "", values=values, ended=True)], printed, {})
    made.variants = [a_run(other) for other in variants]
    return made


def test_what_rounding_explains_is_no_difference() -> None:
    name = "the gradient of bias"
    noise = torch.tensor([1.6e-8, -3e-9, 5e-9])
    eager = a_run({name: noise}, {name: -noise}, {name: noise * 0.5})
    assert first_difference(a_run({name: noise}), a_run({name: noise.flip(0)})) is not None
    assert first_difference(eager, a_run({name: noise.flip(0)})) is None
    assert first_difference(eager, a_run({name: torch.full((3,), 1e-4)})) is not None
    assert first_difference(eager, a_run({name: torch.full((3,), float("nan"))})) is not None


def test_runs_that_are_made_again_say_how_sure_they_are() -> None:
    made, answers = Tally(), iter([False, True, False, False, True, False, False, False, False])
    tally(made, Difference("wrong value", ""), 1.0, lambda: next(answers))
    assert made.flaky and str(made) == "3 of 10 runs" and 1 - (1 - 0.3) ** made.needed > 0.97
    same = Tally()
    tally(same, Difference("wrong value", ""), 1.0, lambda: True)
    assert not same.flaky and same.runs == 4


def test_statements_that_change_other_modules() -> None:
    source = (
        "import torch\nimport other\nfrom argand.codegen.cpp import overrides\n"
        "unused = 3\ndef helper(x):\n    return x\n"
        "overrides.neg = helper\nother.install('a')\ntorch.manual_seed(0)\nprint(unused)\n"
    )
    made = setup_of(source, "/place")
    assert "overrides.neg = helper" in made and "def helper" in made and "other.install('a')" in made
    assert "unused" not in made and "manual_seed" not in made and "'/place'" in made
    assert setup_of("import torch\nprint(torch.ones(2))\n", "/place") == ""


def test_stages_are_tried_in_new_processes_where_a_fork_is_not_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a GPU is in use: the variant of the compiler goes there by its name."""
    from argand.debug.doctor import stages, variants
    from argand.debug.minify import BackendCheck, Fingerprint, Program, attempts
    from debug.minify_helpers import graph_for

    monkeypatch.setattr(attempts, "can_fork", lambda: False)
    program = Program(*graph_for(lambda x: torch.relu(x) + 1, torch.ones(3)))
    trial = stages.Trial(program, BackendCheck("native", accuracy=True), Fingerprint("wrong"))
    assert stages.kernel_names(trial) == ["cpp_fused_relu_add_0"]
    assert not trial.run(variants.host_code, trial.check, {"cache": False}).failed
    assert not trial.run(variants.after_passes(2), trial.check, {}).failed
    assert trial.run(None, BackendCheck("no such backend"), {}).failed


@pytest.mark.parametrize(
    ("stage", "part", "text"),
    [("codegen", "cpp_fused_neg_0", "C++ code generation"), ("codegen", "triton_fused_neg_0", "Triton code generation"),
     ("codegen", "", "code generation"), ("host", "", "the host code around the kernels")],
)  # fmt: skip
def test_stages_in_words(stage: str, part: str, text: str) -> None:
    from argand.debug.doctor.verdict import stage_text

    assert stage_text(stage, part) == text
