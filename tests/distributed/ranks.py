"""Runs functions of a module in gloo processes on this machine, one thread each.

    results = run_ranks("tests.distributed.ddp_programs", ["models"], ranks=2)

starts `python -m tests.distributed.ranks MODULE NAME...` as each rank; a rank calls `module.NAME(rank)` for each name and
answers with JSON. What is given back is a list of what each rank answered, by name.
"""

from __future__ import annotations

import atexit
import datetime
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 150.0


def environment(**more: str) -> dict[str, str]:
    """What a rank's process is started with."""
    paths = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT), *sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1", **more}


def start_ranks(module: str, names: list[str], ranks: int, folder: str, **env: str) -> list[subprocess.Popen[str]]:
    """The processes, running; rank r writes what it answers to `folder/r.json`."""
    command = [sys.executable, "-m", "tests.distributed.ranks", folder, str(ranks), module, *names]
    return [
        subprocess.Popen(
            [*command, str(rank)], env=environment(**env), cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for rank in range(ranks)
    ]  # fmt: skip


def run_ranks(module: str, names: list[str], ranks: int = 2, **env: str) -> list[dict[str, object]]:
    """What each rank answered, by name; fails with a rank's output if it ended badly."""
    with tempfile.TemporaryDirectory() as folder:
        started = start_ranks(module, names, ranks, folder, **env)
        texts = []
        try:
            texts = [process.communicate(timeout=TIMEOUT)[0] for process in started]
        finally:
            for process in started:
                process.kill()
        for process, text in zip(started, texts):
            assert process.returncode == 0, text[-6000:]
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(ranks)]


def main() -> None:
    """One rank."""
    folder, ranks, module, *names, rank = sys.argv[1:]
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=int(rank),
        world_size=int(ranks),
        timeout=datetime.timedelta(seconds=float(os.environ.get("RANKS_TIMEOUT", "60"))),
    )
    programs = importlib.import_module(module)
    answers = {name: getattr(programs, name)(int(rank)) for name in names}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(answers))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)  # a rank that failed must not wait for the others
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)  # threads of libraries that still run must not turn what was answered into a failure
