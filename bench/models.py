"""The models of `make demo` and `bench/compare`: transformers architectures with random weights, nothing downloaded.

`MODELS[name]() -> (model, inputs)`: call as `model(**inputs)`. Sizes are chosen so that one eager step takes roughly
40 to 250 ms on two cores. `short=True` gives a small variant of the same architecture for smoke runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Built = tuple[torch.nn.Module, dict[str, torch.Tensor]]


def _ids(batch: int, length: int, vocab: int) -> torch.Tensor:
    return torch.randint(5, vocab, (batch, length))


def _build(cls_name: str, config: Any) -> torch.nn.Module:
    import transformers

    torch.manual_seed(0)
    model: torch.nn.Module = getattr(transformers, cls_name)(config)
    # Zero biases, unit scales and zero layer scales would hide a wrong result.
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.01)
    model.eval()
    torch.manual_seed(1)
    return model


def mobilebert(short: bool = False) -> Built:
    from transformers import MobileBertConfig

    config = MobileBertConfig(num_hidden_layers=2 if short else 24)
    model = _build("MobileBertForQuestionAnswering", config)
    return model, {"input_ids": _ids(1 if short else 4, 64 if short else 128, config.vocab_size)}


def bert(short: bool = False) -> Built:
    from transformers import BertConfig

    config = BertConfig(num_hidden_layers=2 if short else 6)
    model = _build("BertForSequenceClassification", config)
    batch, length = (1, 64) if short else (4, 128)
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[-1, length // 2 :] = 0
    return model, {"input_ids": _ids(batch, length, config.vocab_size), "attention_mask": mask}


def gpt2(short: bool = False) -> Built:
    from transformers import GPT2Config

    config = GPT2Config(n_layer=2 if short else 6, use_cache=False, vocab_size=8192, bos_token_id=0, eos_token_id=0)
    model = _build("GPT2LMHeadModel", config)
    return model, {"input_ids": _ids(1 if short else 4, 64 if short else 128, config.vocab_size)}


def llama(short: bool = False) -> Built:
    from transformers import LlamaConfig

    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=2 if short else 6,
        num_attention_heads=8,
        num_key_value_heads=4,
        use_cache=False,
    )
    model = _build("LlamaForCausalLM", config)
    return model, {"input_ids": _ids(1 if short else 4, 64 if short else 128, config.vocab_size)}


def resnet18(short: bool = False) -> Built:
    from transformers import ResNetConfig

    config = ResNetConfig(
        embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic", num_labels=1000
    )
    model = _build("ResNetForImageClassification", config)
    batch, size = (1, 64) if short else (4, 224)
    return model, {"pixel_values": torch.randn(batch, 3, size, size)}


def vit(short: bool = False) -> Built:
    from transformers import ViTConfig

    config = ViTConfig(
        hidden_size=384, num_hidden_layers=2 if short else 12, num_attention_heads=6, intermediate_size=1536,
        image_size=64 if short else 224,
    )  # fmt: skip
    model = _build("ViTForImageClassification", config)
    batch, size = (1, 64) if short else (4, 224)
    return model, {"pixel_values": torch.randn(batch, 3, size, size)}


def t5(short: bool = False) -> Built:
    from transformers import T5Config

    config = T5Config(num_layers=2 if short else 6, vocab_size=8192, use_cache=False)
    model = _build("T5ForConditionalGeneration", config)
    batch, length = (1, 32) if short else (4, 128)
    return model, {
        "input_ids": _ids(batch, length, config.vocab_size),
        "decoder_input_ids": _ids(batch, length // 2, config.vocab_size),
    }


def convnext(short: bool = False) -> Built:
    from transformers import ConvNextConfig

    config = ConvNextConfig(depths=[1, 1, 1, 1] if short else [3, 3, 9, 3])
    model = _build("ConvNextForImageClassification", config)
    batch, size = (1, 64) if short else (1, 224)
    return model, {"pixel_values": torch.randn(batch, 3, size, size)}


MODELS: dict[str, Callable[..., Built]] = {
    "MobileBERT": mobilebert,
    "BERT": bert,
    "GPT-2": gpt2,
    "Llama": llama,
    "ResNet-18": resnet18,
    "ViT": vit,
    "T5": t5,
    "ConvNeXt": convnext,
}
