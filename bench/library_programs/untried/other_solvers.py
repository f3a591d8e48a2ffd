"""Other models, solvers and trainers of packages that others try: agents, minima, manifolds, mixtures."""

from __future__ import annotations

from typing import Any

from library_programs.program import Compile, Program, Step, training_step


def reinforcement(name: str, **options: Any) -> Any:
    def make(compile: Compile) -> Step:
        import gymnasium
        import numpy
        import stable_baselines3

        class Line(gymnasium.Env):
            observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), numpy.float32)
            action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), numpy.float32)

            def reset(self, *, seed: Any = None, options: Any = None) -> Any:
                self.time = 0
                return numpy.zeros(3, numpy.float32), {}

            def step(self, action: Any) -> Any:
                self.time += 1
                state = numpy.full(3, float(action[0]) / 2, numpy.float32)
                return state, float(action[0]), self.time >= 8, False, {}

        agent = getattr(stable_baselines3, name)(
            "MlpPolicy", Line(), seed=0, device="cpu", policy_kwargs={"net_arch": [16]}, **options
        )
        agent.learn(24)
        train = compile(agent.train)

        def step() -> Any:
            train(gradient_steps=2, batch_size=8)
            return [p.detach() for p in agent.policy.parameters()]

        return step

    return make


def minimized(compile: Compile) -> Step:
    import torch
    from xitorch.optimize import minimize

    a = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))

    def loss() -> Any:
        def objective(y: Any, a: Any) -> Any:
            return ((y - a) ** 2).sum() + (y**4).sum() * 0.1

        y = minimize(objective, torch.zeros(3, dtype=torch.float64), (a,), method="gd", step=0.1, maxiter=30)
        return y.sum()

    return training_step(compile(loss), torch.optim.SGD([a], 1e-2))


def riemannian(name: str) -> Any:
    def make(compile: Compile) -> Step:
        import geoopt
        import torch

        sphere, ball = geoopt.Sphere(), geoopt.PoincareBall()
        points = [
            geoopt.ManifoldParameter(sphere.projx(torch.randn(5, 4)), manifold=sphere),
            geoopt.ManifoldParameter(ball.expmap0(torch.randn(5, 3) * 0.1), manifold=ball),
        ]
        optimizer = getattr(geoopt.optim, name)(points, lr=1e-2, **({"momentum": 0.9} if "SGD" in name else {}))
        target = sphere.projx(torch.randn(5, 4))

        def step() -> Any:
            optimizer.zero_grad()
            loss = sphere.dist(points[0], target).square().sum() + ball.dist0(points[1]).square().sum()
            loss.backward()
            optimizer.step()
            return loss

        call = compile(step)
        return lambda: [call().detach(), *[p.detach().clone() for p in points]]

    return make


def divergences(compile: Compile) -> Step:
    import torch
    from torch import distributions as d

    weights = torch.nn.Parameter(torch.randn(3))
    scale = torch.nn.Parameter(torch.ones(3))

    def loss(x: Any) -> Any:
        mixture = d.MixtureSameFamily(d.Categorical(logits=weights), d.Normal(weights, scale.exp()))
        flow = d.TransformedDistribution(
            d.Normal(weights, scale.exp()), [d.AffineTransform(0.5, 2.0), d.SigmoidTransform()]
        )
        pairs = [
            d.kl_divergence(d.Independent(d.Normal(weights, scale.exp()), 1), d.Independent(d.Normal(x, 1.0), 1)),
            d.kl_divergence(d.Gamma(scale.exp(), scale.exp()), d.Gamma(scale.exp() + 1, 1.0)).sum(),
            d.kl_divergence(d.Beta(scale.exp(), scale.exp()), d.Beta(1.0, 2.0)).sum(),
        ]
        return -mixture.log_prob(x).sum() - flow.log_prob(x.sigmoid()).sum() + torch.stack(pairs).sum()

    call, x = compile(loss), torch.randn(3)
    return training_step(lambda: call(x), torch.optim.SGD([weights, scale], 1e-3))


def runge_kutta_of_noise(compile: Compile) -> Step:
    """Its steps ask for the area under the noise too, whose functions tell `H` from `h`."""
    import torch
    import torchsde

    class Equation(torch.nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self) -> None:
            super().__init__()
            self.drift, self.diffusion = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

        def f(self, t: Any, y: Any) -> Any:
            return self.drift(y).tanh()

        def g(self, t: Any, y: Any) -> Any:
            return self.diffusion(y).sigmoid()

    equation, start, times = Equation(), torch.ones(3, 2), torch.linspace(0, 1, 4)

    def loss() -> Any:
        noise = torchsde.BrownianInterval(0.0, 1.0, (3, 2), entropy=3, levy_area_approximation="space-time")
        return torchsde.sdeint(equation, start, times, bm=noise, method="srk", dt=0.1).square().mean()

    return training_step(compile(loss), torch.optim.SGD(equation.parameters(), 1e-2))


def angular_margin(compile: Compile) -> Step:
    """Has its weights set to themselves, on the device of what it is given."""
    import torch
    from pytorch_metric_learning.losses import ArcFaceLoss

    net, objective = torch.nn.Linear(6, 8), ArcFaceLoss(num_classes=4, embedding_size=8)
    x, labels = torch.randn(12, 6), torch.arange(12) % 4
    call = compile(lambda: objective(net(x), labels))
    return training_step(call, torch.optim.SGD([*net.parameters(), *objective.parameters()], 1e-2))


PROGRAMS: dict[str, Program] = {
    "stable-baselines3 TD3": Program("stable-baselines3", reinforcement("TD3", learning_starts=8, buffer_size=100)),
    "xitorch minimum": Program("xitorch", minimized),
    "geoopt RiemannianSGD steps": Program("geoopt", riemannian("RiemannianSGD")),
    "torchsde Runge-Kutta steps": Program("torchsde", runge_kutta_of_noise),
    "pytorch-metric-learning ArcFace": Program("pytorch-metric-learning", angular_margin),
    "torch.distributions mixtures": Program("torch", divergences),
}
