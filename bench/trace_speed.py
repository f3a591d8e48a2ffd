"""How fast argand's reader and report go through a big structured trace, beside torch's own `tlparse`.

    python bench/trace_speed.py [--megabytes 500] [--source TRACE.log] [--runs 2] [--plain-only] [--keep FILE]
    python bench/trace_speed.py --ranks 1000

Writes a trace of that size by repeating a real one (argand's, made on the spot, or `--source`: one of TORCH_TRACE) with
other frame ids, then lets each read it in turn. tlparse also writes its pages, so it is shown with its plainest output
(`--plain-text`, no highlighting) and with its default one. `argand report` writes more than both: pages for provenance,
comparisons, search. Seconds are processor time, as other programs may be running.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = """
import torch, argand
torch.manual_seed(0)
net = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.GELU(), torch.nn.LayerNorm(32))
                            for _ in range(6)])
run = argand.compile(net)
for size in (3, 4, 5):
    run(torch.randn(size, 32)).sum().backward()

@argand.compile
def breaks(x):
    x = x.sin() + 1
    print("out")
    return (x * x).cos()
breaks(torch.randn(8))
"""


SMALL = """
import torch, argand
print(argand.compile(lambda x: (x.sin() + 1).cos().sum())(torch.ones(8)))
"""


def real_trace(folder: Path, program: str = PROGRAM) -> Path:
    """A trace of a small training step and a graph break, or of another program."""
    code = f"import os; os.environ['ARGAND_TRACE'] = {str(folder)!r}\n" + program
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return next(folder.glob("*.log"))


def enlarge(source: Path, target: Path, size: int) -> int:
    """Repeat `source` with other frame ids until the file has `size` bytes; the number of records."""
    lines = source.read_bytes().split(b"\n")
    while lines and not lines[-1]:
        lines.pop()
    heads: list[tuple[int, bytes, dict[str, object]]] = []
    for number, line in enumerate(lines):
        if line and not line.startswith(b"\t"):
            prefix, _, text = line.partition(b"] ")
            heads.append((number, prefix + b"] ", json.loads(text)))
    frames = 1 + max(int(str(head.get("frame_id", 0) or 0)) for _, _, head in heads)
    strings = sum("str" in head for _, _, head in heads)
    records = copies = 0
    with open(target, "wb") as file:
        while file.tell() < size:
            for number, prefix, head in heads:
                if "str" in head and copies:
                    continue
                if head.get("frame_id") is not None:
                    moved = {**head, "frame_id": int(str(head["frame_id"])) + copies * frames}
                    lines[number] = prefix + json.dumps(moved).encode()
            skip = {number for number, _, head in heads if "str" in head} if copies else set()
            file.write(b"\n".join(line for number, line in enumerate(lines) if number not in skip) + b"\n")
            records += len(heads) - (strings if copies else 0)
            copies += 1
    return records


def read_all(path: Path, verify: bool) -> tuple[float, int]:
    """Seconds and number of records of argand's reader; a payload in a hundred is looked at."""
    from argand.report.reader import Reader

    start = time.process_time()
    count = 0
    reader = Reader(path, verify=verify)
    for record in reader:
        count += 1
        if record.payload is not None and count % 100 == 0:
            record.payload.text()
    if reader.problems:
        raise SystemExit(f"the reader found problems: {dict(reader.problems)}")
    return time.process_time() - start, count


def _memory(size: int) -> str | None:
    """A folder in memory where one has room: there are many small files, and disks should not decide."""
    shared = Path("/dev/shm")
    return str(shared) if shared.is_dir() and shutil.disk_usage(shared).free > 7 * size else None


def run(command: list[str]) -> tuple[float, float]:
    """Processor seconds and peak memory (MB) of a program."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} failed with {child.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def report(path: Path) -> tuple[float, float]:
    """Seconds and memory of `argand report`."""
    with tempfile.TemporaryDirectory(dir=_memory(path.stat().st_size)) as out:
        return run([sys.executable, "-m", "argand", "report", str(path), "-o", f"{out}/o"])


def tlparse(path: Path, plain: bool) -> tuple[float, float] | None:
    """Seconds and memory of tlparse; None without it."""
    binary = Path(sys.executable).with_name("tlparse")
    found = str(binary) if binary.exists() else shutil.which("tlparse")
    if found is None:
        return None
    with tempfile.TemporaryDirectory(dir=_memory(path.stat().st_size)) as out:
        return run([found, str(path), "-o", f"{out}/o", "--no-browser", *(["--plain-text"] if plain else [])])


def report_of_ranks(count: int) -> None:
    """Time and memory of the report of a job whose ranks compiled the same, but for three of them."""
    with tempfile.TemporaryDirectory() as work:
        traces = Path(work) / "traces"
        usual, other = (
            real_trace(Path(work) / name, SMALL.replace("cos", name)).read_bytes() for name in ("cos", "tan")
        )
        traces.mkdir()
        for rank in range(count):
            text = other if rank in (7, count // 2) else usual
            if rank == 13:  # it died
                text = text[: len(text) // 2].rpartition(b"\n")[0] + b"\n"
            (traces / f"dedicated_log_torch_trace_rank_{rank}_made.log").write_bytes(text)
        command = [sys.executable, "-m", "argand", "report", str(traces), "-o", str(Path(work) / "report")]
        _, status, used = os.wait4(subprocess.Popen(command).pid, 0)
        pages = sum(path.suffix == ".html" for path in (Path(work) / "report").rglob("*"))
    print(
        f"{count} ranks, {len(usual) * count / 1e6:.0f} MB of traces: {used.ru_utime + used.ru_stime:.1f} s of "
        f"processor time, {used.ru_maxrss / 1024:.0f} MB, {pages} pages, exit code {os.waitstatus_to_exitcode(status)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--source", type=Path, help="a trace to repeat; the default is one of argand's")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--plain-only", action="store_true", help="leave out tlparse's slower default output")
    parser.add_argument("--keep", type=Path, help="write the big trace here and leave it")
    parser.add_argument("--ranks", type=int, default=0, help="instead: the report of that many ranks' traces")
    options = parser.parse_args()
    if options.ranks:
        report_of_ranks(options.ranks)
        return
    with tempfile.TemporaryDirectory(dir=_memory(options.megabytes << 20)) as work:
        source = options.source or real_trace(Path(work) / "trace")
        big = options.keep or Path(work) / "big.log"
        records = enlarge(source, big, options.megabytes << 20)
        size = big.stat().st_size / 1e6
        print(f"{size:.0f} MB, {records} records, from {source.stat().st_size / 1e6:.2f} MB of {source.name}")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        best: dict[str, tuple[float, float]] = {}
        for _ in range(options.runs):
            verified, unverified = read_all(big, True)[0], read_all(big, False)[0]
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
            for name, measured in (
                ("argand's reader", (verified, grown)),
                ("the same, digests not verified", (unverified, grown)),
                ("argand report", report(big)),
                ("tlparse", None if options.plain_only else tlparse(big, False)),
                ("tlparse --plain-text", tlparse(big, True)),
            ):
                if measured is not None:
                    best[name] = min(measured, best.get(name, measured))
        for name, (taken, memory) in best.items():
            print(f"{name:32} {taken:7.2f} s  {size / taken:7.1f} MB/s  {memory:6.0f} MB of memory")
        if "tlparse" in best:
            print(f"argand report runs at {best['tlparse'][0] / best['argand report'][0]:.2f} of tlparse's speed")


if __name__ == "__main__":
    main()
