"""Sound and images of transformers, quantization, adapters, sampling, and hosts' loops that the others leave out."""

from __future__ import annotations

from typing import Any

from library_programs.architectures import _WIDE, _text, training
from library_programs.program import Compile, Program, Step, inference_step, training_step
from library_programs.untried.families import answered, model_of

_ENCODER = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def speech() -> dict[str, Any]:
    import torch

    return {"input_values": torch.randn(2, 3000), "labels": torch.randint(3, 60, (2, 6))}


def features() -> dict[str, Any]:
    import torch

    mask = torch.ones(2, 40, dtype=torch.long)
    mask[1, 30:] = 0
    return {
        "input_features": torch.randn(2, 40, 16),
        "attention_mask": mask,
        "labels": torch.randint(3, 60, (2, 6)),
    }


moonshine = model_of(
    "Moonshine", "ForConditionalGeneration", vocab_size=64, hidden_size=32, intermediate_size=64,
    encoder_num_hidden_layers=1, decoder_num_hidden_layers=1, encoder_num_attention_heads=4, pad_token_id=0,
    decoder_num_attention_heads=4, encoder_num_key_value_heads=4, decoder_num_key_value_heads=4, use_cache=False,
)  # fmt: skip
speech_to_text = model_of(
    "Speech2Text", "ForConditionalGeneration", vocab_size=64, d_model=32, encoder_layers=2, decoder_layers=2,
    encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, dropout=0.0,
    input_feat_per_channel=16, conv_channels=16, conv_kernel_sizes=[3, 3], pad_token_id=0, use_cache=False,
)  # fmt: skip
mimi = model_of(
    "Mimi", "Model", **{**_ENCODER, "num_key_value_heads": 2, "head_dim": 16}, num_filters=8, sliding_window=8,
    upsampling_ratios=[4, 2], codebook_size=32, codebook_dim=16, vector_quantization_hidden_dimension=16,
    upsample_groups=32, num_quantizers=4, num_semantic_quantizers=1,
)  # fmt: skip
super_point = model_of(
    "SuperPoint", "ForKeypointDetection", encoder_hidden_sizes=[8, 8, 8, 8], decoder_hidden_size=8,
    descriptor_decoder_dim=8, keypoint_decoder_dim=65,
)  # fmt: skip
longformer = model_of(
    "Longformer", "ForMaskedLM", **_WIDE, attention_window=[512, 512], max_position_embeddings=520, pad_token_id=1,
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip


def sound() -> dict[str, Any]:
    import torch

    return {"input_values": torch.randn(1, 1, 640)}


def picture() -> dict[str, Any]:
    import torch

    return {"pixel_values": torch.rand(1, 3, 32, 32)}


def smol_vlm() -> Any:
    import transformers

    text = {"model_type": "llama", **_WIDE, "vocab_size": 99, "num_key_value_heads": 2, "use_cache": False}
    image = {**_ENCODER, "image_size": 32, "patch_size": 8}
    return transformers.SmolVLMForConditionalGeneration(
        transformers.SmolVLMConfig(image_token_id=95, scale_factor=2, text_config=text, vision_config=image)
    )


def pictures_in_text() -> dict[str, Any]:
    import torch

    tokens = torch.randint(3, 90, (2, 20))
    tokens[:, 1:5] = 95
    mask = torch.ones_like(tokens)
    return {
        "input_ids": tokens, "attention_mask": mask, "pixel_values": torch.randn(2, 1, 3, 32, 32), "labels": tokens,
    }  # fmt: skip


def adapted(kind: str, **options: Any) -> Any:
    """A Llama with an adapter of PEFT's, whose ranks may be given out anew after each step."""

    def make(compile: Compile) -> Step:
        import peft
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        model = peft.get_peft_model(LlamaForCausalLM(LlamaConfig(**_WIDE)), getattr(peft, kind)(**options))
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
        call, batch = compile(model), _text()
        train = training_step(lambda: call(**batch).loss, optimizer)
        done = [0]

        def step() -> Any:
            result = train()
            done[0] += 1
            if hasattr(model.base_model, "update_and_allocate"):
                model.base_model.update_and_allocate(done[0])
            return result

        return step

    return make


def quantized(compile: Compile) -> Step:
    """Layers of torchao's that quantize what comes in."""
    import torch
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16)).eval()
    quantize_(model, Int8DynamicActivationInt8WeightConfig())
    call, x = compile(model), torch.randn(8, 32)
    return inference_step(lambda: call(x))


def quantization_aware(compile: Compile) -> Step:
    """Observers of torch's, which resize their buffers when they see a weight first."""
    import torch
    from torch.ao import quantization

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quant, self.dequant = quantization.QuantStub(), quantization.DeQuantStub()
            self.linear, self.act = torch.nn.Linear(16, 16), torch.nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.dequant(self.act(self.linear(self.quant(x))))
            return result

    model: Any = Model().train()
    model.qconfig = quantization.get_default_qat_qconfig("fbgemm")
    model = quantization.prepare_qat(model)
    call, x = compile(model), torch.randn(8, 16)
    return training_step(lambda: call(x).square().mean(), model, gradients=True)


def sampled(compile: Compile) -> Step:
    """Hamiltonian Monte Carlo over a compiled model."""
    import pyro
    import torch
    from pyro import distributions
    from pyro.infer import MCMC, NUTS

    x = torch.randn(20)
    y = 2 * x + 0.1 * torch.randn(20)

    def model(x: torch.Tensor, y: torch.Tensor) -> None:
        offset = pyro.sample("offset", distributions.Normal(0, 1.0))
        slope = pyro.sample("slope", distributions.Normal(0, 1.0))
        width = pyro.sample("width", distributions.HalfNormal(1.0))
        with pyro.plate("data", 20):
            pyro.sample("seen", distributions.Normal(offset + slope * x, width), obs=y)

    compiled = compile(model)

    def step() -> Any:
        pyro.clear_param_store()
        chain = MCMC(NUTS(compiled, max_tree_depth=3), num_samples=5, warmup_steps=5, disable_progbar=True)
        chain.run(x, y)
        return chain.get_samples()

    return step


def classified(compile: Compile) -> Step:
    """A Gaussian process that classifies, with inducing points."""
    import gpytorch
    import torch

    x = torch.linspace(0, 1, 12)[:, None]
    y = (x.squeeze() > 0.5).float()

    class Model(gpytorch.models.ApproximateGP):  # type: ignore[misc]
        def __init__(self) -> None:
            spread = gpytorch.variational.CholeskyVariationalDistribution(6)
            super().__init__(gpytorch.variational.VariationalStrategy(self, x[:6], spread))
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.PeriodicKernel())

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    model = Model()
    loss = gpytorch.mlls.PredictiveLogLikelihood(gpytorch.likelihoods.BernoulliLikelihood(), model, 12)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    compiled = compile(lambda: -loss(model(x), y))
    return training_step(lambda: compiled(), optimizer)


def whole_step(compile: Compile) -> Step:
    """A step of timm's recipe, compiled as a whole: gradients clipped by the size of weights, averaged weights."""
    import timm.optim
    import timm.utils
    import torch
    from torch import nn

    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    averaged = timm.utils.ModelEmaV3(model, decay=0.9)
    optimizer = timm.optim.create_optimizer_v2(model, opt="nadamw", lr=0.01)
    x, y = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])

    def step() -> Any:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        timm.utils.dispatch_clip_grad(model.parameters(), 1.0, mode="agc")
        optimizer.step()
        averaged.update(model)
        return loss.detach(), averaged.module[0].weight.clone()

    compiled: Step = compile(step)
    return compiled


def scattering(compile: Compile) -> Step:
    """Wavelets that lie in arrays of numpy's and in buffers over the same memory."""
    import torch
    from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D

    call, x = compile(ScatteringTorch2D(J=2, shape=(16, 16), L=4)), torch.randn(2, 1, 16, 16)
    return inference_step(lambda: call(x))


def swin_unetr(compile: Compile) -> Step:
    import torch
    from monai.networks.nets import SwinUNETR

    model = SwinUNETR(
        in_channels=1, out_channels=2, feature_size=12, depths=(1, 1, 1, 1), num_heads=(1, 1, 2, 2), spatial_dims=2
    )
    call, x = compile(model), torch.randn(1, 1, 64, 64)
    return training_step(lambda: call(x).square().mean(), torch.optim.SGD(model.parameters(), 0.001))


def quantized_beside_whole(compile: Compile) -> Step:
    """A container with quantized modules, in whose loop the graph breaks, beside one that is one graph."""
    import itertools

    import torch

    quantized = torch.ao.quantization.quantize_dynamic(
        torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 16)), {torch.nn.Linear}
    )
    whole = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 8))
    first, second, sizes = compile(quantized), compile(whole), itertools.cycle([4, 5, 6])
    return inference_step(lambda: second(first(torch.randn(next(sizes), 16))))


PROGRAMS = {
    "torch.ao quantized beside whole": Program("torch", quantized_beside_whole, steps=4),
    "transformers Moonshine training": Program("transformers", training(moonshine, speech)),
    "transformers Speech2Text training": Program("transformers", training(speech_to_text, features)),
    "transformers Mimi codec": Program("transformers", answered(mimi, sound)),
    "transformers SuperPoint": Program("transformers", answered(super_point, picture)),
    "transformers SmolVLM training": Program("transformers", training(smol_vlm, pictures_in_text)),
    "transformers Longformer of short texts": Program("transformers", training(longformer, _text)),
    "PEFT AdaLoRA training": Program(
        "peft",
        adapted(
            "AdaLoraConfig", task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"], init_r=4, target_r=2, tinit=1,
            tfinal=1, deltaT=1, total_step=6,
        ),
        steps=5,
        timed=False,
    ),
    "PEFT VB-LoRA training": Program(
        "peft",
        adapted(
            "VBLoRAConfig", task_type="CAUSAL_LM", target_modules=["q_proj"], r=2, num_vectors=8, vector_length=8,
            topk=2,
        ),
    ),
    "torchao int8 activations": Program("torchao", quantized),
    "torch.ao quantization-aware training": Program("torch", quantization_aware),
    "Pyro NUTS": Program("pyro-ppl", sampled, steps=2, tolerance=1e-2),
    "GPyTorch classification": Program("gpytorch", classified),
    "timm whole step": Program("timm", whole_step),
    "kymatio scattering": Program("kymatio", scattering),
    "MONAI SwinUNETR training": Program("monai", swin_unetr),
}  # fmt: skip
