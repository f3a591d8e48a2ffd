"""Packages, and parts of packages, that the other programs leave out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from library_programs.program import Compile, Program, Step, training_step


def module_training(build: Callable[[], Any], inputs: Callable[[Any], tuple[Any, ...]], loss: Any = None) -> Any:
    """Steps of Adam on the mean square of what a module answers."""

    def make(compile: Compile) -> Step:
        import torch

        model = build()
        call, batch = compile(model), inputs(torch)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        measure = loss or (lambda answer: answer.square().mean())
        return training_step(lambda: measure(call(*batch)), optimizer)

    return make


def lstm_classifier(compile: Compile) -> Step:
    """A text classifier of packed sequences, as in AllenNLP and flair."""
    import torch
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    class Classifier(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(30, 8, padding_idx=0)
            self.encoder = torch.nn.LSTM(8, 8, 2, batch_first=True, bidirectional=True)
            self.output = torch.nn.Linear(16, 3)

        def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            packed = pack_padded_sequence(self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False)
            states, _ = pad_packed_sequence(self.encoder(packed)[0], batch_first=True)
            mask = torch.arange(states.shape[1]) < lengths[:, None]
            return self.output((states * mask[..., None]).sum(1) / lengths[:, None])

    model = Classifier()
    tokens, lengths = torch.randint(1, 30, (4, 9)), torch.tensor([9, 4, 7, 2])
    call = compile(model)
    optimizer = torch.optim.Adam(model.parameters())
    labels = torch.tensor([0, 1, 2, 0])
    return training_step(lambda: torch.nn.functional.cross_entropy(call(tokens, lengths), labels), optimizer)


def open_clip(compile: Compile) -> Step:
    import torch
    from open_clip import ClipLoss
    from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

    model = CLIP(
        16,
        CLIPVisionCfg(layers=2, width=32, head_width=16, patch_size=8, image_size=16),
        CLIPTextCfg(context_length=8, vocab_size=40, width=32, heads=2, layers=2),
    )
    call, loss = compile(model), ClipLoss()
    images, text = torch.randn(3, 3, 16, 16), torch.randint(0, 40, (3, 8))
    return training_step(lambda: loss(*call(images, text)), torch.optim.AdamW(model.parameters(), lr=1e-3))


def image_quality(compile: Compile) -> Step:
    import piq
    import torch
    from pytorch_msssim import ssim

    def losses(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        quality = piq.ssim(x, y), piq.GMSDLoss()(x, y), piq.TVLoss()(x), piq.psnr(x, y), piq.vif_p(x, y)
        return (sum(quality) + ssim(x, y, data_range=1.0), *quality)

    image = torch.rand(2, 3, 48, 48)
    noisy = torch.nn.Parameter((image + 0.1 * torch.randn_like(image)).clamp(0, 1).detach())
    call = compile(losses)
    return training_step(lambda: call(noisy.clamp(0, 1), image), torch.optim.SGD([noisy], lr=0.01))


def perceptual_loss(compile: Compile) -> Step:
    import lpips
    import torch

    metric = lpips.LPIPS(net="alex", pretrained=False, pnet_rand=True, verbose=False).eval()
    image = torch.nn.Parameter(torch.rand(1, 3, 64, 64))
    target = torch.rand(1, 3, 64, 64)
    call = compile(metric)
    return training_step(lambda: call(image, target).mean(), torch.optim.SGD([image], lr=0.1))


def audio_losses(compile: Compile) -> Step:
    import auraloss
    import julius
    import torch

    spectral = auraloss.freq.MultiResolutionSTFTLoss(fft_sizes=[64, 32], hop_sizes=[16, 8], win_lengths=[64, 32])
    scale = auraloss.time.SISDRLoss()

    def loss_of(sound: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        low = julius.lowpass_filter(sound, 0.2)
        return spectral(sound, target) + scale(low, target) + julius.resample_frac(sound, 2, 3).square().mean()

    sound = torch.nn.Parameter(torch.randn(2, 1, 400))
    target = torch.randn(2, 1, 400)
    call = compile(loss_of)
    return training_step(lambda: call(sound, target), torch.optim.SGD([sound], lr=0.1))


def reformer() -> Any:
    from reformer_pytorch import ReformerLM

    return ReformerLM(num_tokens=40, dim=16, depth=1, max_seq_len=32, heads=2, bucket_size=8, n_hashes=2, causal=True)


def soft_experts() -> Any:
    from soft_moe_pytorch import SoftMoE

    return SoftMoE(dim=16, seq_len=12, num_experts=3)


def routed_experts() -> Any:
    from mixture_of_experts import MoE

    return MoE(dim=16, num_experts=4)


def linformer() -> Any:
    from linformer import LinformerLM

    return LinformerLM(num_tokens=40, dim=16, seq_len=12, depth=2, heads=2, k=4)


def sirens() -> Any:
    from siren_pytorch import SirenNet

    return SirenNet(dim_in=2, dim_hidden=16, dim_out=3, num_layers=3)


def feature_tokens() -> Any:
    from rtdl_revisiting_models import FTTransformer

    return FTTransformer(
        n_cont_features=3, cat_cardinalities=[4, 5], d_out=1, **FTTransformer.get_default_kwargs(n_blocks=1)
    )


def averaged(compile: Compile) -> Step:
    import torch
    from torch_ema import ExponentialMovingAverage

    model = torch.nn.Linear(4, 3)
    average = ExponentialMovingAverage(model.parameters(), decay=0.9)
    update, x = compile(average.update), torch.randn(5, 4)

    def step() -> list[torch.Tensor]:
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.1)
        update()
        with average.average_parameters():
            return [model(x).detach(), *average.shadow_params]

    return step


def preference(compile: Compile) -> Step:
    """The loss of DPO over two GPT-2s, as trl computes it."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=40, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.0,
                        embd_pdrop=0.0, attn_pdrop=0.0)  # fmt: skip
    policy, reference = GPT2LMHeadModel(config), GPT2LMHeadModel(config).eval()
    tokens = torch.randint(0, 40, (4, 10))
    mask = torch.ones_like(tokens)
    mask[1, 7:] = 0

    def logps(model: Any, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        from trl.trainer.utils import selective_log_softmax

        logits = model(tokens, attention_mask=mask).logits[:, :-1]
        return (selective_log_softmax(logits, tokens[:, 1:]) * mask[:, 1:]).sum(-1)

    def loss_of(tokens: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            fixed = logps(reference, tokens, mask)
        ratio = logps(policy, tokens, mask) - fixed
        chosen, rejected = ratio.chunk(2)
        loss = -torch.nn.functional.logsigmoid(0.1 * (chosen - rejected)).mean()
        return loss, (chosen > rejected).float().mean(), chosen.detach()

    call = compile(loss_of)
    return training_step(lambda: call(tokens, mask), torch.optim.AdamW(policy.parameters(), lr=1e-3))


def laplace(compile: Compile) -> Step:
    import torch
    from torch.func import functional_call, jacrev, vmap

    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    x = torch.randn(5, 4)

    def curvature(x: torch.Tensor) -> torch.Tensor:
        params = dict(model.named_parameters())

        def out(params: Any, row: torch.Tensor) -> torch.Tensor:
            return functional_call(model, params, (row[None],))[0]

        jac = vmap(jacrev(out), in_dims=(None, 0))(params, x)
        flat = torch.cat([each.flatten(2) for each in jac.values()], -1)
        return torch.einsum("nci,ncj->ij", flat, flat).diagonal()

    call = compile(curvature)
    return lambda: call(x).detach()


def tensor_parameters(compile: Compile) -> Step:
    """An ensemble by vmap over TensorDictParams."""
    import torch
    from tensordict import from_modules

    modules = [torch.nn.Linear(4, 3) for _ in range(3)]
    params = from_modules(*modules, as_module=True)
    shell = torch.nn.Linear(4, 3)

    def run(params: Any, x: torch.Tensor) -> torch.Tensor:
        with params.to_module(shell):
            return shell(x)

    call = compile(lambda x: torch.vmap(run, (0, None))(params, x))
    x = torch.randn(5, 4)
    return lambda: call(x).detach()


def low_rank(kind: str, **options: Any) -> Any:
    def make(compile: Compile) -> Step:
        import peft
        import torch

        base = torch.nn.Sequential()
        base.add_module("first", torch.nn.Linear(8, 16))
        base.add_module("act", torch.nn.ReLU())
        base.add_module("last", torch.nn.Linear(16, 4))
        model = peft.get_peft_model(base, getattr(peft, kind)(target_modules=["first", "last"], **options))
        call, x = compile(model), torch.randn(5, 8)
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
        return training_step(lambda: call(x).square().mean(), optimizer)

    return make


def edm(name: str, **options: Any) -> Any:
    """More schedulers of diffusers."""

    def make(compile: Compile) -> Step:
        import diffusers
        import torch

        scheduler = getattr(diffusers, name)(num_train_timesteps=50, **options)
        net = torch.nn.Conv2d(2, 2, 3, padding=1)

        def sample(x: torch.Tensor) -> torch.Tensor:
            for t in scheduler.timesteps:
                scaled = scheduler.scale_model_input(x, t)
                x = scheduler.step(net(scaled), t, x, return_dict=False)[0]
            return x

        call = compile(sample)

        def step() -> torch.Tensor:
            scheduler.set_timesteps(4)
            with torch.no_grad():
                return call(torch.randn(1, 2, 8, 8) * scheduler.init_noise_sigma)

        return step

    return make


def soft_actor_critic(compile: Compile) -> Step:
    import torch
    from tensordict import TensorDict
    from tensordict.nn import NormalParamExtractor, TensorDictModule
    from torchrl.data import Bounded
    from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
    from torchrl.objectives import SACLoss

    net = torch.nn.Sequential(torch.nn.Linear(4, 4), NormalParamExtractor())
    policy = ProbabilisticActor(
        TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"], distribution_class=TanhNormal, spec=Bounded(-1, 1, (2,)),
    )  # fmt: skip

    class Value(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(6, 1)

        def forward(self, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
            return self.net(torch.cat([observation, action], -1))

    value = ValueOperator(Value(), in_keys=["observation", "action"])
    loss = SACLoss(policy, value, num_qvalue_nets=2)
    data = TensorDict(
        {
            "observation": torch.randn(6, 4), "action": torch.rand(6, 2) * 2 - 1,
            "next": {
                "observation": torch.randn(6, 4), "reward": torch.randn(6, 1),
                "done": torch.zeros(6, 1, dtype=torch.bool), "terminated": torch.zeros(6, 1, dtype=torch.bool),
            },
        },
        [6],
    )  # fmt: skip
    call = compile(loss)

    def step() -> list[torch.Tensor]:
        loss.zero_grad()
        losses = call(data)
        total = losses["loss_actor"] + losses["loss_qvalue"] + losses["loss_alpha"]
        total.backward()
        return [total.detach(), *(p.grad for p in loss.parameters() if p.grad is not None)]

    return step


def enumerated(compile: Compile) -> Step:
    """Pyro: a mixture whose assignment is summed out."""
    import pyro
    import pyro.distributions as dist
    import torch
    from pyro.infer import SVI, TraceEnum_ELBO, config_enumerate
    from pyro.optim import Adam

    pyro.clear_param_store()
    data = torch.randn(8)

    @config_enumerate
    def model(data: torch.Tensor) -> None:
        weights = pyro.param("weights", torch.ones(2) / 2, constraint=dist.constraints.simplex)
        locs = pyro.param("locs", torch.tensor([-1.0, 1.0]))
        with pyro.plate("data", 8):
            which = pyro.sample("which", dist.Categorical(weights))
            pyro.sample("x", dist.Normal(locs[which], 1.0), obs=data)

    def guide(data: torch.Tensor) -> None:
        pass

    svi = SVI(model, guide, Adam({"lr": 0.01}), TraceEnum_ELBO(max_plate_nesting=1))
    call = compile(svi.step)
    return lambda: [call(data), pyro.param("locs").detach()]


def multitask(compile: Compile) -> Step:
    import gpytorch
    import torch

    x = torch.linspace(0, 1, 12)
    y = torch.stack([torch.sin(6 * x), torch.cos(6 * x)], -1)
    likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=2)

    class Model(gpytorch.models.ExactGP):
        def __init__(self) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.MultitaskMean(gpytorch.means.ConstantMean(), num_tasks=2)
            self.kernel = gpytorch.kernels.MultitaskKernel(gpytorch.kernels.RBFKernel(), num_tasks=2, rank=1)

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultitaskMultivariateNormal(self.mean(x), self.kernel(x))

    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    call = compile(lambda x, y: -marginal(model(x), y))
    return training_step(lambda: call(x, y), optimizer)


def monte_carlo_acquisition(compile: Compile) -> Step:
    import torch
    from botorch.acquisition import qExpectedImprovement
    from botorch.models import SingleTaskGP
    from botorch.sampling import SobolQMCNormalSampler

    x = torch.rand(8, 2, dtype=torch.double)
    model = SingleTaskGP(x, x.sum(-1, keepdim=True))
    sampler = SobolQMCNormalSampler(torch.Size([16]), seed=1)
    acquire = compile(qExpectedImprovement(model, best_f=1.0, sampler=sampler))
    points = torch.rand(3, 2, 2, dtype=torch.double).requires_grad_()

    def step() -> list[torch.Tensor]:
        points.grad = None
        value = acquire(points)
        value.sum().backward()
        return [value.detach(), points.grad]

    return step


def yolo() -> Any:
    from ultralytics.nn.tasks import DetectionModel

    return DetectionModel("yolov8n.yaml", nc=3, verbose=False)


def _squares(out: Any) -> Any:
    values = out.values() if isinstance(out, dict) else out
    return sum(each.square().mean() for each in values if hasattr(each, "square"))


def _tokens(torch: Any) -> tuple[Any, ...]:
    return (torch.randint(0, 40, (2, 12)),)


PROGRAMS = {
    "packed LSTM classifier": Program("torch", lstm_classifier),
    "OpenCLIP training": Program("open_clip_torch", open_clip),
    "piq and MS-SSIM losses": Program("piq", image_quality),
    "LPIPS": Program("lpips", perceptual_loss),
    "auraloss and julius": Program("auraloss", audio_losses),
    "reformer-pytorch training": Program(
        "reformer-pytorch", module_training(reformer, lambda t: (t.randint(0, 40, (2, 32)),)), fast=False
    ),
    "soft-moe training": Program("soft-moe-pytorch", module_training(soft_experts, lambda t: (t.randn(2, 12, 16),))),
    "mixture-of-experts training": Program(
        "mixture-of-experts",
        module_training(routed_experts, lambda t: (t.randn(2, 12, 16),), lambda out: out[0].square().mean() + out[1]),
    ),
    "linformer training": Program("linformer", module_training(linformer, _tokens)),
    "SIREN training": Program("siren-pytorch", module_training(sirens, lambda t: (t.rand(20, 2),))),
    "FT-Transformer training": Program(
        "rtdl-revisiting-models",
        module_training(feature_tokens, lambda t: (t.randn(5, 3), t.randint(0, 4, (5, 2)))),
    ),
    "torch-ema update": Program("torch-ema", averaged, steps=5, timed=False),
    "trl preference loss": Program("trl", preference, fast=False),
    "per-sample Jacobians": Program("torch", laplace),
    "tensordict ensemble": Program("tensordict", tensor_parameters),
    "PEFT LoHa training": Program("peft", low_rank("LoHaConfig", r=4)),
    "PEFT LoKr training": Program("peft", low_rank("LoKrConfig", r=4)),
    "PEFT OFT training": Program("peft", low_rank("OFTConfig", oft_block_size=4), fast=False),
    "PEFT VeRA training": Program("peft", low_rank("VeraConfig", r=4), fast=False),
    "PEFT DoRA training": Program("peft", low_rank("LoraConfig", r=4, use_dora=True)),
    "PEFT IA3 training": Program("peft", low_rank("IA3Config", feedforward_modules=["last"])),
    "PEFT BOFT training": Program("peft", low_rank("BOFTConfig", boft_block_size=4), fast=False),
    "diffusers EDM Euler": Program("diffusers", edm("EDMEulerScheduler")),
    "diffusers PNDM": Program("diffusers", edm("PNDMScheduler", skip_prk_steps=True)),
    "diffusers LMS": Program("diffusers", edm("LMSDiscreteScheduler"), fast=False),
    "diffusers LCM": Program("diffusers", edm("LCMScheduler")),
    "diffusers KDPM2": Program("diffusers", edm("KDPM2DiscreteScheduler")),
    "diffusers DEIS": Program("diffusers", edm("DEISMultistepScheduler"), fast=False),
    "TorchRL SAC loss": Program("torchrl", soft_actor_critic, fast=False),
    "Pyro enumeration": Program("pyro-ppl", enumerated, fast=False),
    "GPyTorch multitask": Program("gpytorch", multitask, fast=False),
    "BoTorch qEI": Program("botorch", monte_carlo_acquisition, fast=False),
    "YOLOv8 training": Program(
        "ultralytics", module_training(yolo, lambda t: (t.randn(1, 3, 64, 64),), _squares), fast=False
    ),
}
