"""What READMEs show around models: configurations, records, writers, exported parts, adapters, hosts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from library_programs.architectures import _WIDE
from library_programs.program import Compile, Program, Step, inference_step, training_step
from library_programs.untried.families import model_of


def trained(module: Any, loss_of: Callable[[int], Any], sizes: tuple[int, ...] = (6, 8, 7)) -> Step:
    """Steps of Adam on a loss of batches of these sizes in turn."""
    import torch

    count = itertools.cycle(sizes)
    return training_step(lambda: loss_of(next(count)), torch.optim.Adam(module.parameters(), 1e-2))


def configured(compile: Compile) -> Step:
    """A model that asks a configuration in its forward: attributes, interpolations, lists, defaults."""
    import torch
    from omegaconf import OmegaConf

    text = {"dims": [8, 16, 8], "act": "gelu", "p": 0.1, "half": "${p}", "weights": [0.5, 0.5], "residual": True}
    config = OmegaConf.create(text)
    layers = torch.nn.ModuleList([torch.nn.Linear(a, b) for a, b in itertools.pairwise(config.dims)])

    def forward(x: Any) -> Any:
        y = x
        for layer in layers:
            y = torch.nn.functional.dropout(getattr(torch.nn.functional, config.act)(layer(y)), config.half)
        if config.get("residual", False):
            y = y + x
        return (y * config.weights[0] + sum(config.weights) * len(config.dims)).square().mean()

    call = compile(forward)
    return trained(layers, lambda size: call(torch.randn(size, 8)))


def instantiated(compile: Compile) -> Step:
    import torch
    from hydra.utils import instantiate

    layers = [{"_target_": "torch.nn.Linear", "in_features": 8, "out_features": 8}, {"_target_": "torch.nn.SiLU"}]
    module = instantiate({"_target_": "torch.nn.Sequential", "_args_": layers})
    call = compile(module)
    return trained(module, lambda size: call(torch.randn(size, 8)).square().mean())


def records(compile: Compile) -> Step:
    """A state of attrs' that evolves, a frozen one of settings, a batch that pydantic has checked."""
    import attrs
    import pydantic
    import torch

    State = attrs.make_class("State", {"hidden": attrs.field(), "time": attrs.field(default=0)})
    Settings = attrs.make_class(
        "Settings",
        {"scale": attrs.field(default="0.2", converter=float), "kind": attrs.field(default="tanh")},
        frozen=True,
    )
    settings = Settings()
    Batch = pydantic.create_model(
        "Batch", __config__=pydantic.ConfigDict(arbitrary_types_allowed=True, frozen=True), x=(torch.Tensor, ...)
    )
    layer = torch.nn.Linear(8, 8)

    def advance(batch: Any, state: Any) -> Any:
        hidden = getattr(torch, settings.kind)(layer(batch.x)) * settings.scale + state.hidden
        return attrs.evolve(state, hidden=hidden, time=state.time + 1)

    call = compile(advance)

    def loss(size: int) -> Any:
        state = State(torch.zeros(size, 8))
        for _ in range(2):
            state = call(Batch(x=torch.randn(size, 8)), state)
        return state.hidden.square().mean() * state.time

    return trained(layer, loss)


def logged(compile: Compile) -> Step:
    """A forward that writes a line for each call."""
    import loguru
    import torch

    layer, lines = torch.nn.Linear(4, 4), []
    loguru.logger.remove()
    loguru.logger.add(lines.append, format="{message}")

    def forward(x: Any) -> Any:
        loguru.logger.info("a batch of {}", x.shape[0])
        return layer(x).relu().square().mean()

    call = compile(forward)
    return trained(layer, lambda size: (call(torch.randn(size, 4)), torch.tensor(len(lines))))


def watched(compile: Compile) -> Step:
    """A forward that shows TensorBoard something at every other call."""
    import torch
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter("events")

    class Watched(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.calls = torch.nn.Linear(4, 4), 0

        def forward(self, x: Any) -> Any:
            y = self.layer(x).relu()
            self.calls += 1
            if self.training and self.calls % 2 == 0:
                writer.add_scalar("mean", y.mean().item(), self.calls)
                writer.add_histogram("weight", self.layer.weight.detach(), self.calls)
            return y.square().mean()

    module = Watched()
    call = compile(module)
    return trained(module, lambda size: call(torch.randn(size, 4)))


def exported(compile: Compile) -> Step:
    import torch

    layers = [torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 3)]
    batch = {0: torch.export.Dim("batch", min=1, max=64)}
    net = torch.nn.Sequential(*layers).eval()
    call = compile(torch.export.export(net, (torch.randn(2, 1, 8, 8),), dynamic_shapes=(batch,)).module())
    sizes = itertools.cycle([2, 3, 4])
    return inference_step(lambda: call(torch.randn(next(sizes), 1, 8, 8)))


def adversarial(compile: Compile) -> Step:
    """Features for a classifier, and the same with a reversed gradient for one of domains."""
    import torch

    class Reversed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, strength: float) -> Any:
            ctx.strength = strength
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return -ctx.strength * grads[0], None

    parts = torch.nn.ModuleList([torch.nn.Linear(6, 8), torch.nn.Linear(8, 2), torch.nn.Linear(8, 2)])
    call = compile(lambda x: (parts[0](x).relu(), Reversed.apply(parts[0](x.flip(0)).relu(), 0.5)))

    def loss(size: int) -> Any:
        features, reversed_ = call(torch.randn(size, 6))
        target = torch.arange(size) % 2
        entropy = torch.nn.functional.cross_entropy
        return entropy(parts[1](features), target) + entropy(parts[2](reversed_), target)

    return trained(parts, loss)


def moebius(compile: Compile) -> Step:
    """A layer of the Poincaré ball with a weight that is kept orthogonal."""
    import geoopt
    import torch

    ball, stiefel = geoopt.PoincareBall(), geoopt.Stiefel()
    weight = geoopt.ManifoldParameter(stiefel.projx(torch.randn(4, 4)), manifold=stiefel)
    point = geoopt.ManifoldParameter(ball.projx(torch.randn(4) * 0.1), manifold=ball)
    optimizer = geoopt.optim.RiemannianAdam([weight, point], 1e-2)

    def forward(x: Any) -> Any:
        turned = ball.mobius_matvec(weight, ball.expmap0(x * 0.1))
        return ball.logmap0(ball.mobius_add(turned, point)).square().mean()

    call, sizes = compile(forward), itertools.cycle([6, 8, 7])
    return training_step(lambda: call(torch.randn(next(sizes), 4)), optimizer)


def sequences_denoised(compile: Compile) -> Step:
    """Its loss switches off a GPU's autocast."""
    import torch
    from denoising_diffusion_pytorch import GaussianDiffusion1D, Unet1D

    net = Unet1D(dim=8, dim_mults=(1, 2), channels=2)
    module = GaussianDiffusion1D(net, seq_length=16, timesteps=20, objective="pred_v")
    call = compile(module)
    return trained(module, lambda size: call(torch.rand(size, 2, 16)), sizes=(2, 3))


def adapter(name: str, **options: Any) -> Callable[[Compile], Step]:
    def make(compile: Compile) -> Step:
        import peft
        import torch

        llama = model_of("Llama", "ForCausalLM", **{**_WIDE, "num_key_value_heads": 2})()
        model = peft.get_peft_model(llama, getattr(peft, name)(task_type="CAUSAL_LM", **options))
        call = compile(model)

        def loss(size: int) -> Any:
            tokens = torch.randint(3, 60, (2, size))
            return call(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=tokens).loss

        return trained(model, loss, sizes=(5, 8, 6))

    return make


def calculator(compile: Compile) -> Step:
    """Molecular dynamics whose forces are a network's."""
    import ase
    import numpy
    import torch
    from ase.calculators.calculator import Calculator, all_changes
    from ase.md.verlet import VelocityVerlet

    net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()

    def energy(positions: Any) -> Any:
        pairs = torch.triu_indices(len(positions), len(positions), 1).unbind()
        return net(1 / torch.cdist(positions, positions)[pairs][:, None]).sum()

    call, counts = compile(energy), itertools.cycle([3, 4])

    class Learnt(Calculator):
        implemented_properties = ("energy", "forces")

        def calculate(
            self, atoms: Any = None, properties: Any = ("energy",), system_changes: Any = all_changes
        ) -> None:
            super().calculate(atoms, properties, system_changes)
            positions = torch.tensor(atoms.positions, requires_grad=True)
            value = call(positions)
            (gradient,) = torch.autograd.grad(value, positions)
            self.results = {"energy": value.item(), "forces": -gradient.numpy()}

    def step() -> Any:
        count = next(counts)
        atoms = ase.Atoms("H" * count, positions=numpy.random.rand(count, 3) * 3)
        atoms.calc = Learnt()
        VelocityVerlet(atoms, 1.0).run(2)
        return torch.tensor(atoms.positions), atoms.get_potential_energy()

    return step


def folds(compile: Compile) -> Step:
    """Each fold of a table trains a network of its own."""
    import numpy
    import pandas
    import torch
    from sklearn.model_selection import KFold
    from sklearn.preprocessing import StandardScaler

    table = pandas.DataFrame(numpy.random.randn(24, 4), columns=list("abcd"))
    table["y"] = (table.a > 0).astype(float)

    def loss(net: Any, x: Any, y: Any) -> Any:
        return torch.nn.functional.binary_cross_entropy_with_logits(net(x).squeeze(-1), y)

    call = compile(loss)

    def step() -> Any:
        losses = []
        for rows, _ in KFold(2).split(table):
            part = table.iloc[rows]
            x = torch.tensor(StandardScaler().fit_transform(part[list("abcd")]), dtype=torch.float32)
            y = torch.tensor(part.y.to_numpy(), dtype=torch.float32)
            net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
            one = trained(net, lambda _: call(net, x, y))  # noqa: B023  (used up in this round)
            losses += [one() for _ in range(3)]
        return losses

    return step


PROGRAMS: dict[str, Program] = {
    "OmegaConf model": Program("omegaconf", configured),
    "Hydra instantiate": Program("hydra-core", instantiated),
    "attrs and pydantic": Program("pydantic", records),
    "loguru in a forward": Program("loguru", logged),
    "TensorBoard in a forward": Program("tensorboard", watched),
    "torch.export module": Program("torch", exported),
    "gradient reversal": Program("torch", adversarial),
    "geoopt Moebius layer": Program("geoopt", moebius),
    "denoising-diffusion 1D training": Program("denoising-diffusion-pytorch", sequences_denoised),
    "PEFT prompt tuning": Program("peft", adapter("PromptTuningConfig", num_virtual_tokens=4)),
    "PEFT FourierFT training": Program("peft", adapter("FourierFTConfig", n_frequency=10, target_modules=["q_proj"])),
    "ASE calculator": Program("ase", calculator),
    "scikit-learn folds": Program("scikit-learn", folds),
}
