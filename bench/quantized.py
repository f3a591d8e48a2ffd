"""Linear layers with weights of 8 bits: milliseconds of eager, torch's own eager dynamic quantization, argand without
and with `options={"quantization": ...}`, interleaved, and how far results are from eager's.

    python bench/quantized.py [PROGRAM ...] [--threads 1] [--seconds 5] [--bfloat16] [--short] [--json OUT]

Programs: bert (one text of 16 tokens through 6 layers), decode (one token through 8 layers built like Llama's, of width
1024, with 128 tokens before it). Prints the least call of each system, eager's time over it, and the norm of the
difference from eager's result over the norm of that.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import argand


class Layer(nn.Module):
    """A layer as Llama's that reads the keys and values of tokens before."""

    def __init__(self, width: int, heads: int, before: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        inner = width * 11 // 4
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        self.register_buffer("keys", torch.randn(1, heads, before, width // heads))
        self.register_buffer("values", torch.randn(1, heads, before, width // heads))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        q, k, v = (each(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        k, v = torch.cat([self.keys, k], 2), torch.cat([self.values, v], 2)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """One step of a language model."""

    def __init__(self, width: int, layers: int, vocabulary: int = 16000) -> None:
        super().__init__()
        self.names = nn.Embedding(vocabulary, width)
        self.layers = nn.Sequential(*[Layer(width, width // 64, 128) for _ in range(layers)])
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.layers(self.names(ids))))


def bert(short: bool) -> tuple[nn.Module, torch.Tensor]:
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(num_hidden_layers=1 if short else 6))
    return model, torch.randint(5, 30000, (1, 16))


def decode(short: bool) -> tuple[nn.Module, torch.Tensor]:
    return Decoder(256 if short else 1024, 2 if short else 8), torch.randint(0, 16000, (1, 1))


PROGRAMS = {"bert": bert, "decode": decode}


def systems(model: nn.Module, quantized_by_torch: bool) -> dict[str, Callable[..., Any]]:
    """The ways to run a model, by name."""
    found: dict[str, Callable[..., Any]] = {"eager": model}
    if quantized_by_torch:
        linear = {nn.Linear}
        found["torch int8 dynamic"] = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), linear, torch.qint8)
    found["argand"] = argand.compile(model)
    for mode in ("int8_weight_only", "int8_dynamic"):
        found[f"argand {mode}"] = argand.compile(model, options={"quantization": mode})
    return found


def first_tensor(result: Any) -> torch.Tensor:
    """The result that is compared."""
    return result if isinstance(result, torch.Tensor) else result[0]


def measure(name: str, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Least milliseconds of each system, and its distance from eager."""
    torch.manual_seed(0)
    model, given = PROGRAMS[name](args.short)
    model = model.eval().to(torch.bfloat16) if args.bfloat16 else model.eval()
    ways = systems(model, not args.bfloat16)
    with torch.no_grad():
        for _ in range(3):
            results = {way: first_tensor(run(given)).float() for way, run in ways.items()}
        best = dict.fromkeys(ways, float("inf"))
        end = time.perf_counter() + args.seconds
        while time.perf_counter() < end:
            for way, run in ways.items():
                begin = time.perf_counter()
                run(given)
                best[way] = min(best[way], 1e3 * (time.perf_counter() - begin))
    base = results["eager"]
    far = {way: float((result - base).norm() / base.norm()) for way, result in results.items()}
    return {way: {"ms": best[way], "speed": best["eager"] / best[way], "distance": far[way]} for way in ways}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    found = {}
    for name in args.programs:
        found[name] = measure(name, args)
        for way, row in found[name].items():
            print(f"{name:8} {way:26} {row['ms']:8.3f} ms {row['speed']:6.2f} x {row['distance']:9.2g}", flush=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as stream:
            json.dump(found, stream, indent=1)


if __name__ == "__main__":
    main()
