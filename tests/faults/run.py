"""Plants every fault, asks the doctor, prints a table.

python tests/faults/run.py [--only NAME[,NAME]] [--stage STAGE] [--quick] [--markdown FILE]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from suite import FAULTS, Fault  # noqa: E402

sys.path[:] = [
    place for place in sys.path if Path(place or ".").resolve() != HERE
]  # scripts find the plants themselves


def examine(fault: Fault, folder: Path, threads: int, seconds: float = 20.0):
    """The doctor's verdict on one fault."""
    from argand.debug.doctor.child import Allowed, Script
    from argand.debug.doctor.procedure import Doctor

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{fault.name}.py"
    path.write_text(fault.source(str(HERE)))
    allowed = Allowed(4.0 if fault.kind == "hang" else seconds, threads=threads)
    return Doctor(Script(str(path)), folder / "out", allowed, lambda text: None).examine()


def problems(fault: Fault, verdict) -> list[str]:
    """What the verdict misses."""
    found = []
    if verdict.stage != fault.stage:
        found.append(f"stage {verdict.stage}")
    if verdict.kind != fault.kind:
        found.append(f"kind {verdict.kind}")
    found += [f"does not say {text!r}" for text in fault.says if text not in verdict.text]
    if not 0 <= verdict.nodes <= fault.nodes and "It is flaky" not in fault.says:
        found.append(f"{verdict.nodes} nodes")
    if not verdict.fails_alone:
        found.append("repro does not fail alone")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--stage", default="")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--markdown", default="")
    options = parser.parse_args()
    only = [name for name in options.only.split(",") if name]
    chosen = [
        fault
        for fault in FAULTS
        if (not only or any(name in fault.name for name in only))
        and (not options.stage or fault.stage == options.stage)
        and (fault.quick or not options.quick)
    ]
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    from argand.debug.doctor.child import one_thread

    threads = one_thread()
    rows, failed = [], 0
    place = Path(tempfile.mkdtemp(prefix="argand_faults_"))
    os.environ["ARGAND_CACHE_DIR"] = str(place / "cache")  # faults of caches must not get into the user's
    for fault in chosen:
        start = time.monotonic()
        verdict = examine(fault, place / fault.name, threads)
        wrong = problems(fault, verdict)
        failed += bool(wrong)
        took = time.monotonic() - start
        row = (fault.name, fault.stage, fault.kind, verdict.stage, str(verdict.nodes),
               "yes" if verdict.fails_alone else "no", f"{took:.0f} s", ", ".join(wrong) or "ok")  # fmt: skip
        rows.append(row)
        print(
            f"{row[0]:26s} {row[1]:9s} {row[2]:18s} -> {row[3]:9s} {row[4]:>3s} calls, alone: {row[5]:3s} {row[6]:>6s}  {row[7]}",
            flush=True,
        )
        if options.verbose or wrong:
            print("   ", verdict.text)
            for line in verdict.evidence if options.verbose else []:
                print("      -", line)
            print("   ", verdict.repro, flush=True)
    print(f"{len(chosen) - failed} of {len(chosen)} found")
    if options.markdown:
        lines = [
            "| fault | stage | kind | named | calls left | fails alone | time | |",
            "|---|---|---|---|---|---|---|---|",
        ]
        lines += ["| " + " | ".join(row) + " |" for row in rows]
        Path(options.markdown).write_text("\n".join(lines) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
