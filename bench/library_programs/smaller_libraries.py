"""One library each: optimizers, spiking, hyperbolic and equivariant networks, random fields, tables, trainers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from library_programs.program import Compile, Program, Step


def training(model: Any, call: Callable[..., Any], inputs: tuple[Any, ...], loss_of: Callable[[Any], Any]) -> Step:
    """Steps of SGD on one batch; the loss, and the sum of all parameters after the step."""
    import torch

    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        loss = loss_of(call(*inputs))
        loss.backward()
        optimizer.step()
        return loss.detach(), sum(p.detach().double().sum() for p in model.parameters())

    return step


def compiled_optimizer(make: Callable[[Any], Any]) -> Callable[[Compile], Step]:
    """A program of steps of an optimizer, the forward and backward by eager."""

    def program(compile: Compile) -> Step:
        import torch

        layer = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 2))
        optimizer = make(layer.parameters())
        if hasattr(optimizer, "train"):
            optimizer.train()
        update, x = compile(optimizer.step), torch.randn(4, 6)

        def step() -> list[torch.Tensor]:
            optimizer.zero_grad()
            layer(x).square().sum().backward()
            update()
            return [p.detach().clone() for p in layer.parameters()]

        return step

    return program


def prodigy(parameters: Any) -> Any:
    from prodigyopt import Prodigy

    return Prodigy(parameters)


def schedule_free(parameters: Any) -> Any:
    from schedulefree import AdamWScheduleFree

    return AdamWScheduleFree(parameters, lr=1e-2, warmup_steps=2)


def lamb(parameters: Any) -> Any:
    from pytorch_optimizer import Lamb

    return Lamb(parameters)


def spiking_network(compile: Compile) -> Step:
    import snntorch
    import torch

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
            self.cells = torch.nn.ModuleList([snntorch.Leaky(beta=0.9), snntorch.Leaky(beta=0.8, learn_beta=True)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            one, two = (cell.init_leaky() for cell in self.cells)
            spikes = []
            for _ in range(5):
                spike, one = self.cells[0](self.first(x), one)
                spike, two = self.cells[1](self.second(spike), two)
                spikes.append(spike)
            return torch.stack(spikes).sum(0)

    model, target = Network(), torch.randint(0, 4, (3,))
    inputs = (torch.randn(3, 8),)
    return training(model, compile(model), inputs, lambda out: torch.nn.functional.cross_entropy(out, target))


def hyperbolic_distances(compile: Compile) -> Step:
    import geoopt
    import torch

    ball = geoopt.PoincareBall()
    points = geoopt.ManifoldParameter(torch.randn(6, 3) * 0.1, manifold=ball)
    optimizer = geoopt.optim.RiemannianAdam([points], lr=1e-2)
    call = compile(lambda: ball.dist(points[:3], points[3:]).sum() + ball.expmap0(points).norm())

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        loss = call()
        loss.backward()
        optimizer.step()
        return loss.detach(), points.detach().clone()

    return step


def random_field(compile: Compile) -> Step:
    import torch
    from torchcrf import CRF

    model, scores = CRF(4, batch_first=True), torch.randn(2, 5, 4)
    tags = torch.randint(0, 4, (2, 5))
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], dtype=torch.bool)
    return training(model, compile(model), (scores, tags, mask), lambda likelihood: -likelihood)


def equivariant_graph(compile: Compile) -> Step:
    import torch
    from egnn_pytorch import EGNN

    model = EGNN(dim=8, num_nearest_neighbors=3)
    inputs = torch.randn(1, 6, 8), torch.randn(1, 6, 3)
    return training(model, compile(model), inputs, lambda out: out[0].square().mean() + out[1].square().mean())


def perceiver(compile: Compile) -> Step:
    import torch
    from perceiver_pytorch import Perceiver

    sizes = {"latent_dim": 16, "cross_dim_head": 8, "latent_dim_head": 8, "latent_heads": 2, "num_latents": 4}
    model = Perceiver(num_freq_bands=2, depth=1, max_freq=4.0, num_classes=3, input_axis=2, **sizes)
    return training(model, compile(model), (torch.randn(1, 4, 4, 3),), lambda out: out.square().mean())


def rotary_positions(compile: Compile) -> Step:
    import torch
    from rotary_embedding_torch import RotaryEmbedding

    rotary = RotaryEmbedding(dim=8)
    call = compile(lambda q, k: (rotary.rotate_queries_or_keys(q), rotary.rotate_queries_with_cached_keys(q, k)))
    lengths = iter([6, 6, 9])

    def step() -> Any:
        length = next(lengths)
        return call(torch.randn(1, 2, length, 16), torch.randn(1, 2, length, 16))

    return step


def nystrom(compile: Compile) -> Step:
    import torch
    from nystrom_attention import NystromAttention

    model = NystromAttention(dim=16, dim_head=8, heads=2, num_landmarks=4, pinv_iterations=2)
    mask = torch.ones(1, 10, dtype=torch.bool)
    return training(model, compile(model), (torch.randn(1, 10, 16), mask), lambda out: out.square().mean())


def table_network(compile: Compile) -> Step:
    import torch
    from pytorch_tabnet.tab_network import TabNet

    model = TabNet(6, 3, n_d=4, n_a=4, n_steps=2, virtual_batch_size=4, group_attention_matrix=torch.eye(6))
    return training(model, compile(model), (torch.randn(8, 6),), lambda out: out[0].square().mean() + out[1])


def contrastive(compile: Compile) -> Step:
    import torch
    from lightly.loss import BarlowTwinsLoss, NTXentLoss, VICRegLoss
    from lightly.models.modules import SimCLRProjectionHead

    head = SimCLRProjectionHead(8, 16, 8)
    losses = [NTXentLoss(), BarlowTwinsLoss(), VICRegLoss()]

    def forward(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = head(a), head(b)
        return sum(loss(a, b) for loss in losses)

    return training(head, compile(forward), (torch.randn(6, 8), torch.randn(6, 8)), lambda loss: loss)


def ignite_trainer(compile: Compile) -> Step:
    import torch
    from ignite.engine import create_supervised_trainer
    from ignite.metrics import RunningAverage

    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    trainer = create_supervised_trainer(compile(model), optimizer, torch.nn.functional.cross_entropy)
    RunningAverage(output_transform=lambda loss: loss).attach(trainer, "loss")
    data = [(torch.randn(4, 4), torch.randint(0, 2, (4,))) for _ in range(3)]

    def step() -> tuple[float, torch.Tensor]:
        state = trainer.run(data, max_epochs=1)
        return state.metrics["loss"], model[0].weight.detach().clone()

    return step


def skorch_classifier(compile: Compile) -> Step:
    import numpy
    import torch
    from skorch import NeuralNetClassifier

    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2), torch.nn.Softmax(1))
    net = NeuralNetClassifier(compile(model), max_epochs=1, lr=0.1, verbose=0, train_split=None, warm_start=True)
    numbers = numpy.random.default_rng(0)
    x, y = numbers.normal(size=(8, 4)).astype("float32"), numbers.integers(0, 2, 8)

    def step() -> tuple[list[int], torch.Tensor]:
        net.partial_fit(x, y)
        return net.predict(x).tolist(), model[0].weight.detach().clone()

    return step


def policy_update(compile: Compile) -> Step:
    import numpy
    import torch
    from gymnasium.spaces import Box, Discrete
    from stable_baselines3.common.policies import ActorCriticPolicy

    policy = ActorCriticPolicy(Box(-1.0, 1.0, (4,), numpy.float32), Discrete(2), lambda _: 1e-2, net_arch=[8])
    states, actions = torch.rand(6, 4), torch.tensor([0, 1, 1, 0, 1, 0])
    advantages = torch.randn(6)
    evaluate = compile(policy.evaluate_actions)

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        values, log_probabilities, entropy = evaluate(states, actions)
        loss = values.square().mean() - (log_probabilities * advantages).mean() - 0.01 * entropy.mean()
        policy.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        policy.optimizer.step()
        return loss.detach(), policy.action_net.weight.detach().clone()

    return step


PROGRAMS = {
    "Prodigy steps": Program("prodigyopt", compiled_optimizer(prodigy), steps=5),
    "schedule-free AdamW steps": Program("schedulefree", compiled_optimizer(schedule_free), steps=5),
    "pytorch-optimizer Lamb steps": Program("pytorch-optimizer", compiled_optimizer(lamb), steps=5),
    "snnTorch training": Program("snntorch", spiking_network),
    "geoopt hyperbolic distances": Program("geoopt", hyperbolic_distances),
    "pytorch-crf training": Program("pytorch-crf", random_field),
    "EGNN training": Program("egnn-pytorch", equivariant_graph),
    "Perceiver training": Program("perceiver-pytorch", perceiver),
    "rotary embeddings, 2 lengths": Program("rotary-embedding-torch", rotary_positions, timed=False),
    "Nystrom attention training": Program("nystrom-attention", nystrom, fast=False),
    "TabNet training": Program("pytorch-tabnet", table_network, fast=False),
    "lightly losses": Program("lightly", contrastive),
    "ignite trainer": Program("pytorch-ignite", ignite_trainer),
    "skorch classifier": Program("skorch", skorch_classifier),
    "stable-baselines3 policy update": Program("stable-baselines3", policy_update),
}
