"""Probability, solvers, reinforcement learning and functorch's examples."""

from __future__ import annotations

from typing import Any

from library_programs.program import Compile, Program, Step, inference_step, training_step
from library_programs.uncommon_packages import computed


def posterior(kind: str) -> Any:
    """Models of Pyro other than those of the other programs."""

    def make(compile: Compile) -> Step:
        import pyro
        import pyro.distributions as dist
        import torch
        from pyro.infer import SVI, Predictive, Trace_ELBO, TraceMeanField_ELBO
        from pyro.nn import PyroModule, PyroSample

        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        x, y = torch.randn(10, 3), torch.randn(10)
        if kind == "Bayesian network":

            class Regression(PyroModule):
                def __init__(self) -> None:
                    super().__init__()
                    self.linear = PyroModule[torch.nn.Linear](3, 1)
                    self.linear.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 3]).to_event(2))

                def forward(self, x: Any, y: Any = None) -> Any:
                    mean = self.linear(x).squeeze(-1)
                    with pyro.plate("data", x.shape[0]):
                        return pyro.sample("obs", dist.Normal(mean, 0.5), obs=y)

            model = Regression()
            guide = pyro.infer.autoguide.AutoLowRankMultivariateNormal(model)
            svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.01}), Trace_ELBO())
            call = compile(svi.step)
            return lambda: call(x, y)
        if kind == "conditioned":

            def model_(x: Any) -> Any:
                w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
                with pyro.plate("d", 10):
                    pyro.sample("o", dist.StudentT(4.0, x @ w, 1.0), obs=y)
                return w

            predictive = Predictive(model_, num_samples=3)
            call = compile(lambda: predictive(x))
            return lambda: dict(call())
        if kind == "mean field":

            def model2(x: Any) -> None:
                with pyro.plate("d", 10, subsample_size=5) as index:
                    z = pyro.sample("z", dist.Normal(0.0, 1.0))
                    pyro.sample("o", dist.Normal(z, 1.0), obs=y[index])

            def guide2(x: Any) -> None:
                loc = pyro.param("loc", torch.zeros(10))
                with pyro.plate("d", 10, subsample_size=5) as index:
                    pyro.sample("z", dist.Normal(loc[index], 0.5))

            svi = SVI(model2, guide2, pyro.optim.Adam({"lr": 0.01}), TraceMeanField_ELBO())
            call = compile(svi.step)
            return lambda: call(x)
        flow = dist.transforms.spline_coupling(4, count_bins=4)
        base = dist.Normal(torch.zeros(4), 1.0).to_event(1)
        density = dist.TransformedDistribution(base, [flow, dist.transforms.AffineTransform(0.1, 1.5)])
        data = torch.randn(8, 4)
        call = compile(lambda data: -density.log_prob(data).mean())

        def step() -> Any:
            density.clear_cache()
            return call(data).detach()

        return step

    return make


def processes(kind: str) -> Any:
    """Gaussian processes of other kinds."""

    def make(compile: Compile) -> Step:
        import gpytorch
        import torch

        x = torch.linspace(0, 1, 20)[:, None]
        y = torch.sin(6 * x[:, 0])
        likelihood = gpytorch.likelihoods.GaussianLikelihood()

        class Exact(gpytorch.models.ExactGP):
            def __init__(self) -> None:
                super().__init__(x, y, likelihood)
                self.mean = gpytorch.means.LinearMean(1)
                kernels = gpytorch.kernels
                if kind == "inducing points":
                    self.kernel = kernels.InducingPointKernel(
                        kernels.ScaleKernel(kernels.MaternKernel()), x[::4].clone(), likelihood
                    )
                elif kind == "grid":
                    self.kernel = kernels.GridInterpolationKernel(kernels.RBFKernel(), grid_size=10, num_dims=1)
                else:
                    self.kernel = kernels.SpectralMixtureKernel(num_mixtures=2)

            def forward(self, x: Any) -> Any:
                return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

        model = Exact()
        objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        if kind == "prediction":
            model.eval()
            likelihood.eval()
            call = compile(lambda t: likelihood(model(t)))
            return inference_step(lambda: [call(torch.rand(5, 1)).mean, call(torch.rand(5, 1)).variance])
        model.train()
        call = compile(model)
        return training_step(lambda: -objective(call(x), y), optimizer)

    return make


def acquisition(compile: Compile) -> Step:
    import torch
    from botorch.acquisition import UpperConfidenceBound, qNoisyExpectedImprovement
    from botorch.models import SingleTaskGP
    from botorch.sampling import SobolQMCNormalSampler

    x = torch.rand(8, 2, dtype=torch.float64)
    y = (x.sum(-1, keepdim=True) * 3).sin()
    model = SingleTaskGP(x, y)
    bound = UpperConfidenceBound(model, beta=0.2)
    noisy = qNoisyExpectedImprovement(model, x, SobolQMCNormalSampler(torch.Size([16]), seed=0))

    def score(t: Any) -> Any:
        return bound(t[:, :1]), noisy(t)

    call = compile(score)

    def step() -> Any:
        t = torch.rand(3, 2, 2, dtype=torch.float64, requires_grad=True)
        a, b = call(t)
        (a.sum() + b.sum()).backward()
        return [a, b, t.grad]

    return step


def reinforcement(name: str, **options: Any) -> Any:
    """A whole training phase of stable-baselines3 with its policy's network compiled."""

    def make(compile: Compile) -> Step:
        import gymnasium
        import stable_baselines3 as sb3

        environment = gymnasium.make("Pendulum-v1" if name in ("SAC", "TD3", "DDPG") else "CartPole-v1")
        agent = getattr(sb3, name)(
            "MlpPolicy", environment, seed=0, device="cpu", policy_kwargs={"net_arch": [8]}, **options
        )
        agent.policy.forward = compile(agent.policy.forward)
        agent.train = compile(agent.train)

        def step() -> Any:
            agent.learn(32)
            return [p.detach().clone() for p in agent.policy.parameters()]

        return step

    return make


def losses_of_torchrl(name: str) -> Any:
    def make(compile: Compile) -> Step:
        import torch
        from tensordict import TensorDict
        from tensordict.nn import NormalParamExtractor, TensorDictModule
        from torchrl import objectives
        from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator

        net = torch.nn.Sequential(MLP(in_features=4, out_features=4, num_cells=[8]), NormalParamExtractor())
        module = TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"])
        actor = ProbabilisticActor(
            module, in_keys=["loc", "scale"], distribution_class=TanhNormal, return_log_prob=True
        )
        value = ValueOperator(MLP(in_features=4, out_features=1, num_cells=[8]), in_keys=["observation"])
        quality = ValueOperator(MLP(in_features=6, out_features=1, num_cells=[8]), in_keys=["observation", "action"])
        nets = {
            "A2CLoss": (actor, value),
            "ReinforceLoss": (actor, value),
            "IQLLoss": (actor, quality, value),
            "TD3Loss": (actor, quality),
        }[name]
        if name == "TD3Loss":
            plain = TensorDictModule(
                torch.nn.Sequential(MLP(in_features=4, out_features=2, num_cells=[8]), torch.nn.Tanh()),
                in_keys=["observation"],
                out_keys=["action"],
            )
            loss = objectives.TD3Loss(plain, quality, bounds=(-1.0, 1.0))
        else:
            loss = getattr(objectives, name)(*nets)
        ends = torch.zeros(6, 1, dtype=torch.bool)
        following = {"observation": torch.randn(6, 4), "reward": torch.randn(6, 1), "done": ends, "terminated": ends}
        data = TensorDict({"observation": torch.randn(6, 4), "action": torch.rand(6, 2) - 0.5, "next": following}, [6])
        data["action_log_prob"] = torch.randn(6)
        call = compile(loss)

        def step() -> Any:
            loss.zero_grad()
            out = call(data.clone())
            total = sum(out[key] for key in sorted(out.keys()) if key.startswith("loss_"))
            total.backward()
            return [out[key].detach() for key in sorted(out.keys()) if key.startswith("loss_")]

        return step

    return make


def private_steps(compile: Compile) -> Step:
    """opacus' whole engine: gradients of samples, clipping, noise."""
    import torch
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    data = DataLoader(TensorDataset(torch.randn(16, 5), torch.randint(0, 2, (16,))), batch_size=8)
    generator = torch.Generator().manual_seed(0)
    model, optimizer, data = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=data, noise_multiplier=1.0,
        max_grad_norm=1.0, poisson_sampling=False, noise_generator=generator,
    )  # fmt: skip
    x, y = torch.randn(8, 5), torch.randint(0, 2, (8,))

    def train(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    call = compile(train)
    return lambda: [call(x, y), *(p.detach().clone() for p in model.parameters())]


def transforms_of_functions(kind: str) -> Any:
    """Examples of functorch."""

    def make(compile: Compile) -> Step:
        import torch
        from torch.func import functional_call, grad, hessian, jacrev, jvp, stack_module_state, vjp, vmap

        net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        parameters = dict(net.named_parameters())
        x, y = torch.randn(6, 3), torch.randn(6, 1)

        def loss(p: Any, x: Any, y: Any) -> Any:
            return (functional_call(net, p, (x,)) - y).square().mean()

        if kind == "MAML":

            def meta(x: Any, y: Any) -> Any:
                def inner(x: Any, y: Any) -> Any:
                    fast = {
                        k: p - 0.1 * g for (k, p), g in zip(parameters.items(), grad(loss)(parameters, x, y).values())
                    }
                    return loss(fast, x, y)

                return vmap(inner)(x.view(2, 3, 3), y.view(2, 3, 1)).mean()

            call = compile(meta)
            return training_step(lambda: call(x, y), net, gradients=True)
        if kind == "ensemble":
            nets = [torch.nn.Linear(3, 2) for _ in range(3)]
            stacked, buffers = stack_module_state(nets)
            call = compile(vmap(lambda p, b, x: functional_call(nets[0], (p, b), (x,)), in_dims=(0, 0, None)))
            return lambda: call(stacked, buffers, x)
        if kind == "tangent kernel":

            def kernel(a: Any, b: Any) -> Any:
                single = lambda p, x: functional_call(net, p, (x[None],))[0]  # noqa: E731
                left = vmap(jacrev(single), (None, 0))(parameters, a)
                right = vmap(jacrev(single), (None, 0))(parameters, b)
                return sum(torch.einsum("naf,mbf->nmab", left[k].flatten(2), right[k].flatten(2)) for k in left)

            call = compile(kernel)
            return lambda: call(x, x[:2])
        if kind == "dropout":
            drop = torch.nn.Dropout(0.5)
            call = compile(lambda x: vmap(lambda r: drop(r), randomness="different")(x))
            return lambda: call(x)

        def products(x: Any) -> Any:
            f = lambda x: net(x).sin().sum()  # noqa: E731
            value, pull = vjp(f, x)
            _, forward = jvp(grad(f), (x,), (torch.ones_like(x),))
            return value, pull(torch.ones(()))[0], forward, vmap(hessian(lambda r: net(r).squeeze()))(x)

        call = compile(products)
        return lambda: call(x)

    return make


def solved(method: str) -> Any:
    def make(compile: Compile) -> Step:
        import torch
        from torchdiffeq import odeint, odeint_event

        net = torch.nn.Linear(3, 3)
        times = torch.linspace(0, 1, 4)

        def flow(t: Any, y: Any) -> Any:
            return torch.tanh(net(y)) * (1 + t)

        if method == "event":
            call = compile(
                lambda y: odeint_event(
                    flow, y, torch.tensor(0.0), event_fn=lambda t, y: t - 0.5, method="rk4", options={"step_size": 0.1}
                )[1]
            )
        else:
            call = compile(lambda y: odeint(flow, y, times, method=method))
        y = torch.randn(2, 3)
        return training_step(lambda: call(y).square().mean(), net, gradients=True)

    return make


def stochastic_adjoint(compile: Compile) -> Step:
    import torch
    import torchsde

    class Equation(torch.nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self) -> None:
            super().__init__()
            self.drift, self.spread = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

        def f(self, t: Any, y: Any) -> Any:
            return self.drift(y).tanh()

        def g(self, t: Any, y: Any) -> Any:
            return self.spread(y).sigmoid()

    equation, times, y = Equation(), torch.linspace(0, 0.2, 3), torch.randn(4, 3)
    call = compile(lambda y, path: torchsde.sdeint_adjoint(equation, y, times, bm=path, dt=0.1, method="milstein"))

    def loss() -> Any:
        return call(y, torchsde.BrownianInterval(0.0, 0.2, (4, 3), entropy=1)).square().mean()

    return training_step(loss, equation)


def matched_flow(compile: Compile) -> Step:
    import torch
    from flow_matching.path import CondOTProbPath
    from flow_matching.solver import ODESolver

    net, path = torch.nn.Linear(3, 2), CondOTProbPath()

    class Velocity(torch.nn.Module):
        def forward(self, x: Any, t: Any) -> Any:
            return net(torch.cat([x, t.expand(x.shape[0])[:, None]], -1))

    solver = ODESolver(Velocity())

    def train(a: Any, b: Any, t: Any) -> Any:
        sample = path.sample(x_0=a, x_1=b, t=t)
        return (net(torch.cat([sample.x_t, sample.t[:, None]], -1)) - sample.dx_t).square().mean()

    call, solve = compile(train), compile(lambda x: solver.sample(x_init=x, step_size=0.25, method="midpoint"))

    def step() -> Any:
        loss = call(torch.randn(5, 2), torch.randn(5, 2), torch.rand(5))
        loss.backward()
        return [loss.detach(), solve(torch.randn(3, 2))]

    return step


def posterior_network(torch: Any) -> Any:
    from sbi.neural_nets.net_builders import build_nsf

    net = build_nsf(torch.randn(20, 2), torch.randn(20, 3), hidden_features=8, num_transforms=2, num_bins=4)
    return (lambda a, b: net.loss(a, condition=b)), (torch.randn(6, 2), torch.randn(6, 3))


PROGRAMS: dict[str, Program] = {
    **{
        f"Pyro {kind}": Program("pyro-ppl", posterior(kind))
        for kind in ("Bayesian network", "conditioned", "mean field", "spline flow")
    },
    **{
        f"GPyTorch {kind}": Program("gpytorch", processes(kind))
        for kind in ("inducing points", "grid", "spectral", "prediction")
    },
    "BoTorch UCB and qNEI": Program("botorch", acquisition),
    "stable-baselines3 PPO": Program("stable-baselines3", reinforcement("PPO", n_steps=32, batch_size=16, n_epochs=2)),
    "stable-baselines3 DQN": Program(
        "stable-baselines3", reinforcement("DQN", learning_starts=8, train_freq=4, batch_size=8)
    ),
    "stable-baselines3 SAC": Program(
        "stable-baselines3", reinforcement("SAC", learning_starts=8, batch_size=8, train_freq=8, gradient_steps=2)
    ),
    "stable-baselines3 A2C": Program("stable-baselines3", reinforcement("A2C")),
    **{
        f"TorchRL {name}": Program("torchrl", losses_of_torchrl(name))
        for name in ("A2CLoss", "ReinforceLoss", "IQLLoss", "TD3Loss")
    },
    "opacus private steps": Program("opacus", private_steps),
    **{
        f"torch.func {kind}": Program("torch", transforms_of_functions(kind))
        for kind in ("MAML", "ensemble", "tangent kernel", "dropout", "products")
    },
    **{
        f"torchdiffeq {method}": Program("torchdiffeq", solved(method))
        for method in ("fehlberg2", "implicit_adams", "bosh3", "event")
    },
    "torchsde adjoint": Program("torchsde", stochastic_adjoint),
    "flow matching": Program("flow-matching", matched_flow),
    "sbi spline flow": Program("sbi", computed(posterior_network)),
}
