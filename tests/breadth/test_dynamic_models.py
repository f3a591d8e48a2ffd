"""The models of `make demo` in tiny configurations: a varying batch or length costs at most one recompile."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import argand
import sweeps
from helpers import CountingBackend

transformers = pytest.importorskip("transformers")

TEXT = {"vocab_size": 512}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "MobileBERT": ("MobileBertForQuestionAnswering", "MobileBertConfig", {
        "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 64, "embedding_size": 32,
        "intra_bottleneck_size": 32, "num_attention_heads": 4, **TEXT,
    }),
    "BERT": ("BertForSequenceClassification", "BertConfig", {
        "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, **TEXT,
    }),
    "GPT-2": ("GPT2LMHeadModel", "GPT2Config", {
        "n_layer": 2, "n_embd": 32, "n_head": 4, "use_cache": False, "bos_token_id": 0, "eos_token_id": 0, **TEXT,
    }),
    "Llama": ("LlamaForCausalLM", "LlamaConfig", {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8,
        "num_key_value_heads": 4, "use_cache": False, **TEXT,
    }),
    "ResNet-18": ("ResNetForImageClassification", "ResNetConfig", {
        "embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [2, 2, 2, 2], "layer_type": "basic",
    }),
    "ViT": ("ViTForImageClassification", "ViTConfig", {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 32,
    }),
    "T5": ("T5ForConditionalGeneration", "T5Config", {
        "num_layers": 2, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4, "use_cache": False, **TEXT,
    }),
    "ConvNeXt": ("ConvNextForImageClassification", "ConvNextConfig", {
        "depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32],
    }),
}  # fmt: skip
SHAPES = {
    "batch": [(2, 16), (3, 16), (5, 16), (8, 16)],
    "length": [(2, 16), (2, 24), (2, 34), (2, 20)],
    "both": [(2, 16), (3, 24), (5, 34), (4, 20)],
}


def _inputs(name: str, batch: int, length: int) -> dict[str, torch.Tensor]:
    if MODELS[name][0].endswith("ImageClassification"):
        size = 32 if name == "ViT" else 4 * length  # no map of one pixel: sizes of 1 have a version
        return {"pixel_values": torch.randn(batch, 3, size, size)}
    made = {"input_ids": torch.randint(5, 500, (batch, length))}
    if name == "BERT":
        made["attention_mask"] = torch.ones(batch, length, dtype=torch.int64)
    if name == "T5":
        made["decoder_input_ids"] = torch.randint(5, 500, (batch, length // 2))
    return made


CASES = [(n, v) for n, v in sweeps.diagonal(MODELS, SHAPES) if (n, v) != ("ViT", "length")]  # fixed image size


@pytest.mark.filterwarnings("error:argand")
@pytest.mark.parametrize(("name", "varying"), CASES)
def test_at_most_one_recompile(name: str, varying: str) -> None:
    model_name, config_name, settings = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, model_name)(getattr(transformers, config_name)(**settings)).eval()
    argand.reset()
    backend = CountingBackend()
    compiled = argand.compile(model, backend=backend, fullgraph=True)
    with torch.no_grad():
        for batch, length in SHAPES[varying]:
            inputs = _inputs(name, batch, length)
            want, got = model(**inputs), compiled(**inputs)
            assert want.keys() == got.keys()
            for key, value in want.items():
                if isinstance(value, torch.Tensor):
                    torch.testing.assert_close(got[key], value, rtol=1e-4, atol=1e-4)
    assert len(backend.graphs) == 2
    symbols = backend.graphs[1].meta["symbols"]
    # Square images are so by chance.
    sides = 2 if name == "T5" or MODELS[name][0].endswith("ImageClassification") else 1
    varied = (varying != "length") + (varying != "batch" and name != "ViT") * sides
    assert len([s for s in symbols.symbols if s not in symbols.definitions]) == varied
