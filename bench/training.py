"""Training steps of programs that no other bench has: speed and peak memory beside eager, in processes of their own.

    python bench/training.py [PROGRAM ...] [--systems argand,torch] [--way loss|step] [--seconds S]
                             [--together N] [--threads 2] [--json OUT]

The system compiles the loss (`--way loss`: backward and optimizer are called outside) or the whole step (`--way step`).
Three steps with the same batch are compared with eager's: losses, and the gradients of the first over the largest
(later ones differ by more where an optimizer takes what is rounded for a direction).
Then steps of eager and of the compiled program take turns; the figure is the median over pairs of eager's time over the
compiled one's. Peak memory is the highest resident set during a step over the resident set before it, in processes of
their own. --together N runs N processes at once, each pinned to `--threads` cores of its own. Exits with 1 where losses
or gradients differ by more than 1e-3 (5e-2 under autocast), or a program failed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench_environment import environment, lanes, result_of, threads_of

SYSTEMS = {"eager": "eager", "argand": "argand", "torch": "torch.compile"}
Step = Callable[[], Any]

# ----------------------------------------------------------------------- one process


def step_of(name: str, system: str, way: str) -> tuple[Any, Step]:
    """The module, with the same weights in each call, and what trains it by one step."""
    import torch

    from training_programs import PROGRAMS

    torch.manual_seed(0)
    module, batch, loss, optimizer_of = PROGRAMS[name]()
    optimizer = optimizer_of(module)
    compiled: Callable[[Any], Any] = lambda function: function  # noqa: E731
    if system == "argand":
        import argand

        compiled = argand.compile
    elif system == "torch":
        compiled = torch.compile

    def whole(*batch: Any) -> Any:
        optimizer.zero_grad()
        value = loss(module, *batch)
        value.backward()
        optimizer.step()
        return value.detach()

    if way == "step":
        run = compiled(whole)
        return module, lambda: run(*batch)
    forward = compiled(lambda *batch: loss(module, *batch))

    def step() -> Any:
        optimizer.zero_grad()
        value = forward(*batch)
        value.backward()
        optimizer.step()
        return value.detach()

    return module, step


def settle(step: Step) -> None:
    """Until no compiler runs beside this process: what is compiled meanwhile is taken from the next step on."""
    tasks = Path("/proc/self/task")
    for _ in range(100):
        step()
        if not any((task / "children").read_text().split() for task in tasks.iterdir()):
            break
        time.sleep(0.2)
    for _ in range(3):
        step()


def gradients_of(module: Any) -> list[Any]:
    """Copies of the gradients that a step left."""
    return [None if p.grad is None else p.grad.float().clone() for p in module.parameters()]


def measured(name: str, system: str, way: str, seconds: float) -> dict[str, Any]:
    """Differences from eager and step times."""
    from worker import step_times

    model, eager = step_of(name, "eager", way)
    want = [float(eager())]
    expected = gradients_of(model)
    want += [float(eager()) for _ in range(2)]
    begun = time.perf_counter()
    other, compiled = step_of(name, system, way)
    got = [float(compiled())]
    result: dict[str, Any] = {"first_call_s": time.perf_counter() - begun}
    pairs = list(zip(expected, gradients_of(other)))
    got += [float(compiled()) for _ in range(2)]
    result["loss"] = max(abs(a - b) / (abs(a) + 1e-9) for a, b in zip(want, got))
    if any((a is None) != (b is None) for a, b in pairs):
        raise AssertionError("other parameters have gradients")
    grads = [(a, b) for a, b in pairs if a is not None]
    largest = max(float(a.abs().max()) for a, _ in grads)
    result["gradients"] = max(float((a - b).abs().max()) for a, b in grads) / largest
    settle(compiled)
    return {**result, **step_times(eager, compiled, seconds)}


def memory(name: str, system: str, way: str) -> dict[str, Any]:
    """Peak of a step over what is held between steps, in MiB: the median of five."""
    from memory import at_rest, status

    _, step = step_of(name, system, way)
    for _ in range(3):
        step()
    settle(step)
    peaks = []
    for _ in range(5):
        before = at_rest(system)
        Path("/proc/self/clear_refs").write_text("5")  # forget the highest resident set
        step()
        peaks.append(status("VmHWM") - before)
    return {"step_mb": sorted(peaks)[2]}


# ----------------------------------------------------------------------- all of them


def in_process(job: tuple[str, str, str], args: argparse.Namespace, cores: str) -> dict[str, Any]:
    """A measurement in a process of its own, on `cores` ("" is any)."""
    command = [sys.executable, __file__, "--worker", *job, "--way", args.way, "--seconds", str(args.seconds)]
    with tempfile.TemporaryDirectory() as cache:
        return result_of(command, environment(cache) | threads_of(args.threads), cores, 600)


def measure_all(names: list[str], args: argparse.Namespace) -> dict[tuple[str, str, str], dict[str, Any]]:
    """All measurements, `args.together` at a time."""
    places = lanes(args.together, args.threads)
    jobs = [("speed", name, system) for name in names for system in args.systems.split(",")]
    jobs += [("memory", name, system) for name in names for system in ("eager", "argand")]

    def one(job: tuple[str, str, str]) -> dict[str, Any]:
        cores = places.get()
        try:
            result = in_process(job, args, cores)
        finally:
            places.put(cores)
        print(json.dumps([*job, result]), file=sys.stderr, flush=True)
        return result

    with ThreadPoolExecutor(args.together) as pool:
        return dict(zip(jobs, pool.map(one, jobs)))


def mean(values: list[float]) -> float:
    """The geometric mean; nan of nothing."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def show(names: list[str], systems: list[str], results: dict[tuple[str, str, str], dict[str, Any]]) -> bool:
    """Print the table; whether all is as in eager."""
    titles = [text for s in systems for text in (SYSTEMS[s], "first call, s")]
    print(f"| | {' | '.join(titles)} | peak of eager's | loss | gradients |")
    print("| --- |" + " --- |" * (len(titles) + 3))
    good = True
    for name in names:
        cells = []
        for system in systems:
            speed = results["speed", name, system]
            cells += [f"{speed.get('speedup', math.nan):.2f}", f"{speed.get('first_call_s', math.nan):.1f}"]
        own = results["speed", name, systems[0]]
        peak, eager = (results["memory", name, s].get("step_mb", math.nan) for s in ("argand", "eager"))
        differences = [own.get(part, math.nan) for part in ("loss", "gradients")]
        good &= all(difference <= (5e-2 if "autocast" in name else 1e-3) for difference in differences)
        cells += [f"{peak / eager:.2f}", *(f"{difference:.0e}" for difference in differences)]
        print(f"| {name} | {' | '.join(cells)} |")
    for system in systems:
        speeds = [results["speed", name, system].get("speedup") for name in names]
        print(f"{SYSTEMS[system]}: {mean([speed for speed in speeds if speed]):.2f} of eager's speed in geometric mean")
    return good


def main() -> int:
    from training_programs import PROGRAMS

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=", ".join(PROGRAMS))
    parser.add_argument("--systems", default="argand,torch")
    parser.add_argument("--way", choices=["loss", "step"], default="loss", help="what is compiled")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--together", type=int, default=1)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--json", help="write all figures here")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        what, name, system = args.worker
        result = memory(name, system, args.way) if what == "memory" else measured(name, system, args.way, args.seconds)
        print("RESULT " + json.dumps(result))
        return 0
    names = args.programs or list(PROGRAMS)
    results = measure_all(names, args)
    if args.json:
        Path(args.json).write_text(json.dumps([[*job, result] for job, result in results.items()]))
    return 0 if show(names, args.systems.split(","), results) else 1


if __name__ == "__main__":
    sys.exit(main())
