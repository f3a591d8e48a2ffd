"""Random uses of DistributedDataParallel, trained by eager and by argand."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP

from distributed.models import SometimesUnused
from distributed.worlds import world_models
from distributed.worlds.world_models import DEVICE, MODELS, given, loss_of

STEPS = 5


def _halved(state, bucket):
    work = dist.all_reduce(bucket.buffer().div_(2 * dist.get_world_size()), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def _bf16(state, bucket):  # under its own name DDP refuses it without NCCL
    return default_hooks.bf16_compress_hook(state, bucket)


HOOKS = {"": None, "halved": _halved, "fp16": default_hooks.fp16_compress_hook, "bf16": _bf16}
OPTIMIZERS = {  # with an eps that keeps gradients which are noise from steps of full size
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.003, eps=0.01),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.01, eps=0.1),
}


def drawn(chance: random.Random) -> dict[str, Any]:
    """A world: what is trained, how, and what happens in between."""
    rarely = lambda value, other, share=0.2: value if chance.random() < share else other  # noqa: E731
    model = chance.choice(list(MODELS))
    two = chance.choice(["", "", "", "", "a chain", "two losses", "called twice"])
    if two == "called twice" and model == "checkpointed reentrant":
        model = "checkpointed"  # eager's reducer counts such a parameter twice, and refuses
    uneven = chance.random() < 0.15 and not two
    event = chance.choice(["", "", "", "eval", "freeze", "add parameter", "wrap anew", "no gradients", "raise", "load"])
    if model == "checkpointed reentrant" and event == "freeze":
        event = ""  # that takes find_unused_parameters, which refuses such checkpoints
    if uneven and event in ("wrap anew", "add parameter"):
        event = ""
    static = chance.random() < 0.15 and model != "unused" and event != "freeze"
    return {
        "model": model,
        "how": chance.choice(["outer", "outer", "inner", "step", "recorded", "recorded outer"]),
        "find_unused_parameters": model != "checkpointed reentrant"
        and rarely(True, model == "unused" or event == "freeze", 0.15),
        "static_graph": static,
        "gradient_as_bucket_view": rarely(True, False, 0.3),
        "bucket_cap_mb": chance.choice([0.0005, 0.002, 25]),
        "hook": rarely(chance.choice(list(HOOKS)), "", 0.4),
        "accumulate": 1 if static else rarely(3, 1),
        "set_to_none": rarely(False, True),
        "optimizer": chance.choice(list(OPTIMIZERS)),
        "clip": rarely(True, False, 0.25),
        "dtype": rarely("float32" if model == "llama" else "bfloat16", "float32", 0.1),
        "autocast": rarely(True, False, 0.15),
        "uneven": uneven,
        "sizes vary": rarely(True, False, 0.15),
        "two modules": two,
        "event": event,
    }


def _model(world: dict[str, Any]) -> nn.Module:
    return MODELS[world["model"]]().to(DEVICE, getattr(torch, world["dtype"]))


class _Follower(nn.Module):
    """A second module, that is trained on what the first gives."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(width, 7), nn.Linear(7, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x.to(self.one.weight.dtype)).tanh())


class Training(world_models.Training):
    """One training of a world.

    Arguments:
        backend: of argand; "" trains by eager.
    """

    def __init__(self, rank: int, world: dict[str, Any], backend: str) -> None:
        self.rank, self.world, self.backend = rank, world, backend
        self.how = world["how"] if backend else ""
        torch.manual_seed(0)
        self.model = _model(world)
        self.second: nn.Module | None = None
        if world["two modules"] in ("a chain", "two losses"):
            width = 5 if not hasattr(self.model, "words") else 96
            self.second = _Follower(width).to(DEVICE, getattr(torch, world["dtype"]))
        self.wrap()
        self.seen: list[Any] = []

    def wrap(self) -> None:
        """Put the modules under DDP, with an optimizer."""
        world = self.world
        names = ("find_unused_parameters", "static_graph", "gradient_as_bucket_view", "bucket_cap_mb")
        options = {name: world[name] for name in names}
        if self.world["two modules"] == "called twice":
            options["broadcast_buffers"] = False

        def spread(model: nn.Module) -> Any:
            ddp = DDP(self.compiled(model) if self.how == "inner" else model, **options)
            if HOOKS[world["hook"]] is not None:
                ddp.register_comm_hook(None, HOOKS[world["hook"]])
            return ddp

        self.ddp = spread(self.model)
        self.call = self.compiled(self.ddp) if self.how.endswith("outer") else self.ddp
        self.modules = [self.model]
        self.follow = lambda x: x
        if self.second is not None:
            self.modules.append(self.second)
            self.second_ddp = spread(self.second)
            self.follow = self.compiled(self.second_ddp) if self.how.endswith("outer") else self.second_ddp
        self.parameters = [p for module in self.modules for p in module.parameters()]
        self.optimizer = OPTIMIZERS[world["optimizer"]]([p for p in self.parameters if p.requires_grad])
        self.loss = self.compiled(self.loss_of) if self.how == "step" else self.loss_of

    def loss_of(self, x: torch.Tensor, *args: Any) -> torch.Tensor:
        kind = self.world["two modules"]
        result = self.call(x, *args)
        if kind == "called twice":
            return loss_of(result) + loss_of(self.call(x, *args))
        if kind == "a chain":
            out = result["out"] if isinstance(result, dict) else result
            return loss_of(self.follow(out))
        if kind == "two losses":
            out = result["out"] if isinstance(result, dict) else result
            return loss_of(result) + 0.5 * loss_of(self.follow(out.detach()))
        return loss_of(result)

    def run(self) -> list[Any]:
        """What was seen in each step, and what there is at the end."""
        joined = self.ddp.join() if self.world["uneven"] else contextlib.nullcontext()
        steps = STEPS - self.rank if self.world["uneven"] else STEPS
        with joined:
            self.train(steps)
        states = [value for p in self.parameters for value in _tensors(self.optimizer.state.get(p, {}))]
        buffers = [buffer for module in self.modules for buffer in module.buffers()]
        return [*self.seen, *self.parameters, *buffers, *states, getattr(self.model, "calls", 0)]

    def step(self, step: int) -> None:
        world = self.world
        self.optimizer.zero_grad(set_to_none=world["set_to_none"])
        count = world["accumulate"]
        for part in range(count):
            x = given(self.model, self.rank, step * count + part)
            if world["sizes vary"]:
                x = torch.cat([x] * (1 + (step + self.rank) % 3))
            if x.is_floating_point():
                x = x.to(getattr(torch, world["dtype"]))
            args = ((step + self.rank) % 3 == 0,) if isinstance(self.model, SometimesUnused) else ()
            with contextlib.ExitStack() as stack:
                if part < count - 1:
                    stack.enter_context(self.ddp.no_sync())
                    if self.second is not None:
                        stack.enter_context(self.second_ddp.no_sync())
                stack.enter_context(torch.autocast(DEVICE, torch.bfloat16, enabled=world["autocast"]))
                loss = self.loss(x, *args)
            loss.backward()
            self.seen.append(loss.detach().clone())
        self.seen += [None if p.grad is None else p.grad.clone() for p in self.parameters]
        if world["clip"]:
            self.seen.append(nn.utils.clip_grad_norm_(self.parameters, 0.05))
        self.optimizer.step()

    def happen(self) -> None:
        """What happens between two steps."""
        event, x = self.world["event"], given(self.model, self.rank, 99)
        x = x.to(getattr(torch, self.world["dtype"])) if x.is_floating_point() else x
        if event in ("eval", "no gradients"):
            self.look(x, event == "eval")
        elif event == "freeze":
            next(self.model.parameters()).requires_grad_(False)
        elif event == "add parameter":
            torch.manual_seed(1)
            head = (
                next(
                    m for m in reversed(list(self.model.modules())) if isinstance(m, nn.Linear) and m.out_features == 5
                )
                if not hasattr(self.model, "words")
                else None
            )
            if head is not None:
                head.register_parameter("extra", nn.Parameter(torch.ones_like(head.weight[:, 0])))
                head.register_forward_hook(lambda module, args, out: out * module.extra)
                self.wrap()
        elif event == "wrap anew":
            self.wrap()
        elif event == "raise":
            with contextlib.suppress(Exception):
                self.call(torch.randn(2, 3, 4, 5, 6))
        elif event == "load":
            state = {name: value.detach().clone() * 0.5 for name, value in self.model.state_dict().items()}
            self.model.load_state_dict(
                {k: v if v.is_floating_point() else self.model.state_dict()[k] for k, v in state.items()}
            )


def _tensors(state: Any) -> list[torch.Tensor]:
    return [value for _, value in sorted(state.items()) if isinstance(value, torch.Tensor)]


def train(rank: int, world: dict[str, Any], backend: str) -> list[Any]:
    return Training(rank, world, backend).run()
