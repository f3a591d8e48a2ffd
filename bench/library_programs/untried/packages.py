"""Trainers' loops, and packages that the other programs leave out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from library_programs.program import Compile, Program, Step, inference_step, training_step
from library_programs.uncommon_packages import trained
from library_programs.untried.graphs_and_metrics import first_of


def lightning_loop(compile: Compile) -> Step:
    """A trainer with validation, metrics, a schedule and a callback."""
    import logging

    import lightning as L
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Task(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
            self.net.forward = compile(self.net.forward)

        def training_step(self, batch: Any, index: int) -> Any:
            loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("value", torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}

    data = DataLoader(TensorDataset(torch.randn(10, 4), torch.randint(0, 2, (10,))), batch_size=4)
    task = Task()

    def step() -> Any:
        trainer = L.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(task, data, data)
        return [trainer.callback_metrics["value"], *(p.detach().clone() for p in task.parameters())]

    return step


def ignite_metrics(compile: Compile) -> Step:
    import torch
    from ignite.engine import Engine, create_supervised_evaluator
    from ignite.metrics import Accuracy, ConfusionMatrix, Loss

    model = torch.nn.Linear(4, 3)
    metrics = {"accuracy": Accuracy(), "loss": Loss(torch.nn.functional.cross_entropy), "table": ConfusionMatrix(3)}
    evaluator: Engine = create_supervised_evaluator(model, metrics=metrics)
    evaluator._process_function = compile(evaluator._process_function)
    data = [(torch.randn(4, 4), torch.randint(0, 3, (4,))) for _ in range(3)]

    def step() -> Any:
        return dict(evaluator.run(data).metrics)

    return step


def decoders(**options: Any) -> Any:
    def make(compile: Compile) -> Step:
        import torch
        from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

        wrapper = TransformerWrapper(
            num_tokens=32, max_seq_len=16, attn_layers=Decoder(dim=16, depth=2, heads=2, **options)
        )
        model = AutoregressiveWrapper(wrapper)
        call, tokens = compile(model), torch.randint(0, 32, (2, 12))
        return training_step(lambda: call(tokens), model)

    return make


def quantizers(name: str, **options: Any) -> Any:
    def build(torch: Any) -> Any:
        import vector_quantize_pytorch as vq

        return getattr(vq, name)(**options), (torch.randn(2, 6, 8),)

    return trained(
        build,
        lambda out: (
            out[0].square().mean()
            + sum(
                o.sum()
                for o in out[1:]
                if o is not None and hasattr(o, "is_floating_point") and o.is_floating_point() and o.requires_grad
            )
        ),
    )


def kan(compile: Compile) -> Step:
    import torch
    from kan import KAN

    model = KAN(width=[2, 3, 1], grid=3, k=3, seed=0, auto_save=False, device="cpu")
    call, x = compile(model), torch.rand(8, 2)
    return training_step(lambda: call(x).square().mean(), model)


def of_package(
    module: str, name: str, inputs: Callable[[Any], tuple[Any, ...]], *arguments: Any, **options: Any
) -> Any:
    def build(torch: Any) -> Any:
        import importlib

        return getattr(importlib.import_module(module), name)(*arguments, **options), inputs(torch)

    return trained(build, first_of)


def knowledge(compile: Compile) -> Step:
    import numpy
    from pykeen.models import ComplEx
    from pykeen.triples import TriplesFactory

    triples = TriplesFactory.from_labeled_triples(numpy.array([["a", "r", "b"], ["b", "r", "c"], ["c", "s", "a"]]))
    model = ComplEx(triples_factory=triples, embedding_dim=8, random_seed=0)
    call = compile(model.score_hrt)
    return training_step(lambda: call(triples.mapped_triples).square().mean(), model)


def riemannian(compile: Compile) -> Step:
    import geoopt

    ball = geoopt.PoincareBall()
    points = geoopt.ManifoldParameter(ball.random_normal(5, 3), manifold=ball)
    frames = geoopt.Stiefel()
    stiefel = geoopt.ManifoldParameter(frames.random(4, 3), manifold=frames)
    optimizer = geoopt.optim.RiemannianAdam([points, stiefel], lr=1e-2)
    call, target = compile(optimizer.step), ball.random_normal(5, 3)

    def step() -> Any:
        optimizer.zero_grad()
        (ball.dist(points, target).sum() + stiefel.square().sum() + stiefel[0].sum()).backward()
        call()
        return [points.detach().clone(), stiefel.detach().clone()]

    return step


def of_tensorclass(compile: Compile) -> Step:
    import torch
    from tensordict import TensorDict, lazy_stack, tensorclass

    @tensorclass
    class Sample:
        image: torch.Tensor
        label: torch.Tensor

    def work(x: Any, y: Any) -> Any:
        sample = Sample(image=x, label=y, batch_size=[4])
        half = sample[:2]
        half.image = half.image * 2
        both = torch.cat([half, sample[2:]], 0)
        stacked = lazy_stack([TensorDict(a=x[0]), TensorDict(a=x[1])], 0)
        nested = TensorDict({"u": {"v": both.image}, "w": both.label}, [4]).flatten_keys(".").apply(lambda t: t + 1)
        return both.image, nested["u.v"], stacked["a"], nested["w"]

    call = compile(work)
    return lambda: call(torch.randn(4, 3), torch.randint(0, 3, (4,)))


def mamba_blocks(compile: Compile) -> Step:
    import torch
    from mambapy.mamba import Mamba, MambaConfig

    model = Mamba(MambaConfig(d_model=16, n_layers=2))
    call, x = compile(model), torch.randn(2, 8, 16)
    return training_step(lambda: call(x).square().mean(), model)


def integer_weights(compile: Compile) -> Step:
    import torch
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).eval()
    quantize_(model, Int8WeightOnlyConfig())
    call, x = compile(model), torch.randn(4, 32)
    return inference_step(lambda: call(x))


PROGRAMS: dict[str, Program] = {
    "Lightning loop": Program("lightning", lightning_loop),
    "ignite metrics": Program("pytorch-ignite", ignite_metrics),
    "x-transformers decoder of many options": Program(
        "x-transformers",
        decoders(rotary_pos_emb=True, ff_glu=True, use_rmsnorm=True, attn_qk_norm=True, attn_kv_heads=1),
    ),
    "x-transformers decoder with ALiBi": Program(
        "x-transformers", decoders(alibi_pos_bias=True, alibi_num_heads=1, sandwich_norm=True, residual_attn=True)
    ),
    "x-transformers decoder with memories": Program(
        "x-transformers",
        decoders(attn_num_mem_kv=2, shift_tokens=1, macaron=True, attn_gate_values=True, rel_pos_bias=True),
    ),
    "vector-quantize-pytorch ResidualVQ training": Program(
        "vector-quantize-pytorch", quantizers("ResidualVQ", dim=8, codebook_size=16, num_quantizers=2)
    ),
    "vector-quantize-pytorch LFQ training": Program(
        "vector-quantize-pytorch", quantizers("LFQ", dim=8, codebook_size=16)
    ),
    "vector-quantize-pytorch SimVQ training": Program(
        "vector-quantize-pytorch", quantizers("SimVQ", dim=8, codebook_size=16)
    ),
    "KAN training": Program("pykan", kan),
    "pytorch-wavelets": Program(
        "pytorch-wavelets",
        of_package(
            "pytorch_wavelets", "DWTForward", lambda t: (t.randn(1, 2, 16, 16, requires_grad=True),), J=2, wave="db1"
        ),
    ),
    "gateloop training": Program(
        "gateloop-transformer",
        of_package("gateloop_transformer", "SimpleGateLoopLayer", lambda t: (t.randn(2, 8, 8),), dim=8),
    ),
    "mambapy training": Program("mambapy", mamba_blocks),
    "Conformer training": Program(
        "conformer",
        of_package(
            "conformer",
            "ConformerBlock",
            lambda t: (t.randn(2, 8, 16),),
            dim=16,
            heads=2,
            dim_head=8,
            conv_kernel_size=3,
        ),
    ),
    "TCN training": Program(
        "pytorch-tcn", of_package("pytorch_tcn", "TCN", lambda t: (t.randn(2, 3, 20),), 3, [4, 4], dropout=0.0)
    ),
    "pykeen ComplEx training": Program("pykeen", knowledge),
    "geoopt RiemannianAdam steps": Program("geoopt", riemannian),
    "tensorclass": Program("tensordict", of_tensorclass),
    "loralib training": Program("loralib", of_package("loralib", "Linear", lambda t: (t.randn(4, 8),), 8, 6, r=2)),
    "bayesian-torch training": Program(
        "bayesian-torch",
        of_package("bayesian_torch.layers", "LinearReparameterization", lambda t: (t.randn(4, 8),), 8, 6),
    ),
    "torchao int8 weights": Program("torchao", integer_weights),
}
