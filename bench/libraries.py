"""Programs over real libraries: eager, argand and torch.compile, each program in a process of its own.

    python bench/libraries.py [NAME ...] [--torch [--torch-backend eager]] [--fast] [--breaks] [--markdown] [--json OUT]

Prints one table, and a summary of it: whether a few training or inference steps are equal to eager's, graph breaks (and
which), recompiles, seconds of the first step, and the ratio of step times. `--torch` adds torch.compile's; with its
backend "eager" only its breaks and recompiles, which takes a tenth of the time. "3 + 5" of either: three graphs end at
a break, and five more functions run as they are written, because their graph would break (torch.compile's own count
leaves these out). `--breaks` prints where the graph breaks, and what was compiled again and why, for each program, and
last how often over all. NAME is a part of
a program's name, or an area (a module of `bench/library_programs`). OUT gets each result as it comes; what it already
has is not measured again, but with `--again`. Needs `pip install .[libraries]`; a program whose library is missing is
left out. Exits with 1 when a program fails or differs from eager.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import math
import pkgutil
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import library_programs
from bench_environment import environment
from library_programs.program import Program

Result = dict[str, Any]


def programs(area: str = "") -> dict[str, Program]:
    """Every program by name, of one area or of all."""
    found: dict[str, Program] = {}
    for module in pkgutil.iter_modules(library_programs.__path__):
        if module.name == "program" or area not in ("", module.name):
            continue
        ours: dict[str, Program] = importlib.import_module(f"library_programs.{module.name}").PROGRAMS
        assert not found.keys() & ours.keys(), f"two programs of one name: {found.keys() & ours.keys()}"
        found.update(ours)
    return found


def installed(program: Program) -> bool:
    try:
        importlib.metadata.version(program.library)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


# -- in the process of one program ------------------------------------------------------------------------------------


ROUNDING = 2.0**-16
"""Of the largest gradient: what others differ by where they are sums of values that cancel."""


def largest(result: Any) -> float:
    """The largest value of all tensors of a result."""
    import torch
    from torch.utils import _pytree as pytree

    tensors = [t.abs() for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor) and t.numel()]
    return max([0.0, *(float(torch.nan_to_num(t).max()) for t in tensors)])


def difference(want: Any, got: Any, least: float = 0.0) -> float:
    """The largest difference beyond `least` over the largest value; infinite where structure, kind or size differ."""
    import torch

    if isinstance(want, torch.Tensor) or isinstance(got, torch.Tensor):
        if not (isinstance(want, torch.Tensor) and isinstance(got, torch.Tensor)):
            return float("inf")
        if want.shape != got.shape or want.dtype != got.dtype:
            return float("inf")
        if not want.numel():
            return 0.0
        wide = torch.complex128 if want.is_complex() else torch.float64
        a, b = (torch.nan_to_num(t.detach().to(wide), nan=1e30, posinf=2e30, neginf=-2e30) for t in (want, got))
        return max(float((a - b).abs().max()) - least, 0.0) / (float(a.abs().max()) or 1.0)
    if isinstance(want, float) and isinstance(got, float):
        return 0.0 if want == got or (want != want and got != got) else abs(want - got) / (abs(want) or 1.0)
    if isinstance(want, dict) and isinstance(got, dict):
        if list(want) != list(got):
            return float("inf")
        rounding = {"gradients": ROUNDING * largest(want.get("gradients"))}
        return max([0.0, *(difference(want[key], got[key], rounding.get(key, least)) for key in want)])
    if isinstance(want, (list, tuple)) and isinstance(got, (list, tuple)):
        if len(want) != len(got):
            return float("inf")
        return max([0.0, *(difference(a, b, least) for a, b in zip(want, got))])
    return 0.0 if type(want) is type(got) and want == got else float("inf")


def kept(result: Any) -> Any:
    """A copy of a step's result, which later steps do not change."""
    import torch
    from torch.utils import _pytree as pytree

    return pytree.tree_map(lambda t: t.detach().clone() if isinstance(t, torch.Tensor) else t, result)


def seed_all(number: int) -> None:
    """Libraries draw from each of the three."""
    import numpy
    import torch

    torch.manual_seed(number)
    numpy.random.seed(number)
    random.seed(number)


def run_steps(program: Program, compile: Callable[..., Any]) -> tuple[Callable[[], Any], list[Any], list[float]]:
    """(the step, the results of the first few, the seconds that each took)."""
    seed_all(0)
    step = program.make(compile)
    results, seconds = [], []
    for number in range(program.steps):
        seed_all(number)
        start = time.perf_counter()
        result = step()
        seconds.append(time.perf_counter() - start)
        results.append(kept(result))
    return step, results, seconds


@contextlib.contextmanager
def counting_ours(result: Result) -> Iterator[None]:
    from argand.capture.driver.explain import Findings

    findings = Findings()
    with findings.listening():
        yield
    result["graphs"] = len(findings.graphs)
    result["given_up"] = len(findings.left_to_python)
    result["breaks"] = len(findings.breaks) - result["given_up"]
    result["break_ids"] = dict(Counter(reason.id for reason in findings.breaks).most_common())
    result["recompiles"] = len(findings.recompiles)
    result["where"] = [
        f"{reason.id} {reason.kind}: {reason.context} | "
        + " < ".join(
            f"{Path(line.filename).name}:{line.lineno} {line.function}" for line in reversed(reason.where[-3:])
        )
        + (f" | {reason.where[-1].text}" if reason.where else "")
        for reason in findings.breaks
    ]
    result["why_again"] = [str(recompile) for recompile in findings.recompiles]


@contextlib.contextmanager
def counting_theirs(result: Result) -> Iterator[None]:
    import torch._dynamo.utils as utils

    utils.set_compilation_metrics_limit(100_000)
    yield
    result["breaks"] = sum(utils.counters["graph_break"].values())
    result["graphs"] = utils.counters["stats"]["unique_graphs"]
    ids = [metrics.compile_id or "" for metrics in utils.get_compilation_metrics()]
    # Functions that it leaves to Python as their graph breaks in a loop or a `with`, which it does not count.
    result["given_up"] = sum(1 for metrics in utils.get_compilation_metrics() if metrics.fail_type)
    result["recompiles"] = len({each for each in ids if "/" in each and not each.split("/")[1].startswith("0")})
    result["where"] = [f"{count} x {why[:300]}" for why, count in utils.counters["graph_break"].items()]


def compiler(system: str, backend: str) -> Callable[..., Any]:
    if system == "argand":
        import argand

        argand.config.fallback_random = True  # draws are compared with eager's
        return lambda fn, **options: argand.compile(fn, **{"backend": backend, **options})
    import torch

    return lambda fn, **options: torch.compile(fn, **{"backend": backend, **options})


def settle(system: str, step: Callable[[], Any]) -> int:
    """Steps until nothing is compiled any more, and argand has decided which graphs eager's kernels run: what makes new
    classes in each step is left alone after some of them. Returns how many."""
    if system == "argand":
        from argand.events import Event, bus

        heard: list[Event] = []
        stop, quiet = bus.subscribe(heard.append, ("frame_start", "span_end", "fallback", "slower")), QUIET_STEPS

        def count() -> int:
            """Backwards are compiled when they run first, and small graphs are compared with eager's kernels later."""
            return sum(event.data.get("span", "compile_graph") == "compile_graph" for event in heard)

    else:
        import torch._dynamo.utils as utils

        count, stop, quiet = lambda: len(utils.get_compilation_metrics()), lambda: None, 1
    steps = since = 0
    before = count()
    end = time.perf_counter() + SETTLE_SECONDS
    while since < quiet and steps < MOST_STEPS and (time.perf_counter() < end or not steps):
        step()
        steps, since = steps + 1, since + 1
        if count() != before:
            before, since = count(), 0
    stop()
    return steps


QUIET_STEPS = 100
"""More calls than from one comparison of a small graph with eager's kernels to the next, twice, and than it takes to
time frames beside their own code, those within them first."""
MOST_STEPS = 250
SETTLE_SECONDS = 20


def step_ratio(eager: Callable[[], Any], compiled: Callable[[], Any], seconds: float) -> Result:
    """Interleaved medians."""
    pairs: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while len(pairs) < 3 or (time.perf_counter() < end and len(pairs) < 200):
        taken = []
        for fn in (eager, compiled):
            start = time.perf_counter()
            fn()
            taken.append(time.perf_counter() - start)
        pairs.append((taken[0], taken[1]))
    return {
        "eager_step_s": statistics.median(a for a, _ in pairs),
        "step_s": statistics.median(b for _, b in pairs),
        "ratio": statistics.median(a / b for a, b in pairs),
    }


def ready_torchvision() -> None:
    """A torchvision built for another torch (the index has CUDA's alone) imports if the operators it asks for exist."""
    import torch

    with contextlib.suppress(RuntimeError, OSError):
        kernels = importlib.metadata.distribution("torchvision").locate_file("torchvision/_C.so")
        torch.ops.load_library(str(kernels))
        return
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def measure(name: str, area: str, system: str, backend: str, seconds: float) -> Result:
    """One program under one system. The compiled one runs first, while the library's own caches are empty."""
    program = programs(area)[name]
    result: Result = {"name": name, "system": system, "backend": backend}
    compile = compiler(system, backend)
    with counting_ours(result) if system == "argand" else counting_theirs(result):
        compiled, got, taken = run_steps(program, compile)
    result["first_s"] = taken[0]
    result["steps_s"] = sum(taken)
    eager, want, _ = run_steps(program, lambda fn, **options: fn)
    result["differences"] = [difference(a, b) for a, b in zip(want, got)]
    result["equal"] = max(result["differences"]) <= program.tolerance
    if program.timed and seconds:
        for _ in range(settle(system, compiled)):
            eager()  # what a program gathers is as much for both
        result.update(step_ratio(eager, compiled, seconds))
    return result


# -- over all programs ------------------------------------------------------------------------------------------------


def run_one(
    name: str, area: str, system: str, options: argparse.Namespace, script: Path, more: Sequence[str] = ()
) -> Result:
    """One measurement by a script of this folder in a process of its own, with an empty cache."""
    cache = tempfile.mkdtemp(prefix="argand-libraries-")
    env = environment(cache) | {"HF_HUB_OFFLINE": "1"}
    if options.threads:  # with more threads than free cores a step waits for those that do not run
        env["OMP_NUM_THREADS"] = env["MKL_NUM_THREADS"] = str(options.threads)
    command = [sys.executable, str(script.resolve()), name, "--one", area, system, *more]
    try:
        done = subprocess.run(
            [*command, "--seconds", str(options.seconds)],
            env=env,
            cwd=cache,
            capture_output=True,
            text=True,
            timeout=options.timeout,
        )
    except subprocess.TimeoutExpired:
        return {"name": name, "system": system, "error": f"no result within {options.timeout:.0f} s"}
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            result: Result = json.loads(line.removeprefix("RESULT "))
            return result
    tail = (done.stderr or done.stdout).strip().splitlines()[-1:]
    return {"name": name, "system": system, "error": f"exit code {done.returncode}: {''.join(tail)[:300]}"}


TITLES = ["program", "equal", "breaks", "recompiles", "first step s", "x eager"]
TORCH_TITLES = ["torch.compile: equal", "breaks", "recompiles", "first step s", "x eager"]
COUNTS = slice(0, 3)
"""Of a system's columns, those that its backend has no part in."""


def cells(result: Result | None) -> list[str]:
    """A system's columns."""
    if result is None or "error" in result:
        return ["failed" if result else "-", "", "", "", ""]
    ratio = f"{result['ratio']:.2f}" if "ratio" in result else "-"
    equal = "yes" if result["equal"] else f"no ({max(result['differences']):.0e})"
    first = "-" if result["backend"] == "eager" else f"{result['first_s']:.1f}"
    given_up = f" + {result['given_up']}" if result.get("given_up") else ""
    return [equal, f"{result['breaks']}{given_up}", str(result["recompiles"]), first, ratio]


def rows(results: dict[str, dict[str, Result]], theirs: slice) -> list[list[str]]:
    """The table; `theirs` are torch.compile's columns in it."""
    titles = TITLES + TORCH_TITLES[theirs]
    return [titles] + [
        [name, *cells(row.get("argand")), *cells(row.get("torch"))[theirs]] for name, row in results.items()
    ]


def print_table(table: list[list[str]], markdown: bool) -> None:
    if markdown:
        lines = ["| " + " | ".join(row) + " |" for row in table]
        print("\n".join([lines[0], "| --- |" + " --- |" * (len(table[0]) - 1), *lines[1:]]))
        return
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    for row in table:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())


SLOWER = 1.3
"""A step that takes so many times as long as eager's is a bug."""


def summary(results: dict[str, dict[str, Result]]) -> str:
    """What the table says, in sentences."""
    ours = [row["argand"] for row in results.values() if "argand" in row]
    ran = [each for each in ours if "error" not in each]
    slow = [each["name"] for each in ran if each.get("ratio", 1.0) < 1 / SLOWER]
    sentences = [
        f"{len(ours)} programs: {sum(1 for each in ran if each['equal'])} equal to eager, "
        f"{sum(1 for each in ran if not each['breaks'])} without a graph break, {len(slow)} with a step slower than "
        f"eager's by more than {SLOWER}x{': ' if slow else ''}{', '.join(slow)}."
    ]
    both = [
        (row["argand"], row["torch"])
        for row in results.values()
        if all(system in row and "error" not in row[system] for system in ("argand", "torch"))
    ]
    if not both:
        return sentences[0]
    sums = {key: [sum(each[key] for each in side) for side in zip(*both)] for key in ("breaks", "recompiles")}
    at_most = {key: sum(1 for a, b in both if a[key] <= b[key]) for key in sums}
    unbroken = [sum(1 for each in side if not each["breaks"]) for side in zip(*both)]
    sentences.append(
        f"Of {len(both)} that run under both, {unbroken[0]} have no break ({unbroken[1]} with torch.compile), "
        f"{at_most['breaks']} break and {at_most['recompiles']} recompile at most as often as with torch.compile; "
        f"over all {sums['breaks'][0]} breaks ({sums['breaks'][1]}) and {sums['recompiles'][0]} recompiles "
        f"({sums['recompiles'][1]})."
    )
    timed = [(a, b) for a, b in both if "ratio" in a and "ratio" in b]
    if timed:
        means = [math.exp(statistics.fmean(math.log(each["ratio"]) for each in side)) for side in zip(*timed)]
        firsts = [statistics.median(each["first_s"] for each in side) for side in zip(*timed)]
        sentences.append(
            f"Of the {len(timed)} whose steps were timed under both, a step is {means[0]:.2f} times as fast as eager's "
            f"({means[1]:.2f} with torch.compile; geometric means), and the first takes {firsts[0]:.1f} s "
            f"({firsts[1]:.1f}; medians)."
        )
    return " ".join(sentences)


def print_breaks(results: dict[str, dict[str, Result]]) -> None:
    """Each program's breaks and recompiles, then the reasons of all, most frequent first."""
    reasons: Counter[str] = Counter()
    for name, row in results.items():
        for system, result in row.items():
            for title, key in (("breaks", "where"), ("recompiles", "why_again")):
                if result.get(key):
                    print(f"\n== {name}, {system}: {title}")
                    for text, count in Counter(result[key]).most_common():
                        print(f"{count:4d} x {text}")
        reasons.update(text.split(" | ")[0] for text in row.get("argand", {}).get("where", ()))
    print("\n== causes over all programs")
    for text, count in reasons.most_common():
        print(f"{count:4d} x {text}")


def chosen(options: argparse.Namespace) -> Iterator[tuple[str, str, Program]]:
    """(name, area, program) of those to run."""
    for module in pkgutil.iter_modules(library_programs.__path__):
        if module.name == "program":
            continue
        for name, program in programs(module.name).items():
            wanted = not options.names or any(part in name or part == module.name for part in options.names)
            if not wanted or (options.fast and not program.fast):
                continue
            if not installed(program):
                print(f"{name}: left out, {program.library} is not installed", flush=True)
                continue
            yield name, module.name, program


def said(result: Result) -> str:
    """A result in a few lines."""
    if "error" in result:
        return str(result["error"])
    return f"{', '.join(cells(result))} {result.get('break_ids', '')}"


def all_results(options: argparse.Namespace) -> dict[str, dict[str, Result]]:
    """Of the programs that were asked for; the file that is kept may have others."""
    kept = Path(options.json) if options.json else None
    stored: dict[str, dict[str, Result]] = json.loads(kept.read_text()) if kept and kept.exists() else {}
    names = []
    backends = {"argand": options.backend} | ({"torch": options.torch_backend} if options.torch else {})
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = {}
        for name, area, _ in chosen(options):
            names.append(name)
            row = stored.setdefault(name, {})
            for system, backend in backends.items():
                if system not in row or options.again:
                    run = pool.submit(run_one, name, area, system, options, Path(__file__), ["--backend", backend])
                    runs[run] = (name, system)
        for run in as_completed(runs):
            name, system = runs[run]
            result = stored[name][system] = run.result()
            print(f"{name} ({system}): {said(result)}", flush=True)
            if kept:
                kept.write_text(json.dumps(stored, indent=1))
    return {name: stored[name] for name in names}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--torch", action="store_true", help="torch.compile's counts and times too")
    parser.add_argument("--fast", action="store_true", help="the half of the programs that takes little time")
    parser.add_argument("--breaks", action="store_true", help="say where graphs break and why code is compiled again")
    parser.add_argument("--backend", default="native", help='argand\'s; "eager" counts breaks sooner')
    parser.add_argument("--torch-backend", default="inductor", help='torch.compile\'s; "eager" counts breaks sooner')
    parser.add_argument("--seconds", type=float, default=1.0, help="for the comparison of step times; 0 for none")
    parser.add_argument("--threads", type=int, help="of each program; on a machine that does other things, 1")
    parser.add_argument("--jobs", type=int, default=1, help="programs at once: a machine has cores for so many")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one program under one system")
    parser.add_argument("--json", metavar="OUT", help="results go there, and are not measured again")
    parser.add_argument("--again", action="store_true", help="measure also what OUT has")
    parser.add_argument("--markdown", action="store_true", help="the table as docs/libraries.md has it")
    parser.add_argument("--one", nargs=2, metavar=("AREA", "SYSTEM"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        warnings.simplefilter("ignore")
        try:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                ready_torchvision()
            area, system = options.one
            result = measure(options.names[0], area, system, options.backend, options.seconds)
        except Exception as error:
            traceback.print_exc()
            text = f"{type(error).__name__}: {error}"[:2000]
            result = {"name": options.names[0], "system": options.one[1], "error": text}
        print("RESULT " + json.dumps(result))
        return 0
    results = all_results(options)
    if options.breaks:
        print_breaks(results)
    print()
    others = [row["torch"] for row in results.values() if "torch" in row]
    timed = any("ratio" in result for result in others)
    print_table(rows(results, slice(0) if not others else slice(None) if timed else COUNTS), options.markdown)
    print("\n" + summary(results))
    ours = [row["argand"] for row in results.values()]
    return 0 if all(result.get("equal") for result in ours) else 1


if __name__ == "__main__":
    sys.exit(main())
