"""Packages that few have: continuous-time recurrent nets, equilibria, spheres, hyperbolic spaces, integrals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from library_programs.program import Compile, Program, Step, inference_step, training_step


def trained(model: Any, compile: Compile, *inputs: Any, loss: Callable[[Any], Any] | None = None) -> Step:
    """Steps of AdamW on the mean of squares of what a model gives, or of another loss of it."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    call = compile(model)
    measure = loss or (lambda result: (result[0] if isinstance(result, tuple) else result).square().mean())
    return training_step(lambda: measure(call(*inputs)), optimizer)


def liquid(kind: str) -> Any:
    def make(compile: Compile) -> Step:
        import ncps.torch
        import torch
        from ncps.wirings import AutoNCP

        model = getattr(ncps.torch, kind)(4, AutoNCP(12, 3), batch_first=True)
        return trained(model, compile, torch.randn(2, 6, 4))

    return make


def table(compile: Compile) -> Step:
    import torch
    from tab_transformer_pytorch import FTTransformer

    options = {"depth": 2, "heads": 2, "attn_dropout": 0.0, "ff_dropout": 0.0}
    model = FTTransformer(categories=(10, 5, 6), num_continuous=4, dim=16, dim_out=1, **options)
    return trained(model, compile, torch.randint(0, 5, (8, 3)), torch.randn(8, 4))


def temporal_convolutions(compile: Compile) -> Step:
    import torch
    from pytorch_tcn import TCN

    model = TCN(4, [8, 8, 8], kernel_size=3, dropout=0.0, use_skip_connections=True)
    return trained(model, compile, torch.randn(2, 4, 20))


def cosines(compile: Compile) -> Step:
    import torch
    import torch_dct

    x = torch.randn(4, 16, requires_grad=True)

    def loss() -> Any:
        spectrum = torch_dct.dct_2d(x, norm="ortho")
        return (torch_dct.idct_2d(spectrum * 0.5, norm="ortho") - torch_dct.dct1(x)).square().mean()

    call = compile(loss)

    def step() -> Any:
        x.grad = None
        value = call()
        value.backward()
        return value.detach(), x.grad

    return step


def equilibrium(compile: Compile) -> Step:
    import torch
    from torch import nn
    from torchdeq import get_deq

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(8, 8), nn.Linear(4, 8)
            nn.init.normal_(self.inner.weight, std=0.05)
            self.deq = get_deq(f_solver="fixed_point_iter", f_max_iter=8, b_max_iter=8, f_tol=1e-6, b_tol=1e-6)

        def forward(self, x: torch.Tensor) -> Any:
            z, _ = self.deq(lambda z: torch.tanh(self.inner(z) + self.outer(x)), torch.zeros(x.shape[0], 8))
            return z[-1]

    return trained(Model(), compile, torch.randn(4, 4))


def flow(compile: Compile) -> Step:
    import torch
    from rectified_flow_pytorch import RectifiedFlow
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(2, 2, 3, padding=1)

        def forward(self, x: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
            return self.layer(x) * times[:, None, None, None]

    return trained(RectifiedFlow(Net()), compile, torch.randn(4, 2, 8, 8), loss=lambda value: value)


def nonuniform_fft(compile: Compile) -> Step:
    import torch
    import torchkbnufft

    forward = torchkbnufft.KbNufft(im_size=(8, 8))
    back = torchkbnufft.KbNufftAdjoint(im_size=(8, 8))
    image, places = torch.randn(1, 1, 8, 8, dtype=torch.complex64), torch.rand(2, 40) * 6 - 3
    call = compile(lambda: back(forward(image, places), places))
    return inference_step(lambda: torch.view_as_real(call()))


def hyperbolic(compile: Compile) -> Step:
    import torch
    from hypll.manifolds.poincare_ball import Curvature, PoincareBall
    from hypll.nn import HLinear, HReLU
    from hypll.optim import RiemannianSGD
    from hypll.tensors import TangentTensor
    from torch import nn

    ball = PoincareBall(Curvature(requires_grad=True))
    layers = nn.Sequential(HLinear(4, 8, ball), HReLU(ball), HLinear(8, 2, ball))
    x = torch.randn(6, 4)

    def loss() -> Any:
        tangents = TangentTensor(data=x, man_dim=1, manifold=ball)
        return layers(ball.expmap(tangents)).tensor.square().mean()

    call = compile(loss)
    return training_step(call, RiemannianSGD(layers.parameters(), 0.01))


def root_finding(compile: Compile) -> Step:
    import torch
    from xitorch.optimize import rootfinder

    a = (torch.eye(3, dtype=torch.float64) * 2).requires_grad_()

    def loss() -> Any:
        y = rootfinder(
            lambda y, a: torch.tanh(a @ y + 0.1) + y / 2, torch.zeros(3, 1, dtype=torch.float64), params=(a,)
        )
        return y.square().sum()

    call = compile(loss)

    def step() -> Any:
        a.grad = None
        value = call()
        value.backward()
        return value.detach(), a.grad

    return step


def integrals(rule: str, **options: Any) -> Any:
    def make(compile: Compile) -> Step:
        import torch
        import torchquad

        integrate = getattr(torchquad, rule)().integrate
        given = {"dim": 2, "N": 121, "integration_domain": [[0, 1]] * 2, **options}
        call = compile(lambda: integrate(lambda x: (x[:, 0] * x[:, 1]).sin(), **given))
        return inference_step(lambda: call() * torch.ones(()))

    return make


def sampled_weights(compile: Compile) -> Step:
    import torch
    from blitz.modules import BayesianLinear, BayesianLSTM
    from blitz.utils import variational_estimator
    from torch import nn

    @variational_estimator
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = BayesianLSTM(4, 6), BayesianLinear(6, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.lstm(x)[0][:, -1])

    model, x, y = Model(), torch.randn(4, 5, 4), torch.randn(4, 1)
    call = compile(lambda: model.sample_elbo(inputs=x, labels=y, criterion=nn.MSELoss(), sample_nbr=2))
    return training_step(call, torch.optim.Adam(model.parameters(), 1e-3))


def filterbanks(compile: Compile) -> Step:
    import torch
    from asteroid_filterbanks import Decoder, Encoder, FreeFB, ParamSincFB
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = Encoder(FreeFB(16, 8, stride=4))
            self.decoder = Decoder(FreeFB(16, 8, stride=4))
            self.sinc = Encoder(ParamSincFB(8, 9, stride=4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.decoder(self.encoder(x).sigmoid(), length=x.shape[-1]).sum() + self.sinc(x).abs().sum()

    return trained(Model(), compile, torch.randn(2, 1, 64), loss=lambda value: value.square())


def embedding(compile: Compile) -> Step:
    import torch
    from torchdr import EntropicAffinity, NormalizedGaussianAffinity

    x = torch.randn(20, 4)
    affinities = [NormalizedGaussianAffinity(), EntropicAffinity(perplexity=5)]
    call = compile(lambda: [affinity(x) for affinity in affinities])
    return inference_step(call)


def spheres(compile: Compile) -> Step:
    import torch
    from torch import nn
    from torch_harmonics import InverseRealSHT, RealSHT

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.there, self.back = RealSHT(8, 16), InverseRealSHT(8, 16)
            self.weight = nn.Parameter(torch.rand(2, 8, 9))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            coefficients = self.there(x)
            return self.back(coefficients * self.weight[:, : coefficients.shape[-2], : coefficients.shape[-1]])

    return trained(Model(), compile, torch.randn(3, 2, 8, 16))


def fusion_transformer(compile: Compile) -> Step:
    import torch
    from pytorch_forecasting.models.temporal_fusion_transformer.sub_modules import (
        GatedResidualNetwork,
        InterpretableMultiHeadAttention,
        TimeDistributedInterpolation,
    )
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stretched = TimeDistributedInterpolation(8, batch_first=True, trainable=True)
            self.residual = GatedResidualNetwork(8, 8, 8, dropout=0.0)
            self.attention = InterpretableMultiHeadAttention(d_model=8, n_head=2, dropout=0.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.residual(self.stretched(x))
            return self.attention(h, h, h)[0]

    return trained(Model(), compile, torch.randn(2, 5, 4))


def posterior(compile: Compile) -> Step:
    import torch
    from laplace import Laplace
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    model, x = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(16, 3)
    fitted = Laplace(model, "regression", subset_of_weights="last_layer", hessian_structure="full")
    fitted.fit(DataLoader(TensorDataset(x, torch.randn(16, 1)), batch_size=8))
    call = compile(lambda: fitted(x))
    return inference_step(lambda: list(call()))


def neural_ode(compile: Compile) -> Step:
    import torch
    from torch import nn
    from torchdyn.core import NeuralODE

    model = NeuralODE(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)), solver="rk4", sensitivity="autograd")
    span = torch.linspace(0, 1, 5)
    call = compile(lambda x: model(x, span)[1][-1])
    x = torch.randn(4, 2)
    return training_step(lambda: call(x).square().mean(), torch.optim.SGD(model.parameters(), 0.01))


def reversed_gradient(compile: Compile) -> Step:
    import torch
    from pytorch_revgrad import RevGrad
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), RevGrad(0.5), nn.Linear(8, 1))
    return trained(model, compile, torch.randn(6, 4))


def inner_steps(compile: Compile) -> Step:
    import torch
    import torchopt
    from torch import nn

    model = nn.Linear(4, 1)
    outer = torch.optim.SGD(model.parameters(), 0.05)
    x, y = torch.randn(8, 4), torch.randn(8, 1)

    def loss() -> Any:
        inner = torchopt.MetaSGD(model, lr=0.1)
        state = torchopt.extract_state_dict(model, by="reference", detach_buffers=True)
        for _ in range(2):
            inner.step((model(x) - y).square().mean())
        value = (model(x) - y).square().mean()
        torchopt.recover_state_dict(model, state)
        return value

    call = compile(loss)
    return training_step(call, outer)


PROGRAMS: dict[str, Program] = {
    "ncps closed-form training": Program("ncps", liquid("CfC")),
    "ncps liquid training": Program("ncps", liquid("LTC")),
    "tab-transformer FTTransformer training": Program("tab-transformer-pytorch", table),
    "pytorch-tcn training": Program("pytorch-tcn", temporal_convolutions),
    "torch-dct transforms": Program("torch-dct", cosines),
    "torchdeq equilibrium training": Program("torchdeq", equilibrium),
    "rectified flow training": Program("rectified-flow-pytorch", flow),
    "torchkbnufft transforms": Program("torchkbnufft", nonuniform_fft),
    "hypll training": Program("hypll", hyperbolic),
    "xitorch root": Program("xitorch", root_finding),
    "torchquad Boole": Program("torchquad", integrals("Boole")),
    "torchquad Monte Carlo": Program("torchquad", integrals("MonteCarlo", seed=0)),
    "blitz training": Program("blitz-bayesian-pytorch", sampled_weights),
    "asteroid filterbanks training": Program("asteroid-filterbanks", filterbanks),
    "torchdr affinities": Program("torchdr", embedding),
    "torch-harmonics training": Program("torch-harmonics", spheres),
    "pytorch-forecasting parts training": Program("pytorch-forecasting", fusion_transformer),
    "laplace-torch prediction": Program("laplace-torch", posterior),
    "torchdyn NeuralODE training": Program("torchdyn", neural_ode),
    "pytorch-revgrad training": Program("pytorch-revgrad", reversed_gradient),
    "torchopt inner steps": Program("torchopt", inner_steps),
}
