"""`argand doctor`: planted faults, leaks, torch's backends, and the pieces."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from argand.debug.doctor.setup import setup_of
from argand.debug.doctor.visible import changed, plain_state

FAULTS = Path(__file__).resolve().parents[1] / "faults"
sys.path.insert(0, str(FAULTS))
import run as faults_run  # noqa: E402
import suite  # noqa: E402

sys.path[:] = [place for place in sys.path if place != str(FAULTS)]
QUICK = [fault for fault in suite.FAULTS if fault.quick]


def doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "argand.cli", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)


@pytest.mark.parametrize("name", [fault.name for fault in QUICK])
def test_planted_fault(name: str, tmp_path: Path) -> None:
    fault = next(fault for fault in QUICK if fault.name == name)
    path = tmp_path / "script.py"
    path.write_text(fault.source(str(FAULTS)))
    done = doctor("--json", "--output", str(tmp_path), "--time-limit", "60", str(path))
    import json

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
    done = doctor("--output", str(tmp_path), str(path))
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
    path = tmp_path / "script.py"
    path.write_text(
        "import torch\nfrom argand.codegen.cpp import overrides\n"
        "overrides.neg = lambda x: f'({{ for (volatile int i = 0; i < 300; ++i) {{}} decltype({x})(-{x}); }})'\n"
        "def fn(x):\n    return torch.relu(torch.neg(x) + 1)\n"
        "compiled = torch.compile(fn)\nx = torch.randn(400, 100)\n"
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


SCALE = 2.0


def test_what_changed_between_calls() -> None:
    def fn(x: float) -> float:
        return x * SCALE

    before = plain_state(fn, (1.0,), {})
    assert before["global SCALE"] == "2.0"
    now = {**before, "global SCALE": "3.0"}
    assert changed(before, now) == ["global SCALE: 2.0 -> 3.0"]
