"""What capture makes of many programs, recorded as text: graphs, guards, breaks, recompiles, warnings.

    python bench/captured.py record FILE [--sets zoo,demo,pages,programs,dynamic] [--zoo FOLDER]
    python bench/captured.py compare BEFORE AFTER [--lines 20]

For changes of capture that are meant to change nothing: record at the commit before and after, and compare. Backend
"eager": what later stages make of a graph is not looked at. Each model, and each batch of programs, is captured in a
forked process of its own. What differs from run to run (addresses, seconds, lines of argand's own files) is left out.
`compare` exits with 1 when anything differs.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import json
import linecache
import multiprocessing
import os
import random
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import argand
from argand.breaks.catalogue import pages
from argand.capture.driver.explain import Explanation, Findings, reason_text

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "fuzz"), str(ROOT / "bench")]

SETS = ("zoo", "demo", "pages", "programs", "dynamic")
TIMED = {"AG0138"}
"""Pages whose program shows a limit in seconds."""
PROGRAMS = 200
BATCH = 25
LIMIT = 300.0  # seconds of a process

Recorded = dict[str, list[str]]
"""Name of a program -> lines."""
Job = tuple[str, Callable[[], Recorded]]


def stable(text: str) -> str:
    """Without what differs from run to run, and from one version of argand's own files to the next."""
    text = re.sub(r"0x[0-9a-f]{6,}", "0x...", text)
    text = re.sub(r"\b\d{12,}\b", "<id>", text)
    text = re.sub(rf"{re.escape(str(Path(argand.__file__).parent))}/\S+", "<argand>", text)
    return re.sub(r"\d+\.\d+ s\b", "<seconds>", text)


def lines_of(findings: Findings, heard: list[str], outcome: str) -> list[str]:
    """Everything that capture said, line by line."""
    explanation = Explanation.of(findings)
    explanation.compile_times = {}
    text = [f"outcome: {outcome}", explanation.details()]
    text += [f"{reason_text(reason)}\n  context: {reason.context}" for reason in explanation.break_reasons]
    return stable("\n".join([*text, *(f"warning: {one}" for one in heard)])).splitlines()


def captured(run: Callable[[], object]) -> list[str]:
    """Run something that compiles and calls; what capture said meanwhile."""
    findings = Findings()
    random.seed(0)
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as heard, findings.listening():
        warnings.simplefilter("always")
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            try:
                run()
                outcome = "returned"
            except Exception as error:
                outcome = f"{type(error).__name__}: {error}"
    argand.reset()
    return lines_of(findings, [str(one.message) for one in heard], outcome)


# ---------------------------------------------------------------- the programs


def model(build: Callable[[], tuple[torch.nn.Module, dict[str, Any]]], name: str) -> Recorded:
    """A model's forward, without and with gradients, then other sizes of the batch where they are taken."""
    module, inputs = build()
    compiled = argand.compile(module, backend="eager")

    def run() -> None:
        with torch.no_grad():
            compiled(**inputs)
        compiled(**inputs)
        larger = {k: torch.cat([v, v]) if isinstance(v, torch.Tensor) and v.dim() else v for k, v in inputs.items()}
        with torch.no_grad():
            compiled(**larger)

    return {name: captured(run)}


def page(key: str) -> Recorded:
    """The two examples of a page of the catalogue."""
    found = pages()[key]
    result = {}
    for which, source in found.programs.items() if sys.version_info >= found.since else ():
        name = f"<page {key} {which}>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        scope = types.ModuleType("page").__dict__
        result[f"{key} {which}"] = captured(lambda: exec(compile(source, name, "exec"), scope))  # noqa: B023
    return result


def made_up(first: int, dynamic: bool | None) -> Recorded:
    """Programs of the differential fuzzer, each called three times with other sizes."""
    import differential
    import programs

    result = {}
    for seed in range(first, first + BATCH):
        source = programs.program(random.Random(seed).randrange, 10, raising=seed % 2 == 1)
        module = differential.load(source)
        fn = argand.compile(module.f, backend="eager", dynamic=dynamic)

        def run() -> None:
            for call in range(3):
                with contextlib.suppress(Exception):
                    fn(*differential.arguments(module, call))  # noqa: B023

        lines = captured(run)
        result[f"{'dynamic' if dynamic else 'program'} {seed}"] = [re.sub(r"<fuzz \d+>", "<fuzz>", x) for x in lines]
    return result


def jobs(sets: list[str], zoo: str | None) -> Iterator[Job]:
    if "pages" in sets:
        yield from ((key, lambda key=key: page(key)) for key in pages() if key not in TIMED)  # type: ignore[misc]
    for name, dynamic in (("programs", None), ("dynamic", True)):
        if name in sets:
            for first in range(0, PROGRAMS, BATCH):
                yield f"{name} {first}", lambda first=first, dynamic=dynamic: made_up(first, dynamic)  # type: ignore[misc]
    if "demo" in sets:
        import models

        for name, build in models.MODELS.items():
            yield f"demo {name}", lambda build=build, name=name: model(lambda: build(short=True), f"demo {name}")  # type: ignore[misc]
    if "zoo" in sets and zoo is not None:
        sys.path.insert(0, zoo)
        import zoo as models_of_zoo

        for name, build in models_of_zoo.ZOO.items():
            yield f"zoo {name}", lambda build=build, name=name: model(build, f"zoo {name}")  # type: ignore[misc]


# ---------------------------------------------------------------- processes


def in_child(job: Job) -> Recorded:
    """The job's result from a forked process; what ended that says so."""
    name, run = job
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def work() -> None:
        try:
            sender.send(run())
        except BaseException as error:
            sender.send({name: [f"failed: {type(error).__name__}: {stable(str(error))}"]})

    process = context.Process(target=work)
    process.start()
    sender.close()
    try:
        result: Recorded = receiver.recv() if receiver.poll(LIMIT) else {name: [f"no answer in {LIMIT:.0f} s"]}
    except EOFError:
        result = {name: ["the process died"]}
    process.kill()
    process.join()
    return result


def record(options: argparse.Namespace) -> int:
    if "PYTHONHASHSEED" not in os.environ:  # models loop over sets of names, whose order is another in each process
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"PYTHONHASHSEED": "0"})
    torch.set_num_threads(1)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    wanted = options.sets.split(",")
    if unknown := set(wanted) - set(SETS):
        raise SystemExit(f"no such set: {', '.join(sorted(unknown))}; there are {', '.join(SETS)}")
    with contextlib.suppress(ImportError):
        import transformers  # noqa: F401  once, before the forks
    result: Recorded = {}
    for job in jobs(wanted, options.zoo):
        result.update(in_child(job))
    Path(options.file).write_text(json.dumps(result, indent=1))
    print(f"{len(result)} programs, {sum(map(len, result.values()))} lines")
    return 0


def compare(options: argparse.Namespace) -> int:
    before: Recorded = json.loads(Path(options.before).read_text())
    after: Recorded = json.loads(Path(options.after).read_text())
    differing = 0
    for name in sorted({*before, *after}):
        one, two = before.get(name, []), after.get(name, [])
        if one != two:
            differing += 1
            changes = difflib.unified_diff(one, two, "before", "after", lineterm="", n=1)
            print(f"=== {name}", *list(changes)[: options.lines], sep="\n")
    print(f"{len({*before, *after})} programs, {differing} differ")
    return 1 if differing else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("record")
    one.add_argument("file")
    one.add_argument("--sets", default=",".join(SETS))
    one.add_argument("--zoo", default=str(ROOT.parent / "shared" / "zoo"), help="a folder with a zoo.py")
    one.set_defaults(run=record)
    two = commands.add_parser("compare")
    two.add_argument("before")
    two.add_argument("after")
    two.add_argument("--lines", type=int, default=20, help="of each difference")
    two.set_defaults(run=compare)
    options = parser.parse_args()
    status: int = options.run(options)
    return status


if __name__ == "__main__":
    sys.exit(main())
