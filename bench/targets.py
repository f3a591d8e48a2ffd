"""Every target, measured in one go: the benches that judge run one after the other, and their verdicts make one table.

    python bench/targets.py [--quick] [--parts demo,breadth,growth,calls,memory] [--no-torch] [--markdown OUT.md]

--quick takes the shortest sensible sample of each part (under five minutes on two idle cores); without it, the demo's
models and the programs of `breadth.py` run cold and warm, in inference and training, beside torch.compile (more than an
hour). Exits with 1 when a target is missed beyond noise. --markdown writes the table for docs/performance.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from verdicts import Verdict, read

HERE = Path(__file__).resolve().parent
MEMORY = ("BERT", "ResNet-18", "GPT-2")
Command = tuple[str, ...]
COMMANDS: dict[str, list[Command]] = {
    "demo": [("compare.py", "--warm"), ("compare.py", "--warm", "--train")],
    "breadth": [("breadth.py", "--warm")],
    "growth": [("growth.py",), ("growth.py", "--train")],
    "calls": [("overhead.py",)],
    "memory": [("memory.py", model) for model in MEMORY],
}
# torch.compile's first calls take the time: it runs on a few programs where they are short.
QUICK: dict[str, list[Command]] = {
    "demo": [("compare.py", "--warm", "--short", "--seconds", "1", "BERT")],
    "breadth": [("breadth.py", "--quick", "--systems", "argand"), ("breadth.py", "--warm", "--seconds", "1", "waves")],
    "growth": [("growth.py", "--layers", "6,12", "--times", "2")],
    "calls": [("overhead.py", "--no-torch")],
    "memory": [("memory.py", "BERT", "--short", "--no-torch")],
}
TAKES_NO_TORCH = ("compare.py", "overhead.py", "memory.py")  # growth.py has no torch.compile unless it is asked for


def run(parts: list[str], quick: bool, no_torch: bool, console: Console) -> list[Verdict]:
    """The verdicts of all parts; a bench that ends without one is a verdict too."""
    found: list[Verdict] = []
    for part in parts:
        for command in (QUICK if quick else COMMANDS)[part]:
            options = list(command[1:])
            if no_torch and command[0] in TAKES_NO_TORCH and "--no-torch" not in options:
                options.append("--no-torch")
            elif no_torch and command[0] == "breadth.py" and "--systems" not in options:
                options += ["--systems", "argand"]
            text = " ".join([command[0], *options])
            console.rule(f"bench/{text}")
            begun = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "verdicts"
                subprocess.run([sys.executable, str(HERE / command[0]), *options, "--verdicts", str(file)])
                told = read(file)
            console.print(f"{time.monotonic() - begun:.0f} s")
            found += told or [Verdict(text, "results (it failed)", 0.0, 1.0)]
    return found


def show(found: list[Verdict], console: Console) -> None:
    table = Table(title="targets")
    for heading in ("", "where", "measured", "target"):
        table.add_column(heading)
    colours = {"holds": "green", "noise": "yellow", "MISSED": "red"}
    for verdict in found:
        cells = (verdict.subject, verdict.measured, verdict.bar)
        table.add_row(f"[{colours[verdict.state]}]{verdict.state}[/]", *map(escape, cells))
    console.print(table)


def markdown(found: list[Verdict]) -> str:
    rows = [f"| {v.state} | {v.subject} | {v.measured} | {v.bar} |" for v in found]
    return "\n".join(["| | where | measured | target |", "| --- | --- | --- | --- |", *rows]) + "\n"


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--quick", action="store_true", help="a sample of each part, under five minutes")
    ap.add_argument("--parts", default=",".join(COMMANDS), help="of " + ", ".join(COMMANDS))
    ap.add_argument("--no-torch", action="store_true", help="leave torch.compile out")
    ap.add_argument("--markdown", help="write the table here")
    args = ap.parse_args()
    parts = args.parts.split(",")
    if unknown := [part for part in parts if part not in COMMANDS]:
        ap.error(f"unknown part {', '.join(unknown)}; known: {', '.join(COMMANDS)}")
    console = Console(width=None if sys.stdout.isatty() else 150)
    found = run(parts, args.quick, args.no_torch, console)
    show(found, console)
    if args.markdown:
        Path(args.markdown).write_text(markdown(found))
    return 1 if any(verdict.state == "MISSED" for verdict in found) else 0


if __name__ == "__main__":
    sys.exit(main())
