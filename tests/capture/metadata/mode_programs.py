"""Random programs that change torch's modes and settings, break graphs and raise, against eager.

    python tests/capture/metadata/mode_programs.py [--count N] [--seed N] [--backend NAME] [--source]

A program is nested `with` and `try` blocks: managers of grad mode, inference mode, autocast, flags of backends and of
attention, settings that are set for good, operations that raise because of their values, exceptions of its own, graph
breaks, a helper and a decorated function. What comes out, what torch's state is at moments on the way and after the
call, and random numbers must be eager's. Exit status 1 if anything differs.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import argand

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "fuzz"))

from differential import differing, load

HEAD = """
import contextlib
import torch, argand

LOG = []

def state():
    return (
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"),
        str(torch.get_autocast_dtype("cpu")), torch.is_autocast_cache_enabled(), str(torch.get_default_dtype()),
        torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark, torch.backends.mkldnn.enabled,
        str(torch.get_default_device()), torch.is_anomaly_enabled(), torch.get_float32_matmul_precision(),
        torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled(),
    )

def note():
    LOG.append(state())

@torch.no_grad()
def decorated(x, i):
    return x.index_select(0, i)

@contextlib.contextmanager
def own(value):
    before = torch.is_grad_enabled()
    torch._C._set_grad_enabled(value)
    try:
        yield
    finally:
        torch._C._set_grad_enabled(before)
"""

MANAGERS = (
    "torch.no_grad()", "torch.enable_grad()", "torch.inference_mode()", "torch.inference_mode(False)",
    "torch.set_grad_enabled(False)", "torch.set_grad_enabled(True)", "own(False)", "own(True)",
    "torch.autocast('cpu', torch.bfloat16)", "torch.autocast('cpu', enabled=False)", "torch.device('cpu')",
    "torch.autograd.set_detect_anomaly(True)", "torch.autograd.detect_anomaly(check_nan=False)",
    "torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)", "torch.backends.cudnn.flags(benchmark=True)",
    "torch.backends.mkldnn.flags(enabled=False)", "contextlib.nullcontext()",
)  # fmt: skip

SETTINGS = (
    "torch.set_grad_enabled(False)", "torch.set_grad_enabled(True)", "torch.set_default_dtype(torch.float64)",
    "torch.set_default_dtype(torch.float32)", "torch.use_deterministic_algorithms(True)",
    "torch.use_deterministic_algorithms(False)", "torch.backends.cudnn.benchmark = True",
    "torch.set_autocast_enabled('cpu', True)", "torch.set_float32_matmul_precision('high')",
    "torch.set_default_device('cpu')", "torch.set_default_device(None)",
)  # fmt: skip

STEPS = (
    ("x = x.index_select(0, torch.tensor([0, 1, {row}]))", 12), ("x = decorated(x, torch.tensor([0, 1, n]))", 4),
    ("if n == {number}: raise ValueError('v')", 6), ("x = x + torch.zeros(3, 4)", 3), ("x = x * torch.ones(4)", 3),
    ("x = x @ w", 5), ("x = torch.nn.functional.dropout(x, 0.5)", 5), ("if x.sum() > 0: x = x - 1", 4), ("note()", 4),
    ("x = x.sin() * w.sum()", 7), ("argand.graph_break()", 10), ("{setting}", 8), ("x = helper(x, w, n)", 3),
)  # fmt: skip

ARGUMENTS = ((1, True), (5, True), (2, False), (5, False), (1, True))
"""(n, whether the weight requires grad) of the calls: five is a row that there is not."""


class Writer:
    """Draws a program's text."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.lines: list[str] = []

    def function(self, head: str, size: int, steps: tuple[tuple[str, int], ...]) -> None:
        self.steps = steps
        self.lines.append(head)
        self.block(1, size)
        self.lines.append("    return x")

    def block(self, depth: int, size: int) -> None:
        for _ in range(size):
            chance = self.draw.random()
            if chance < 0.18 and depth < 4:
                self.emit(depth, f"with {self.draw.choice(MANAGERS)}:")
                self.block(depth + 1, self.draw.randint(1, 3))
            elif chance < 0.26 and depth < 4:
                self.tried(depth)
            else:
                text = self.draw.choices([text for text, _ in self.steps], [weight for _, weight in self.steps])[0]
                row, number = self.draw.choice(("n", "1", "0", "n - 1")), self.draw.choice((1, 2, 5))
                self.emit(depth, text.format(row=row, number=number, setting=self.draw.choice(SETTINGS)))

    def tried(self, depth: int) -> None:
        self.emit(depth, "try:")
        self.block(depth + 1, self.draw.randint(1, 3))
        caught = self.draw.random() < 0.7
        self.emit(depth, "except (IndexError, ValueError, RuntimeError) as e:" if caught else "finally:")
        self.emit(depth + 1, "LOG.append(type(e).__name__)" if caught else "note()")
        self.block(depth + 1, 1)

    def emit(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)


def program(seed: int) -> str:
    """A program's text; `f` is what is compiled."""
    writer = Writer(random.Random(seed))
    writer.function("def helper(x, w, n):", 3, STEPS[:-1])
    writer.function("def f(x, w, n):", writer.draw.randint(3, 7), STEPS)
    return HEAD + "\n".join(writer.lines)


def set_back() -> None:
    """Torch's state as a process has it in the beginning."""
    flags = torch.backends.flags_frozen.__globals__
    flags["__allow_nonbracketed_mutation_flag"] = True  # torch's own test helpers forbid to set them for good
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = False
    torch.set_autocast_enabled("cpu", False)
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    torch.set_float32_matmul_precision("highest")
    torch.set_default_device(None)
    while (
        torch._C._len_torch_function_stack()
    ):  # a default device that was set inside of `with torch.device` stays there
        torch.overrides._pop_mode()
    torch.autograd.set_detect_anomaly(False)


@contextlib.contextmanager
def from_the_beginning() -> Iterator[None]:
    set_back()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            set_back()


def observe(module: Any, function: Any, call: int) -> tuple[Any, ...]:
    """Everything that one call shows."""
    n, trains = ARGUMENTS[call]
    module.LOG.clear()
    with from_the_beginning():
        torch.manual_seed(call)
        x, w = torch.randn(3, 4), torch.randn(4, 4, requires_grad=trains)
        try:
            out = function(x, w, n)
            outcome = (out.detach().clone().double(), out.requires_grad, out.dtype, out.is_inference())
        except Exception as error:
            outcome = (type(error).__name__, str(error).partition("\n")[0])
        after, drawn = module.state(), torch.get_rng_state()
    return outcome, after, list(module.LOG), drawn


def difference(source: str, backend: str = "eager") -> str | None:
    """The first difference between eager and compiled calls of a program."""
    eager, compiled = load(source), load(source)
    function = argand.compile(compiled.f, backend=backend)
    try:
        for call in range(len(ARGUMENTS)):
            found = differing(observe(eager, eager.f, call), observe(compiled, function, call))
            if found is not None:
                return f"call {call}: {found}"
        return None
    finally:
        argand.reset()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--source", action="store_true", help="print the programs that differ")
    options = parser.parse_args()
    bad = 0
    for seed in range(options.seed, options.seed + options.count):
        source = program(seed)
        found = difference(source, options.backend)
        if found is not None:
            bad += 1
            print(f"=== seed {seed}: {found}", source[len(HEAD) :] if options.source else "", flush=True)
    print(f"{options.count} programs, {bad} differences")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
