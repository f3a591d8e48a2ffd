"""How first calls grow with the number of layers: BERT and GPT-2 of 6, 12, 24 and 48 layers, cold and warm.

    python bench/growth.py [BERT GPT-2] [--layers 6,12,24,48] [--train] [--times N] [--torch]
                           [--plot OUT.png] [--json OUT] [--verdicts OUT]

Each figure is from a process of its own, timed from `compile(...)` to the end of the first call (of the first training
step with --train): N times with an empty cache, each followed by a warm process on what that one left; of both the
least counts. The time that eager takes for the same call is shown and not taken off. After the table, a verdict for
each doubling: exits with 1 where a first call takes more than a quarter longer than that of half the layers.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench_environment import environment
from verdicts import Verdict, finish

MOST = 1.25  # of the first call with half the layers
Times = dict[
    str, dict[str, list[float]]
]  # by "model, system" and "eager", "cold", "warm": a figure per number of layers


def model_of(name: str, layers: int) -> tuple[Any, dict[str, Any]]:
    """A small model with that many layers, and its inputs."""
    import torch
    import transformers

    torch.manual_seed(0)
    ids = torch.randint(5, 1000, (1, 32))
    if name == "BERT":
        sizes = {"hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 512, "vocab_size": 1000}
        bert = transformers.BertConfig(num_hidden_layers=layers, **sizes)
        return transformers.BertForSequenceClassification(bert).eval(), {"input_ids": ids}
    gpt2 = transformers.GPT2Config(
        n_layer=layers, n_embd=128, n_head=4, vocab_size=1000, use_cache=False, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(gpt2).eval(), {"input_ids": ids}


def worker(system: str, name: str, layers: int, train: bool) -> dict[str, float]:
    """Seconds of the first call and of eager's, in this process."""
    import torch

    model, inputs = model_of(name, layers)

    def step(call: Any) -> Any:
        if not train:
            with torch.no_grad():
                return call(**inputs).logits
        model.zero_grad()
        logits = call(**inputs).logits
        logits.float().pow(2).mean().backward()
        return logits.detach()

    step(model)
    begun = time.perf_counter()
    want = step(model)
    eager = time.perf_counter() - begun
    begun = time.perf_counter()
    if system == "argand":
        import argand

        compiled = argand.compile(model)
    else:
        compiled = torch.compile(model)
    got = step(compiled)
    first = time.perf_counter() - begun
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
    return {"eager": eager, "first": first}


def in_process(system: str, name: str, layers: int, train: bool, cache: str) -> dict[str, float]:
    """`worker` in a process of its own."""
    command = [sys.executable, __file__, "--worker", system, name, str(layers), *["--train"] * train]
    env = environment(cache)
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            found: dict[str, float] = json.loads(line.removeprefix("RESULT "))
            return found
    print("".join(done.stderr.splitlines(keepends=True)[-3:]), file=sys.stderr)
    return {"eager": math.nan, "first": math.nan}


def measured(args: argparse.Namespace, layers: list[int]) -> Times:
    times: Times = {}
    for name in args.models:
        for system in ["argand", *["torch"] * args.torch]:
            row: dict[str, list[float]] = {"eager": [], "cold": [], "warm": []}
            for count in layers:
                cold, warm = [], []
                for _ in range(args.times):
                    with tempfile.TemporaryDirectory() as cache:
                        for calls in (cold, warm):
                            calls.append(in_process(system, name, count, args.train, cache))
                row["eager"].append(min(call["eager"] for call in cold + warm))
                row["cold"].append(min(call["first"] for call in cold))
                row["warm"].append(min(call["first"] for call in warm))
            times[f"{name}, {system}"] = row
            for kind, found in row.items():
                print(f"{name:6} {system:7} {kind:6}" + "".join(f"{seconds:9.3f}" for seconds in found), flush=True)
    return times


def judged(times: Times, layers: list[int], mode: str) -> Iterator[Verdict]:
    """A verdict for each doubling of argand's first calls."""
    for name, row in times.items():
        for kind in ("cold", "warm") if name.endswith("argand") else ():
            for (few, before), (many, after) in zip(zip(layers, row[kind]), zip(layers[1:], row[kind][1:])):
                subject = f"growth, {mode}, {name.split(',')[0]}"
                yield Verdict(subject, f"of {few} layers' {kind} first call with {many}", after / before, MOST, True)


def plot(times: Times, layers: list[int], path: str) -> None:
    """Seconds over layers."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4))
    for axis, kind in zip(axes, ("cold", "warm")):
        for name, row in times.items():
            axis.plot(layers, row[kind], marker="o", label=name)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(layers, [str(count) for count in layers])
        axis.set_xlabel("layers")
        axis.set_ylabel("first call, s")
        axis.set_title(kind)
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def main() -> int:
    ap = argparse.ArgumentParser()
    ap.add_argument("models", nargs="*", default=["BERT", "GPT-2"])
    ap.add_argument("--layers", default="6,12,24,48")
    ap.add_argument("--train", action="store_true")
    ap.add_argument("--times", type=int, default=2)
    ap.add_argument("--torch", action="store_true")
    ap.add_argument("--plot")
    ap.add_argument("--json")
    ap.add_argument("--verdicts", help="append the verdicts here, as JSON")
    ap.add_argument("--worker", nargs=3, metavar=("SYSTEM", "MODEL", "LAYERS"), help=argparse.SUPPRESS)
    args = ap.parse_args()
    if args.worker:
        system, name, count = args.worker
        print("RESULT " + json.dumps(worker(system, name, int(count), args.train)))
        return 0
    layers = [int(count) for count in args.layers.split(",")]
    print(f"{'layers':21}" + "".join(f"{count:9}" for count in layers))
    times = measured(args, layers)
    good = finish(judged(times, layers, "training" if args.train else "inference"), args.verdicts)
    if args.json:
        Path(args.json).write_text(json.dumps({"layers": layers, "times": times}, indent=1))
    if args.plot:
        plot(times, layers, args.plot)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
