"""Ways to generate (caches, beams, helpers) and train (checkpoints, packed rows, prefixes, images) of transformers."""

from __future__ import annotations

from typing import Any

from library_programs.architectures import _WIDE, _text
from library_programs.newer_transformers import generating
from library_programs.program import Compile, Program, Step, inference_step, training_step
from library_programs.untried.families import model_of

_LLAMA = {**_WIDE, "num_key_value_heads": 2}
llama = model_of("Llama", "ForCausalLM", **_LLAMA)
_GREEDY = {"max_new_tokens": 8, "pad_token_id": 0, "do_sample": False}


def gemma3() -> Any:
    import transformers

    layers = ["sliding_attention", "full_attention"]
    config = transformers.Gemma3TextConfig(**_LLAMA, head_dim=8, sliding_window=6, layer_types=layers, pad_token_id=0)
    return transformers.Gemma3ForCausalLM(config)


def t5() -> Any:
    import transformers

    config = transformers.T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)


def llava() -> Any:
    import transformers

    vision = transformers.CLIPVisionConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=8
    )
    text = transformers.LlamaConfig(**_LLAMA)
    config = transformers.LlavaConfig(
        text_config=text, vision_config=vision, image_token_index=63, vision_feature_layer=-1
    )
    return transformers.LlavaForConditionalGeneration(config)


def trained(model: Any, batch: dict[str, Any], compile: Compile) -> Step:
    import torch

    call = compile(model.train())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    return training_step(lambda: call(**batch).loss, optimizer)


def checkpointed(reentrant: bool) -> Any:
    def make(compile: Compile) -> Step:
        model = llama()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        return trained(model, _text(), compile)

    return make


def packed(compile: Compile) -> Step:
    """Several sequences in one row, told apart by their positions."""
    import torch

    ids = torch.randint(3, 60, (1, 16))
    positions = torch.cat([torch.arange(5), torch.arange(7), torch.arange(4)])[None]
    return trained(llama(), {"input_ids": ids, "position_ids": positions, "labels": ids}, compile)


def prefix_lm(compile: Compile) -> Step:
    """A mask of four dims: all tokens see the prefix."""
    import torch

    ids = torch.randint(3, 60, (2, 12))
    seen = torch.ones(12, 12).tril()
    seen[:, :5] = 1
    mask = torch.where(seen > 0, 0.0, torch.finfo(torch.float32).min)[None, None].expand(2, 1, 12, 12)
    return trained(llama(), {"input_ids": ids, "attention_mask": mask, "labels": ids}, compile)


def helped(compile: Compile) -> Step:
    """Assisted decoding: a second model proposes tokens."""
    import torch

    writer, helper = llama().eval(), llama().eval()
    writer.forward, helper.forward = compile(writer.forward), compile(helper.forward)
    prompt = torch.randint(3, 60, (1, 6))
    mask = torch.ones_like(prompt)
    return lambda: writer.generate(prompt, attention_mask=mask, assistant_model=helper, **_GREEDY)


def looked_up(compile: Compile) -> Step:
    """Assisted decoding: the prompt proposes tokens."""
    import torch

    writer = llama().eval()
    writer.forward = compile(writer.forward)
    prompt = torch.randint(3, 60, (1, 3)).repeat(1, 4)
    mask = torch.ones_like(prompt)
    return lambda: writer.generate(prompt, attention_mask=mask, prompt_lookup_num_tokens=3, **_GREEDY)


def chat(compile: Compile) -> Step:
    """Turns that go on with one cache."""
    import torch
    import transformers

    model = llama().eval()
    call = compile(model)
    turns = [torch.randint(3, 60, (1, length)) for length in (7, 4, 1, 5)]

    def step() -> Any:
        cache = transformers.DynamicCache(config=model.config)
        return [call(input_ids=turn, past_key_values=cache, use_cache=True).logits for turn in turns]

    return inference_step(step)


def picture() -> dict[str, Any]:
    import torch

    ids = torch.randint(3, 60, (2, 12))
    ids[:, 1:5] = 63
    return {"input_ids": ids, "pixel_values": torch.randn(2, 3, 16, 16), "attention_mask": torch.ones_like(ids)}


def pictures(compile: Compile) -> Step:
    batch = picture()
    return trained(llava(), {**batch, "labels": batch["input_ids"]}, compile)


def described_pictures(compile: Compile) -> Step:
    model, batch = llava().eval(), picture()
    model.forward = compile(model.forward)
    return lambda: model.generate(**batch, **{**_GREEDY, "max_new_tokens": 5})


_GENERATE: dict[str, tuple[Any, dict[str, Any]]] = {
    "Gemma3 generate, static cache": (gemma3, {"cache_implementation": "static"}),
    "Gemma3 generate, hybrid cache": (gemma3, {"cache_implementation": "hybrid"}),
    "Llama beam search": (llama, {"num_beams": 3}),
    "Llama beam search, static cache": (llama, {"num_beams": 3, "cache_implementation": "static"}),
    "Llama sampling with penalties": (
        llama,
        {"do_sample": True, "repetition_penalty": 1.2, "no_repeat_ngram_size": 2, "min_p": 0.05, "typical_p": 0.9},
    ),
    "Llama generate without cache": (llama, {"use_cache": False}),
    "T5 generate, static cache": (t5, {"cache_implementation": "static"}),
    "T5 beam search": (t5, {"num_beams": 3}),
}

PROGRAMS: dict[str, Program] = {
    **{
        f"transformers {name}": Program("transformers", generating(model, **{"do_sample": False, **options}), steps=4)
        for name, (model, options) in _GENERATE.items()
    },
    "transformers assisted decoding": Program("transformers", helped, steps=3),
    "transformers prompt lookup": Program("transformers", looked_up, steps=3),
    "transformers chat with a cache": Program("transformers", chat, steps=3),
    "transformers checkpointed training": Program("transformers", checkpointed(False)),
    "transformers checkpointed training, reentrant": Program("transformers", checkpointed(True)),
    "transformers packed training": Program("transformers", packed),
    "transformers prefix training": Program("transformers", prefix_lm),
    "transformers Llava training": Program("transformers", pictures),
    "transformers Llava generate": Program("transformers", described_pictures, steps=3),
}
