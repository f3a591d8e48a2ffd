"""Step times of training on several processes: eager, torch.compile and argand, with DistributedDataParallel, or FSDP2.

    python bench/distributed.py [--ways ddp,fsdp,tp] [--ranks 2] [--steps 30] [--no-torch] [--models gpt,cnn]
                                [--bucket-mb 1] [--device cuda] [--cores 2] [--verdicts FILE]
                                [--systems eager,torch.compile,argand]
    python bench/distributed.py --check 20 [--device cuda] [--ways ...] [--models ...]
    python bench/distributed.py --cold 8 [--ways alone,ddp,fsdp] [--models gpt] [--repeats 3]
                                [--states empty,filled,redis,machines]
    python bench/distributed.py --trace overlap.json [--models gpt] [--ranks 2]

Processes on this machine: gloo, one thread each; with `--device cuda` NCCL, a GPU each. tp: tensor parallelism of the
blocks' layers, of the CNN's head. The systems take turns in one run, step by step, in changing order; shown is the
median time of a step (forward, backward with its reductions, optimizer), the slowest rank's, and that of the first one.
Speeds are medians of the rounds' ratios (what else the machine does is in both), their noise is two standard errors.
--cores gives each process that many cores for itself, where the machine has them.
With --check: parameters, gradients and optimizer states after that many steps, by argand, against eager's.
With --cold: the first call and backward of that many processes beside those of one; all begin at once, after their
imports. Processor time is that of all processes, compilers included. Of the disk cache: "empty"; "filled", with what
those left in it; "redis", empty, beside a Redis server with what another job left there; "machines", each rank with an
empty one of its own and an empty Redis server for all. Those two need redis-server and its client for Python.
Bars (verdicts.py): argand never slower than eager, at least as fast as torch.compile, and the first call of many ranks
with an empty cache at most 1.3 times as long as that of one.
With --trace: a Chrome trace (Perfetto, chrome://tracing) of one step of each process, by argand, after the first ones.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import math
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

import verdicts
from distributed.models import CNN, GPT, Llama, batch
from verdicts import Verdict

MODELS = {
    "gpt": lambda: GPT(width=256, layers=4, words=2048),
    "llama": lambda: Llama(width=256, layers=4, words=2048),
    "cnn": CNN,
}


WAYS = ("alone", "ddp", "fsdp", "tp")
TOLERANCE = 1e-3
COLD_BAR = 1.3  # of one rank's first call
STATES = ("empty", "filled", "redis", "machines")
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
    cores = sorted(os.sched_getaffinity(0))
    if options.cores and len(cores) >= options.cores * options.ranks:
        os.sched_setaffinity(0, cores[rank * options.cores : (rank + 1) * options.cores])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if options.device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if options.device == "cuda" else "gloo", init_method=f"file://{folder}/store", rank=rank,
        world_size=options.ranks, timeout=datetime.timedelta(minutes=5),
    )  # fmt: skip


def end() -> None:
    """This process is no longer a rank."""
    dist.barrier()  # gloo's thread lets go of what the last call reduced, for which it needs the interpreter
    dist.destroy_process_group()


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

    def whole(ddp: Any) -> Any:
        return argand.compile(ddp, dynamic=False)  # a region of its own: its graphs are not cut

    if way == "ddp":
        found["argand, not cut"] = whole
        found["argand, recorded"] = argand.compile  # with compiled autograd: reductions are in the backward's graph
    wanted = options.systems.split(",") if options.systems else found
    return {system: make for system, make in found.items() if system in wanted}


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
        order, shuffled = list(steps), random.Random(0)  # ranks take the same order
        for number in range(options.steps + WARM):
            shuffled.shuffle(order)  # what runs behind whom is not always the same
            for system in order:
                spent = one_step(*steps[system], rank, number)
                if number >= WARM:
                    times[system].append(spent)
        for system in steps:
            slowest = torch.tensor([*times[system], first[system]], dtype=torch.float64, device=options.device)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)  # of each step
            if rank == 0:
                *spans, beginning = slowest.tolist()
                middle = 1e3 * statistics.median(spans)
                print(f"{name}, {way}: {system} {middle:.2f} ms, first {beginning:.2f} s", flush=True)
                with open(f"{folder}/results", "a") as stream:
                    print(json.dumps([f"{name}, {way}", system, beginning, spans]), file=stream)
    end()


def ratio(theirs: list[float], ours: list[float]) -> tuple[float, float]:
    """How many times as fast as theirs our steps are, and two standard errors of that.

    Steps of one round are compared with each other: what else the machine does while it lasts is in both.
    """
    logs = [math.log(one / other) for one, other in zip(theirs, ours, strict=True)]
    middle = statistics.median(logs)
    error = 1.25 * 1.48 * statistics.median(abs(log - middle) for log in logs) / math.sqrt(len(logs))
    return math.exp(middle), math.exp(middle) * 2 * error  # of a median of values most of which are near it


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
    end()


def first_call(rank: int, way: str, name: str, options: Any, folder: str) -> None:
    """One rank of a cold start."""
    if options.own_cache:
        os.environ["ARGAND_CACHE_DIR"] += f"/{rank}"
    import argand
    from argand.runtime.remote import REMOTE

    begin(rank, options, folder)
    torch.manual_seed(0)
    model = MODELS[name]()
    call, x = argand.compile(spread(model, way, options)), batch(model, rank, 0)
    dist.barrier()
    begun, before = time.perf_counter(), os.times()
    call(x).square().mean().backward()
    spent, after = time.perf_counter() - begun, os.times()
    hits = argand.counters().get("remote_cache", {}).get("hit", 0)
    found = torch.tensor([spent, sum(after[:4]) - sum(before[:4]), float(hits)])
    slowest, total = found.clone(), found.clone()
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    dist.all_reduce(total)
    if rank == 0:
        Path(folder, "times").write_text(f"{float(slowest[0])} {float(total[1])} {float(total[2])}")
    REMOTE.flush(10.0)
    end()


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
    end()


def trace(options: Any) -> None:
    """Writes the steps of all ranks to one file; each process is a row of its own."""
    spans: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        name = options.models.split(",")[0]
        how = "spawn" if options.device == "cuda" else "fork"  # a GPU in use is not for forks
        mp.start_processes(traced_step, args=(name, options, folder), nprocs=options.ranks, start_method=how)
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


@contextlib.contextmanager
def redis_server() -> Iterator[bool]:
    """Whether there is an empty Redis server now, which this process's children use."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            while server.poll() is None:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.02)
            os.environ.update(ARGAND_REMOTE_CACHE=f"redis://127.0.0.1:{port}/0", ARGAND_REMOTE_CACHE_KEY="bench")
            yield server.poll() is None
        finally:
            os.environ.pop("ARGAND_REMOTE_CACHE", None)
            server.kill()
            server.wait()


def wanted_states(options: Any) -> list[str]:
    """Those that this machine can show."""
    import importlib.util

    states = [state for state in STATES if state in options.states.split(",")]
    missing = [what for what, there in (
        ("redis-server", shutil.which("redis-server")), ("Python's redis", importlib.util.find_spec("redis")),
    ) if not there]  # fmt: skip
    if missing and set(states) & {"redis", "machines"}:
        print(f"not measured: redis, machines: this machine has no {' and no '.join(missing)}")
        states = [state for state in states if state not in ("redis", "machines")]
    return states


Cold = tuple[float, float, float]  # the slowest rank's seconds, all ranks' processor seconds and hits in the server


def cold_job(way: str, name: str, options: Any, ranks: int, cache: str) -> Cold:
    """A job's first call, with that disk cache."""
    os.environ["ARGAND_CACHE_DIR"], options.ranks = cache, ranks
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(first_call, args=(way, name, options, folder), nprocs=ranks)
        spent, used, hits = map(float, Path(folder, "times").read_text().split())
        return spent, used, hits


def cold_times(way: str, name: str, options: Any, states: list[str]) -> dict[tuple[str, int], list[Cold]]:
    """First calls of one rank and of many, in turns."""
    times: dict[tuple[str, int], list[Cold]] = {}

    def job(state: str, ranks: int, cache: str) -> None:
        times.setdefault((state, ranks), []).append(cold_job(way, name, options, ranks, cache))

    options.own_cache = False
    for _ in range(options.repeats):
        for ranks in (1, options.cold):
            with tempfile.TemporaryDirectory() as cache:
                for state in [state for state in states if state in ("empty", "filled")]:
                    job(state, ranks, cache)
    if "redis" in states:
        with redis_server():
            for number in range(options.repeats + 1):
                for ranks in (1, options.cold):
                    with tempfile.TemporaryDirectory() as cache:
                        if number:
                            job("redis", ranks, cache)
                        else:  # fills the server, with what is made for that many
                            cold_job(way, name, options, ranks, cache)
    if "machines" in states:
        options.own_cache = True
        for _ in range(options.repeats):
            for ranks in (1, options.cold):
                with redis_server(), tempfile.TemporaryDirectory() as cache:
                    job("machines", ranks, cache)
    return times


def cold(options: Any) -> list[Verdict]:
    """First calls of many ranks and of one."""
    table, judged = [], []
    states, many = wanted_states(options), options.cold
    for way, name in cases(options):
        times = cold_times(way, name, options, states)
        for state in states:
            one, all_of_them = min(times[state, 1]), min(times[state, many])
            ratio = all_of_them[0] / one[0]
            row = [f"{name}, {way}", state, f"{one[0]:.2f}", f"{all_of_them[0]:.2f}", f"{ratio:.2f}x"]
            table.append([*row, f"{one[1]:.1f}, {all_of_them[1]:.1f}", f"{one[2]:.0f}, {all_of_them[2]:.0f}"])
            print("; ".join(table[-1]), flush=True)
            if state == "empty":
                subject = f"{name}, {way}, {many} ranks, empty cache"
                judged.append(Verdict(subject, "of one rank's first call", ratio, COLD_BAR, at_most=True))
    show(
        f"first call and backward, {os.cpu_count()} cores: slowest rank's seconds; processor seconds of all",
        ("model", "cache", "one rank", f"{many} ranks", "ratio", "processor", "server's hits"), table,
    )  # fmt: skip
    return judged


def show(title: str, columns: tuple[str, ...], rows: list[list[str]]) -> None:
    """Prints a table; ranks, and machines with GPUs, may be without rich."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        print("\n".join([title, "; ".join(columns), *("; ".join(row) for row in rows)]))
        return
    table = Table(title=title)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < 2 else "right")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


Row = tuple[str, str, float, list[float]]  # model and way, system, seconds of the first step and of each later one


def step_verdicts(rows: list[Row]) -> list[Verdict]:
    """Of argand's steps beside eager's and torch.compile's."""
    ours = {model: spans for model, system, _, spans in rows if system == "argand"}
    found = []
    for model, system, _, spans in rows:
        if system in ("eager", "torch.compile"):
            speed, noise = ratio(spans, ours[model])
            found.append(Verdict(model, f"of {system}'s speed", speed, 1.0, noise=noise))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--ways", default="", help=f"of {', '.join(WAYS)}")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--check", type=int, default=0, help="instead: compare with eager after that many steps")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--models", default="gpt,llama,cnn")
    parser.add_argument("--systems", default="", help="only these, eager and argand among them")
    parser.add_argument("--bucket-mb", type=float, default=1.0)
    parser.add_argument("--cold", type=int, default=0, help="instead: first calls of that many ranks, and of one")
    parser.add_argument("--trace", default="", help="instead: write a Chrome trace of a step to this file")
    parser.add_argument("--states", default="empty,filled", help=f"of caches, with --cold: of {', '.join(STATES)}")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cores", type=int, default=0, help="that each process has for itself")
    parser.add_argument("--verdicts", default="", help="a file to append verdicts to (bench/verdicts.py)")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # users keep modules' bytecode
    if options.trace:
        trace(options)
        return
    verdicts.finish(cold(options) if options.cold else steps(options), options.verdicts)


def steps(options: Any) -> list[Verdict]:
    """Steps of all systems; with --check, how far they are from eager's."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(check if options.check else measure, args=(options, folder), nprocs=options.ranks)
        lines = Path(folder, "results").read_text().splitlines()
    if options.check:
        sys.exit(not all(float(line.split("\t")[1]) <= TOLERANCE for line in lines))
    rows: list[Row] = [json.loads(line) for line in lines]
    what = "a GPU each, NCCL" if options.device == "cuda" else "one thread each, gloo"
    eager = {model: spans for model, system, _, spans in rows if system == "eager"}
    table = []
    for model, system, first, spans in rows:
        speed, noise = ratio(eager[model], spans)
        middle = f"{1e3 * statistics.median(spans):.2f}"
        table.append([model, system, middle, f"{speed:.3f}x", f"{noise:.3f}", f"{first:.2f}"])
    columns = ("model, way", "system", "step", "over eager", "noise", "first step, s")
    show(f"{options.ranks} processes, {what}: milliseconds of a step", columns, table)
    return step_verdicts(rows)


if __name__ == "__main__":
    main()
