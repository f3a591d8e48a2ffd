"""Families of transformers that nobody had tried, and what is written around models: GANs, trainers, distributions."""

from __future__ import annotations

from typing import Any

from library_programs.architectures import _WIDE, _text, training
from library_programs.program import Compile, Program, Step, inference_step, training_step
from library_programs.untried.families import model_of

_DECODERS: dict[str, dict[str, Any]] = {
    "Phi": {}, "Phi3": {"pad_token_id": 0}, "Bloom": {"n_layer": 2, "n_head": 4}, "Falcon": {}, "Persimmon": {},
    "GPTNeoX": {}, "Cohere2": {}, "Olmo2": {}, "StableLm": {"num_key_value_heads": 2}, "Granite": {},
    "Helium": {"head_dim": 8, "num_key_value_heads": 2}, "Apertus": {},
    "GraniteMoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "Lfm2": {"num_key_value_heads": 2}, "DiffLlama": {},
    "SmolLM3": {"pad_token_id": 0}, "JetMoe": {"num_local_experts": 4, "num_experts_per_tok": 2, "kv_channels": 8},
}  # fmt: skip
"""Their options beside the usual sizes."""

_ENCODER_AND_DECODER = {
    "vocab_size": 64, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "dropout": 0.0,
}  # fmt: skip


def pairs() -> dict[str, Any]:
    import torch

    return {"input_ids": torch.randint(3, 60, (2, 16)), "labels": torch.randint(3, 60, (2, 8))}


def gan(compile: Compile) -> Step:
    """A critic with a penalty on its gradient and a generator, in one step."""
    import torch
    from torch import nn

    generator = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16))
    critic = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(16, 32)), nn.LeakyReLU(), nn.Linear(32, 1))
    optimizers = [torch.optim.RMSprop(model.parameters(), 1e-3) for model in (generator, critic)]
    real = torch.randn(16, 16)

    def step() -> Any:
        noise, share = torch.randn(16, 8), torch.rand(16, 1)
        fake = generator(noise).detach()
        between = (share * real + (1 - share) * fake).requires_grad_()
        slope = torch.autograd.grad(critic(between).sum(), between, create_graph=True)[0]
        losses = [critic(fake).mean() - critic(real).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()]
        for optimizer in reversed(optimizers):
            optimizer.zero_grad()
            losses[-1].backward()
            optimizer.step()
            losses.append(-critic(generator(noise)).mean())
        return [loss.detach() for loss in losses]

    return compile(step)  # type: ignore[no-any-return]


def distributions(compile: Compile) -> Step:
    """Densities and draws of many distributions, with gradients."""
    import torch
    import torch.distributions as d

    weight = torch.nn.Parameter(torch.randn(4, 3))

    def loss() -> Any:
        a, b, scale, other = *weight[:2], *weight[2:].exp()
        mixture = d.MixtureSameFamily(d.Categorical(logits=a), d.Normal(b, scale))
        draws = [
            d.Laplace(a, scale),
            d.Cauchy(a, scale),
            d.Weibull(other, scale),
            d.Gamma(other, scale),
            d.Gumbel(a, scale),
        ]
        squashed = d.TransformedDistribution(d.Normal(a, scale), [d.AffineTransform(b, other), d.SigmoidTransform()])
        drawn = sum(each.rsample().tanh().sum() for each in draws) + squashed.log_prob(squashed.rsample()).sum()
        divergence = d.kl_divergence(d.Dirichlet(scale), d.Dirichlet(other))
        return drawn + mixture.log_prob(torch.tensor(0.3)) + divergence + d.VonMises(a, other).log_prob(b).sum()

    compiled = compile(loss)
    return training_step(compiled, torch.optim.SGD([weight], lr=1e-3))


def averaged_trainer(compile: Compile) -> Step:
    """A whole step under autocast: loss, clipped gradients, optimizer, schedule and averaged weights."""
    import torch
    from torch import nn

    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.Flatten(), nn.Linear(512, 4))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=100)
    averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    images, labels = torch.randn(4, 3, 8, 8), torch.randint(0, 4, (4,))

    def step() -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        averaged.update_parameters(model)
        return loss.detach(), norm, *(p.detach() for p in averaged.parameters())

    return compile(step)  # type: ignore[no-any-return]


def optimizers(compile: Compile) -> Step:
    """One step of eight optimizers."""
    import torch
    from torch import nn, optim

    models = [nn.Linear(5, 4) for _ in range(8)]
    kinds = [optim.NAdam, optim.Adadelta, optim.Adagrad, optim.Adamax, optim.Rprop, optim.ASGD, optim.RAdam, optim.SGD]
    every = [kind(model.parameters(), lr=0.01) for kind, model in zip(kinds, models)]
    x = torch.randn(3, 5)

    def step() -> Any:
        loss = sum(model(x).square().mean() for model in models)
        loss.backward()
        for optimizer in every:
            optimizer.step()
            optimizer.zero_grad()
        return [loss.detach(), *(p.detach() for model in models for p in model.parameters())]

    return compile(step)  # type: ignore[no-any-return]


def graph_layers(compile: Compile) -> Step:
    import torch
    from torch_geometric import nn

    edges, features, graph = torch.randint(0, 10, (2, 30)), torch.randn(30, 3), torch.tensor([0] * 6 + [1] * 4)
    tag, net = nn.TAGConv(8, 16, K=2), nn.NNConv(16, 8, torch.nn.Linear(3, 128))
    rest = [nn.EdgeConv(torch.nn.Linear(16, 8)), nn.APPNP(3, 0.1), nn.GatedGraphConv(8, 2), nn.ResGatedGraphConv(8, 8)]
    jump = nn.JumpingKnowledge("lstm", 8, 2)
    model = torch.nn.ModuleList([tag, net, *rest, jump])
    x = torch.randn(10, 8)

    def loss() -> Any:
        first = hidden = net(tag(x, edges).relu(), edges, features)
        for layer in rest:
            hidden = layer(hidden, edges)
        return nn.global_add_pool(jump([first, hidden]), graph).square().mean()

    compiled = compile(loss)
    return training_step(compiled, model, gradients=True)


def monai_diffusion(compile: Compile) -> Step:
    import torch
    from monai.networks.nets import DiffusionModelUNet
    from monai.networks.schedulers import DDPMScheduler

    options = {"channels": (8, 8), "attention_levels": (False, True), "num_head_channels": 8, "norm_num_groups": 4}
    model = DiffusionModelUNet(spatial_dims=2, in_channels=1, out_channels=1, num_res_blocks=1, **options)
    schedule, image = DDPMScheduler(100), torch.randn(2, 1, 16, 16)

    def loss() -> Any:
        steps, noise = torch.randint(0, 100, (2,)), torch.randn_like(image)
        return (model(schedule.add_noise(image, noise, steps), steps) - noise).square().mean()

    return training_step(compile(loss), model)


def control_net(compile: Compile) -> Step:
    import torch
    from diffusers import ControlNetModel, UNet2DConditionModel

    unet = UNet2DConditionModel(
        sample_size=8, block_out_channels=(8, 16), layers_per_block=1, cross_attention_dim=16, norm_num_groups=4,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), attention_head_dim=4,
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )  # fmt: skip
    control = ControlNetModel.from_unet(unet, conditioning_embedding_out_channels=(8, 8))
    x, text, hint, steps = (
        torch.randn(2, 4, 8, 8),
        torch.randn(2, 5, 16),
        torch.rand(2, 3, 16, 16),
        torch.tensor([3, 700]),
    )

    def answer() -> Any:
        down, middle = control(x, steps, text, hint, return_dict=False)
        options = {"down_block_additional_residuals": down, "mid_block_additional_residual": middle}
        return unet(x, steps, text, **options).sample

    return inference_step(compile(answer))


def features_of_sound(compile: Compile) -> Step:
    import torch

    window, layer = torch.hann_window(64), torch.nn.Conv1d(33, 33, 3, padding=1)
    sound = torch.randn(2, 320)

    def loss() -> Any:
        spectrum = torch.stft(sound, 64, 16, window=window, return_complex=True)
        filtered = torch.polar(torch.relu(layer(spectrum.abs())), spectrum.angle())
        return (torch.istft(filtered, 64, 16, window=window, length=320) - sound).abs().mean()

    return training_step(compile(loss), layer, gradients=True)


def parts_of_a_batch(compile: Compile) -> Step:
    """Tokens by expert: other numbers of them in each step."""
    import torch

    experts = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(4)])
    counts = iter([[10, 6, 12, 4], [9, 9, 7, 7], [3, 14, 5, 10]] * 100)
    tokens = torch.randn(32, 8)
    compiled = compile(
        lambda sizes: torch.cat([expert(part) for expert, part in zip(experts, tokens.split(sizes))]).square().mean()
    )
    return training_step(lambda: compiled(next(counts)), experts, gradients=True)


PROGRAMS: dict[str, Program] = {
    **{
        f"transformers {family} training": Program(
            "transformers", training(model_of(family, "ForCausalLM", **{**_WIDE, **options}), _text)
        )
        for family, options in _DECODERS.items()
    },
    **{
        f"transformers {family} training": Program(
            "transformers", training(model_of(family, "ForConditionalGeneration", **_ENCODER_AND_DECODER), pairs)
        )
        for family in ("Pegasus", "BlenderbotSmall", "MBart", "PLBart", "Mvp")
    },
    "Wasserstein GAN step": Program("torch", gan),
    "torch.distributions": Program("torch", distributions),
    "averaged trainer step": Program("torch", averaged_trainer, tolerance=2e-2),
    "torch.optim steps": Program("torch", optimizers),
    "PyG more layers training": Program("torch-geometric", graph_layers),
    "MONAI diffusion training": Program("monai", monai_diffusion),
    "diffusers ControlNet": Program("diffusers", control_net),
    "spectral filter training": Program("torch", features_of_sound),
    "mixture of experts by parts": Program("torch", parts_of_a_batch),
}
