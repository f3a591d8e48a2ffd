"""Runs functions of a module in gloo processes on this machine, one thread each.

    results = run_ranks("tests.distributed.ddp_programs", ["models"], ranks=2)

A rank calls `module.NAME(rank)` for each name and answers with JSON. What is given back is a list of what each rank
answered, by name. With `RANKS_DEVICE="cuda"` each has a GPU, and NCCL. Ranks are forks of one process that has imported the module, itself a fork of one that
has imported torch's distributed parts and the compiler: that would take longer than most of what they do.
"""

from __future__ import annotations

import atexit
import datetime
import gc
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import warm

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 400.0  # of a machine that has much else to do


def environment(**more: str) -> dict[str, str]:
    """What a process of ranks is started with. Ranks on CPUs see no GPU: torch would lay shards and meshes out on it,
    and dies where they are gathered through gloo."""
    paths = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT), *sys.path]
    own = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    if {**os.environ, **more}.get("RANKS_DEVICE") != "cuda":
        own["CUDA_VISIBLE_DEVICES"] = ""
    return {**os.environ, **own, **more}


@dataclass(frozen=True)
class Ended:
    """How a rank ended: its exit code (minus the signal that killed it), and what it printed."""

    code: int
    text: str


def ended_ranks(module: str, names: list[str], ranks: int, folder: str, **env: str) -> list[Ended]:
    """Run ranks to their ends; rank r writes what it answers to `folder/r.json`."""
    command = ["-m", "tests.distributed.ranks", folder, str(ranks), module, *names]
    done = warm.run(command, env=environment(**env), cwd=ROOT, timeout=TIMEOUT + 60, imported="ranks")
    codes = json.loads((Path(folder) / "codes.json").read_text()) if not done.returncode else []
    assert len(codes) == ranks, done.stdout + done.stderr
    return [Ended(code, (Path(folder) / f"{rank}.txt").read_text()) for rank, code in enumerate(codes)]


def run_ranks(module: str, names: list[str], ranks: int = 2, **env: str) -> list[dict[str, object]]:
    """What each rank answered, by name; fails with a rank's output if it ended badly."""
    with tempfile.TemporaryDirectory() as folder:
        for ended in ended_ranks(module, names, ranks, folder, **env):
            assert ended.code == 0, ended.text[-6000:]
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(ranks)]


# ------------------------------------------------------------------- in the process that forks


def main() -> None:
    """Fork the ranks, and note how each ended."""
    folder, ranks, module, *names = sys.argv[1:]
    import torch

    torch.set_num_threads(1)
    programs = importlib.import_module(module)
    gc.freeze()  # what ranks share is not looked at, nor copied, by each of them
    started = []
    for rank in range(int(ranks)):
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)  # torch 2.11 renews its pool of threads here; two threads at once would fail
            _become_rank(rank, int(ranks), folder, programs, names)
        started.append(child)
    (Path(folder) / "codes.json").write_text(json.dumps(codes_of(started)))


def codes_of(started: list[int], timeout: float = TIMEOUT) -> list[int]:
    """The exit codes of processes that were forked; those that have not ended in so many seconds are killed."""
    codes: dict[int, int] = {}
    deadline = time.monotonic() + timeout
    while len(codes) < len(started):
        for child in started:
            if child not in codes and (ended := os.waitpid(child, os.WNOHANG))[0]:
                codes[child] = os.waitstatus_to_exitcode(ended[1])
            elif child not in codes and time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    return [codes[child] for child in started]


def write_to(path: Path) -> None:
    """What this process prints, and its errors, go to a file."""
    output = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)


def _become_rank(rank: int, ranks: int, folder: str, programs: object, names: list[str]) -> None:
    """What a rank does in its process; does not return."""
    write_to(Path(folder) / f"{rank}.txt")
    try:
        _run(rank, ranks, folder, programs, names)
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)  # a rank that failed must not wait for the others
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)  # threads of libraries that still run must not turn what was answered into a failure


def _run(rank: int, ranks: int, folder: str, programs: object, names: list[str]) -> None:
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    on_gpu = os.environ.get("RANKS_DEVICE") == "cuda"
    if on_gpu:
        import torch

        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=float(os.environ.get("RANKS_TIMEOUT", "300"))),
    )
    answers = {name: getattr(programs, name)(rank) for name in names}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(answers))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
