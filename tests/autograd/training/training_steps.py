"""Random training steps against eager: forward, loss, backward, clip, optimizers, with hooks of every kind and errors.

    python tests/autograd/training/training_steps.py [--count N] [--seed N] [--ways whole,engine] [--native] [--device cuda]
                                                  [--no-reduce]

A step is drawn as a text: layers (functions of the program's, checkpoints, writes, breaks), hooks (of tensors, nodes, leaves,
modules, optimizers), how it is differentiated, what happens to the gradients, and where something raises. It runs six rounds
in each of four ways: compiled whole; by eager code under compiled autograd; the same over a compiled model; with a
compiled model alone. Losses, gradients, parameters, states of optimizers, buffers, which hooks were called in which
order with what, and exceptions must be eager's: bit for bit, or with --native to 1e-7. A program that differs is made
smaller before it is shown. Exit status 1 if anything differs.
"""

from __future__ import annotations

import contextlib
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).parent)]

import step_pieces as pieces  # noqa: E402

import argand  # noqa: E402
import sweeps  # noqa: E402
from argand.engine.entries import Trial  # noqa: E402
from helpers import assert_same, texts_of  # noqa: E402

WAYS = ("whole", "engine", "compiled", "plain")
FIGURES = ("programs", "raised", "recorded", "refused", "whole in one graph")
ROUNDS = 6
Spec = dict[str, Any]


def drawn(seed: int) -> Spec:
    """What a step is made of; every part can be left out."""
    draw = random.Random(seed)

    def some(choices: list[Any], counts: list[int]) -> list[Any]:
        return [draw.choice(choices) for _ in range(draw.choice(counts))]

    def one(choices: list[str], chance: float) -> list[str]:
        return [draw.choice(choices)] if draw.random() < chance else []

    return {
        "layers": some(pieces.LAYERS, [1, 2, 3, 4, 6]),
        "on_results": [(draw.randrange(6), hook) for hook in some(pieces.ON_RESULTS, [0, 0, 0, 1, 2])],
        "lasting": some(pieces.LASTING, [0, 0, 1, 1, 3]),
        "passing": some(pieces.PASSING, [0, 0, 0, 1]),
        "loss": one(pieces.LOSSES, 0.7),
        "backward": one(pieces.BACKWARDS, 0.6),
        "accumulate": one(["2", "3"], 0.25),
        "wrapped": one(pieces.WRAPPED, 0.2),
        "around": one(pieces.AROUND, 0.2),
        "between": one(pieces.BETWEEN, 0.2),
        "gradients": some(pieces.GRADIENTS, [0, 1, 1, 2]),
        "optimizers": some(pieces.OPTIMIZERS, [0, 1, 1, 2]),
        "after": one(pieces.AFTER, 0.3),
        "zero": one(pieces.ZERO, 0.9),
        "changes": one(pieces.CHANGES, 0.4),
    }


def text_of(spec: Spec) -> str:
    """The program."""
    forward: list[str] = []
    for at, layer in enumerate(spec["layers"]):
        forward += [layer, *(hook for place, hook in spec["on_results"] if place == at)]
    forward += [hook for place, hook in spec["on_results"] if place >= len(spec["layers"])]
    body = [*spec["passing"], *(one for one in spec["zero"] if "# first" in one)]
    inner = ["out = net(x, r)", *(spec["loss"] or ["loss = out.square().mean()"])]
    inner += [*spec["between"], *(spec["backward"] or ["loss.backward()"])]
    inner = _within(spec["around"], inner)
    if spec["accumulate"]:
        ddp = any("DDP" in one for one in spec["wrapped"])
        quiet = f"with net.no_sync() if k < {spec['accumulate'][0]} - 1 else nullcontext():"
        inner = [f"for k in range({spec['accumulate'][0]}):", *_indented(_within([quiet] if ddp else [], inner))]
    body += [*inner, *spec["gradients"]]
    scaled = any("scaler" in one for one in spec["backward"])
    steps = ["scaler.step(optimizers[{}])" if scaled else "optimizers[{}].step()"] * len(spec["optimizers"])
    body += [one.format(at) for at, one in enumerate(steps)] + ["scaler.update()"] * (scaled and bool(steps))
    body += [*spec["after"], *(one for one in spec["zero"] if "# first" not in one)]
    body += ["for handle in handles: handle.remove()", "handles.clear()"] * bool(spec["passing"]) + ["return loss"]
    made = [f"optimizers.append({one})" for one in spec["optimizers"]]
    lines = [*pieces.MODEL, *_indented([*_indented(forward), "    return h"])]
    lines += ["model = Net().double().to(device)", "ps = list(model.parameters())", *made, *spec["lasting"]]
    lines += spec["wrapped"] or ["net = compiled(model)"]
    lines += ["def step(x, y, r):", *_indented(body), "def change(r):"]
    return "\n".join([*lines, *_indented([*spec["changes"], "return None"])]) + "\n"


def _within(heads: list[str], lines: list[str]) -> list[str]:
    """Lines in a block, or as they are."""
    for head in heads:
        lines = [head, *_indented(lines)]
        if head == "try:":
            lines += ["except (RuntimeError, ValueError) as error:", "    note(type(error).__name__)"]
    return lines


def _indented(lines: list[str]) -> list[str]:
    return ["    " + part for line in lines for part in line.split("\n")]


@contextlib.contextmanager
def one_process(device: str) -> Iterator[None]:
    """What DistributedDataParallel asks for."""
    backend = "nccl" if device == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def outcome(text: str, way: str, backend: str, device: str = "cpu") -> list[dict[str, Any]]:
    """What a program does in six rounds."""
    log: list[Any] = []
    space: dict[str, Any] = {
        "log": log,
        "device": device,
        "compiled": _compiler(backend) if way in ("compiled", "plain") else lambda f: f,
    }
    torch.manual_seed(0)
    results: list[dict[str, Any]] = []
    with contextlib.ExitStack() as ends:
        if "DDP" in text:
            ends.enter_context(one_process(device))
        exec(pieces.WORLD, space)  # texts of this sweep's own
        ends.callback(lambda: [handle.remove() for handle in space["global_handles"]])
        exec(compile(text, "<step>", "exec"), space)
        step = _compiler(backend)(space["step"]) if way == "whole" else space["step"]
        if way in ("engine", "compiled"):
            ends.enter_context(argand.compiled_autograd(backend=backend))
        for r in range(ROUNDS):
            torch.manual_seed(r)
            x, y = torch.randn(4, 6, dtype=torch.float64).to(device), torch.randint(0, 6, (4,)).to(device)
            space["state"]["round"] = r
            space["change"](r)
            parts: dict[str, Any] = {}
            try:
                loss: Any = step(x.requires_grad_("grad(out.sum(), x" in text), y, r)
                parts["loss"] = (loss.detach().clone(), loss.requires_grad)
            except (RuntimeError, ValueError, TypeError, AttributeError, AssertionError, NameError) as error:
                parts["loss"] = (type(error).__name__, str(error)[:25])
            parts["hooks"] = [one[0] for one in log]
            parts |= {f"{at} {one[0]}": one[1:] for at, one in enumerate(log)}
            results.append(parts | _state(space))
            log.clear()
    return results


def _compiler(backend: str) -> Callable[[Any], Any]:
    return lambda function: argand.compile(function, backend=backend)


def _state(space: dict[str, Any]) -> dict[str, Any]:
    """All that training has changed."""
    model, state = space["model"], space["state"]
    named = dict(model.named_parameters())
    parts: dict[str, Any] = {f"{name}.grad": _copy(one.grad) for name, one in named.items()}
    parts["kept gradients"] = [name for name, one in named.items() if one.grad is state["grads"].get(name)]
    state["grads"] = {name: one.grad for name, one in named.items()}
    parts |= {name: _copy(one) for name, one in (*named.items(), *model.named_buffers())}
    for number, optimizer in enumerate(space["optimizers"]):
        states = [state for state in optimizer.state.values()]
        parts[f"optimizer {number}"] = [{key: _copy(value) for key, value in one.items()} for one in states]
    parts["retained"] = [_copy(one.grad) for one in space["retaining"]]
    space["retaining"].clear()
    return parts | {"calls": model.calls}


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _assert_same_outcome(r: int, want: dict[str, Any], got: dict[str, Any], exact: bool) -> None:
    for name, value in want.items():
        if not exact and name[0].isdigit():  # what one graph computes reaches leaves in the graph's order
            continue
        if name == "hooks" and not exact:
            value, got = sorted(value), {**got, name: sorted(got[name])}
        if name == "hooks" or name not in got:
            assert value == got.get(name), f"round {r}, {name}: {got.get(name)} is not {value}"
        try:
            assert_same(value, got[name], exact=exact)
        except AssertionError as error:
            shown = f"{got[name]} is not {value}" if name == "loss" else str(error)
            raise AssertionError(f"round {r}, {name}: {shown}") from None
    assert want.keys() == got.keys()


def difference(spec: Spec, way: str, backend: str, found: Counter[str], device: str = "cpu") -> str:
    """How a compiled program differs; "" for not at all, or where eager cannot run it."""
    text = text_of(spec)
    with warnings.catch_warnings(), _settings():
        warnings.simplefilter("ignore")
        try:
            want = outcome(text, "eager", backend, device)
        except (RuntimeError, AttributeError, AssertionError, KeyError, TypeError):  # of the text itself
            found["raised"] += 1
            return ""
        with texts_of("compiled_autograd_graph") as graphs, texts_of("graph_breaks") as breaks:
            try:
                got = outcome(text, way, backend, device)
                for r, (one, other) in enumerate(zip(want, got)):
                    if backend != "eager" and isinstance(one["loss"][0], str) and one["loss"][0] == other["loss"][0]:
                        break  # leaves of one graph get gradients in its order: other ones before a hook raised
                    _assert_same_outcome(r, one, other, backend == "eager")
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # InternalFailure among them
                return f"{type(error).__name__}: {str(error)[:900]}"
            finally:
                argand.reset()
    found["programs"] += 1
    found["recorded" if graphs else "refused"] += way in ("engine", "compiled")
    found["whole in one graph"] += way == "whole" and not breaks
    return ""


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """Random numbers are eager's, and no backward is too small to be compiled."""
    turn = Trial.is_engines_turn
    Trial.is_engines_turn = lambda self: False  # type: ignore[method-assign]
    try:
        with argand.config.patch(fallback_random=True, log_level=40):
            yield
    finally:
        Trial.is_engines_turn = turn  # type: ignore[method-assign]


def reduced(spec: Spec, way: str, backend: str, device: str) -> Spec:
    """The least parts that still differ."""
    smaller = True
    while smaller:
        smaller = False
        for name, parts in spec.items():
            for at in range(len(parts)):
                tried = {**spec, name: parts[:at] + parts[at + 1 :]}
                if difference(tried, way, backend, Counter(), device):
                    spec, smaller = tried, True
                    break
            if smaller:
                break
    return spec


def main() -> int:
    parser = sweeps.parser(__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--native", action="store_true", help="the native backend, not eager's kernels")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--no-reduce", action="store_true", help="show programs as they are")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found: Counter[str] = Counter()
    backend = "native" if asked.native else "eager"
    for seed in range(asked.seed, asked.seed + asked.count):
        spec = drawn(seed)
        for way in asked.ways.split(","):
            told = difference(spec, way, backend, found, asked.device)
            if told:
                found[f"seed {seed}, {way}"] += 1
                least = spec if asked.no_reduce else reduced(spec, way, backend, asked.device)
                again = difference(least, way, backend, Counter(), asked.device)
                own = text_of(least).partition("# forward\n")[2]
                print(f"=== seed {seed}, {way}: {told}\n--- made smaller: {again}\n{own}", flush=True)
                break
    return sweeps.told(found, FIGURES)


if __name__ == "__main__":
    sys.exit(main())
