"""The examples for several processes, with two gloo processes on the CPU, train as eager does.

They are forks (`scripts`), those over libraries beside eager's runs, with which they are compared; one runs under torchrun
with SWEEPS=whole.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

import pytest

import sweeps
import warm
from argand.report.reader import Reader
from distributed.ranks import ROOT, environment
from distributed.scripts import NEXT

PARAMETERS = re.compile(r"rank [01] parameters (\d+\.\d+)")
TRAINER = (
    "--use_cpu", "--max_steps", "3", "--logging_steps", "1", "--report_to", "none", "--save_strategy", "no",
    "--disable_tqdm", "true", "--learning_rate", "0.01",
)  # fmt: skip
Run = tuple[str, list[float]]
"""The parameters at the end, which both ranks have, and rank 0's losses."""


def run(script: str, *arguments: str) -> Run:
    """What a script does under torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    with tempfile.TemporaryFile("a+") as output:  # writes go to its end, wherever this process reads
        process = subprocess.Popen(
            [*command, str(ROOT / "examples" / script), *arguments],
            env=environment(CUDA_VISIBLE_DEVICES="", GLOO_SOCKET_IFNAME="lo"),
            cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        return results(told(process, output))


def run_forked(libraries: str, script: str, ours: list[str], eager: list[str], trace: Path) -> tuple[Run, Run]:
    """The same of two runs, each in two forks of a process that has imported libraries: by argand, traced, and eager's."""
    one, other = forked(libraries, script, (ours, {"ARGAND_TRACE": str(trace)}), (eager, {}))
    return one, other


def forked(libraries: str, script: str, *runs: tuple[list[str], dict[str, str]]) -> list[Run]:
    """What runs with these arguments and variables do."""
    command = ["-m", "tests.distributed.scripts", libraries, str(ROOT / "examples" / script), json.dumps(runs)]
    around = environment(CUDA_VISIBLE_DEVICES="", GLOO_SOCKET_IFNAME="lo")
    done = warm.run(command, env=around, cwd=ROOT, timeout=550, imported="ranks")
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    return [results(text) for text in done.stdout.split(NEXT)[:-1]]


def results(text: str) -> Run:
    parameters = PARAMETERS.findall(text)
    assert len(parameters) == 2 and len(set(parameters)) == 1, text[-6000:]
    return parameters[0], [float(loss) for loss in re.findall(r"rank 0 step \d+: loss (\d+\.\d+)", text)]


def told(process: subprocess.Popen[str], output: IO[str]) -> str:
    """What is printed until all ranks have told their parameters, or the end.

    At their very end, threads of torch's own abort some processes, eager's too, or let them hang: nobody waits for that.
    """
    end = time.monotonic() + 240
    while True:
        ended = process.poll() is not None
        output.seek(0)
        text = output.read()
        if ended or len(PARAMETERS.findall(text)) == 2 or time.monotonic() > end:
            break
        time.sleep(0.1)
    process.terminate()  # torchrun ends its ranks
    process.wait(60)
    return text


def needs(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")


def alike(ours: Run, eager: Run) -> None:
    assert float(ours[0]) == pytest.approx(float(eager[0]), rel=1e-4)
    assert ours[1] == pytest.approx(eager[1], rel=1e-3)


def compiled_in(folder: Path) -> set[int]:
    """The ranks that argand compiled graphs in."""
    names = ("inductor_output_code", "fx_graph_cache_hit")
    return {int(record.rank) for record in Reader(folder) if record.rank is not None and record.name in names}


@pytest.mark.distributed
def test_ddp() -> None:
    """Under torchrun with SWEEPS=whole: each of its three processes imports torch."""
    if sweeps.WHOLE:
        _, losses = run("ddp.py", "--steps", "6")
    else:
        [(_, losses)] = forked("argand", "ddp.py", (["--steps", "6"], {}))
    assert losses[-1] < losses[0]


@pytest.mark.distributed
def test_accelerate(tmp_path: Path) -> None:
    needs("accelerate")
    steps = ["--steps", "4"]
    alike(*run_forked("accelerate", "accelerate_ddp.py", steps, [*steps, "--eager"], tmp_path))
    assert compiled_in(tmp_path) == {0, 1}


@pytest.mark.distributed
def test_lightning(tmp_path: Path) -> None:
    needs("lightning")
    steps = ["--steps", "4"]
    alike(*run_forked("lightning", "lightning_ddp.py", steps, [*steps, "--eager"], tmp_path))
    assert compiled_in(tmp_path) == {0, 1}


@pytest.mark.distributed
def test_hugging_faces_trainer(tmp_path: Path) -> None:
    needs("accelerate")
    needs("transformers")
    out = ["--output_dir", str(tmp_path / "out"), *TRAINER]
    argand = [*out, "--torch_compile_backend", "argand"]
    alike(*run_forked("transformers.trainer", "hf_trainer.py", argand, out, tmp_path / "trace"))
    assert compiled_in(tmp_path / "trace") == {0, 1}
