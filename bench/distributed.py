"""Step times of training on several processes: eager, torch.compile and argand under DistributedDataParallel.

    python bench/distributed.py [--ranks 2] [--steps 30] [--no-torch] [--models gpt,cnn] [--bucket-mb 1]
    python bench/distributed.py --cold 8 [--models gpt] [--repeats 3]
    python bench/distributed.py --trace overlap.json [--models gpt] [--ranks 2]

Processes on this machine, gloo, one thread each. The systems take turns in one run, step by step; shown is the median
time of a step (forward, backward with its reductions, optimizer), the slowest rank's, and the time of the first step.
With --cold: the first call and backward of that many processes beside those of one, with an empty cache and with what
they left in it; all begin at once, after their imports. Processor time is that of all processes, compilers included.
With --trace: a Chrome trace (Perfetto, chrome://tracing) of one step of each process, by argand, after the first ones.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rich.console import Console
from rich.table import Table
from torch.nn.parallel import DistributedDataParallel

from distributed.models import CNN, GPT, Llama, batch

MODELS = {
    "gpt": lambda: GPT(width=256, layers=4, words=2048),
    "llama": lambda: Llama(width=256, layers=4, words=2048),
    "cnn": CNN,
}


def systems(options: Any) -> dict[str, Any]:
    import argand

    found: dict[str, Any] = {"eager": lambda ddp: ddp}
    if not options.no_torch:
        found["torch.compile"] = torch.compile
    found["argand"] = argand.compile

    def whole(ddp: Any) -> Any:
        return argand.compile(ddp, dynamic=False)  # a region of its own: its graphs are not cut

    found["argand, not cut"] = whole
    found["argand, recorded"] = argand.compile  # with compiled autograd: reductions are in the backward's graph
    return found


def measure(rank: int, options: Any, folder: str) -> None:
    import argand

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=options.ranks,
        timeout=datetime.timedelta(minutes=5),
    )  # fmt: skip
    for name in options.models.split(","):
        steps, times, first = {}, {}, {}
        for system, make in systems(options).items():
            torch.manual_seed(0)
            model = MODELS[name]()
            call = make(DistributedDataParallel(model, bucket_cap_mb=options.bucket_mb))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            around = argand.compiled_autograd if system == "argand, recorded" else contextlib.nullcontext
            steps[system] = (model, call, optimizer, around)
            argand.config.optimize_ddp = system != "argand, not cut"
            first[system] = one_step(*steps[system], rank, 0)
            times[system] = []
        for number in range(options.steps + 3):
            for system, parts in steps.items():
                spent = one_step(*parts, rank, number)
                if number >= 3:
                    times[system].append(spent)
        for system in steps:
            slowest = torch.tensor([statistics.median(times[system]), first[system]])
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            if rank == 0:
                print(f"{name}\t{system}\t{float(slowest[0])}\t{float(slowest[1])}", flush=True)
                with open(f"{folder}/results", "a") as stream:
                    stream.write(f"{name}\t{system}\t{float(slowest[0])}\t{float(slowest[1])}\n")
    dist.destroy_process_group()


def one_step(model: Any, call: Any, optimizer: Any, around: Any, rank: int, number: int) -> float:
    x = batch(model, rank, number)
    dist.barrier()
    begun = time.perf_counter()
    optimizer.zero_grad()
    with around():
        call(x).square().mean().backward()
    optimizer.step()
    return time.perf_counter() - begun


def first_call(rank: int, name: str, ranks: int, folder: str) -> None:
    """One rank of a cold start."""
    import argand

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    model = MODELS[name]()
    call, x = argand.compile(model), batch(model, rank, 0)
    dist.barrier()
    begun, before = time.perf_counter(), os.times()
    call(x).square().mean().backward()
    spent, after = time.perf_counter() - begun, os.times()
    found = torch.tensor([spent, sum(after[:4]) - sum(before[:4])])
    slowest, total = found.clone(), found.clone()
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    dist.all_reduce(total)
    if rank == 0:
        Path(folder, "times").write_text(f"{float(slowest[0])} {float(total[1])}")
    dist.destroy_process_group()


def traced_step(rank: int, name: str, ranks: int, bucket_mb: float, folder: str) -> None:
    """One rank's step, profiled."""
    import argand

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    model = MODELS[name]()
    call = argand.compile(DistributedDataParallel(model, bucket_cap_mb=bucket_mb))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(3):
        one_step(model, call, optimizer, contextlib.nullcontext, rank, number)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        one_step(model, call, optimizer, contextlib.nullcontext, rank, 3)
    profile.export_chrome_trace(f"{folder}/{rank}.json")
    dist.barrier()
    dist.destroy_process_group()


def trace(options: Any) -> None:
    """Writes the steps of all ranks to one file; each process is a row of its own."""
    spans: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        name = options.models.split(",")[0]
        mp.spawn(traced_step, args=(name, options.ranks, options.bucket_mb, folder), nprocs=options.ranks)
        for rank in range(options.ranks):
            found = json.loads(Path(folder, f"{rank}.json").read_text())
            zero = float(found.get("baseTimeNanoseconds", 0)) / 1e3
            own = [event for event in found["traceEvents"] if isinstance(event.get("pid"), int)]
            process = next(event["pid"] for event in own if event.get("ph") == "X")
            spans.append({"ph": "M", "pid": process, "name": "process_name", "args": {"name": f"rank {rank}"}})
            for event in own:
                if event.get("ph") != "M" or event.get("name") != "process_name":
                    spans.append({**event, "ts": event["ts"] + zero} if "ts" in event else event)
    Path(options.trace).write_text(json.dumps({"traceEvents": spans}))
    print(f"{options.trace}: open it at https://ui.perfetto.dev")


def cold(options: Any) -> None:
    """First calls of many ranks and of one, in turns."""
    table = Table(
        title=f"first call and backward, {os.cpu_count()} cores: slowest rank's seconds, processor seconds of all"
    )
    for title in ("model", "cache", "one rank", f"{options.cold} ranks", "ratio", "processor"):
        table.add_column(title, justify="left" if title in ("model", "cache") else "right")
    for name in options.models.split(","):
        times: dict[tuple[str, int], list[tuple[float, float]]] = {}
        for _ in range(options.repeats):
            for ranks in (1, options.cold):
                with tempfile.TemporaryDirectory() as cache:
                    os.environ["ARGAND_CACHE_DIR"] = cache
                    for state in ("empty", "filled"):
                        with tempfile.TemporaryDirectory() as folder:
                            mp.spawn(first_call, args=(name, ranks, folder), nprocs=ranks)
                            spent, used = map(float, Path(folder, "times").read_text().split())
                            times.setdefault((state, ranks), []).append((spent, used))
        for state in ("empty", "filled"):
            one, many = min(times[state, 1]), min(times[state, options.cold])
            table.add_row(
                name,
                state,
                f"{one[0]:.2f}",
                f"{many[0]:.2f}",
                f"{many[0] / one[0]:.2f}x",
                f"{one[1]:.1f}, {many[1]:.1f}",
            )
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--models", default="gpt,llama,cnn")
    parser.add_argument("--bucket-mb", type=float, default=1.0)
    parser.add_argument("--cold", type=int, default=0, help="instead: first calls of that many ranks, and of one")
    parser.add_argument("--trace", default="", help="instead: write a Chrome trace of a step to this file")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if options.cold:
        cold(options)
        return
    if options.trace:
        trace(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(measure, args=(options, folder), nprocs=options.ranks)
        rows = [line.split("\t") for line in Path(folder, "results").read_text().splitlines()]
    table = Table(title=f"DDP, {options.ranks} processes of one thread, gloo: milliseconds of a step")
    for title in ("model", "system", "step", "over eager", "first step, s"):
        table.add_column(title, justify="left" if title in ("model", "system") else "right")
    eager = {row[0]: float(row[2]) for row in rows if row[1] == "eager"}
    for model, system, step, first in rows:
        ratio = eager[model] / float(step)
        table.add_row(model, system, f"{1e3 * float(step):.1f}", f"{ratio:.2f}x", f"{float(first):.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
