"""Random uses of `fully_shard`, trained by eager and by argand."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard

from distributed.worlds import world_models
from distributed.worlds.world_models import DEVICE, MODELS, given, local, loss_of

STEPS = 5
WHOLE = StateDictOptions(full_state_dict=True)
POLICIES = {
    "": MixedPrecisionPolicy(),
    "bf16 parameters": MixedPrecisionPolicy(param_dtype=torch.bfloat16),
    "bf16, reduced in fp32": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    "bf16, gives fp32": MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32),
    "bf16 reductions": MixedPrecisionPolicy(reduce_dtype=torch.bfloat16),
    "inputs as they are": MixedPrecisionPolicy(param_dtype=torch.float32, cast_forward_inputs=False),
}
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.003, eps=0.01),
}


def drawn(chance: random.Random) -> dict[str, Any]:
    rarely = lambda value, other, share=0.2: value if chance.random() < share else other  # noqa: E731
    model = chance.choice([name for name in MODELS if name != "unused"])
    tied = model in ("shared", "gpt")  # a weight in two groups is refused
    wrap = chance.choice(["root"] if model == "shared" else ["blocks", "blocks", "root"] + ["layers"] * (not tied))
    policy = chance.choice(list(POLICIES)) if chance.random() < 0.4 and model not in ("counting", "cnn") else ""
    if (wrap == "layers" and "bf16" in policy) or (wrap != "root" and policy == "bf16, gives fp32"):
        policy = "bf16 reductions"  # torch's norms take no inputs and weights of two kinds
    ignored = chance.random() < 0.1 and not policy
    events = ["", "", "", "eval", "own state", "reshard", "freeze", "raise", "no gradients"]
    return {
        "model": model,
        "how": chance.choice(["outer", "outer", "inner", "blocks", "blocks", "step", "recorded outer"]),
        "policy": policy,
        "reshard": chance.choice([True, True, False, 1, 2, None]),
        "offload": rarely(True, False, 0.15),
        "by columns": rarely(True, False, 0.1),
        "wrap": wrap,
        "ignored": ignored,
        "accumulate": rarely(2, 1, 0.35),
        "no sync": chance.choice(["gradient sync", "gradient sync", "reshard after backward", "all reduce", ""]),
        "prefetch": rarely(True, False),
        "unshard": rarely(True, False),
        "set_to_none": rarely(False, True),
        "optimizer": chance.choice(list(OPTIMIZERS)),
        "clip": rarely(not ignored, False, 0.35),
        "autocast": rarely(True, False, 0.1),
        "sizes vary": rarely(True, False, 0.15),
        "event": chance.choice(events + ["whole state"] * (not tied)),
    }


class Training(world_models.Training):
    """One training of a world; `backend` "" is eager's."""

    def __init__(self, rank: int, world: dict[str, Any], backend: str) -> None:
        self.rank, self.world, self.backend = rank, world, backend
        self.how = world["how"] if backend else ""
        torch.manual_seed(0)
        self.model = MODELS[world["model"]]().to(DEVICE)
        blocks = list(getattr(self.model, "blocks", ()))
        if self.how == "inner":
            self.model.forward = self.compiled(self.model.forward)  # type: ignore[method-assign]
        if self.how == "blocks":
            for block in blocks or [self.model]:
                block.forward = self.compiled(block.forward)
        options: dict[str, Any] = {"mp_policy": POLICIES[world["policy"]], "reshard_after_forward": world["reshard"]}
        if world["offload"]:
            options["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
        if world["by columns"]:
            options["shard_placement_fn"] = lambda p: (
                Shard(p.dim() - 1) if p.shape[-1] % dist.get_world_size() == 0 else None
            )
        if world["ignored"]:
            options["ignored_params"] = {next(self.model.parameters())}
        wrapped = {
            "blocks": blocks,
            "root": [],
            "layers": [m for m in self.model.modules() if isinstance(m, nn.Linear)],
        }
        done: set[int] = set()
        for part in [*wrapped[world["wrap"]], self.model]:
            if id(part) not in done:
                done.add(id(part))
                fully_shard(part, **options)
        self.sharded = [m for m in self.model.modules() if isinstance(m, FSDPModule)]
        if world["prefetch"]:
            for one, two in zip(self.sharded, self.sharded[1:], strict=False):
                one.set_modules_to_forward_prefetch([two])
                two.set_modules_to_backward_prefetch([one])
        self.call: Any = self.compiled(self.model) if self.how.endswith("outer") else self.model
        self.loss = self.compiled(self.loss_of) if self.how == "step" else self.loss_of
        self.parameters = list(self.model.parameters())
        self.optimizer = OPTIMIZERS[world["optimizer"]]([p for p in self.parameters if p.requires_grad])
        self.seen: list[Any] = []

    def loss_of(self, x: torch.Tensor) -> torch.Tensor:
        return loss_of(self.call(x))

    def run(self) -> list[Any]:
        self.train(STEPS)
        states = [local(value) for p in self.parameters for _, value in sorted(self.optimizer.state.get(p, {}).items())]
        self.seen += [type(p).__name__ for p in self.parameters]
        return [
            *self.seen,
            *map(local, self.parameters),
            *self.model.buffers(),
            *states,
            getattr(self.model, "calls", 0),
        ]

    def step(self, step: int) -> None:
        world, count = self.world, self.world["accumulate"]
        self.optimizer.zero_grad(set_to_none=world["set_to_none"])
        for part in range(count):
            last = part == count - 1
            if world["no sync"] == "gradient sync":
                self.model.set_requires_gradient_sync(last)
            if world["no sync"] == "all reduce":
                self.model.set_requires_all_reduce(last)
                self.model.set_is_last_backward(last)
            if world["no sync"] == "reshard after backward":
                self.model.set_reshard_after_backward(last)
                self.model.set_is_last_backward(last)
            x = given(self.model, self.rank, step * count + part)
            if world["sizes vary"]:
                x = torch.cat([x] * (1 + step % 3))
            if world["unshard"]:
                handle = self.model.unshard(async_op=True)
                handle.wait()
            with torch.autocast(DEVICE, torch.bfloat16, enabled=world["autocast"]):
                loss = self.loss(x)
            loss.backward()
            self.seen.append(loss.detach().clone())
        self.seen += [None if p.grad is None else local(p.grad).clone() for p in self.parameters]
        self.seen += [None if p.grad is None else str(getattr(p.grad, "placements", "")) for p in self.parameters]
        if world["clip"]:
            self.seen.append(local(nn.utils.clip_grad_norm_(self.parameters, 0.05)))
        self.optimizer.step()

    def happen(self) -> None:
        """What happens between two steps."""
        event, x = self.world["event"], given(self.model, self.rank, 99)
        if event in ("eval", "no gradients"):
            self.look(x, event == "eval")
        elif event in ("whole state", "own state"):
            options = WHOLE if event == "whole state" else StateDictOptions()
            state = get_model_state_dict(self.model, options=options)
            of_optimizer = get_optimizer_state_dict(self.model, self.optimizer, options=options)
            with torch.no_grad():
                for p in self.parameters:
                    p.mul_(0.5)
            set_model_state_dict(self.model, state, options=options)
            set_optimizer_state_dict(self.model, self.optimizer, of_optimizer, options=options)
            self.seen += [local(value).clone() for value in state.values() if isinstance(value, torch.Tensor)]
        elif event == "reshard":
            self.model.unshard()
            self.model.reshard()
        elif event == "freeze":
            self.parameters[0].requires_grad_(False)
        elif event == "raise":
            with contextlib.suppress(Exception):
                self.call(torch.randn(2, 3, 4, 5, 6))


def train(rank: int, world: dict[str, Any], backend: str) -> list[Any]:
    return Training(rank, world, backend).run()
