"""Everything that only a GPU can show, one line a part: what `make test-gpu` runs.

    python tests/gpu/run.py [PART ...] [--zoo FOLDER] [--short] [--jobs N] [--output FOLDER]

Parts: kernels, launches, tools, cuda-graphs, op-db, zoo, several-gpus, sanitizer. `--short` takes samples of op-db and zoo.
A part that cannot run here (no zoo, one GPU, no compute-sanitizer) says so and counts as skipped. Each part prints its
line when it ends; after SIGTERM or an interrupt the lines of those that had not ended say so. Exit status 1 if any part
fails, or if there is no GPU.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PARTS = ("kernels", "launches", "tools", "cuda-graphs", "op-db", "zoo", "several-gpus", "sanitizer")
SHARDS = 8  # processes that share op_db
SHORT_ZOO = ("bert", "bloom", "mamba", "mixtral", "convnextv2", "whisper", "clip", "time_series_transformer")


@dataclass(frozen=True)
class Part:
    """One command.

    Arguments:
        name: of the part.
        command: what is run, from the root of the repository.
        seconds: after which it hangs.
    """

    name: str
    command: Sequence[str]
    seconds: float = 1800.0


def tests(*paths: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "--show-capture=no",  # torch's debug logs, thousands of lines
        *(str(HERE / path) for path in paths),
    ]


def tools() -> list[Part]:
    """The programs of the tools, the longest ones first."""
    programs = HERE / "tool_programs.py"
    names = re.findall(r"^@program\ndef (\w+)", programs.read_text(encoding="utf8"), re.MULTILINE)
    names.sort(key=lambda name: not name.startswith(("doctor", "minifier")))
    return [Part(f"tools: {name}", [sys.executable, str(programs), name], 300.0) for name in names]


def op_db(short: bool) -> list[Part]:
    sampled = ["--samples", "1"] if short else []
    return [
        Part(
            "op-db",
            [sys.executable, str(HERE / "op_db.py"), "--shard", f"{number}/{SHARDS * (4 if short else 1)}", *sampled],
        )
        for number in range(SHARDS)
    ]


def chosen(options: argparse.Namespace) -> tuple[list[Part], list[str]]:
    """What is run, and what is not, with the reason."""
    import torch

    found: dict[str, list[Part]] = {
        "kernels": [Part("kernels", tests("test_kernels.py", "test_flex_attention.py"))],
        "launches": [Part("launches", tests("../runtime/gpu/test_on_gpu.py"))],
        "tools": tools(),
        "cuda-graphs": [Part("cuda-graphs", tests("test_cuda_graphs.py", "test_used_up.py"))],
        "op-db": op_db(options.short),
        "zoo": [],
        "several-gpus": [],
        "sanitizer": [],
    }
    skipped = []
    if options.zoo and (Path(options.zoo) / "zoo.py").exists():
        names = SHORT_ZOO if options.short else ()
        found["zoo"] = [Part("zoo", [sys.executable, str(HERE / "zoo.py"), options.zoo, *names], 3600.0)]
    else:
        skipped.append("zoo: give a folder of models with --zoo (or ZOO=folder)")
    if torch.cuda.device_count() > 1:
        found["several-gpus"] = [Part("several-gpus", tests("test_several_gpus.py"))]
    else:
        skipped.append("several-gpus: this machine has one")
    toolkits = [str(path) for path in sorted(Path("/usr/local").glob("cuda*/bin"))]
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=os.pathsep.join(toolkits))
    if sanitizer:
        watched = [sanitizer, "--tool", "memcheck", "--error-exitcode", "9", "--target-processes", "application-only"]
        found["sanitizer"] = [Part("sanitizer", [*watched, *tests("test_kernels.py")], 3600.0)]
    else:
        skipped.append("sanitizer: compute-sanitizer is not installed (it is in the CUDA toolkit)")
    parts = [part for name in options.parts or PARTS for part in found[name]]
    return parts, [text for text in skipped if text.partition(":")[0] in (options.parts or PARTS)]


@dataclass
class Run:
    """Runs parts, and can end those that run.

    Arguments:
        folder: what all processes may write to.
        processes: that run.
        stopped: no further ones are started.
    """

    folder: str
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    stopped: bool = False

    def part(self, part: Part, number: int) -> tuple[int, float, str]:
        """Exit status, seconds and output of a part; status 143 where it was ended from outside."""
        paths = os.pathsep.join((str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")))
        cache = f"cache-{number}" if part.name.startswith("tools") else "cache"  # some ask how long compiling took
        environment = {**os.environ, "PYTHONPATH": paths, "ARGAND_CACHE_DIR": os.path.join(self.folder, cache)}
        environment["PYTHONFAULTHANDLER"] = "1"
        environment.pop("TRITON_INTERPRET", None)
        if part.name == "sanitizer":  # torch's cache of memory would hide what lies between two tensors
            environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        start, output = time.monotonic(), Path(self.folder) / f"{number}.txt"
        if self.stopped:
            return 143, 0.0, "it was not started"
        with output.open("wb") as file:
            process = subprocess.Popen(
                part.command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
        key = f"{number} {part.name}"
        self.processes[key] = process
        try:
            status = process.wait(part.seconds)
        except subprocess.TimeoutExpired:
            status = 124
        end(process)
        del self.processes[key]
        return (143 if self.stopped else status), time.monotonic() - start, output.read_text(errors="replace")

    def stop(self) -> None:
        """End what runs: its parts say where they were."""
        self.stopped = True
        end(*self.processes.values())


def end(*processes: subprocess.Popen[bytes]) -> None:
    """End processes, which print where they are, and those that they started."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.send_signal(signal.SIGABRT)  # faulthandler prints the stacks
    deadline = time.monotonic() + 3
    for process in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(deadline - time.monotonic(), 0.01))
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def problem_here() -> str:
    """Why nothing can be shown here; "" when it can, argand's C extension built."""
    sys.path.insert(0, str(ROOT / "src"))
    try:
        import torch
    except ImportError:
        return f"{sys.executable} has no torch (GPU_PYTHON=... names another Python)"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees none: nvidia-smi tells whether the driver does"
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    if not (ROOT / f"src/argand/_core/_C{suffix}").exists():
        subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=ROOT, check=True)
    from argand.runtime.gpu.device.target import gpu_problem

    return gpu_problem("cuda") or ""


def run_all(parts: Sequence[Part], options: argparse.Namespace) -> list[str]:
    """Run the parts, printing a line for each when it ends; the names of those that failed."""
    failed = []
    with tempfile.TemporaryDirectory(prefix="argand-test-gpu-") as folder:
        run = Run(folder)
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: run.stop())
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            running = {pool.submit(run.part, part, number): part for number, part in enumerate(parts)}
            for done in concurrent.futures.as_completed(running):
                part, (status, seconds, text) = running[done], done.result()
                ended = "ok" if status == 0 else "ended" if status == 143 else f"FAILED ({status})"
                last = text.strip().splitlines()[-1:] or [""]
                print(f"{part.name:13s} {ended:12s} {seconds:6.0f} s  {last[0][:120]}", flush=True)
                if status:
                    failed.append(part.name)
                    print(text[-3000:] if seconds else "", flush=True)
                if options.output:
                    Path(options.output).mkdir(parents=True, exist_ok=True)
                    name = part.name.partition(":")[0]
                    with open(Path(options.output) / f"{name}.txt", "a", encoding="utf8") as file:
                        file.write(text)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--zoo", default=os.environ.get("ZOO", str(ROOT.parent / "shared/zoo")))
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--jobs", type=int, default=max(1, min(8, (os.cpu_count() or 1) // 2)), help="parts at a time")
    parser.add_argument("--output", help="keep what each part prints here")
    options = parser.parse_intermixed_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"no such part: {', '.join(unknown)}")
    problem = problem_here()
    if problem:
        print(f"make test-gpu needs a GPU: {problem}")
        return 1
    import torch

    print(f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}, torch {torch.__version__}", flush=True)
    parts, skipped = chosen(options)
    failed = run_all(parts, options)
    for reason in skipped:
        print(f"skipped: {reason}")
    print("make test-gpu: " + (f"FAILED: {', '.join(dict.fromkeys(failed))}" if failed else "passed"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
