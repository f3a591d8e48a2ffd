"""Families of transformers' models that the other programs leave out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from library_programs.architectures import _WIDE, _text, training
from library_programs.newer_transformers import generating
from library_programs.program import Compile, Program, Step, inference_step


def model_of(family: str, head: str, **options: Any) -> Callable[[], Any]:
    """A small model of transformers by the names of its family and head."""

    def build() -> Any:
        import transformers

        config = getattr(transformers, f"{family}Config")(**options)
        return getattr(transformers, f"{family}{head}")(config)

    return build


def images(size: int = 32, **more: Any) -> Callable[[], dict[str, Any]]:
    def batch() -> dict[str, Any]:
        import torch

        return {"pixel_values": torch.randn(2, 3, size, size), "labels": torch.tensor([0, 1]), **more}

    return batch


def sentences() -> dict[str, Any]:
    import torch

    ids = torch.randint(3, 60, (2, 16))
    mask = torch.ones_like(ids)
    mask[1, 10:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([0, 1])}


def answered(build: Callable[[], Any], inputs: Callable[[], dict[str, Any]]) -> Any:
    """A model without gradients."""

    def make(compile: Compile) -> Step:
        model = build().eval()
        call, batch = compile(model), inputs()
        return inference_step(lambda: tuple(call(**batch, return_dict=False)))

    return make


def series() -> dict[str, Any]:
    import torch

    return {
        "past_values": torch.randn(2, 20),
        "past_time_features": torch.randn(2, 20, 1),
        "past_observed_mask": torch.ones(2, 20),
        "future_values": torch.randn(2, 4),
        "future_time_features": torch.randn(2, 4, 1),
    }


def trajectories() -> dict[str, Any]:
    import torch

    return {
        "states": torch.randn(2, 5, 4),
        "actions": torch.randn(2, 5, 2),
        "rewards": torch.randn(2, 5, 1),
        "returns_to_go": torch.randn(2, 5, 1),
        "timesteps": torch.arange(5).repeat(2, 1),
        "attention_mask": torch.ones(2, 5),
    }


_SERIES = {
    "prediction_length": 4, "context_length": 16, "lags_sequence": [1, 2, 4], "num_time_features": 1, "d_model": 16,
    "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "dropout": 0.0,
}  # fmt: skip


_EXPERTS = {"num_key_value_heads": 2, "num_experts_per_tok": 2}


_SMALL_IMAGE = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}


PROGRAMS: dict[str, Program] = {
    "transformers RWKV training": Program(
        "transformers",
        training(
            model_of("Rwkv", "ForCausalLM", vocab_size=64, hidden_size=32, num_hidden_layers=2, context_length=32),
            _text,
        ),
    ),
    "transformers RecurrentGemma training": Program(
        "transformers",
        training(
            model_of(
                "RecurrentGemma",
                "ForCausalLM",
                **{**_WIDE, "num_hidden_layers": 3},
                lru_width=32,
                attention_window_size=8,
            ),
            _text,
        ),
    ),
    "transformers XLNet training": Program(
        "transformers",
        training(
            model_of(
                "XLNet",
                "ForSequenceClassification",
                vocab_size=64,
                d_model=32,
                n_layer=2,
                n_head=4,
                d_inner=64,
                dropout=0.0,
            ),
            sentences,
        ),
    ),
    "transformers Funnel training": Program(
        "transformers",
        training(
            model_of(
                "Funnel",
                "ForSequenceClassification",
                vocab_size=64,
                d_model=32,
                n_head=4,
                d_head=8,
                d_inner=64,
                block_sizes=[1, 1],
            ),
            sentences,
        ),
    ),
    "transformers FNet training": Program(
        "transformers",
        training(
            model_of(
                "FNet",
                "ForSequenceClassification",
                vocab_size=64,
                hidden_size=32,
                num_hidden_layers=2,
                intermediate_size=64,
            ),
            lambda: {k: v for k, v in sentences().items() if k != "attention_mask"},
        ),
    ),
    "transformers LED training": Program(
        "transformers",
        training(
            model_of(
                "LED",
                "ForConditionalGeneration",
                vocab_size=64,
                d_model=32,
                encoder_layers=1,
                decoder_layers=1,
                encoder_attention_heads=4,
                decoder_attention_heads=4,
                encoder_ffn_dim=32,
                decoder_ffn_dim=32,
                attention_window=4,
            ),
            _text,
        ),
    ),
    "transformers CANINE training": Program(
        "transformers",
        training(
            model_of(
                "Canine",
                "ForSequenceClassification",
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=64,
                num_hash_functions=2,
                num_hash_buckets=64,
                local_transformer_stride=8,
                downsampling_rate=4,
            ),
            sentences,
        ),
    ),
    "transformers OLMoE training": Program(
        "transformers",
        training(
            model_of("Olmoe", "ForCausalLM", **_WIDE, **_EXPERTS, num_experts=4, output_router_logits=True), _text
        ),
    ),
    "transformers GPT-OSS training": Program(
        "transformers",
        training(
            model_of("GptOss", "ForCausalLM", **_WIDE, **_EXPERTS, head_dim=8, num_local_experts=4, sliding_window=8),
            _text,
        ),
    ),
    "transformers SegFormer training": Program(
        "transformers",
        training(
            model_of(
                "Segformer",
                "ForImageClassification",
                hidden_sizes=[8, 16],
                num_encoder_blocks=2,
                depths=[1, 1],
                sr_ratios=[2, 1],
                patch_sizes=[3, 3],
                strides=[2, 2],
                num_attention_heads=[1, 2],
                mlp_ratios=[2, 2],
                drop_path_rate=0.0,
            ),
            images(),
        ),
    ),
    "transformers DINOv2 training": Program(
        "transformers",
        training(
            model_of(
                "Dinov2",
                "ForImageClassification",
                **{k: v for k, v in _SMALL_IMAGE.items() if k != "intermediate_size"},
            ),
            images(),
        ),
    ),
    "transformers Swin2 training": Program(
        "transformers",
        training(
            model_of(
                "Swinv2",
                "ForImageClassification",
                image_size=32,
                patch_size=4,
                embed_dim=8,
                depths=[2, 1],
                num_heads=[1, 2],
                window_size=4,
            ),
            images(),
        ),
    ),
    "transformers LeViT": Program(
        "transformers",
        answered(
            model_of(
                "Levit",
                "ForImageClassification",
                image_size=64,
                hidden_sizes=[16, 16, 16],
                num_attention_heads=[2, 2, 2],
                depths=[1, 1, 1],
                key_dim=[4, 4, 4],
            ),
            lambda: {"pixel_values": images(64)()["pixel_values"]},
        ),
    ),
    "transformers MobileViT training": Program(
        "transformers",
        training(
            model_of(
                "MobileViT",
                "ForImageClassification",
                image_size=64,
                hidden_sizes=[16, 16, 16],
                neck_hidden_sizes=[8, 8, 8, 8, 8, 8, 16],
            ),
            images(64),
        ),
    ),
    "transformers Hiera training": Program(
        "transformers",
        training(
            model_of(
                "Hiera",
                "ForImageClassification",
                image_size=[64, 64],
                embed_dim=8,
                depths=[1, 1, 1],
                num_heads=[1, 2, 4],
                mask_unit_size=[4, 4],
                query_stride=[2, 2],
                num_query_pool=2,
            ),
            images(64),
        ),
    ),
    "transformers YOLOS": Program(
        "transformers",
        answered(
            model_of(
                "Yolos",
                "ForObjectDetection",
                **{**_SMALL_IMAGE, "image_size": [32, 32]},
                num_detection_tokens=5,
                num_labels=3,
            ),
            lambda: {"pixel_values": images()()["pixel_values"]},
        ),
    ),
    "transformers DPT": Program(
        "transformers",
        answered(
            model_of(
                "DPT",
                "ForDepthEstimation",
                **{**_SMALL_IMAGE, "num_hidden_layers": 4},
                backbone_out_indices=[0, 1, 2, 3],
                neck_hidden_sizes=[8, 8, 8, 8],
                fusion_hidden_size=8,
                is_hybrid=False,
            ),
            lambda: {"pixel_values": images()()["pixel_values"]},
        ),
    ),
    "transformers Informer training": Program(
        "transformers", training(model_of("Informer", "ForPrediction", **_SERIES), series)
    ),
    "transformers Autoformer training": Program(
        "transformers", training(model_of("Autoformer", "ForPrediction", **_SERIES), series)
    ),
    "transformers decision transformer": Program(
        "transformers",
        answered(
            model_of(
                "DecisionTransformer",
                "Model",
                state_dim=4,
                act_dim=2,
                hidden_size=16,
                n_head=2,
                n_layer=2,
                max_ep_len=20,
            ),
            trajectories,
        ),
    ),
    "transformers EnCodec": Program(
        "transformers",
        answered(
            model_of(
                "Encodec",
                "Model",
                num_filters=4,
                codebook_size=16,
                codebook_dim=8,
                hidden_size=8,
                upsampling_ratios=[4, 2],
                num_lstm_layers=1,
                target_bandwidths=[30.0],
            ),
            lambda: {"input_values": __import__("torch").randn(1, 1, 200)},
        ),
    ),
    "transformers WavLM": Program(
        "transformers",
        answered(
            model_of(
                "WavLM",
                "Model",
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=32,
                conv_dim=[8, 8],
                conv_stride=[4, 2],
                conv_kernel=[8, 3],
                num_feat_extract_layers=2,
                num_conv_pos_embeddings=4,
                num_conv_pos_embedding_groups=2,
            ),
            lambda: {"input_values": __import__("torch").randn(2, 400)},
        ),
    ),
    "transformers Llama beam sampling": Program(
        "transformers",
        generating(
            model_of("Llama", "ForCausalLM", **_WIDE, num_key_value_heads=2), do_sample=True, num_beams=3, top_k=8
        ),
        steps=4,
    ),
    "transformers Mistral generate, static cache": Program(
        "transformers",
        generating(
            model_of("Mistral", "ForCausalLM", **_WIDE, num_key_value_heads=2, sliding_window=6),
            do_sample=False,
            cache_implementation="static",
        ),
        steps=4,
    ),
    "transformers RWKV generate": Program(
        "transformers",
        generating(
            model_of("Rwkv", "ForCausalLM", vocab_size=64, hidden_size=32, num_hidden_layers=2, context_length=32),
            do_sample=False,
        ),
        steps=4,
    ),
}
