"""Architectures of transformers that the other programs and the zoo lack, and other ways to generate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from library_programs.architectures import _WIDE, _text, training
from library_programs.program import Compile, Program, Step


def t5() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=64,
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_heads=4,
            dropout_rate=0.0,
            decoder_start_token_id=0,
            pad_token_id=0,
        )
    )


def switch() -> Any:
    """Leaves out a mask that it needs where it is told that it is compiled."""
    from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration

    return SwitchTransformersForConditionalGeneration(
        SwitchTransformersConfig(
            vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_decoder_layers=2, num_sparse_encoder_layers=1,
            num_sparse_decoder_layers=1, num_heads=4, num_experts=4, expert_capacity=8, dropout_rate=0.0,
            router_jitter_noise=0.0, decoder_start_token_id=0, pad_token_id=0,
        )
    )  # fmt: skip


def modern_bert() -> Any:
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    return ModernBertForMaskedLM(
        ModernBertConfig(
            **{**_WIDE, "num_hidden_layers": 4}, local_attention=8, pad_token_id=0, cls_token_id=1, sep_token_id=2,
            bos_token_id=1, eos_token_id=2, attn_implementation="sdpa",
        )
    )  # fmt: skip


def mixtral() -> Any:
    from transformers import MixtralConfig, MixtralForCausalLM

    return MixtralForCausalLM(
        MixtralConfig(**_WIDE, num_key_value_heads=2, num_local_experts=4, output_router_logits=True, sliding_window=8)
    )


def jamba() -> Any:
    from transformers import JambaConfig, JambaForCausalLM

    return JambaForCausalLM(
        JambaConfig(
            **{**_WIDE, "num_hidden_layers": 4}, num_key_value_heads=2, num_experts=2, attn_layer_period=2,
            attn_layer_offset=1, mamba_d_state=4, mamba_dt_rank=4, use_mamba_kernels=False,
        )
    )  # fmt: skip


def deepseek() -> Any:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    return DeepseekV3ForCausalLM(
        DeepseekV3Config(
            **_WIDE, moe_intermediate_size=16, num_key_value_heads=4, n_routed_experts=4, n_group=2, topk_group=1,
            num_experts_per_tok=2, q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=4, v_head_dim=8, qk_nope_head_dim=4,
            first_k_dense_replace=1,
        )
    )  # fmt: skip


def mamba() -> Any:
    from transformers import MambaConfig, MambaForCausalLM

    return MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=4))


def video_mae() -> Any:
    from transformers import VideoMAEConfig, VideoMAEForVideoClassification

    return VideoMAEForVideoClassification(
        VideoMAEConfig(
            image_size=16, patch_size=8, num_frames=4, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=64, num_labels=2,
        )
    )  # fmt: skip


def _padded() -> dict[str, Any]:
    batch = _text()
    mask = batch["input_ids"].new_ones(batch["input_ids"].shape)
    mask[1, 8:] = 0
    return {**batch, "attention_mask": mask}


def _video() -> dict[str, Any]:
    import torch

    return {"pixel_values": torch.randn(2, 4, 3, 16, 16), "labels": torch.tensor([0, 1])}


def detr(compile: Compile) -> Step:
    """Detection with its bipartite matching, which scipy does."""
    import torch
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    backbone = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], out_features=["stage2"])
    model = DetrForObjectDetection(
        DetrConfig(
            backbone_config=backbone, use_timm_backbone=False, use_pretrained_backbone=False, d_model=32,
            num_queries=6, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=32, decoder_ffn_dim=32,
            encoder_attention_heads=2, decoder_attention_heads=2, dropout=0.0, num_labels=3,
        )
    ).eval()  # fmt: skip
    call = compile(model)
    pixels = torch.randn(2, 3, 32, 32)
    labels = [
        {"class_labels": torch.tensor([0, 2]), "boxes": torch.rand(2, 4) * 0.4 + 0.1},
        {"class_labels": torch.tensor([1]), "boxes": torch.rand(1, 4) * 0.4 + 0.1},
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> list[torch.Tensor]:
        optimizer.zero_grad()
        output = call(pixel_values=pixels, labels=labels)
        output.loss.backward()
        optimizer.step()
        return [output.loss.detach(), output.pred_boxes.detach()]

    return step


def generating(model: Callable[[], Any], lengths: tuple[int, ...] = (5, 7), **options: Any) -> Any:
    """`generate` on prompts of these lengths; the model's forward is compiled."""

    def make(compile: Compile) -> Step:
        import torch

        writer = model().eval()
        writer.forward = compile(writer.forward)
        prompts = [torch.randint(3, 60, (2, length)) for length in lengths]
        count = [0]

        def step() -> torch.Tensor:
            prompt = prompts[count[0] % len(prompts)]
            count[0] += 1
            mask = torch.ones_like(prompt)
            return writer.generate(prompt, attention_mask=mask, max_new_tokens=6, pad_token_id=0, **options)

        return step

    return make


def bart() -> Any:
    from transformers import BartConfig, BartForConditionalGeneration

    return BartForConditionalGeneration(
        BartConfig(
            vocab_size=64, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64,
        )
    )  # fmt: skip


def gemma3() -> Any:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    return Gemma3ForCausalLM(
        Gemma3TextConfig(
            **{**_WIDE, "num_hidden_layers": 4}, num_key_value_heads=2, head_dim=8, sliding_window=4,
            layer_types=["sliding_attention", "full_attention"] * 2,
        )
    )  # fmt: skip


def qwen3() -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(
        Qwen3Config(
            **_WIDE, num_key_value_heads=2, head_dim=8, use_sliding_window=True, sliding_window=4, max_window_layers=1
        )
    )


PROGRAMS = {
    "transformers T5 training": Program("transformers", training(t5, _text), fast=False),
    "transformers Switch training": Program("transformers", training(switch, _text), fast=False),
    "transformers ModernBERT training": Program("transformers", training(modern_bert, _padded), fast=False),
    "transformers Mixtral training": Program("transformers", training(mixtral, _text), fast=False),
    "transformers Jamba training": Program("transformers", training(jamba, _text), fast=False),
    "transformers DeepSeek-V3 training": Program("transformers", training(deepseek, _text), fast=False),
    "transformers VideoMAE training": Program("transformers", training(video_mae, _video), fast=False),
    "transformers DETR training": Program("transformers", detr, fast=False),
    "transformers BART beam search": Program(
        "transformers", generating(bart, num_beams=2, do_sample=False), fast=False
    ),
    "transformers Gemma3 generate": Program("transformers", generating(gemma3, do_sample=False), steps=4, fast=False),
    "transformers Qwen3 sampling": Program(
        "transformers",
        generating(qwen3, do_sample=True, top_k=10, top_p=0.9, repetition_penalty=1.1),
        steps=4,
        fast=False,
    ),
    "transformers Mamba generate": Program("transformers", generating(mamba, do_sample=False), steps=4, fast=False),
}
