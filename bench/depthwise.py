"""Networks with depthwise convolutions on the CPU: milliseconds of eager, torch.compile and argand, interleaved.

    python bench/depthwise.py [MODEL ...] [--train] [--batch 1] [--threads 2] [--seconds 10] [--without-torch]

"library" is argand with ATen's convolutions in the layout of the program, "innermost" with the channels innermost.
Prints for each the least and the lower quartile of its steps, then the first call in seconds. With one thread it is
time of the CPU, whatever else runs on the machine.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import nn

import argand
from argand.backends import targets
from argand.config import config
from argand.ir.target import Target, cpu
from depthwise_models import MODELS

Step = Callable[[], object]


def library(threads: int) -> Target:
    return replace(cpu(threads), depthwise_taps=0, depthwise_innermost=False)


def innermost(threads: int) -> Target:
    return replace(cpu(threads), depthwise_taps=0)


TARGETS = {"library": library, "innermost": innermost}


def step_of(model: nn.Module, run: Callable[..., Any], x: torch.Tensor, train: bool) -> Step:
    """One call, or forward and backward."""
    labels = torch.arange(len(x)) % 1000

    def infer() -> object:
        with torch.no_grad():
            return run(x)

    def learn() -> object:
        F.cross_entropy(run(x), labels).backward()
        model.zero_grad(set_to_none=True)
        return None

    return learn if train else infer


def compiled(model: nn.Module) -> Callable[..., Any]:
    """A code object of its own, so that the ways of argand's do not share what was captured."""
    function: Callable[..., Any] = eval("lambda x: model(x)", {"model": model})
    return argand.compile(function)


def measure(name: str, options: argparse.Namespace) -> str:
    torch.manual_seed(0)
    model = MODELS[name]().train(options.train)
    for part in model.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight)  # that what is deep depends on the input
    x = torch.randn(options.batch, 3, 224, 224)
    steps: dict[str, Step] = {}
    first: dict[str, float] = {}
    ways: dict[str, Callable[[nn.Module], Callable[..., Any]]] = {"eager": lambda model: model}
    if not options.without_torch:
        ways["torch.compile"] = torch.compile
    ways |= {"library": compiled, "innermost": compiled, "argand": compiled}
    for way, make in ways.items():
        own = copy.deepcopy(model)
        steps[way] = step_of(own, make(own), x, options.train)
        with patch.object(targets, "cpu", TARGETS.get(way, cpu)):
            begin = time.perf_counter()
            steps[way]()
            first[way] = time.perf_counter() - begin
            steps[way]()
    clock = time.process_time if options.threads == 1 else time.perf_counter
    times: dict[str, list[float]] = {way: [] for way in steps}
    end = time.perf_counter() + options.seconds
    while time.perf_counter() < end:
        for way, step in steps.items():
            begin = clock()
            step()
            times[way].append(1e3 * (clock() - begin))
    found = (f"{way} {min(t):.1f} {sorted(t)[len(t) // 4]:.1f} ({first[way]:.1f} s)" for way, t in times.items())
    return f"{name}: " + ", ".join(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help=f"some of {', '.join(MODELS)}")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--without-torch", action="store_true", help="leave torch.compile out")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    config.reuse_graphs = False
    for name in options.models or MODELS:
        print(measure(name, options), flush=True)


if __name__ == "__main__":
    main()
