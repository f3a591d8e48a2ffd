"""Accelerate on several processes: the model is compiled, Accelerate puts it under DistributedDataParallel.

torchrun --nproc-per-node=2 examples/accelerate_ddp.py [--steps 20] [--eager]

Each process prints its losses and a digest of the parameters, which are the same on all of them.
"""

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import argand


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--eager", action="store_true")
    options = parser.parse_args()

    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    x = torch.randn(32 * options.steps, 32)
    data = DataLoader(TensorDataset(x, x.square().sum(1, keepdim=True)), batch_size=16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, data = accelerator.prepare(model if options.eager else argand.compile(model), optimizer, data)

    for step, (inputs, targets) in enumerate(data):
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        print(f"rank {accelerator.process_index} step {step}: loss {loss.item():.4f}\n", end="", flush=True)
    digest = sum(float(p.detach().double().abs().sum()) for p in model.parameters())
    print(f"rank {accelerator.process_index} parameters {digest:.6f}\n", end="", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
