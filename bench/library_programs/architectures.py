"""Architectures of transformers, timm and diffusers: a few steps of each, small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from library_programs.program import Compile, Program, Step, inference_step, training_step

Inputs = Callable[[], dict[str, Any]]
Model = Callable[[], Any]


def training(model: Model, inputs: Inputs, loss_of: Callable[[Any], Any] = lambda output: output.loss) -> Any:
    """Steps of SGD on one batch."""

    def make(compile: Compile) -> Step:
        import torch

        trained = model()
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.01)
        call, batch = compile(trained), inputs()
        return training_step(lambda: loss_of(call(**batch)), optimizer)

    return make


def inference(model: Model, inputs: Inputs) -> Any:
    """The sample that a diffusers model gives."""

    def make(compile: Compile) -> Step:
        call, batch = compile(model().eval()), inputs()
        return inference_step(lambda: call(**batch).sample)

    return make


def _text() -> dict[str, Any]:
    import torch

    tokens = torch.randint(0, 60, (2, 12))
    return {"input_ids": tokens, "labels": tokens}


def _images() -> dict[str, Any]:
    import torch

    return {"pixel_values": torch.randn(2, 3, 32, 32)}


def _classified(inputs: dict[str, Any]) -> dict[str, Any]:
    import torch

    return {**inputs, "labels": torch.tensor([0, 1])}


_SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_WIDE = {**_SIZES, "intermediate_size": 64}


def mamba2() -> Any:
    import transformers

    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 16}
    return transformers.Mamba2ForCausalLM(transformers.Mamba2Config(**sizes, state_size=8, n_groups=2, chunk_size=4))


def qwen_moe() -> Any:
    import transformers

    experts = {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 32, "num_experts": 4}
    config = transformers.Qwen2MoeConfig(**_WIDE, **experts, num_key_value_heads=2, num_experts_per_tok=2)
    return transformers.Qwen2MoeForCausalLM(config)


def gemma() -> Any:
    import transformers

    config = transformers.Gemma2Config(**_WIDE, num_key_value_heads=2, head_dim=8, sliding_window=8)
    return transformers.Gemma2ForCausalLM(config)


def deberta() -> Any:
    import transformers

    relative = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_relative_positions": 16}
    return transformers.DebertaV2ForSequenceClassification(transformers.DebertaV2Config(**_WIDE, **relative))


def swin() -> Any:
    import transformers

    config = transformers.SwinConfig(
        image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4
    )
    return transformers.SwinForImageClassification(config)


def clip() -> Any:
    import transformers

    text = {**_WIDE, "max_position_embeddings": 16, "eos_token_id": 63, "bos_token_id": 62, "pad_token_id": 1}
    image = {**_WIDE, "image_size": 32, "patch_size": 8}
    del image["vocab_size"]
    return transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=image, projection_dim=16))


def _pairs() -> dict[str, Any]:
    import torch

    return {"input_ids": torch.randint(0, 60, (2, 8)), **_images(), "return_loss": True}


def wav2vec() -> Any:
    import transformers

    convolutions = {"conv_dim": (16, 16), "conv_kernel": (8, 4), "conv_stride": (4, 2), "num_conv_pos_embeddings": 16}
    config = transformers.Wav2Vec2Config(
        **{**_WIDE, "vocab_size": 32},
        **convolutions,
        num_conv_pos_embedding_groups=4,
        mask_time_prob=0.0,
        ctc_loss_reduction="mean",
    )
    return transformers.Wav2Vec2ForCTC(config)


def _speech() -> dict[str, Any]:
    import torch

    return {"input_values": torch.randn(2, 400), "labels": torch.randint(1, 30, (2, 5))}


def vit_mae() -> Any:
    import transformers

    decoder = {"decoder_hidden_size": 16, "decoder_intermediate_size": 32, "decoder_num_hidden_layers": 1}
    sizes = {name: size for name, size in _WIDE.items() if name != "vocab_size"}
    config = transformers.ViTMAEConfig(**sizes, **decoder, image_size=32, patch_size=8, decoder_num_attention_heads=2)
    return transformers.ViTMAEForPreTraining(config)


def patch_tst() -> Any:
    import transformers

    config = transformers.PatchTSTConfig(
        num_input_channels=2, context_length=32, patch_length=8, patch_stride=8, prediction_length=4, d_model=16,
        num_attention_heads=2, num_hidden_layers=2, ffn_dim=32,
    )  # fmt: skip
    return transformers.PatchTSTForPrediction(config)


def _series() -> dict[str, Any]:
    import torch

    return {"past_values": torch.randn(2, 32, 2), "future_values": torch.randn(2, 4, 2)}


def timm_model(name: str, **options: Any) -> Model:
    def model() -> Any:
        import timm

        return timm.create_model(name, num_classes=4, **options)

    return model


def _pictures() -> dict[str, Any]:
    import torch

    return {"x": torch.randn(2, 3, 64, 64)}


def autoencoder() -> Any:
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=4,
    )


def diffusion_transformer() -> Any:
    from diffusers import DiTTransformer2DModel

    return DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=4, num_layers=2, sample_size=8,
        num_embeds_ada_norm=10, norm_num_groups=4,
    )  # fmt: skip


def flux() -> Any:
    from diffusers import FluxTransformer2DModel

    return FluxTransformer2DModel(
        in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=8, num_attention_heads=2,
        joint_attention_dim=16, pooled_projection_dim=16, axes_dims_rope=(4, 2, 2),
    )  # fmt: skip


def _latents() -> dict[str, Any]:
    import torch

    steps = torch.tensor([1, 5])
    return {"hidden_states": torch.randn(2, 4, 8, 8), "timestep": steps, "class_labels": torch.tensor([1, 2])}


def _packed_latents() -> dict[str, Any]:
    import torch

    text = {"encoder_hidden_states": torch.randn(1, 6, 16), "pooled_projections": torch.randn(1, 16)}
    places = {"img_ids": torch.zeros(16, 3), "txt_ids": torch.zeros(6, 3)}
    return {"hidden_states": torch.randn(1, 16, 4), "timestep": torch.tensor([0.5]), **text, **places}


def flow_matching(compile: Compile) -> Step:
    import torch
    from diffusers import FlowMatchEulerDiscreteScheduler

    net = torch.nn.Conv2d(4, 4, 3, padding=1)

    def denoise(x: torch.Tensor) -> torch.Tensor:
        scheduler = FlowMatchEulerDiscreteScheduler()
        scheduler.set_timesteps(4)
        for moment in scheduler.timesteps:
            x = scheduler.step(net(x) * 0.1, moment, x).prev_sample
        return x

    call = compile(denoise)
    return inference_step(lambda: call(torch.randn(1, 4, 8, 8)))


_SWIN = {"img_size": 64, "window_size": 4, "embed_dim": 24, "depths": (1, 1, 1, 1), "num_heads": (1, 2, 4, 8)}
PROGRAMS = {
    "transformers Mamba2 training": Program("transformers", training(mamba2, _text), fast=False),
    "transformers Qwen2-MoE training": Program("transformers", training(qwen_moe, _text), fast=False),
    "transformers Gemma2 training": Program("transformers", training(gemma, _text), fast=False),
    "transformers DeBERTa training": Program(
        "transformers", training(deberta, lambda: _classified({"input_ids": _text()["input_ids"]})), fast=False
    ),
    "transformers Swin training": Program("transformers", training(swin, lambda: _classified(_images())), fast=False),
    "transformers CLIP training": Program("transformers", training(clip, _pairs)),
    "transformers Wav2Vec2 CTC training": Program("transformers", training(wav2vec, _speech), fast=False),
    "transformers ViT-MAE training": Program("transformers", training(vit_mae, _images)),
    "transformers PatchTST training": Program("transformers", training(patch_tst, _series)),
    "timm EfficientNet training": Program(
        # a small loss: steps far enough apart that rounding decides where they lead differ in eager from themselves
        "timm",
        training(timm_model("efficientnet_lite0"), _pictures, lambda y: 1e-6 * y.square().mean()),
        fast=False,
    ),
    "timm Swin training": Program(
        "timm",
        training(timm_model("swin_tiny_patch4_window7_224", **_SWIN), _pictures, lambda y: y.square().mean()),
        fast=False,
    ),
    "diffusers VAE": Program(
        "diffusers", inference(autoencoder, lambda: {"sample": _images()["pixel_values"][:1, :, :16, :16]}), fast=False
    ),
    "diffusers DiT": Program("diffusers", inference(diffusion_transformer, _latents), fast=False),
    "diffusers Flux": Program("diffusers", inference(flux, _packed_latents)),
    "diffusers flow matching": Program("diffusers", flow_matching),
}
