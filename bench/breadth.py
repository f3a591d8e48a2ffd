"""Speed on programs that nobody tuned for: argand and torch.compile against eager, a process each, an empty cache each.

    python bench/breadth.py [PROGRAM ...] [--mode inference|training|both] [--systems argand,torch] [--seconds S]
                            [--together N] [--threads 2] [--quick] [--warm] [--json OUT] [--plot OUT.png]
                            [--verdicts OUT]

Steps of eager and of the compiled program are interleaved; the figure is the median over pairs of eager's time over
the compiled one's. The system "frozen" is argand with parameters as constants. --together N runs N processes at once,
each pinned to `--threads` cores of its own (only on a machine with that many idle cores). --warm measures the first
call of a second process too. --quick is eight programs for a second each.

After the tables, a verdict for each target; what misses by less than the noise of the figures is called so. Exits with
1 when a target is missed beyond noise, or an output or gradient differs from eager's by more than 2e-4 of the largest.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import verdicts
from bench_environment import environment, lanes, result_of, threads_of

TOLERANCE = 2e-4
QUICK = (
    "GPT by hand", "rotary decoder", "mobile (v3 small)", "densely connected", "LSTM tagger", "selective scan", "waves",
    "recommendation",
)  # fmt: skip
Results = dict[tuple[str, str, str], dict[str, Any]]  # by mode, program, system

# ----------------------------------------------------------------------- one process


def measured(system: str, name: str, mode: str, seconds: float) -> dict[str, Any]:
    """First call, difference from eager, step times and peak memory of one program, in this process."""
    import torch

    from breadth_programs import PROGRAMS
    from worker import leaves, relative_difference, step_times

    torch.manual_seed(0)
    module, inputs = PROGRAMS[name]()
    training = mode == "training"
    if training and system == "torch":
        module.train()  # else it compiles once for evaluation, in which gradients are compared, and once for training

    def step(call: Any) -> Any:
        if not training:
            with torch.no_grad():
                return leaves(call(*inputs))
        module.zero_grad(set_to_none=True)
        loss = leaves(call(*inputs))[0].float().pow(2).mean()
        loss.backward()
        return [loss.detach(), *(p.grad for p in module.parameters() if p.grad is not None)]

    want = [x.clone() for x in step(module)]
    begun = time.perf_counter()
    compiled = compiled_by(system, module)
    got = step(compiled)
    result: dict[str, Any] = {"first_call_s": time.perf_counter() - begun}
    largest = max(float(x.abs().max()) for x in want[1:]) if training else 0.0  # one scale for all gradients
    result["difference"] = (
        max(float((a - b).abs().max()) for a, b in zip(want[1:], got[1:])) / largest
        if training
        else relative_difference(want, got)
    )
    if seconds > 0:
        if training:
            module.train()
        step(compiled)
        result.update(step_times(lambda: step(module), lambda: step(compiled), seconds))
    result["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return result


def compiled_by(system: str, module: Any) -> Any:
    """The module compiled, in one graph or not, as users get it."""
    import torch

    if system in ("argand", "frozen"):
        import argand

        return argand.compile(module, options={"freezing": True} if system == "frozen" else None)
    return torch.compile(module)


# ----------------------------------------------------------------------- all of them


def in_process(
    system: str, name: str, mode: str, seconds: float, cache: str, cores: str, threads: int
) -> dict[str, Any]:
    """`measured` in a process of its own, on `cores` ("" is any)."""
    command = [sys.executable, __file__, "--worker", system, name, mode, "--seconds", str(seconds)]
    return result_of(command, environment(cache) | threads_of(threads), cores, 400)


def measure_all(args: argparse.Namespace, names: list[str], modes: list[str], systems: list[str]) -> Results:
    """All measurements, `args.together` at a time."""
    places = lanes(args.together, args.threads)

    def one(key: tuple[str, str, str]) -> tuple[tuple[str, str, str], dict[str, Any]]:
        mode, name, system = key
        cores = places.get()
        try:
            with tempfile.TemporaryDirectory() as cache:
                found = in_process(system, name, mode, args.seconds, cache, cores, args.threads)
                if args.warm and "error" not in found:
                    again = in_process(system, name, mode, 0.0, cache, cores, args.threads)
                    found["warm_s"] = again.get("first_call_s", math.nan)
        finally:
            places.put(cores)
        print(json.dumps([*key, found]), file=sys.stderr, flush=True)
        return key, found

    keys = [(mode, name, system) for mode in modes for name in names for system in systems]
    with ThreadPoolExecutor(args.together) as pool:
        return dict(pool.map(one, keys))


# ----------------------------------------------------------------------- tables and verdicts


def print_table(results: Results, mode: str, names: list[str], systems: list[str]) -> None:
    """One row a program."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{mode}: speed over eager, first call, peak memory")
    table.add_column("program")
    table.add_column("eager, ms", justify="right")
    for system in systems:
        for heading in ("speed", "first, s", "warm, s", "MB"):
            table.add_column(f"{system}: {heading}", justify="right")
    for name in names:
        rows = [results[mode, name, system] for system in systems]
        eager = [row["eager_step_s"] for row in rows if "eager_step_s" in row]
        cells = [f"{min(eager) * 1e3:.1f}" if eager else ""]
        for row in rows:
            if "error" in row:
                cells += [row["error"][:40], "", "", ""]
                continue
            cells.append(f"{row['speedup']:.2f}" if "speedup" in row else "")
            cells.append(f"{row['first_call_s']:.1f}")
            cells.append(f"{row['warm_s']:.2f}" if "warm_s" in row else "")
            cells.append(f"{row['peak_mb']:.0f}")
        table.add_row(name, *cells)
    Console(width=None if sys.stdout.isatty() else 150).print(table)


def plot(results: Results, modes: list[str], names: list[str], systems: list[str], path: str) -> None:
    """Bars of speeds over eager."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(modes), 1, figsize=(13, 4 * len(modes)), squeeze=False)
    for axis, mode in zip(axes[:, 0], modes):
        for place, system in enumerate(systems):
            heights = [results[mode, name, system].get("speedup", 0.0) for name in names]
            axis.bar([n + 0.4 * place for n in range(len(names))], heights, 0.4, label=system)
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set_xticks([n + 0.2 for n in range(len(names))], names, rotation=40, ha="right", fontsize=8)
        axis.set_ylabel("speed over eager")
        axis.set_title(mode)
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def main() -> int:
    ap = argparse.ArgumentParser()
    ap.add_argument("programs", nargs="*")
    ap.add_argument("--mode", default="both", choices=["inference", "training", "both"])
    ap.add_argument("--systems", default="argand,torch")
    ap.add_argument("--seconds", type=float, default=4.0)
    ap.add_argument("--together", type=int, default=1)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--quick", action="store_true")
    ap.add_argument("--warm", action="store_true")
    ap.add_argument("--json")
    ap.add_argument("--plot")
    ap.add_argument("--verdicts", help="append the verdicts here, as JSON")
    ap.add_argument("--worker", nargs=3, metavar=("SYSTEM", "PROGRAM", "MODE"), help=argparse.SUPPRESS)
    args = ap.parse_args()
    if args.worker:
        try:
            result = measured(*args.worker, seconds=args.seconds)
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"[:500]}
        print("RESULT " + json.dumps(result))
        return 0
    from breadth_programs import PROGRAMS

    names = args.programs or [*(QUICK if args.quick else PROGRAMS)]
    args.seconds = min(args.seconds, 1.0) if args.quick else args.seconds
    modes = ["inference", "training"] if args.mode == "both" else [args.mode]
    systems = args.systems.split(",")
    results = measure_all(args, names, modes, systems)
    if args.json:
        Path(args.json).write_text(json.dumps([[*key, found] for key, found in results.items()], indent=1))
    found: list[verdicts.Verdict] = []
    for mode in modes:
        print_table(results, mode, names, systems)
        if "argand" in systems:
            rows = {name: {system: results[mode, name, system] for system in systems} for name in names}
            found += verdicts.of_programs("breadth", mode, rows, TOLERANCE)
    good = verdicts.finish(found, args.verdicts)
    if args.plot:
        plot(results, modes, names, systems, args.plot)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
