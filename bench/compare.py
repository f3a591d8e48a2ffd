"""Compare eager, argand and torch.compile on the demo's models: one subprocess each, a fresh cache directory each.

    python bench/compare.py [MODEL ...] [--short] [--no-torch] [--train] [--warm] [--seconds S] [--json OUT]
                            [--verdicts OUT]

Prints one table. --train measures training steps (forward, loss, backward) of the models that DESIGN.md names. With
--warm each system runs a second process on the cache that the first one left. Exits with 1 when an output
differs from eager's by more than 1e-4 of its largest value, or a model fails; with --verdicts also when a target is
missed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import verdicts
from bench_environment import environment

HERE = Path(__file__).resolve().parent
TOLERANCE = 1e-4
TRAINED = ["MobileBERT", "BERT", "GPT-2", "Llama", "ResNet-18"]
NAMES = ["MobileBERT", "BERT", "GPT-2", "Llama", "ResNet-18", "ViT", "T5", "ConvNeXt"]


def run_worker(system: str, model: str, cache: str, flags: list[str], seconds: float, timeout: float) -> dict[str, Any]:
    """One measurement in its own process, its caches under `cache`."""
    env = environment(cache)
    command = [sys.executable, str(HERE / "worker.py"), system, model, "--seconds", str(seconds)]
    try:
        done = subprocess.run(command + flags, env=env, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"system": system, "model": model, "error": f"no result within {timeout:.0f} s"}
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            result: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
            return result
    tail = (done.stderr or done.stdout).strip().splitlines()[-1:]
    return {"system": system, "model": model, "error": f"exit code {done.returncode}: {''.join(tail)[:300]}"}


def measure_all(
    names: list[str], systems: list[str], *, flags: list[str], warm: bool, seconds: float, console: Console
) -> dict[str, dict[str, dict[str, Any]]]:
    """`{model: {system: result}}`; with `warm`, `result["warm_s"]` too."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    results: dict[str, dict[str, dict[str, Any]]] = {}
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(names) * len(systems))
        for name in names:
            results[name] = {}
            for system in systems:
                progress.update(task, description=f"{name} with {'torch.compile' if system == 'torch' else system}")
                cache = tempfile.mkdtemp(prefix="argand-bench-")
                try:
                    result = run_worker(system, name, cache, flags, seconds, 600)
                    if warm and "error" not in result:
                        again = run_worker(system, name, cache, flags, 0.1, 600)
                        result["warm_s"] = again.get("first_call_s")
                finally:
                    shutil.rmtree(cache, ignore_errors=True)
                results[name][system] = result
                progress.advance(task)
                if not console.is_terminal:  # no live bar in a log: a line for each measurement instead
                    first = _cell(result, "first_call_s", 1, 2)
                    console.print(
                        f"{name} with {system}: first call {first} s, {_cell(result, 'speedup', 1, 2)} x eager"
                    )
    return results


def _cell(result: dict[str, Any] | None, key: str, scale: float, digits: int) -> str:
    value = None if result is None else result.get(key)
    return "-" if value is None else f"{value * scale:.{digits}f}"


def print_table(results: dict[str, dict[str, dict[str, Any]]], systems: list[str], what: str, console: Console) -> bool:
    """The table; True when every argand run is correct."""
    with_torch = "torch" in systems
    warm = any("warm_s" in r for row in results.values() for r in row.values())
    table = Table(title=f"eager / argand / torch.compile, {what}, CPU")
    table.add_column("model")
    for title in ("difference\nto eager", "eager\nms/step", "argand\nms/step", "argand\nx eager"):
        table.add_column(title, justify="right")
    if with_torch:
        table.add_column("torch.compile\nx eager", justify="right")
    table.add_column("argand\nfirst call s", justify="right")
    if with_torch:
        table.add_column("torch.compile\nfirst call s", justify="right")
    if warm:
        table.add_column("argand\nwarm s", justify="right")
        if with_torch:
            table.add_column("torch.compile\nwarm s", justify="right")
    good = True
    for name, row in results.items():
        ours, theirs = row.get("argand"), row.get("torch")
        error = (ours or {}).get("error")
        difference = (ours or {}).get("difference")
        ok = error is None and difference is not None and difference <= TOLERANCE
        good &= ok
        shown = "failed" if error else f"{difference:.1e}" if difference is not None else "-"
        cells = [name, shown if ok else f"[red]{shown}[/red]"]
        cells += [_cell(ours, "eager_step_s", 1e3, 1), _cell(ours, "step_s", 1e3, 1), _cell(ours, "speedup", 1, 2)]
        if with_torch:
            cells.append(_cell(theirs, "speedup", 1, 2))
        cells.append(_cell(ours, "first_call_s", 1, 2))
        if with_torch:
            cells.append(_cell(theirs, "first_call_s", 1, 2))
        if warm:
            cells.append(_cell(ours, "warm_s", 1, 2))
            if with_torch:
                cells.append(_cell(theirs, "warm_s", 1, 2))
        table.add_row(*cells)
    console.print(table)
    for name, row in results.items():
        for system, result in row.items():
            if "error" in result:
                console.print(f"[red]{name} ({system}):[/red] {result['error']}", highlight=False, markup=False)
    summarise(results, with_torch, console)
    return good


def summarise(results: dict[str, dict[str, dict[str, Any]]], with_torch: bool, console: Console) -> None:
    ours = [row["argand"]["speedup"] for row in results.values() if "speedup" in row.get("argand", {})]
    console.print(f"geometric mean of argand's speed over eager: {verdicts.geometric_mean(ours):.2f}")
    if not with_torch:
        return
    both = [row for row in results.values() if all("speedup" in row.get(s, {}) for s in ("argand", "torch"))]
    theirs = verdicts.geometric_mean([row["torch"]["speedup"] for row in both])
    waits = verdicts.geometric_mean([row["torch"]["first_call_s"] / row["argand"]["first_call_s"] for row in both])
    console.print(f"geometric mean of torch.compile's speed over eager: {theirs:.2f}")
    console.print(f"first call: torch.compile takes {waits:.1f} times as long as argand (geometric mean)")


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    ap.add_argument("models", nargs="*", help=f"of {', '.join(NAMES)}; all by default")
    ap.add_argument("--short", action="store_true", help="small variants of the models")
    ap.add_argument("--no-torch", action="store_true", help="leave torch.compile out")
    ap.add_argument("--train", action="store_true", help="training steps instead of inference")
    ap.add_argument("--warm", action="store_true", help="measure a second process on a warm cache too")
    ap.add_argument("--seconds", type=float, default=4.0, help="timing budget a model and system")
    ap.add_argument("--json", help="write the raw results here")
    ap.add_argument("--verdicts", help="judge by the targets of speed and first calls, and append that here, as JSON")
    args = ap.parse_args()
    names = args.models or (TRAINED if args.train else NAMES)
    if unknown := [n for n in names if n not in NAMES]:
        ap.error(f"unknown model {', '.join(unknown)}; known: {', '.join(NAMES)}")
    console = Console(width=None if sys.stdout.isatty() else 140)
    systems = ["argand"] if args.no_torch else ["argand", "torch"]
    flags = [f"--{name}" for name in ("short", "train") if getattr(args, name)]
    results = measure_all(names, systems, flags=flags, warm=args.warm, seconds=args.seconds, console=console)
    mode = "training" if args.train else "inference"
    good = print_table(results, systems, mode, console)
    if args.verdicts:
        good &= verdicts.finish(verdicts.of_programs("demo", mode, results, TOLERANCE), args.verdicts)
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
