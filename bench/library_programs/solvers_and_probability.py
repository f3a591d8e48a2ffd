"""More of schedulers, solvers, probability and processes: diffusers, torchdiffeq, Pyro, GPyTorch, zuko."""

from __future__ import annotations

from typing import Any

from library_programs.program import Compile, Program, Step, inference_step, training_step


def scheduler(name: str, **options: Any) -> Any:
    """A program that samples with a scheduler of diffusers'."""

    def make(compile: Compile) -> Step:
        import diffusers
        import torch

        net = torch.nn.Conv2d(4, 4, 3, padding=1)

        def denoise(x: torch.Tensor) -> torch.Tensor:
            schedule = getattr(diffusers, name)(num_train_timesteps=100, **options)
            schedule.set_timesteps(4)
            x = x * schedule.init_noise_sigma
            for moment in schedule.timesteps:
                noise = net(schedule.scale_model_input(x, moment)) * 0.1
                x = schedule.step(noise, moment, x).prev_sample
            return x

        call = compile(denoise)
        return inference_step(lambda: call(torch.randn(1, 4, 8, 8)))

    return make


def sampling_with_generators(compile: Compile) -> Step:
    """As pipelines do: a new generator for each image and call, which start and steps draw from."""
    import torch
    from diffusers import DDPMScheduler
    from diffusers.utils.torch_utils import randn_tensor

    net = torch.nn.Conv2d(4, 4, 3, padding=1)

    def sample(generators: list[torch.Generator]) -> torch.Tensor:
        schedule = DDPMScheduler(num_train_timesteps=100)
        schedule.set_timesteps(4)
        x = randn_tensor((len(generators), 4, 8, 8), generator=generators, dtype=torch.float32)
        for moment in schedule.timesteps:
            x = schedule.step(net(x) * 0.1, moment, x, generator=generators).prev_sample
        return x

    call = compile(sample)
    return inference_step(lambda: call([torch.Generator().manual_seed(seed) for seed in (3, 4)]))


def noised_training(compile: Compile) -> Step:
    import torch
    from diffusers import DDPMScheduler

    schedule = DDPMScheduler(num_train_timesteps=50)
    net = torch.nn.Conv2d(3, 3, 3, padding=1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    images = torch.randn(4, 3, 8, 8)

    def loss_of(images: torch.Tensor) -> torch.Tensor:
        noise = torch.randn_like(images)
        moments = torch.randint(0, schedule.config.num_train_timesteps, (images.shape[0],))
        noisy = schedule.add_noise(images, noise, moments)
        return torch.nn.functional.mse_loss(net(noisy), noise)

    call = compile(loss_of)
    return training_step(lambda: call(images), optimizer)


def adjoint(compile: Compile) -> Step:
    import torch
    from torchdiffeq import odeint_adjoint

    class Field(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))

        def forward(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.net(y) * t

    field, start, times = Field(), torch.randn(4, 2), torch.linspace(0, 1, 3)
    call = compile(lambda y: odeint_adjoint(field, y, times, method="euler", options={"step_size": 0.25}))

    def loss_of() -> tuple[torch.Tensor, torch.Tensor]:
        path = call(start)
        return path[-1].sum(), path

    return training_step(loss_of, field, gradients=True)


def automatic_guide(compile: Compile) -> Step:
    import pyro
    import pyro.distributions as dist
    import torch
    from pyro.infer import SVI, Trace_ELBO
    from pyro.infer.autoguide import AutoNormal
    from pyro.nn import PyroModule, PyroSample

    pyro.clear_param_store()

    class Regression(PyroModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = PyroModule[torch.nn.Linear](3, 1)
            self.linear.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 3]).to_event(2))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            mean = self.linear(x).squeeze(-1)
            with pyro.plate("data", x.shape[0]):
                pyro.sample("obs", dist.Normal(mean, 0.5), obs=y)
            return mean

    model = Regression()
    x, y = torch.randn(8, 3), torch.randn(8)
    svi = SVI(model, AutoNormal(model), pyro.optim.Adam({"lr": 0.01}), loss=Trace_ELBO())
    return compile(lambda: svi.step(x, y))


def deep_kernel(compile: Compile) -> Step:
    import gpytorch
    import torch

    x, y = torch.randn(12, 4), torch.randn(12)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()

    class Model(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(x, y, likelihood)
            self.features = torch.nn.Linear(4, 2)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5))

        def forward(self, x: torch.Tensor) -> Any:
            z = self.features(x)
            return gpytorch.distributions.MultivariateNormal(self.mean(z), self.kernel(z))

    model = Model()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    call = compile(lambda: -objective(model(x), y))
    return training_step(call, optimizer)


def kernels(compile: Compile) -> Step:
    import gpytorch
    import torch

    kernel = gpytorch.kernels.RBFKernel() + gpytorch.kernels.PeriodicKernel() * gpytorch.kernels.LinearKernel()
    x, z = torch.randn(6, 1), torch.randn(4, 1)
    call = compile(lambda a, b: kernel(a, b).to_dense())
    return lambda: call(x, z).detach()


def continuous_flow(compile: Compile) -> Step:
    import torch
    import zuko

    flow = zuko.flows.NICE(features=3, context=2, hidden_features=(16,))
    x, context = torch.randn(5, 3), torch.randn(5, 2)

    def loss_of(x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        return -flow(context).log_prob(x).mean()

    call = compile(loss_of)
    return training_step(lambda: call(x, context), flow, gradients=True)


PROGRAMS = {
    "diffusers DPM++ multistep": Program("diffusers", scheduler("DPMSolverMultistepScheduler")),
    "diffusers UniPC": Program("diffusers", scheduler("UniPCMultistepScheduler"), fast=False),
    "diffusers Heun": Program("diffusers", scheduler("HeunDiscreteScheduler"), fast=False),
    "diffusers DDPM": Program("diffusers", scheduler("DDPMScheduler")),
    "diffusers DDPM with generators": Program("diffusers", sampling_with_generators),
    "diffusers Euler ancestral": Program("diffusers", scheduler("EulerAncestralDiscreteScheduler"), fast=False),
    "diffusers noised training": Program("diffusers", noised_training),
    "torchdiffeq adjoint": Program("torchdiffeq", adjoint),
    "Pyro automatic guide": Program("pyro-ppl", automatic_guide, fast=False),
    "GPyTorch deep kernel": Program("gpytorch", deep_kernel, fast=False),
    "GPyTorch kernels": Program("gpytorch", kernels),
    "zuko coupling flow": Program("zuko", continuous_flow),
}
