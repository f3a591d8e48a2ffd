"""timm, vit-pytorch, diffusers, segmentation-models, MONAI, metric learning, optimizers."""

from __future__ import annotations

from typing import Any

from library_programs.program import Compile, Program, Step, inference_step, training_step


def _training(compile: Compile, model: Any, x: Any, loss_of: Any = lambda out: out.square().mean()) -> Step:
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    call = compile(model)
    return training_step(lambda: loss_of(call(x)), optimizer)


def timm_vit(compile: Compile) -> Step:
    import timm
    import torch

    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=5
    )
    return _training(compile, model, torch.randn(2, 3, 32, 32))


def timm_convnext(compile: Compile) -> Step:
    import timm
    import torch

    model = timm.create_model("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32), num_classes=5)
    return _training(compile, model, torch.randn(2, 3, 64, 64))


def timm_features(compile: Compile) -> Step:
    import timm
    import torch

    model = timm.create_model("resnet10t", features_only=True).eval()
    call = compile(model)
    x = torch.randn(1, 3, 64, 64)
    return inference_step(lambda: call(x))


def vit_pytorch(compile: Compile) -> Step:
    import torch
    from vit_pytorch import ViT

    model = ViT(image_size=32, patch_size=8, num_classes=5, dim=32, depth=2, heads=2, mlp_dim=64)
    return _training(compile, model, torch.randn(2, 3, 32, 32))


def _unet() -> Any:
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(16, 32),
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=4,
    )


def diffusers_unet_training(compile: Compile) -> Step:
    import torch
    from diffusers import DDPMScheduler

    unet, scheduler = _unet(), DDPMScheduler()
    clean, context = torch.randn(2, 4, 8, 8), torch.randn(2, 6, 16)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4)
    call = compile(unet)
    noise, times = torch.randn(2, 4, 8, 8), torch.tensor([3, 700])

    def loss_of() -> torch.Tensor:
        noisy = scheduler.add_noise(clean, noise, times)
        return (call(noisy, times, context).sample - noise).square().mean()

    return training_step(loss_of, optimizer)


def _sampling(compile: Compile, scheduler: Any) -> Step:
    """The whole loop of denoising: the network, and the scheduler's step."""
    import torch

    unet, context, start = _unet().eval(), torch.randn(1, 6, 16), torch.randn(1, 4, 8, 8)

    def denoise(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return scheduler.step(unet(x, t, context).sample, t, x).prev_sample

    call = compile(denoise)

    def step() -> torch.Tensor:
        scheduler.set_timesteps(4)
        x = start
        with torch.no_grad():
            for t in scheduler.timesteps:
                x = call(x, t)
        return x

    return step


def diffusers_ddim(compile: Compile) -> Step:
    from diffusers import DDIMScheduler

    return _sampling(compile, DDIMScheduler())


def diffusers_euler(compile: Compile) -> Step:
    from diffusers import EulerDiscreteScheduler

    return _sampling(compile, EulerDiscreteScheduler())


def diffusers_dpm(compile: Compile) -> Step:
    from diffusers import DPMSolverMultistepScheduler

    return _sampling(compile, DPMSolverMultistepScheduler())


def segmentation(compile: Compile) -> Step:
    import segmentation_models_pytorch as smp
    import torch

    model = smp.Unet("resnet18", encoder_weights=None, decoder_channels=(32, 16, 16, 8, 8), classes=2)
    loss = smp.losses.DiceLoss("multiclass")
    target = torch.randint(0, 2, (2, 64, 64))
    return _training(compile, model, torch.randn(2, 3, 64, 64), lambda out: loss(out, target))


def monai_unet(compile: Compile) -> Step:
    import torch
    from monai.losses import DiceCELoss
    from monai.networks.nets import UNet

    model = UNet(spatial_dims=3, in_channels=1, out_channels=2, channels=(4, 8, 16), strides=(2, 2), num_res_units=1)
    loss = compile(DiceCELoss(to_onehot_y=True, softmax=True))
    target = torch.randint(0, 2, (1, 1, 16, 16, 16))
    return _training(compile, model, torch.randn(1, 1, 16, 16, 16), lambda out: loss(out, target))


def monai_sliding_window(compile: Compile) -> Step:
    import torch
    from monai.inferers import sliding_window_inference

    model = torch.nn.Conv2d(1, 2, 3, padding=1).eval()
    x = torch.randn(1, 1, 40, 40)

    def infer(x: torch.Tensor) -> torch.Tensor:
        return sliding_window_inference(x, (16, 16), 2, model, overlap=0.25)

    call = compile(infer)
    return inference_step(lambda: call(x))


def metric_learning(compile: Compile) -> Step:
    import torch
    from pytorch_metric_learning import losses

    embeddings = torch.nn.Linear(8, 8)
    x, labels = torch.randn(12, 8), torch.randint(0, 3, (12,))
    loss_of = losses.NTXentLoss()

    def forward(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return loss_of(embeddings(x), labels)

    call = compile(forward)
    return training_step(lambda: call(x, labels), embeddings)


def other_optimizers(compile: Compile) -> Step:
    import torch
    import torch_optimizer
    from lion_pytorch import Lion

    layers = [torch.nn.Linear(6, 6) for _ in range(2)]
    optimizers = [Lion(layers[0].parameters(), lr=1e-3), torch_optimizer.AdaBelief(layers[1].parameters(), lr=1e-3)]
    steps = [compile(optimizer.step) for optimizer in optimizers]
    x = torch.randn(4, 6)

    def step() -> list[torch.Tensor]:
        for layer, update in zip(layers, steps):
            layer.zero_grad()
            layer(x).square().sum().backward()
            update()
        return [layer.weight.detach().clone() for layer in layers]

    return step


PROGRAMS = {
    "timm ViT training": Program("timm", timm_vit),
    "timm ConvNeXt training": Program("timm", timm_convnext, fast=False),
    "timm features of a ResNet": Program("timm", timm_features),
    "vit-pytorch training": Program("vit-pytorch", vit_pytorch),
    "diffusers U-Net training": Program("diffusers", diffusers_unet_training, fast=False),
    "diffusers DDIM sampling": Program("diffusers", diffusers_ddim, fast=False),
    "diffusers Euler sampling": Program("diffusers", diffusers_euler, fast=False),
    "diffusers DPM-Solver sampling": Program("diffusers", diffusers_dpm, fast=False),
    "segmentation-models U-Net training": Program("segmentation-models-pytorch", segmentation, fast=False),
    "MONAI U-Net and Dice loss training": Program("monai", monai_unet, fast=False),
    "MONAI sliding windows": Program("monai", monai_sliding_window),
    "pytorch-metric-learning NT-Xent": Program("pytorch-metric-learning", metric_learning),
    "Lion and AdaBelief steps": Program("torch-optimizer", other_optimizers, steps=6),
}
