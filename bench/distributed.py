"""Step times of training on several processes: eager, torch.compile and argand, with DistributedDataParallel, or FSDP2.

    python bench/distributed.py [--ways ddp,fsdp,tp] [--ranks 2] [--steps 30] [--no-torch] [--models gpt,cnn]
                                [--bucket-mb 1] [--device cuda]
    python bench/distributed.py --check 20 [--device cuda] [--ways ...] [--models ...]
    python bench/distributed.py --cold 8 [--ways ddp] [--models gpt] [--repeats 3]
    python bench/distributed.py --trace overlap.json [--models gpt] [--ranks 2]

Processes on this machine: gloo, one thread each; with `--device cuda` NCCL, a GPU each. tp: tensor parallelism of the
blocks' layers, of the CNN's head. The systems take turns in one run, step by step, in changing order; shown is the
median time of a step (forward, backward with its reductions, optimizer), the slowest rank's, and that of the first one.
With --check: parameters, gradients and optimizer states after that many steps, by argand, against eager's.
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
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from distributed.models import CNN, GPT, Llama, batch

MODELS = {
    "gpt": lambda: GPT(width=256, layers=4, words=2048),
    "llama": lambda: Llama(width=256, layers=4, words=2048),
    "cnn": CNN,
}


WAYS = ("alone", "ddp", "fsdp", "tp")
TOLERANCE = 1e-3
WARM = 30  # steps: contests between graphs in parts, whole ones and the engine are over then


def cases(options: Any) -> list[tuple[str, str]]:
    """(way, model)"""
    names, ways = options.models.split(","), (options.ways or ("alone" if options.cold else "ddp,fsdp")).split(",")
    return [(way, name) for way in ways for name in names]


def spread(model: Any, way: str, options: Any) -> Any:
    """The model as its processes train it together."""
    from torch.distributed.device_mesh import init_device_mesh

    model = model.to(options.device)
    if way == "alone":
        return model
    if way == "ddp":
        return DistributedDataParallel(model, bucket_cap_mb=options.bucket_mb)
    mesh = init_device_mesh(options.device, (options.ranks,))
    if way == "tp":
        from distributed.shard_programs import in_parallel

        return in_parallel(model, mesh)
    from torch.distributed.fsdp import fully_shard

    for part in [*getattr(model, "blocks", ()), model]:
        fully_shard(part, mesh=mesh)
    return model


def begin(rank: int, options: Any, folder: str) -> None:
    """This process is a rank."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if options.device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if options.device == "cuda" else "gloo", init_method=f"file://{folder}/store", rank=rank,
        world_size=options.ranks, timeout=datetime.timedelta(minutes=5),
    )  # fmt: skip


def finish(options: Any) -> None:
    """Until all work that was asked for is done."""
    if options.device == "cuda":
        torch.cuda.synchronize()


def sgd(model: Any, way: str, **more: Any) -> Any:
    """On GPUs torch updates all parameters by one call, which takes no DTensors beside tensors."""
    return torch.optim.SGD(model.parameters(), lr=0.01, foreach=False if way == "tp" else None, **more)


def systems(options: Any, way: str) -> dict[str, Any]:
    import argand

    found: dict[str, Any] = {"eager": lambda model: model}
    if not options.no_torch:
        found["torch.compile"] = torch.compile
    found["argand"] = argand.compile

    if way != "ddp":
        return found

    def whole(ddp: Any) -> Any:
        return argand.compile(ddp, dynamic=False)  # a region of its own: its graphs are not cut

    found["argand, not cut"] = whole
    found["argand, recorded"] = argand.compile  # with compiled autograd: reductions are in the backward's graph
    return found


def measure(rank: int, options: Any, folder: str) -> None:
    import argand

    begin(rank, options, folder)
    for way, name in cases(options):
        steps, times, first = {}, {}, {}
        for system, make in systems(options, way).items():
            torch.manual_seed(0)
            model = MODELS[name]()
            call = make(spread(model, way, options))
            optimizer = sgd(model, way)
            around = argand.compiled_autograd if system == "argand, recorded" else contextlib.nullcontext
            steps[system] = (model, call, optimizer, options, around)
            argand.config.optimize_ddp = system != "argand, not cut"
            first[system] = one_step(*steps[system], rank, 0)
            times[system] = []
        order = list(steps)
        for number in range(options.steps + WARM):
            order.append(order.pop(0))  # what runs behind whom is not always the same
            for system in order:
                spent = one_step(*steps[system], rank, number)
                if number >= WARM:
                    times[system].append(spent)
        for system in steps:
            slowest = torch.tensor([*times[system], first[system]], device=options.device)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)  # of each step
            slowest = torch.tensor([float(slowest[:-1].median()), float(slowest[-1])])
            if rank == 0:
                print(
                    f"{name}, {way}: {system} {1e3 * float(slowest[0]):.2f} ms, first {float(slowest[1]):.2f} s",
                    flush=True,
                )
                with open(f"{folder}/results", "a") as stream:
                    stream.write(f"{name}, {way}\t{system}\t{float(slowest[0])}\t{float(slowest[1])}\n")
    dist.destroy_process_group()


def one_step(model: Any, call: Any, optimizer: Any, options: Any, around: Any, rank: int, number: int) -> float:
    x = batch(model, rank, number).to(options.device)
    dist.barrier()
    finish(options)
    begun = time.perf_counter()
    optimizer.zero_grad()
    with around():
        call(x).square().mean().backward()
    optimizer.step()
    finish(options)
    return time.perf_counter() - begun


def check(rank: int, options: Any, folder: str) -> None:
    """Trains by eager and by argand, and writes how far they are apart."""
    import argand
    from distributed.shard_programs import difference, local

    begin(rank, options, folder)
    for way, name in cases(options):
        states = []
        for make in (argand.compile, lambda model: model):
            torch.manual_seed(0)
            model = MODELS[name]()
            call = make(spread(model, way, options))
            optimizer = sgd(model, way, momentum=0.9)
            for number in range(options.check):
                one_step(model, call, optimizer, options, contextlib.nullcontext, 0 if way == "tp" else rank, number)
            states.append([
                local(value)
                for p in model.parameters()
                for value in (p, p.grad, optimizer.state[p]["momentum_buffer"])
            ])  # fmt: skip
        apart = torch.tensor(difference(*states), device=options.device)
        dist.all_reduce(apart, dist.ReduceOp.MAX)
        if rank == 0:
            print(f"{name}, {way}: {float(apart):.1e} apart after {options.check} steps", flush=True)
            with open(f"{folder}/results", "a") as stream:
                stream.write(f"{name}, {way}\t{float(apart)}\n")
    dist.destroy_process_group()


def first_call(rank: int, way: str, name: str, options: Any, folder: str) -> None:
    """One rank of a cold start."""
    import argand

    begin(rank, options, folder)
    torch.manual_seed(0)
    model = MODELS[name]()
    call, x = argand.compile(spread(model, way, options)), batch(model, rank, 0)
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


def traced_step(rank: int, name: str, options: Any, folder: str) -> None:
    """One rank's step, profiled."""
    import argand

    begin(rank, options, folder)
    torch.manual_seed(0)
    model = MODELS[name]()
    call = argand.compile(spread(model, "ddp", options))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(3):
        one_step(model, call, optimizer, options, contextlib.nullcontext, rank, number)
    with torch.profiler.profile() as profile:
        one_step(model, call, optimizer, options, contextlib.nullcontext, rank, 3)
    profile.export_chrome_trace(f"{folder}/{rank}.json")
    dist.barrier()
    dist.destroy_process_group()


def trace(options: Any) -> None:
    """Writes the steps of all ranks to one file; each process is a row of its own."""
    spans: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        name = options.models.split(",")[0]
        mp.spawn(traced_step, args=(name, options, folder), nprocs=options.ranks)
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
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"first call and backward, {os.cpu_count()} cores: slowest rank's seconds, processor seconds of all"
    )
    for title in ("model", "cache", "one rank", f"{options.cold} ranks", "ratio", "processor"):
        table.add_column(title, justify="left" if title in ("model", "cache") else "right")
    many = options.cold
    for way, name in cases(options):
        times: dict[tuple[str, int], list[tuple[float, float]]] = {}
        for _ in range(options.repeats):
            for options.ranks in (1, many):
                with tempfile.TemporaryDirectory() as cache:
                    os.environ["ARGAND_CACHE_DIR"] = cache
                    for state in ("empty", "filled"):
                        with tempfile.TemporaryDirectory() as folder:
                            mp.spawn(first_call, args=(way, name, options, folder), nprocs=options.ranks)
                            spent, used = map(float, Path(folder, "times").read_text().split())
                            times.setdefault((state, options.ranks), []).append((spent, used))
        for state in ("empty", "filled"):
            one, all_of_them = min(times[state, 1]), min(times[state, many])
            table.add_row(
                f"{name}, {way}",
                state,
                f"{one[0]:.2f}",
                f"{all_of_them[0]:.2f}",
                f"{all_of_them[0] / one[0]:.2f}x",
                f"{one[1]:.1f}, {all_of_them[1]:.1f}",
            )
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--ways", default="", help=f"of {', '.join(WAYS)}")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--check", type=int, default=0, help="instead: compare with eager after that many steps")
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
        mp.spawn(check if options.check else measure, args=(options, folder), nprocs=options.ranks)
        rows = [line.split("\t") for line in Path(folder, "results").read_text().splitlines()]
    if options.check:
        sys.exit(not all(float(apart) <= TOLERANCE for _, apart in rows))
    from rich.console import Console  # ranks, and machines with GPUs, may be without
    from rich.table import Table

    what = "a GPU each, NCCL" if options.device == "cuda" else "one thread each, gloo"
    table = Table(title=f"{options.ranks} processes, {what}: milliseconds of a step")
    for title in ("model, way", "system", "step", "over eager", "first step, s"):
        table.add_column(title, justify="left" if title in ("model, way", "system") else "right")
    eager = {row[0]: float(row[2]) for row in rows if row[1] == "eager"}
    for model, system, step, first in rows:
        ratio = eager[model] / float(step)
        table.add_row(model, system, f"{1e3 * float(step):.1f}", f"{ratio:.2f}x", f"{float(first):.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
