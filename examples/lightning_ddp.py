"""Lightning with `strategy="ddp"`: the compiled module's steps are compiled as it was.

torchrun --nproc-per-node=2 examples/lightning_ddp.py [--steps 20] [--eager]

Each process prints its losses and a digest of the parameters, which are the same on all of them.
"""

import argparse
import tempfile

import lightning
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import argand


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
        self.losses: list[torch.Tensor] = []

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Losses(lightning.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, index) -> None:  # type: ignore[no-untyped-def]
        print(f"rank {trainer.global_rank} step {index}: loss {outputs['loss'].item():.4f}\n", end="", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--eager", action="store_true")
    options = parser.parse_args()

    torch.manual_seed(0)
    module = Regression()
    x = torch.randn(32 * options.steps, 32)
    data = DataLoader(TensorDataset(x, x.square().sum(1, keepdim=True)), batch_size=16)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            strategy="ddp", devices=2, accelerator="auto" if torch.cuda.device_count() > 1 else "cpu", max_epochs=1,
            logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            callbacks=[Losses()], default_root_dir=folder,
        )  # fmt: skip
        trainer.fit(module if options.eager else argand.compile(module), data)
    digest = sum(float(p.detach().double().abs().sum()) for p in module.parameters())
    print(f"rank {trainer.global_rank} parameters {digest:.6f}\n", end="", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
