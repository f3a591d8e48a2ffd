"""Random training steps with every optimizer of torch's: a step as one function is eager's, bit for bit, in one graph.

    python tests/autograd/training/optimizer_steps.py [--count N] [--seed N] [--native] [--device cuda]

A step is forward, loss, backward, clipping, `step()` and `zero_grad()`. Drawn are the optimizer and its options, rates
in tensors, groups, schedulers, dtypes, complex parameters, parameters without gradients, closures, groups that are
added, states that are loaded. Losses, parameters, gradients, states and groups must be eager's; nothing may break but
what LBFGS and SparseAdam are known for, and nothing be compiled anew from the third step on while options stay. Exit
status 1 if anything differs.
"""

from __future__ import annotations

import copy
import random
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

import argand  # noqa: E402
import sweeps  # noqa: E402
from helpers import assert_same, texts_of  # noqa: E402

O = torch.optim
DECAY = {"weight_decay": [0, 0.1], "maximize": [False, True]}
OPTIONS: dict[str, dict[str, list[Any]]] = {
    "SGD": {**DECAY, "momentum": [0, 0.9], "dampening": [0, 0.1]},
    "Adam": {**DECAY, "amsgrad": [False, True], "betas": [(0.9, 0.999), (0.5, 0.9)], "eps": [1e-8, 1e-3]},
    "AdamW": {**DECAY, "amsgrad": [False, True]},
    "NAdam": {**DECAY, "momentum_decay": [4e-3, 0.1], "decoupled_weight_decay": [False, True]},
    "RAdam": {**DECAY, "decoupled_weight_decay": [False, True], "betas": [(0.9, 0.999), (0.5, 0.6)]},
    "Adamax": DECAY,
    "Adadelta": {**DECAY, "rho": [0.9, 0.5]},
    "Adagrad": {**DECAY, "lr_decay": [0, 0.1], "initial_accumulator_value": [0, 0.5]},
    "RMSprop": {**DECAY, "momentum": [0, 0.9], "centered": [False, True]},
    "Rprop": {"etas": [(0.5, 1.2), (0.3, 1.5)], "maximize": [False, True]},
    "ASGD": {**DECAY, "t0": [1e6, 2], "lambd": [1e-4, 0.1]},
    "Adafactor": {**DECAY, "beta2_decay": [-0.8, -0.5]},
    "Muon": {"weight_decay": [0, 0.1], "momentum": [0.95, 0.5], "nesterov": [False, True]},
    "SparseAdam": {"maximize": [False, True]},
    "LBFGS": {"max_iter": [2, 4], "history_size": [2, 10], "line_search_fn": [None, "strong_wolfe"]},
}
PLAIN = ("Adafactor", "Muon", "SparseAdam", "LBFGS")
"""Optimizers that take no rates in tensors, or no complex parameters."""
BREAKS = ("SparseAdam", "LBFGS")
SCHEDULERS = {
    "steps": lambda o: O.lr_scheduler.StepLR(o, 2, 0.5),
    "cosine": lambda o: O.lr_scheduler.CosineAnnealingLR(o, 4),
    "function": lambda o: O.lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "linear": lambda o: O.lr_scheduler.LinearLR(o, 0.5, 1.0, 3),
    "plateau": lambda o: O.lr_scheduler.ReduceLROnPlateau(o, patience=0),
}
ROUNDS = 6
Spec = dict[str, Any]


def drawn(seed: int) -> Spec:
    """What a step is made of."""
    draw = random.Random(seed)
    name = draw.choice([name for name in OPTIONS if hasattr(O, name)])
    options = {key: draw.choice(values) for key, values in OPTIONS[name].items() if draw.random() < 0.6}
    if name not in ("Muon", *BREAKS):
        options |= draw.choice([{}, {"foreach": True}, {"foreach": False}])
    options["lr"] = {"Muon": 0.02, "LBFGS": 0.5}.get(name, draw.choice([0.1, 0.01]))
    dtype = draw.choice([torch.float64, torch.float32, torch.float32])
    rate = name not in PLAIN and draw.random() < 0.25
    if rate:
        options |= {"foreach": False, "lr": torch.tensor(options["lr"], dtype=draw.choice([torch.float32, dtype]))}
    return {
        "seed": seed,
        "name": name,
        "options": options,
        "dtype": dtype,
        "complex": name not in PLAIN and dtype is torch.float32 and draw.random() < 0.15,
        "groups": name != "LBFGS" and draw.random() < 0.35,
        "frozen": draw.random() < 0.3,
        "clip": draw.choice(["", "norm", "value", "norms one by one"]) if name != "SparseAdam" else "",
        "scheduler": draw.choice(["", "", *SCHEDULERS]),
        "zero": draw.choice(["none", "zeros", "first"]),
        "accumulate": draw.choice([1, 1, 1, 2]),
        "closure": name == "LBFGS" or draw.random() < 0.15,
        "added": name not in BREAKS and draw.random() < 0.1,
        "loaded": draw.random() < 0.1,
        "device": "cpu",
    }


class Net(nn.Module):
    def __init__(self, spec: Spec) -> None:
        super().__init__()
        matrices = spec["name"] == "Muon"
        self.a, self.b = nn.Linear(6, 5, bias=not matrices), nn.Linear(5, 4, bias=not matrices)
        self.unused = nn.Linear(3, 3, bias=False)
        self.table = nn.Embedding(7, 6, sparse=spec["name"] == "SparseAdam")
        self.turn = nn.Parameter(torch.randn(5, dtype=torch.complex64)) if spec["complex"] else None
        dense = spec["name"] == "LBFGS"
        self.kernel = None if matrices else nn.Parameter(torch.randn(3, 5, 2) if dense else torch.randn(5, 3, 2).mT)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        h = self.a(x + self.table(ids)).tanh()
        if self.turn is not None:
            h = h * (self.turn * self.turn.conj()).real + (h * self.turn).abs()
        if self.kernel is not None:
            h = h * (1 + self.kernel.flatten()[:5])
        return self.b(h)


def made(spec: Spec) -> tuple[Net, Any, Any]:
    """A model, its optimizer, and what changes its rates."""
    torch.manual_seed(spec["seed"])
    net = (Net(spec) if spec["complex"] else Net(spec).to(spec["dtype"])).to(spec["device"])
    net.b.weight.requires_grad_(not spec["frozen"])
    parameters = list(net.parameters())
    if spec["name"] == "SparseAdam":
        net.requires_grad_(False)
        parameters = [net.table.weight.requires_grad_()]
    options = copy.deepcopy(spec["options"])
    grouped: Any = parameters
    if spec["groups"] and len(parameters) > 2:
        grouped = [{"params": parameters[:2], "lr": options["lr"] * 2}, {"params": parameters[2:]}]
    optimizer = getattr(O, spec["name"])(grouped, **options)
    return net, optimizer, SCHEDULERS[spec["scheduler"]](optimizer) if spec["scheduler"] else None


def step_of(spec: Spec, net: Net, optimizer: Any, late: torch.Tensor | None) -> Any:
    """The step."""

    def loss_of(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        out = net(x, ids)
        return (out if late is None else out @ late).square().mean()

    def step(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(x, ids)
            loss.backward()
            return loss

        if spec["closure"]:
            return optimizer.step(closure)
        if spec["zero"] == "first":
            optimizer.zero_grad()
        for part in range(spec["accumulate"]):
            loss = loss_of(x * (part + 1), ids)
            loss.backward()
        if spec["clip"].startswith("norm"):
            nn.utils.clip_grad_norm_(net.parameters(), 0.5, foreach=None if spec["clip"] == "norm" else False)
        elif spec["clip"] and not spec["complex"]:
            nn.utils.clip_grad_value_(net.parameters(), 0.05)
        optimizer.step()
        if spec["zero"] != "first":
            optimizer.zero_grad(set_to_none=spec["zero"] == "none")
        return loss

    return step


def outcome(spec: Spec, backend: str | None, compiles: list[int]) -> list[Any]:
    """What is there after each step."""
    net, optimizer, scheduler = made(spec)
    late = nn.Parameter(torch.ones_like(net.b.weight[:, :4])) if spec["added"] else None
    step = step_of(spec, net, optimizer, late)
    run = argand.compile(step, backend=backend) if backend else step
    seen = []
    with texts_of("recompiles") as told:
        for r in range(ROUNDS):
            torch.manual_seed(r)
            x, ids = torch.randn(4, 6, dtype=net.a.weight.dtype), torch.randint(0, 7, (4,))
            x, ids = x.to(spec["device"]), ids.to(spec["device"])
            if r == 3 and late is not None:
                optimizer.add_param_group({"params": [late]})
            if r == 4 and spec["loaded"]:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            loss = run(x, ids)
            if scheduler is not None:
                scheduler.step(*([1.0] if spec["scheduler"] == "plateau" else []))
            grads = [None if p.grad is None else p.grad.to_dense() for p in net.parameters()]
            groups = [{key: value for key, value in one.items() if key != "params"} for one in optimizer.param_groups]
            states = list(optimizer.state.values())
            seen.append(copy.deepcopy([loss.detach(), [p.detach() for p in net.parameters()], grads, states, groups]))
            compiles.append(len(told))
    return seen


def difference(spec: Spec, backend: str, found: Counter[str]) -> str:
    """How a compiled step differs from eager's; "" for not at all, or where eager cannot run it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            want = outcome(spec, None, [])
        except (RuntimeError, ValueError, KeyError):  # options that do not go together
            found["raised"] += 1
            return ""
        compiles: list[int] = []
        argand.reset()
        with texts_of("graph_breaks") as breaks:
            try:
                got = outcome(spec, backend, compiles)
            except BaseException as error:  # InternalFailure among them
                return f"{type(error).__name__}: {str(error)[:600]}"
    found["steps"] += 1
    if breaks and spec["name"] not in BREAKS:
        return f"breaks: {breaks[0][:600]}"
    if not breaks and not (spec["scheduler"] or spec["added"] or spec["loaded"]) and compiles[-1] > compiles[2]:
        return f"compiled anew: {compiles}"
    for r, pair in enumerate(zip(want, got)):
        for what, *both in zip(("loss", "parameters", "gradients", "states", "groups"), *pair):
            try:
                assert_same(*both, exact=backend == "eager")
            except AssertionError as error:
                return f"round {r}, {what}: {str(error)[:300]}"
    return ""


def main() -> int:
    parser = sweeps.parser(__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--native", action="store_true", help="the native backend, not eager's kernels")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    argand.config.log_level = 40
    found: Counter[str] = Counter()
    for seed in range(asked.seed, asked.seed + asked.count):
        spec = {**drawn(seed), "device": asked.device}
        told = difference(spec, "native" if asked.native else "eager", found)
        if told:
            found[f"seed {seed}"] += 1
            print(f"=== seed {seed}: {told}\n    {spec}", flush=True)
    return sweeps.told(found, ("steps", "raised"))


if __name__ == "__main__":
    sys.exit(main())
