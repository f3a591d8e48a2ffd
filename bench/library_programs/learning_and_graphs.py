"""Losses of TorchRL and pytorch-metric-learning, layers of PyG, geometry and losses of kornia, variational GPs."""

from __future__ import annotations

from typing import Any

from library_programs.program import Compile, Program, Step, training_step


def dqn_loss(compile: Compile) -> Step:
    import torch
    from tensordict import TensorDict
    from torchrl.data import OneHot
    from torchrl.modules import MLP, QValueActor
    from torchrl.objectives import DQNLoss

    network = MLP(in_features=4, out_features=2, num_cells=[8])
    loss = DQNLoss(QValueActor(network, spec=OneHot(2), in_keys=["observation"]), action_space="one_hot")
    ends = torch.zeros(6, 1, dtype=torch.bool)
    following = {"observation": torch.randn(6, 4), "reward": torch.randn(6, 1), "done": ends, "terminated": ends}
    action = torch.nn.functional.one_hot(torch.randint(0, 2, (6,)), 2)
    data = TensorDict({"observation": torch.randn(6, 4), "action": action, "next": following}, [6])
    call = compile(loss)
    return lambda: call(data)["loss"]


def advantages(compile: Compile) -> Step:
    import torch
    from torchrl.objectives.value.functional import generalized_advantage_estimate, vec_generalized_advantage_estimate

    value, following, reward = (torch.randn(2, 10, 1) for _ in range(3))
    ends = torch.zeros(2, 10, 1, dtype=torch.bool)

    def forward(*data: torch.Tensor) -> list[torch.Tensor]:
        loop = generalized_advantage_estimate(0.9, 0.9, *data)
        return [*loop, *vec_generalized_advantage_estimate(0.9, 0.9, *data)]

    call = compile(forward)
    return lambda: call(value, following, reward, ends, ends)


def metric_learning(compile: Compile) -> Step:
    import torch
    from pytorch_metric_learning import losses, miners

    triplets, contrast, miner = losses.TripletMarginLoss(), losses.NTXentLoss(), miners.MultiSimilarityMiner()
    x, y = torch.randn(12, 8), torch.arange(12) % 4

    def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return triplets(x, y, miner(x, y)) + contrast(x, y)

    call = compile(forward)
    return lambda: call(x, y)


def graph_layer(name: str, **options: Any) -> Any:
    """One training step of a layer of PyG."""

    def make(compile: Compile) -> Step:
        import torch
        import torch_geometric.nn

        layer = getattr(torch_geometric.nn, name)(8, 4, **options)
        features, edges = torch.randn(20, 8), torch.randint(0, 20, (2, 60))
        call = compile(layer)

        def step() -> list[torch.Tensor]:
            x = features.clone().requires_grad_()  # a bias of attention's keys has a gradient of rounding errors alone
            loss = call(x, edges).square().mean()
            loss.backward()
            return [loss.detach(), x.grad]

        return step

    return make


def graph_pooling(compile: Compile) -> Step:
    import torch
    from torch_geometric.nn import TopKPooling, global_max_pool

    pool = TopKPooling(8, ratio=0.5)
    x, edges, batch = torch.randn(20, 8), torch.randint(0, 20, (2, 60)), torch.arange(20) // 10

    def forward(x: torch.Tensor, edges: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        x, edges, _, batch, _, _ = pool(x, edges, batch=batch)
        return global_max_pool(x, batch)

    call = compile(forward)
    return lambda: call(x, edges, batch)


def geometry(compile: Compile) -> Step:
    import kornia.geometry as kg
    import torch

    x = torch.rand(2, 3, 16, 16)

    def forward(x: torch.Tensor, angle: torch.Tensor) -> list[torch.Tensor]:
        turned = kg.warp_affine(kg.rotate(x, angle), torch.eye(2, 3).expand(2, 2, 3), (12, 12))
        return [turned, kg.axis_angle_to_rotation_matrix(torch.ones(2, 3) * angle[:, None])]

    call = compile(forward)
    return lambda: call(x, torch.rand(2) * 90)


def image_losses(compile: Compile) -> Step:
    import kornia
    import torch

    x, y = torch.rand(2, 1, 16, 16), torch.rand(2, 1, 16, 16)

    def forward(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        losses = [kornia.losses.ssim_loss(x, y, 5), kornia.losses.total_variation(x)]
        return [*losses, kornia.filters.canny(x)[0], kornia.feature.harris_response(x)]

    call = compile(forward)
    return lambda: call(x, y)


def variational_process(compile: Compile) -> Step:
    import gpytorch
    import torch

    class Process(gpytorch.models.ApproximateGP):
        def __init__(self, places: torch.Tensor) -> None:
            distribution = gpytorch.variational.CholeskyVariationalDistribution(places.size(0))
            super().__init__(gpytorch.variational.VariationalStrategy(self, places, distribution))
            self.mean = gpytorch.means.ConstantMean()
            self.covariance = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.covariance(x))

    model, likelihood = Process(torch.rand(5, 1)), gpytorch.likelihoods.GaussianLikelihood()
    objective = gpytorch.mlls.VariationalELBO(likelihood, model, 20)
    x = torch.rand(20, 1)
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.05)
    call = compile(model.train())
    return training_step(lambda: -objective(call(x), torch.sin(6 * x[:, 0])), optimizer)


PROGRAMS = {
    "TorchRL DQN loss": Program("torchrl", dqn_loss, fast=False),
    "TorchRL advantages": Program("torchrl", advantages),
    "pytorch-metric-learning losses": Program("pytorch-metric-learning", metric_learning),
    "PyG GATv2 training": Program("torch-geometric", graph_layer("GATv2Conv", heads=2)),
    "PyG TransformerConv training": Program("torch-geometric", graph_layer("TransformerConv", heads=2)),
    "PyG ChebConv training": Program("torch-geometric", graph_layer("ChebConv", K=2)),
    "PyG TopKPooling": Program("torch-geometric", graph_pooling),
    "kornia geometry": Program("kornia", geometry),
    "kornia losses and edges": Program("kornia", image_losses),
    "GPyTorch variational training": Program("gpytorch", variational_process, fast=False),
}
