"""Physics, graphs, differential equations and probability: e3nn, PyG, torchdiffeq, neuraloperator, Pyro."""

from __future__ import annotations

from library_programs.program import Compile, Program, Step, training_step


def e3nn_tensor_product(compile: Compile) -> Step:
    import torch
    from e3nn import o3

    product = o3.FullyConnectedTensorProduct("4x0e + 4x1o", "1x0e + 1x1o", "4x0e + 4x1o")
    harmonics = o3.SphericalHarmonics("1x0e + 1x1o", normalize=True)
    features, vectors = torch.randn(10, 16), torch.randn(10, 3)

    def forward(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return product(x, harmonics(v)).square().mean()

    call = compile(forward)

    def step() -> list[torch.Tensor]:
        x = features.clone().requires_grad_()
        loss = call(x, vectors)
        loss.backward()
        return [loss.detach(), x.grad]

    return step


def geometric_gcn_training(compile: Compile) -> Step:
    import torch
    from torch_geometric.nn import GATConv, GCNConv

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = GCNConv(8, 16), GATConv(16, 4, heads=2)

        def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x, edges).relu(), edges)

    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x, edges, y = torch.randn(20, 8), torch.randint(0, 20, (2, 60)), torch.randint(0, 8, (20,))
    call = compile(model)
    return training_step(lambda: torch.nn.functional.cross_entropy(call(x, edges), y), optimizer)


def geometric_gin_pooling(compile: Compile) -> Step:
    import torch
    from torch_geometric.data import Batch, Data
    from torch_geometric.nn import GIN, SAGEConv, global_mean_pool

    graphs = [Data(torch.randn(n, 8), torch.randint(0, n, (2, 2 * n))) for n in (5, 7, 6)]
    batch = Batch.from_data_list(graphs)
    model, sage = GIN(8, 16, num_layers=2), SAGEConv(16, 8)

    def forward(batch: Batch) -> torch.Tensor:
        h = sage(model(batch.x, batch.edge_index), batch.edge_index)
        return global_mean_pool(h, batch.batch)

    call = compile(forward)
    return lambda: call(batch)


def neural_ode(compile: Compile) -> Step:
    import torch
    from torchdiffeq import odeint

    class Field(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))

        def forward(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.net(y)

    field, start, times = Field(), torch.randn(4, 2), torch.linspace(0, 1, 5)

    def forward() -> torch.Tensor:
        return odeint(field, start, times, method="dopri5", rtol=1e-3, atol=1e-4)

    call = compile(forward)

    def loss_of() -> tuple[torch.Tensor, torch.Tensor]:
        path = call()
        return path[-1].sum(), path

    return training_step(loss_of, field, gradients=True)


def neural_ode_fixed(compile: Compile) -> Step:
    import torch
    from torchdiffeq import odeint

    net = torch.nn.Linear(2, 2)
    start, times = torch.randn(4, 2), torch.linspace(0, 1, 4)
    call = compile(lambda y: odeint(lambda t, y: net(y).tanh(), y, times, method="rk4"))
    return lambda: call(start)


def fourier_operator(compile: Compile) -> Step:
    import torch
    from neuralop.models import FNO

    model = FNO(n_modes=(4, 4), hidden_channels=8, in_channels=1, out_channels=1, n_layers=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, y = torch.randn(2, 1, 16, 16), torch.randn(2, 1, 16, 16)
    call = compile(model)
    return training_step(lambda: (call(x) - y).square().mean(), optimizer)


def pyro_svi(compile: Compile) -> Step:
    import pyro
    import pyro.distributions as dist
    import torch
    from pyro.infer import SVI, Trace_ELBO
    from pyro.optim import Adam

    data = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0])
    pyro.clear_param_store()

    def model(data: torch.Tensor) -> None:
        p = pyro.sample("p", dist.Beta(torch.tensor(10.0), torch.tensor(10.0)))
        with pyro.plate("data", len(data)):
            pyro.sample("obs", dist.Bernoulli(p), obs=data)

    def guide(data: torch.Tensor) -> None:
        a = pyro.param("a", torch.tensor(15.0), constraint=dist.constraints.positive)
        b = pyro.param("b", torch.tensor(15.0), constraint=dist.constraints.positive)
        pyro.sample("p", dist.Beta(a, b))

    svi = SVI(model, guide, Adam({"lr": 0.005}), loss=Trace_ELBO())
    return compile(lambda: svi.step(data))


def pyro_log_density(compile: Compile) -> Step:
    import pyro.distributions as dist
    import torch

    x = torch.randn(32)

    def forward(mean: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        base = dist.Normal(mean, scale).expand([32]).to_event(1)
        mixture = dist.MixtureSameFamily(
            dist.Categorical(logits=torch.stack([mean, -mean])),
            dist.Normal(torch.stack([mean, mean + 1]), torch.stack([scale, scale * 2])),
        )
        return base.log_prob(x) + mixture.log_prob(x).sum()

    call = compile(forward)
    return lambda: call(torch.tensor(0.3), torch.tensor(1.5))


PROGRAMS = {
    "e3nn tensor product": Program("e3nn", e3nn_tensor_product),
    "PyG GCN and GAT training": Program("torch-geometric", geometric_gcn_training),
    "PyG GIN and pooling": Program("torch-geometric", geometric_gin_pooling),
    "torchdiffeq dopri5 training": Program("torchdiffeq", neural_ode, fast=False),
    "torchdiffeq rk4": Program("torchdiffeq", neural_ode_fixed),
    "neuraloperator FNO training": Program("neuraloperator", fourier_operator),
    # not fast: on "native" a hook of a tensor that gets no gradient is called with None where eager does not call it
    "Pyro SVI": Program("pyro-ppl", pyro_svi, fast=False),
    "Pyro log densities": Program("pyro-ppl", pyro_log_density),
}
