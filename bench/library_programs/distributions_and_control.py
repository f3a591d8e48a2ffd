"""Normalizing flows, tensordict and TorchRL, stable-baselines3, differential equations with noise, forecasting."""

from __future__ import annotations

from typing import Any

from library_programs.program import Compile, Program, Step, training_step


def _likelihood(compile: Compile, model: Any, log_prob: Any, x: Any) -> Step:
    import torch

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    call = compile(log_prob)
    return training_step(lambda: -call(x).mean(), optimizer)


def zuko_spline_flow(compile: Compile) -> Step:
    import torch
    import zuko

    flow = zuko.flows.NSF(3, transforms=2, hidden_features=(16, 16))
    return _likelihood(compile, flow, lambda x: flow().log_prob(x), torch.randn(8, 3))


def zuko_masked_flow(compile: Compile) -> Step:
    import torch
    import zuko

    flow = zuko.flows.MAF(3, context=2, transforms=2, hidden_features=(16, 16))
    context = torch.randn(8, 2)
    return _likelihood(compile, flow, lambda x: flow(context).log_prob(x), torch.randn(8, 3))


def nflows_flow(compile: Compile) -> Step:
    import torch
    from nflows.distributions.normal import StandardNormal
    from nflows.flows.base import Flow
    from nflows.transforms import CompositeTransform, MaskedAffineAutoregressiveTransform, ReversePermutation

    transforms = [ReversePermutation(2), MaskedAffineAutoregressiveTransform(features=2, hidden_features=8)]
    flow = Flow(CompositeTransform(transforms), StandardNormal([2]))
    return _likelihood(compile, flow, flow.log_prob, torch.randn(8, 2))


def normflows_real_nvp(compile: Compile) -> Step:
    import normflows as nf
    import torch

    flows = []
    for _ in range(2):
        flows += [nf.flows.AffineCouplingBlock(nf.nets.MLP([1, 16, 2], init_zeros=True)), nf.flows.Permute(2)]
    model = nf.NormalizingFlow(nf.distributions.DiagGaussian(2, trainable=False), flows)
    return _likelihood(compile, model, model.log_prob, torch.randn(8, 2))


def tensordict_modules(compile: Compile) -> Step:
    import torch
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule, TensorDictSequential

    first = TensorDictModule(torch.nn.Linear(4, 8), in_keys=["x"], out_keys=["h"])
    second = TensorDictModule(torch.nn.Linear(8, 2), in_keys=["h"], out_keys=["y"])
    model = TensorDictSequential(first, second)
    x = torch.randn(3, 4)

    def forward(x: torch.Tensor) -> torch.Tensor:
        data = TensorDict({"x": x}, batch_size=[3])
        return model(data)["y"]

    call = compile(forward)
    return training_step(lambda: call(x).square().mean(), model)


def tensordict_operations(compile: Compile) -> Step:
    import torch
    from tensordict import TensorDict

    data = TensorDict({"a": torch.randn(3, 4), "b": {"c": torch.randn(3)}}, batch_size=[3])

    def work(data: TensorDict) -> TensorDict:
        doubled = data * 2
        return torch.stack([doubled, data.apply(torch.tanh)], 0)[:, :2]

    call = compile(work)

    def step() -> list[torch.Tensor]:
        result = call(data)
        return [result["a"], result["b", "c"]]

    return step


def torchrl_ppo_loss(compile: Compile) -> Step:
    import torch
    from tensordict import TensorDict
    from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
    from torchrl.modules import NormalParamExtractor, TanhNormal, ValueOperator
    from torchrl.objectives import ClipPPOLoss

    net = torch.nn.Sequential(torch.nn.Linear(3, 4), NormalParamExtractor())
    actor = ProbabilisticTensorDictSequential(
        TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"]),
        ProbabilisticTensorDictModule(in_keys=["loc", "scale"], out_keys=["action"], distribution_class=TanhNormal),
    )
    critic = ValueOperator(torch.nn.Linear(3, 1), in_keys=["observation"])
    loss_of = ClipPPOLoss(actor, critic)
    data = TensorDict(
        {
            "observation": torch.randn(6, 3),
            "action": torch.rand(6, 2) - 0.5,
            loss_of.tensor_keys.sample_log_prob: torch.randn(6),
            "advantage": torch.randn(6, 1),
            "value_target": torch.randn(6, 1),
        },
        [6],
    )

    def forward(data: TensorDict) -> torch.Tensor:
        losses = loss_of(data)
        return losses["loss_objective"] + losses["loss_critic"]

    call = compile(forward)
    return training_step(lambda: call(data), loss_of)


def stable_baselines_policy(compile: Compile) -> Step:
    import gymnasium
    import numpy as np
    import torch
    from stable_baselines3.common.policies import ActorCriticPolicy

    observations = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    policy = ActorCriticPolicy(observations, gymnasium.spaces.Discrete(3), lambda _: 1e-3)
    seen, actions = torch.randn(6, 4), torch.randint(0, 3, (6,))
    call = compile(policy.evaluate_actions)

    def loss_of() -> tuple[torch.Tensor, torch.Tensor]:
        values, log_probs, entropy = call(seen, actions)
        return values.square().mean() - log_probs.mean() - 0.01 * entropy.mean(), values

    return training_step(loss_of, policy.optimizer)


def torchsde_solver(compile: Compile) -> Step:
    import torch
    import torchsde

    class Equation(torch.nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self) -> None:
            super().__init__()
            self.drift, self.diffusion = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

        def f(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.drift(y)

        def g(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.diffusion(y).sigmoid()

    equation = Equation()
    equation.f = compile(equation.f)  # type: ignore[method-assign]
    equation.g = compile(equation.g)  # type: ignore[method-assign]
    start, times = torch.randn(4, 3), torch.linspace(0, 0.2, 3)

    def step() -> torch.Tensor:
        noise = torchsde.BrownianInterval(0.0, 0.2, size=(4, 3), entropy=7)
        return torchsde.sdeint(equation, start, times, bm=noise, dt=0.05, method="euler").detach()

    return step


def torchcde_controlled(compile: Compile) -> Step:
    import torch
    import torchcde

    class Field(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 8)

        def forward(self, t: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            return self.linear(z).tanh().view(*z.shape[:-1], 4, 2)

    field = compile(Field())
    path = torch.randn(3, 5, 2).cumsum(1)
    coefficients = torchcde.hermite_cubic_coefficients_with_backward_differences(path)
    start = torch.randn(3, 4)

    def step() -> torch.Tensor:
        control = torchcde.CubicSpline(coefficients)
        options = {"step_size": 0.5}
        return torchcde.cdeint(control, field, start, control.interval, method="rk4", options=options).detach()

    return step


PROGRAMS = {
    "zuko neural spline flow": Program("zuko", zuko_spline_flow),
    "zuko masked autoregressive flow": Program("zuko", zuko_masked_flow),
    "nflows masked autoregressive flow": Program("nflows", nflows_flow),
    "normflows RealNVP": Program("normflows", normflows_real_nvp),
    "tensordict modules": Program("tensordict", tensordict_modules),
    "tensordict operations": Program("tensordict", tensordict_operations),
    "TorchRL PPO loss": Program("torchrl", torchrl_ppo_loss, fast=False),
    "stable-baselines3 policy": Program("stable-baselines3", stable_baselines_policy),
    "torchsde solver": Program("torchsde", torchsde_solver),
    "torchcde solver": Program("torchcde", torchcde_controlled),
}
