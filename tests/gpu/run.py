"""Everything that only a GPU can show, one line a part: what `make test-gpu` runs.

    python tests/gpu/run.py [PART ...] [--zoo FOLDER] [--short] [--jobs N] [--output FOLDER]

Parts: kernels, launches, tools, cuda-graphs, op-db, zoo, several-gpus, sanitizer. `--short` takes samples of op-db and zoo.
A part that cannot run here (no zoo, one GPU, no compute-sanitizer) says so and counts as skipped. Exit status 1 if any
part fails, or if there is no GPU.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
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
        *(str(HERE / path) for path in paths),
    ]


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
        "tools": [Part("tools", tests("test_tools.py"))],
        "cuda-graphs": [Part("cuda-graphs", tests("test_cuda_graphs.py"))],
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


def run(part: Part, cache: str) -> tuple[Part, int, float, str]:
    """Exit status, seconds and output of a part."""
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "PYTHONPATH": paths, "ARGAND_CACHE_DIR": cache}
    environment.pop("TRITON_INTERPRET", None)
    if part.name == "sanitizer":  # torch's cache of memory would hide what lies between two tensors
        environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    start = time.monotonic()
    try:
        done = subprocess.run(
            part.command, cwd=ROOT, env=environment, timeout=part.seconds, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        status, text = done.returncode, done.stdout
    except subprocess.TimeoutExpired as error:
        said = error.stdout or b""
        status, text = 124, said if isinstance(said, str) else said.decode(errors="replace")
    return part, status, time.monotonic() - start, text


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--zoo", default=os.environ.get("ZOO", str(ROOT.parent / "shared/zoo")))
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1), help="parts at a time")
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
    failed = []
    with tempfile.TemporaryDirectory(prefix="argand-test-gpu-") as cache:
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for part, status, seconds, text in pool.map(lambda one: run(one, cache), parts):
                last = text.strip().splitlines()[-1:] or [""]
                print(
                    f"{part.name:13s} {'ok' if status == 0 else f'FAILED ({status})':12s} {seconds:6.0f} s  {last[0][:120]}",
                    flush=True,
                )
                if status:
                    failed.append(part.name)
                    print(text[-3000:], flush=True)
                if options.output:
                    Path(options.output).mkdir(parents=True, exist_ok=True)
                    with open(Path(options.output) / f"{part.name}.txt", "a", encoding="utf8") as file:
                        file.write(text)
    for reason in skipped:
        print(f"skipped: {reason}")
    print("make test-gpu: " + (f"FAILED: {', '.join(dict.fromkeys(failed))}" if failed else "passed"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
