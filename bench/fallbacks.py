"""One list over the programs of `bench/libraries.py` and a zoo: the operations that run as eager's kernels.

    python bench/fallbacks.py [NAME ...] [--zoo FOLDER] [--fast] [--above 1] [--json OUT]

Of each program it lists operations of compiled functions with at least 1 % of a function's step (as `argand fallbacks`
does for a script), and last one list over all programs, the largest share first, and a sentence. FOLDER has a `zoo.py`
with `ZOO[name]() -> (model, inputs)`: each of its models is a program of inference and one of training, where its
output has a gradient. NAME is a part of a program's name, an area of `bench/library_programs`, or "zoo". Every program
runs in a process of its own; OUT gets each result as it comes, and what it already has is not measured again, but with
`--again`. Exits with 1 when the list is not empty, or a program fails.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import sys
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from libraries import Result, chosen, programs, ready_torchvision, run_one, run_steps
from library_programs.program import Compile, Program, Step

TRAINING = ", training"


def zoo(folder: str) -> Any:
    """The module `zoo.py` of a folder; None if it has none."""
    path = Path(folder) / "zoo.py"
    spec = importlib.util.spec_from_file_location("zoo_of_models", path)
    if not folder or not path.exists() or spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def zoo_program(folder: str, name: str) -> Program:
    """A model of the zoo, called."""

    def make(compile: Compile) -> Step:
        import torch

        model, inputs = zoo(folder).ZOO[name.removesuffix(TRAINING)]()
        training = name.endswith(TRAINING)
        compiled = compile(model.train(training))

        def step() -> Any:
            with torch.set_grad_enabled(training):
                return compiled(**inputs)

        return step

    return Program("transformers", make)


def measure(name: str, area: str, folder: str, seconds: float, above: float) -> Result:
    """The operations of one program that run as eager's kernels, where random numbers are argand's own."""
    import argand
    from argand.debug.benchmark.fallbacks import FallbackWatch

    program = zoo_program(folder, name) if area == "zoo" else programs(area)[name]
    watch = FallbackWatch()
    with watch.observing():
        run_steps(program, argand.compile)
        measured = watch.steps(64, seconds)
    total = sum(one.ms for one in measured) or 1.0
    return {
        "name": name,
        "functions": len(measured),
        "fallbacks": [
            {"op": each.op, "share": each.share, "function": one.function, "of_all": one.ms / total,
             "shapes": each.shapes[:2], "reasons": each.reasons}
            for one in measured
            for each in one.fallbacks
            if 100 * each.share >= above
        ],
        "larger": dict(watch.larger),
        "failed": [f"{one.name}: {error}"[:300] for one, error in watch.failed.items()],
    }  # fmt: skip


def said(result: Result) -> str:
    """A result in a few lines."""
    if "error" in result:
        return str(result["error"])
    lines = [
        f"{each['share']:.1%} of {each['function']}, which is {each['of_all']:.0%} of all: {each['op']} "
        f"of {' and '.join(each['shapes'])}: {'; '.join(each['reasons'])}"
        for each in result["fallbacks"]
    ]
    lines += [f"eager as a whole: {why}" for why in result["larger"]]
    return f"{len(result['fallbacks'])} in {result['functions']} functions" + "".join(f"\n    {line}" for line in lines)


def print_list(results: dict[str, Result], above: float) -> bool:
    """One row for each operation and reason, and a sentence; whether there is nothing to list."""
    rows: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for name, result in results.items():
        for each in result.get("fallbacks", ()):
            rows.setdefault((each["op"], "; ".join(each["reasons"])), []).append((each["share"], name))
    print()
    for (op, reasons), uses in sorted(rows.items(), key=lambda row: -max(row[1])[0]):
        places = ", ".join(dict.fromkeys(name for _, name in sorted(uses, reverse=True)))
        print(f"{max(uses)[0]:6.1%}  {op} ({reasons}): {places}")
    failed = [name for name, result in results.items() if "error" in result]
    whole = [name for name, result in results.items() if result.get("larger")]
    print(
        f"{len(results)} programs, {sum(result.get('functions', 0) for result in results.values())} compiled functions:"
        f" {len({op for op, _ in rows})} operations run as eager's kernels with {above:g} % of a function's step or"
        f" more, in {len({name for uses in rows.values() for _, name in uses})} programs; {len(whole)} have a graph"
        f" that runs eagerly as a whole{': ' if whole else ''}{', '.join(whole)}; {len(failed)} failed"
        f"{': ' if failed else ''}{', '.join(failed)}."
    )
    return not rows and not failed


def wanted(options: argparse.Namespace) -> list[tuple[str, str]]:
    """(name, area) of the programs to run."""
    listed = [(name, area) for name, area, _ in chosen(options)]
    models = zoo(options.zoo) if options.zoo else None
    for model in models.ZOO if models else ():
        for name in (model, model + TRAINING):
            if not options.names or any(part in name or part == "zoo" for part in options.names):
                listed.append((name, "zoo"))
    return listed


def one(options: argparse.Namespace) -> None:
    """In the process of one program."""
    warnings.simplefilter("ignore")
    name, area = options.names[0], options.one[0]
    try:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            ready_torchvision()
        result = measure(name, area, options.zoo, options.seconds, options.above)
    except Exception as error:
        traceback.print_exc()
        result = {"name": name, "error": f"{type(error).__name__}: {error}"[:2000]}
    print("RESULT " + json.dumps(result))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--zoo", default="", metavar="FOLDER", help="a folder with a zoo.py")
    parser.add_argument("--fast", action="store_true", help="the half of the programs that takes little time")
    parser.add_argument("--above", type=float, default=1.0, help="the least share of a function's step, in percent")
    parser.add_argument("--seconds", type=float, default=0.2, help="for each function")
    parser.add_argument("--threads", type=int, help="of each program; on a machine that does other things, 1")
    parser.add_argument("--jobs", type=int, default=1, help="programs at once: a machine has cores for so many")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one program")
    parser.add_argument("--json", metavar="OUT", help="results go there, and are not measured again")
    parser.add_argument("--again", action="store_true", help="measure also what OUT has")
    parser.add_argument("--one", nargs=2, metavar=("AREA", "SYSTEM"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options)
        return 0
    out = Path(options.json) if options.json else None
    stored: dict[str, Result] = json.loads(out.read_text()) if out and out.exists() else {}
    listed = wanted(options)
    more = ["--zoo", options.zoo, "--above", str(options.above)]
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = {
            pool.submit(run_one, name, area, "fallbacks", options, Path(__file__), more): name
            for name, area in listed
            if options.again or name not in stored
        }
        for run in as_completed(runs):
            stored[runs[run]] = run.result()
            print(f"{runs[run]}: {said(stored[runs[run]])}", flush=True)
            if out:
                out.write_text(json.dumps(stored, indent=1))
    return 0 if print_list({name: stored[name] for name, _ in listed}, options.above) else 1


if __name__ == "__main__":
    sys.exit(main())
