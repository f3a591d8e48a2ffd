"""transformers, PEFT, sentence-transformers, performer: training steps, and generation with caches."""

from __future__ import annotations

from typing import Any

from library_programs.program import Compile, Program, Step, inference_step, training_step


def _training(compile: Compile, model: Any, inputs: dict[str, Any]) -> Step:
    """Steps of AdamW on the loss that a model of transformers computes itself."""
    import torch

    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    call = compile(model)
    return training_step(lambda: call(**inputs).loss, optimizer)


def _generation(compile: Compile, model: Any, prompts: list[Any], **options: Any) -> Step:
    """`generate` on one prompt after another, its forward compiled: as users do, who compile a model to generate."""
    import itertools

    import torch

    model.eval()
    model.generation_config.eos_token_id = None  # random weights say it at any time
    model.forward = compile(model.forward)
    turns = itertools.cycle(prompts)

    def step() -> torch.Tensor:
        return model.generate(next(turns), max_new_tokens=8, do_sample=False, pad_token_id=0, **options)

    return step


def _longformer() -> Any:
    import transformers

    config = transformers.LongformerConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        attention_window=[4, 4],
        max_position_embeddings=130,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.LongformerForSequenceClassification(config)


def longformer_training(compile: Compile) -> Step:
    import torch

    ids = torch.randint(5, 100, (2, 18))
    return _training(compile, _longformer(), {"input_ids": ids, "labels": torch.tensor([0, 1])})


def longformer_inference(compile: Compile) -> Step:
    import itertools

    import torch

    call = compile(_longformer().eval())
    turns = itertools.cycle([torch.randint(5, 100, (2, n)) for n in (16, 18, 23)])
    return inference_step(lambda: call(next(turns)).logits)


def _whisper() -> Any:
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=100,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=8,
        max_source_positions=16,
        max_target_positions=20,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=3,
        dropout=0.0,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    return transformers.WhisperForConditionalGeneration(config)


def whisper_generation(compile: Compile) -> Step:
    import torch

    return _generation(compile, _whisper(), [torch.randn(2, 8, 32), torch.randn(2, 8, 32)])


def whisper_training(compile: Compile) -> Step:
    import torch

    inputs = {"input_features": torch.randn(2, 8, 32), "labels": torch.randint(5, 100, (2, 6))}
    return _training(compile, _whisper(), inputs)


def gpt2_generation(compile: Compile) -> Step:
    import torch
    import transformers

    config = transformers.GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=2, n_positions=64)
    prompts = [torch.randint(5, 100, (2, 6)), torch.randint(5, 100, (2, 9))]
    return _generation(compile, transformers.GPT2LMHeadModel(config), prompts)


def t5_generation(compile: Compile) -> Step:
    import torch
    import transformers

    config = transformers.T5Config(
        vocab_size=100, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, decoder_start_token_id=0
    )
    prompts = [torch.randint(5, 100, (2, 6)), torch.randint(5, 100, (2, 9))]
    return _generation(compile, transformers.T5ForConditionalGeneration(config), prompts)


def _llama() -> Any:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config)


def llama_generation(compile: Compile) -> Step:
    import torch

    return _generation(compile, _llama(), [torch.randint(5, 100, (2, 6)), torch.randint(5, 100, (2, 9))])


def llama_static_cache(compile: Compile) -> Step:
    import torch

    prompts = [torch.randint(5, 100, (2, 6)), torch.randint(5, 100, (2, 9))]
    return _generation(compile, _llama(), prompts, cache_implementation="static", disable_compile=True)


def peft_lora_training(compile: Compile) -> Step:
    import peft
    import torch

    config = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=["q_proj", "v_proj"])
    ids = torch.randint(5, 100, (2, 12))
    return _training(compile, peft.get_peft_model(_llama(), config), {"input_ids": ids, "labels": ids})


def sentence_embeddings(compile: Compile) -> Step:
    import torch
    import transformers
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    config = transformers.BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    bert, pooling, normalize = transformers.BertModel(config).eval(), Pooling(32), Normalize()
    ids = torch.randint(5, 100, (3, 10))
    mask = torch.arange(10) < torch.tensor([[10], [6], [3]])

    def embed(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        tokens = bert(ids, attention_mask=mask.long()).last_hidden_state
        features = pooling({"token_embeddings": tokens, "attention_mask": mask.long()})
        return normalize(features)["sentence_embedding"]

    call = compile(embed)
    return inference_step(lambda: call(ids, mask))


def performer_training(compile: Compile) -> Step:
    import torch
    from performer_pytorch import PerformerLM

    model = PerformerLM(num_tokens=50, max_seq_len=32, dim=32, depth=1, heads=2, dim_head=16, causal=False)
    tokens = torch.randint(0, 50, (2, 32))
    call = compile(model)
    return training_step(lambda: call(tokens).square().mean(), model)


PROGRAMS = {
    "transformers Longformer training": Program("transformers", longformer_training),
    "transformers Longformer, 3 lengths": Program("transformers", longformer_inference),
    "transformers Whisper generate": Program("transformers", whisper_generation, fast=False),
    "transformers Whisper training": Program("transformers", whisper_training),
    "transformers GPT-2 generate": Program("transformers", gpt2_generation),
    "transformers T5 generate": Program("transformers", t5_generation, fast=False),
    "transformers Llama generate": Program("transformers", llama_generation),
    "transformers Llama generate, static cache": Program("transformers", llama_static_cache, fast=False),
    "PEFT LoRA training": Program("peft", peft_lora_training),
    "sentence-transformers embeddings": Program("sentence-transformers", sentence_embeddings),
    "performer training": Program("performer-pytorch", performer_training, fast=False),
}
