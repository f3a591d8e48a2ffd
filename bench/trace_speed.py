"""How fast argand's reader goes through a big structured trace, beside torch's own `tlparse`.

    python bench/trace_speed.py [--megabytes 500] [--source TRACE.log] [--runs 2] [--plain-only] [--keep FILE]

Writes a trace of that size by repeating a real one (argand's, made on the spot, or `--source`: one of TORCH_TRACE) with
other frame ids, then lets each read it in turn. tlparse also writes its pages, so it is shown with its plainest output
(`--plain-text`, no highlighting) and with its default one.
"""

from __future__ import annotations

import argparse
import json
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


def real_trace(folder: Path) -> Path:
    """A trace of a small training step and a graph break."""
    code = f"import os; os.environ['ARGAND_TRACE'] = {str(folder)!r}\n" + PROGRAM
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

    start = time.perf_counter()
    count = 0
    reader = Reader(path, verify=verify)
    for record in reader:
        count += 1
        if record.payload is not None and count % 100 == 0:
            record.payload.text()
    if reader.problems:
        raise SystemExit(f"the reader found problems: {dict(reader.problems)}")
    return time.perf_counter() - start, count


def _memory() -> str | None:
    """A folder in memory where there is one: tlparse writes many small files, and disks should not decide."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def tlparse(path: Path, plain: bool) -> float | None:
    """Seconds that tlparse takes; None without it."""
    binary = Path(sys.executable).with_name("tlparse")
    found = str(binary) if binary.exists() else shutil.which("tlparse")
    if found is None:
        return None
    with tempfile.TemporaryDirectory(dir=_memory()) as out:
        command = [found, str(path), "-o", f"{out}/o", "--no-browser", *(["--plain-text"] if plain else [])]
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--source", type=Path, help="a trace to repeat; the default is one of argand's")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--plain-only", action="store_true", help="leave out tlparse's slower default output")
    parser.add_argument("--keep", type=Path, help="write the big trace here and leave it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=_memory()) as work:
        source = options.source or real_trace(Path(work) / "trace")
        big = options.keep or Path(work) / "big.log"
        records = enlarge(source, big, options.megabytes << 20)
        size = big.stat().st_size / 1e6
        print(f"{size:.0f} MB, {records} records, from {source.stat().st_size / 1e6:.2f} MB of {source.name}")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        best: dict[str, float] = {}
        for _ in range(options.runs):
            for name, taken in (
                ("argand, digests verified", read_all(big, True)[0]),
                ("argand, digests not verified", read_all(big, False)[0]),
                ("tlparse --plain-text", tlparse(big, True)),
                ("tlparse", None if options.plain_only else tlparse(big, False)),
            ):
                if taken is not None:
                    best[name] = min(taken, best.get(name, taken))
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        for name, taken in best.items():
            print(f"{name:32} {taken:7.2f} s  {size / taken:7.0f} MB/s")
        print(f"argand's reader needed {grown:.0f} MB of memory")


if __name__ == "__main__":
    main()
