"""Programs that nothing was tuned for when they were written, by what they are of."""

import dataclasses

from library_programs.program import Program
from library_programs.untried import (
    caches_and_checkpoints,
    families,
    graphs_and_metrics,
    later,
    loops_over_classes,
    more_packages,
    other_solvers,
    packages,
    probability_and_control,
    rare_packages,
    sound_and_quantized,
    tutorials,
    vision,
)

FAST = frozenset(
    (
        "GPyTorch prediction", "GPyTorch spectral", "KAN training", "Lightning loop", "PyG HGTConv", "PyG LightGCN",
        "PyG dense pooling", "Pyro conditioned", "TCN training", "TorchRL DiscreteSACLoss", "TorchRL TD3Loss",
        "captum NoiseTunnel",
        "captum Occlusion", "ignite metrics", "kornia parts", "kornia segmentation losses", "pykeen ComplEx training",
        "pytorch-optimizer MADGRAD steps", "pytorch-optimizer SOAP steps", "tensorclass", "torch LBFGS steps",
        "torch.func MAML", "torch.func tangent kernel", "torchmetrics sound", "transformers WavLM",
        "vector-quantize-pytorch LFQ training", "x-transformers decoder of many options", "kymatio scattering",
        "torch.ao quantization-aware training",
    )
)  # fmt: skip
PARTS = (
    caches_and_checkpoints, families, graphs_and_metrics, later, loops_over_classes, more_packages, other_solvers,
    packages, probability_and_control, rare_packages, sound_and_quantized, tutorials, vision,
)  # fmt: skip
PROGRAMS: dict[str, Program] = {
    name: dataclasses.replace(program, fast=name in FAST) for part in PARTS for name, program in part.PROGRAMS.items()
}
