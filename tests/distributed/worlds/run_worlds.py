"""Random worlds of several processes, trained by eager and by argand: where is what they end with another?

    python -m tests.distributed.worlds.run_worlds ddp [--count 100] [--first 0] [--ranks 2] [--backend native] [--only 17]

Kinds: ddp, fsdp, tp, both (4 ranks), pipeline. With RANKS_DEVICE=cuda in the environment each rank has a GPU, and NCCL.
The processes are started once, and again behind a world that ended one of them; a world whose ranks do not answer within two minutes is a difference. What eager raises, argand has to raise.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import argand

KINDS = ("ddp", "fsdp", "tp", "both", "pipeline")
TOLERANCE = {"eager": 1e-5, "aot_eager": 1e-5, "native": 2e-4}
LONGEST = 120.0  # seconds of a world


def world_of(kind: str, seed: int, backend: str = "") -> tuple[dict[str, Any], str]:
    """The world of a seed, and the backend that compiles it."""
    chance = random.Random(f"{kind} {seed}")
    world = importlib.import_module(f"distributed.worlds.{kind}_worlds").drawn(chance)
    backend = backend or chance.choice(["eager", "aot_eager", "native", "native"])
    return world, "aot_eager" if rounds(world) and backend == "native" else backend


def rounds(world: dict[str, Any]) -> bool:
    """Whether it computes with few bits: kernels that round at other places than eager's are then far from it."""
    return bool(world.get("autocast")) or any(name in repr(world) for name in ("bfloat16", "bf16", "fp16"))


def difference(ours: list[Any], eager: list[Any], least: float) -> tuple[float, int]:
    """The largest error, relative to the size of the tensor's values, and where it is.

    Arguments:
        least: that size is taken as this where it is less: gradients that ought to be 0 are noise.
    """
    if len(ours) != len(eager):
        return float("inf"), -1
    worst, place = 0.0, -1
    for number, (a, b) in enumerate(zip(ours, eager)):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            if a.shape != b.shape or a.dtype != b.dtype or a.requires_grad != b.requires_grad:
                return float("inf"), number
            a, b = a.detach().double(), b.detach().double()
            error = float(((a - b).abs().max() / b.abs().max().clamp(min=least))) if a.numel() else 0.0
            error = error if error == error or not (a.isnan() ^ b.isnan()).any() else float("inf")
        else:
            error = 0.0 if type(a) is type(b) and a == b else float("inf")
        if error > worst:
            worst, place = error, number
    return worst, place


def outcome(train: Any, rank: int, world: dict[str, Any], backend: str) -> list[Any] | str:
    argand.reset()
    try:
        return [
            v.detach().clone().requires_grad_(v.requires_grad) if isinstance(v, torch.Tensor) else v
            for v in train(rank, world, backend)
        ]
    except Exception as error:
        _last[:] = [traceback.format_exc()]
        return f"{type(error).__name__}: {error}".splitlines()[0][:200]


_last: list[str] = []


def compared(train: Any, rank: int, world: dict[str, Any], backend: str) -> str:
    """What differs; "" for nothing."""
    ours, ours_raised = outcome(train, rank, world, backend), list(_last)
    _last.clear()
    eager = outcome(train, rank, world, "")
    if isinstance(eager, str) or isinstance(ours, str):
        if isinstance(eager, str) and "closed by peer" in eager:
            return "both: another rank has ended"
        if isinstance(eager, str) and isinstance(ours, str) and eager.split(":")[0] == ours.split(":")[0]:
            return f"both: {eager}"
        text = (ours_raised or [""])[0] if isinstance(ours, str) else ""
        return f"RAISES argand: {ours if isinstance(ours, str) else 'no'}, eager: {eager if isinstance(eager, str) else 'no'}\n{text}"
    low = rounds(world) and backend != "eager"
    error, place = difference(ours, eager, 0.05 if low else 1e-3)
    limit = 0.03 if low else TOLERANCE[backend]
    return (
        ""
        if error <= limit
        else f"DIFFERS {error:.2e} at {place} of {len(eager)}: {shown(ours, place)}, eager's {shown(eager, place)}"
    )


def shown(values: list[Any], place: int) -> str:
    """One of the values, in short."""
    value = values[place]
    return (
        f"{value.dtype} {tuple(value.shape)} {value.requires_grad}"
        if isinstance(value, torch.Tensor)
        else repr(value)[:200]
    )


# ------------------------------------------------------------------------- ranks


def become_rank(rank: int, options: Any, folder: Path, seeds: list[int]) -> None:
    """Run worlds, a line of JSON each."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    warnings.simplefilter("ignore")
    on_gpu = os.environ.get("RANKS_DEVICE") == "cuda"
    if on_gpu:
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=options.ranks,
        timeout=datetime.timedelta(seconds=30),
    )  # fmt: skip
    train = importlib.import_module(f"distributed.worlds.{options.kind}_worlds").train
    with open(folder / f"{rank}.jsonl", "a") as stream:
        for seed in seeds:
            world, backend = world_of(options.kind, seed, options.backend)
            found = compared(train, rank, world, backend)
            stream.write(json.dumps([seed, found]) + "\n")
            stream.flush()
            if found:  # the ranks may be apart now
                os._exit(0)
            dist.barrier()
    os._exit(0)


def read(folder: Path, rank: int) -> dict[int, str]:
    path = folder / f"{rank}.jsonl"
    return dict(json.loads(line) for line in path.read_text().splitlines()) if path.exists() else {}


def run_some(options: Any, seeds: list[int]) -> list[tuple[int, str]]:
    """Worlds until one ends the ranks: what was found."""
    with tempfile.TemporaryDirectory() as name:
        folder, children = Path(name), []
        for rank in range(options.ranks):
            if not (child := os.fork()):
                torch.set_num_threads(1)  # torch 2.11 renews its pool of threads here; two threads at once would fail
                output = os.open(folder / f"{rank}.txt", os.O_WRONLY | os.O_CREAT)
                os.dup2(output, 1)
                os.dup2(output, 2)
                try:
                    become_rank(rank, options, folder, seeds)
                except BaseException:
                    traceback.print_exc()
                    sys.stderr.flush()
                    os._exit(1)
            children.append(child)
        alive, count, since = set(children), 0, time.monotonic()
        while alive:
            for child in list(alive):
                if os.waitpid(child, os.WNOHANG)[0]:
                    alive.discard(child)
            done = sum(len(read(folder, rank)) for rank in range(options.ranks))
            if done > count:
                count, since = done, time.monotonic()
            if time.monotonic() - since > (LONGEST if len(alive) == len(children) else 40.0):
                for child in alive:
                    os.kill(child, signal.SIGKILL)
            time.sleep(0.02)
        answers = [read(folder, rank) for rank in range(options.ranks)]
        found = []
        for seed in seeds:
            texts = [answer.get(seed) for answer in answers]
            if all(text == "" for text in texts):
                found.append((seed, ""))
                continue
            if all(text is not None and text.startswith("both:") for text in texts):
                return [*found, (seed, texts[0] or "")]
            tails = [
                ended[:1500] + (ended[1500:] and f" ... {ended[-1500:]}")
                for rank in range(options.ranks)
                if texts[rank] is None and (ended := (folder / f"{rank}.txt").read_text())
            ]
            return [*found, (seed, "\n".join([*(f"rank {r}: {t}" for r, t in enumerate(texts)), *tails]))]
        return found


def run_worlds(options: Any, seeds: list[int]) -> dict[int, str]:
    """What was found of each seed; "" for nothing."""
    found: dict[int, str] = {}
    while seeds:
        for seed, text in run_some(options, seeds):
            found[seed] = text
            if text and not options.quiet:
                world, backend = world_of(options.kind, seed, options.backend)
                plain = {key: value for key, value in world.items() if value not in ("", False)}
                print(f"--- {options.kind} {seed} {backend} {plain}\n{text}", flush=True)
        seeds = [seed for seed in seeds if seed not in found]
    return found


def parsed(arguments: list[str]) -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--backend", default="")
    parser.add_argument("--only", type=int, default=-1)
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args(arguments)
    options.ranks = options.ranks or (4 if options.kind == "both" else 2)
    return options


def main() -> None:
    options = parsed(sys.argv[1:])
    sys.path.insert(0, str(Path(__file__).parents[2]))
    import torch.distributed.tensor

    from argand.debug.trial.process import warm as import_compiler

    import_compiler()
    torch.set_num_threads(1)
    importlib.import_module(f"distributed.worlds.{options.kind}_worlds")
    seeds = [options.only] if options.only >= 0 else list(range(options.first, options.first + options.count))
    begun = time.monotonic()
    found = run_worlds(options, seeds)
    refused = sum(text.startswith("both:") for text in found.values())
    differ = sum(bool(text) and not text.startswith("both:") for text in found.values())
    spent = time.monotonic() - begun
    print(f"{options.kind}: {len(found)} worlds, {refused} refused by eager too, {differ} differ; {spent:.0f} s")
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
