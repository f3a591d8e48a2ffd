"""The examples for several processes run under torchrun, with two gloo processes on the CPU, and train as eager does."""

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

import warm
from argand.report.reader import Reader
from distributed.ranks import ROOT, environment

PARAMETERS = re.compile(r"rank [01] parameters (\d+\.\d+)")
TRAINER = (
    "--use_cpu", "--max_steps", "3", "--logging_steps", "1", "--report_to", "none", "--save_strategy", "no",
    "--disable_tqdm", "true", "--learning_rate", "0.01",
)  # fmt: skip


Told = tuple[str, list[float]]


def told(text: str) -> Told:
    """The parameters, which both ranks have, and rank 0's losses."""
    parameters = PARAMETERS.findall(text)
    assert len(parameters) == 2 and len(set(parameters)) == 1, text[-6000:]
    return parameters[0], [float(loss) for loss in re.findall(r"rank 0 step \d+: loss (\d+\.\d+)", text)]


def run(script: str, *arguments: str, **variables: str) -> Told:
    """What a script tells under torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    with tempfile.TemporaryFile("a+") as output:  # writes go to its end, wherever this process reads
        process = subprocess.Popen(
            [*command, str(ROOT / "examples" / script), *arguments], env={**surroundings(), **variables},
            cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        return told(printed(process, output))


def surroundings() -> dict[str, str]:
    return environment(CUDA_VISIBLE_DEVICES="", GLOO_SOCKET_IFNAME="lo")


def printed(process: subprocess.Popen[str], output: IO[str]) -> str:
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


def run_both(libraries: str, script: str, ours: list[str], eager: list[str], trace: Path) -> tuple[Told, Told]:
    """What a script tells with argand, which leaves a trace, and without. What both need is imported once."""
    path, arguments = str(ROOT / "examples" / script), json.dumps([ours, eager])
    variables = json.dumps([{"ARGAND_TRACE": str(trace)}, {}])
    command = ["-m", "tests.distributed.launched", libraries, path, arguments, variables]
    done = warm.run(command, env=surroundings(), cwd=ROOT, compiler=True)
    texts = re.split(r"^run \d\n", done.stdout, flags=re.MULTILINE)
    assert done.returncode == 0 and len(texts) == 3, done.stdout[-2000:] + done.stderr[-6000:]
    return told(texts[1]), told(texts[2])


def needs(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")


def alike(ours: Told, eager: Told) -> None:
    assert float(ours[0]) == pytest.approx(float(eager[0]), rel=1e-4)
    assert ours[1] == pytest.approx(eager[1], rel=1e-3)


def compiled_in(folder: Path) -> set[int]:
    """The ranks that argand compiled graphs in."""
    names = ("inductor_output_code", "fx_graph_cache_hit")
    return {int(record.rank) for record in Reader(folder) if record.rank is not None and record.name in names}


@pytest.mark.distributed
def test_ddp() -> None:
    _, losses = run("ddp.py", "--steps", "6")
    assert losses[-1] < losses[0]


@pytest.mark.distributed
@pytest.mark.parametrize("library", ["accelerate", "lightning"])
def test_library(library: str, tmp_path: Path) -> None:
    needs(library)
    steps = ["--steps", "4"]
    alike(*run_both(library, f"{library}_ddp.py", steps, [*steps, "--eager"], tmp_path))
    assert compiled_in(tmp_path) == {0, 1}


@pytest.mark.distributed
def test_hugging_faces_trainer(tmp_path: Path) -> None:
    needs("accelerate")
    needs("transformers")
    eager = ("--output_dir", str(tmp_path / "out"), *TRAINER)
    ours = run("hf_trainer.py", *eager, "--torch_compile_backend", "argand", ARGAND_TRACE=str(tmp_path / "trace"))
    alike(ours, run("hf_trainer.py", *eager))
    assert compiled_in(tmp_path / "trace") == {0, 1}
