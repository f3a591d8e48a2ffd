"""x-transformers and vector-quantize-pytorch: einops, rotary embeddings, codebooks."""

from __future__ import annotations

from library_programs.program import Compile, Program, Step, inference_step, training_step


def x_transformers_training(compile: Compile) -> Step:
    import torch
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(dim=32, depth=2, heads=2, attn_dim_head=16, rotary_pos_emb=True, use_rmsnorm=True, ff_glu=True)
    model = TransformerWrapper(num_tokens=50, max_seq_len=32, attn_layers=layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, 50, (2, 17))
    call = compile(model)

    def loss_of() -> torch.Tensor:
        logits = call(tokens[:, :-1])
        return torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:])

    return training_step(loss_of, optimizer)


def x_transformers_encoder(compile: Compile) -> Step:
    import torch
    from x_transformers import Encoder, TransformerWrapper

    layers = Encoder(dim=32, depth=2, heads=2, attn_dim_head=16, alibi_pos_bias=True, alibi_num_heads=2)
    model = TransformerWrapper(num_tokens=50, max_seq_len=32, attn_layers=layers).eval()
    tokens = torch.randint(0, 50, (2, 16))
    mask = torch.arange(16) < torch.tensor([[16], [9]])
    call = compile(model)
    return inference_step(lambda: call(tokens, mask=mask))


def vector_quantize_training(compile: Compile) -> Step:
    import torch
    from vector_quantize_pytorch import VectorQuantize

    model = VectorQuantize(dim=16, codebook_size=32, decay=0.8, commitment_weight=1.0)
    inputs = torch.randn(2, 24, 16)
    call = compile(model)

    def step() -> list[torch.Tensor]:
        x = inputs.clone().requires_grad_()
        quantized, indices, loss = call(x)
        (quantized.square().mean() + loss.sum()).backward()
        return [quantized.detach(), indices, loss.detach(), x.grad]

    return step


def finite_scalar_quantization(compile: Compile) -> Step:
    import torch
    from vector_quantize_pytorch import FSQ

    model = FSQ(levels=[8, 5, 5, 5])
    inputs = torch.randn(2, 24, 4)
    call = compile(model)

    def step() -> list[torch.Tensor]:
        x = inputs.clone().requires_grad_()
        quantized, indices = call(x)
        quantized.square().mean().backward()
        return [quantized.detach(), indices, x.grad]

    return step


def einops_layers(compile: Compile) -> Step:
    import torch
    from einops import einsum, pack, rearrange, reduce, repeat, unpack
    from einops.layers.torch import Rearrange

    layer = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), Rearrange("b c (h p) w -> b (h w) (c p)", p=2))
    image = torch.randn(2, 3, 14, 14)

    def forward(x: torch.Tensor) -> list[torch.Tensor]:
        tokens = layer(x)
        cls = repeat(tokens.mean((0, 1)), "d -> b d", b=2)
        packed, shapes = pack([cls, tokens], "b * d")
        scores = einsum(packed, packed, "b i d, b j d -> b i j").softmax(-1)
        first, rest = unpack(scores @ packed, shapes, "b * d")
        return [
            first,
            reduce(rest, "b (n two) d -> b two d", "max", two=2),
            rearrange(rest, "b n (a c) -> b a n c", a=4),
        ]

    call = compile(forward)
    return lambda: call(image)


PROGRAMS = {
    "x-transformers decoder training": Program("x-transformers", x_transformers_training),
    "x-transformers encoder": Program("x-transformers", x_transformers_encoder),
    "vector-quantize-pytorch training": Program("vector-quantize-pytorch", vector_quantize_training),
    "vector-quantize-pytorch FSQ": Program("vector-quantize-pytorch", finite_scalar_quantization),
    "einops functions and layers": Program("einops", einops_layers),
}
