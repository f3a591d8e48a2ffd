"""Compare eager, torch.compile and argand on a GPU: step time, first call cold and warm, peak memory, agreement.

    python bench/gpu.py [MODEL ...] [--systems eager,torch,torch-graphs,argand,argand-graphs] [--train] [--short]
                        [--dtype bfloat16] [--seconds S] [--warm] [--together N] [--caches DIR] [--json OUT]

"-graphs" is `mode="reduce-overhead"`. Each measurement is a process of its own with fresh caches (--warm: a second one
on the same caches). A step is the median over CUDA events. With --together N, N processes load, compile and warm up at
once, then each is timed alone: step times are as without it, first calls are those of a busy machine. A row's "graphs"
says which graphs argand recorded as CUDA graphs, and why it did not record the others. Products of float32 are TF32's.
Agreement: the largest difference from float32 eager, over
that of eager in the dtype at hand, so that 1 is as exact as eager. Exits with 1 when a model fails or is 3 times less
exact than eager.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from bench_environment import environment

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
HERE = os.path.dirname(os.path.abspath(__file__))
SYSTEMS = ("eager", "torch", "torch-graphs", "argand", "argand-graphs")
WORST = 3.0
WARM = 25  # steps before the timed ones: argand's default mode times calls before it records them


def compiled_by(system: str, model: Any) -> Any:
    """The model, compiled by one system."""
    mode = "reduce-overhead" if system.endswith("-graphs") else "default"
    if system.startswith("argand"):
        import argand

        return argand.compile(model, mode=mode)
    if system.startswith("torch"):
        import torch

        return torch.compile(model, mode=mode)
    return model


def first_tensor(out: Any) -> Any:
    """The first tensor of a model's output."""
    if hasattr(out, "keys"):
        return next(v for v in out.values() if hasattr(v, "dtype"))
    return out[0] if isinstance(out, tuple) else out


class Work:
    """One model on the GPU, and what a step of it is.

    Arguments:
        name, short: which model.
        dtype: of parameters and inputs.
        train: a step is forward, mean square of the first output, backward.
    """

    def __init__(self, name: str, short: bool, dtype: Any, train: bool) -> None:
        import torch

        import gpu_models

        with torch.device("cuda"):  # a billion random weights take the host a minute
            model, inputs = gpu_models.MODELS[name](short)
        self.torch, self.train = torch, train
        self.model = model.to("cuda", dtype).requires_grad_(train)
        for layer in self.model.modules():
            if isinstance(layer, torch.nn.RNNBase):
                layer.train(train)  # cuDNN has no backward of evaluation; none of them drops anything
        self.inputs = {k: v.cuda().to(dtype) if v.is_floating_point() else v.cuda() for k, v in inputs.items()}

    def step(self, call: Any) -> Any:
        """One step; what is compared between systems."""
        if not self.train:
            with self.torch.no_grad():
                return first_tensor(call(**self.inputs))
        self.model.zero_grad(set_to_none=True)
        out = first_tensor(call(**self.inputs))
        out.float().pow(2).mean().backward()
        return out.detach()

    def seen(self, call: Any) -> list[Any]:
        """Results of a step, gradients included, in float32 on the CPU."""
        out = [self.step(call)]
        if self.train:
            out += [p.grad for p in self.model.parameters() if p.grad is not None][:20]
        return [tensor.detach().float().cpu() for tensor in out]


def distance(one: list[Any], two: list[Any]) -> float:
    """Largest difference over the largest value, tensor by tensor (on the GPU: logits are 200 million numbers)."""
    found = 0.0
    for a, b in ((a.cuda(), b.cuda()) for a, b in zip(one, two)):
        scale = float(a.abs().max()) or 1.0
        difference = float((a - b).abs().max()) / scale
        found = float("inf") if difference != difference else max(found, difference)
    return found


def recorded_graphs() -> list[str]:
    """A list that will say of each graph whether it was recorded as a CUDA graph."""
    from argand import events

    said: list[str] = []
    events.bus.subscribe(lambda event: said.append(event.text()), ("cudagraphs",))
    return said


def wait_for_turn(turn: str | None) -> None:
    """Say that all is compiled and warm, then wait until nobody else is at work (--together)."""
    if turn is None:
        return
    with open(turn + ".ready", "w", encoding="utf8"):
        pass
    while not os.path.exists(turn + ".go"):
        time.sleep(0.05)


def measure(system: str, options: argparse.Namespace, name: str) -> dict[str, Any]:
    """One system on one model, in this process."""
    import torch

    dtype = getattr(torch, options.dtype)
    exact = Work(name, options.short, torch.float32, options.train)
    truth = exact.seen(exact.model)
    del exact
    torch.set_float32_matmul_precision("high")
    work = Work(name, options.short, dtype, options.train)
    plain = distance(truth, work.seen(work.model))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    graphs = recorded_graphs() if system.startswith("argand") else []
    start = time.perf_counter()
    call = compiled_by(system, work.model)
    work.step(call)
    torch.cuda.synchronize()
    first = time.perf_counter() - start
    seen = work.seen(call)
    peak = torch.cuda.max_memory_allocated()
    ours = distance(truth, seen)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(4):
        work.step(call)
    torch.cuda.synchronize()
    wait_for_turn(options.turn)
    for _ in range(WARM):
        work.step(call)
    torch.cuda.synchronize()
    times = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < options.seconds or len(times) < 5:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(11)]
        events[0].record()
        for event in events[1:]:
            work.step(call)
            event.record()
        torch.cuda.synchronize()
        times += [a.elapsed_time(b) for a, b in itertools.pairwise(events)]
    return {
        "system": system, "model": name, "step_ms": statistics.median(times), "first_call_s": first,
        "peak_mb": max(peak, torch.cuda.max_memory_allocated()) / 1e6, "exactness": ours / max(plain, 1e-9),
        "eager_error": plain, "graphs": graphs,
    }  # fmt: skip


class Worker:
    """One measurement in a process of its own.

    Arguments:
        system, name: what is measured.
        cache: folder of all compilers' caches.
        turn: a path without its ending; with one, the worker waits for `PATH.go` before it times.
    """

    def __init__(
        self, system: str, name: str, cache: str, options: argparse.Namespace, turn: str | None = None
    ) -> None:
        self.row = {"system": system, "model": name}
        self.cache, self.turn, self.timeout = cache, turn, options.timeout
        env = environment(cache) | {"TRITON_CACHE_DIR": cache}
        command = [sys.executable, os.path.abspath(__file__), "--worker", system, name, "--dtype", options.dtype]
        command += ["--seconds", str(options.seconds)] + ["--train"] * options.train + ["--short"] * options.short
        command += ["--turn", turn] if turn else []
        self.log = os.path.join(cache, "output")
        os.makedirs(cache, exist_ok=True)
        self.start = time.perf_counter()
        with open(self.log, "w", encoding="utf8") as log:
            self.process = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)

    def wait_until_ready(self) -> None:
        """Until the worker is warm, or has ended, or is too late (it is killed then)."""
        while self.process.poll() is None and not os.path.exists(f"{self.turn}.ready"):
            if time.perf_counter() - self.start > self.timeout:
                self.process.kill()
            time.sleep(0.05)

    def result(self) -> dict[str, Any]:
        """Its row, or one with an `error`."""
        if self.turn:
            with open(f"{self.turn}.go", "w", encoding="utf8"):
                pass
        left = self.timeout - (time.perf_counter() - self.start)
        try:
            self.process.wait(max(left, 5.0))
        except subprocess.TimeoutExpired:
            self.process.kill()
            return {**self.row, "error": f"no result within {self.timeout:.0f} s"}
        with open(self.log, encoding="utf8", errors="replace") as log:
            lines = log.read().strip().splitlines()
        for line in lines:
            if line.startswith("RESULT "):
                return dict(json.loads(line.removeprefix("RESULT ")))
        return {**self.row, "error": " | ".join(lines[-3:])[-500:] or "killed"}


def cache_folder(folder: str, name: str, system: str, options: argparse.Namespace) -> str:
    """Where a worker's compilers keep what they made."""
    if not options.caches:
        return os.path.join(folder, f"cache-{name}-{system}")
    return os.path.join(options.caches, f"{name}-{system.removesuffix('-graphs')}-{'train' * options.train}")


def measured(jobs: list[tuple[str, str]], options: argparse.Namespace, folder: str) -> list[dict[str, Any]]:
    """The rows of a few (model, system) pairs, which load together and are timed one by one."""
    turns = [os.path.join(folder, f"{name}-{system}") if options.together > 1 else None for name, system in jobs]
    caches = [cache_folder(folder, name, system, options) for name, system in jobs]
    workers = [Worker(system, name, cache, options, t) for (name, system), cache, t in zip(jobs, caches, turns)]
    if options.together > 1:
        for worker in workers:
            worker.wait_until_ready()
    rows = []
    for worker, (name, system), cache in zip(workers, jobs, caches):
        rows.append(row := worker.result())
        if options.warm and "error" not in row and system != "eager":
            row["warm_s"] = Worker(system, name, cache, options).result().get("first_call_s")
        if not options.caches:
            shutil.rmtree(cache, ignore_errors=True)
        print(json.dumps(row), flush=True)
    return rows


def report(rows: list[dict[str, Any]]) -> int:
    """Print the table and the geometric means; the number of failures."""
    eager = {row["model"]: row for row in rows if row["system"] == "eager" and "error" not in row}
    heads = ("step ms", "x eager", "first s")
    print(
        f"{'model':12} {'system':14} {' '.join(f'{h:>8}' for h in heads)} {'warm s':>7} {'MB':>7} {'error/eager':>11}"
    )
    failed = 0
    for row in rows:
        if "error" in row:
            failed += 1
            print(f"{row['model']:12} {row['system']:14} {row['error']}")
            continue
        base = eager.get(row["model"])
        gain = f"{base['step_ms'] / row['step_ms']:8.2f}" if base else " " * 8
        warm = f"{row['warm_s']:7.2f}" if "warm_s" in row else " " * 7
        print(
            f"{row['model']:12} {row['system']:14} {row['step_ms']:8.2f} {gain} {row['first_call_s']:8.2f} {warm} "
            f"{row['peak_mb']:7.0f} {row['exactness']:11.2f}"
        )
        failed += row["exactness"] > WORST and row["eager_error"] > 1e-6
    for system in SYSTEMS[1:]:
        gains = [
            eager[r["model"]]["step_ms"] / r["step_ms"]
            for r in rows
            if r["system"] == system and "error" not in r and r["model"] in eager
        ]
        if gains:
            print(f"{system}: {statistics.geometric_mean(gains):.2f} x eager in geometric mean of {len(gains)}")
    return failed


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--timeout", type=float, default=300.0)
    parser.add_argument("--together", type=int, default=1)
    parser.add_argument(
        "--caches", metavar="DIR", help="kept there, one for each model and compiler, whatever the mode"
    )
    parser.add_argument("--json")
    parser.add_argument("--worker", nargs=2, metavar=("SYSTEM", "MODEL"), help=argparse.SUPPRESS)
    parser.add_argument("--turn", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = parse()
    sys.path.insert(0, HERE)
    if options.worker:
        print("RESULT " + json.dumps(measure(options.worker[0], options, options.worker[1])))
        return 0
    import torch

    if not torch.cuda.is_available():
        print("bench/gpu.py needs a CUDA GPU; this machine has none")
        return 1
    import gpu_models

    jobs = [(name, system) for name in options.models or gpu_models.MODELS for system in options.systems.split(",")]
    rows = []
    with tempfile.TemporaryDirectory(prefix="argand-gpu-") as folder:
        for first in range(0, len(jobs), options.together):
            rows += measured(jobs[first : first + options.together], options, folder)
    if options.json:
        with open(options.json, "w", encoding="utf8") as file:
            json.dump(rows, file, indent=1)
    return 1 if report(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
