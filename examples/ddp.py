"""Training under DistributedDataParallel, compiled: gradients are reduced while the backward still runs.

torchrun --nproc-per-node=2 examples/ddp.py [--steps 20] [--eager]

Each rank prints its losses and a digest of the parameters, which are the same on all of them.
"""

import argparse
import datetime

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import argand


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(self.norm(x))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--eager", action="store_true")
    options = parser.parse_args()
    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo", timeout=datetime.timedelta(minutes=2))
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count()) if gpu else torch.device("cpu")

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 128), *(Block(128) for _ in range(4)), nn.Linear(128, 1)).to(device)
    ddp = DistributedDataParallel(model, bucket_cap_mb=1)  # small, so that there are several buckets
    call = ddp if options.eager else argand.compile(ddp)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)

    data = torch.Generator().manual_seed(1 + dist.get_rank())
    for step in range(options.steps):
        x = torch.randn(64, 32, generator=data).to(device)
        loss = nn.functional.mse_loss(call(x), x.square().sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0 or step == options.steps - 1:
            print(
                f"rank {dist.get_rank()} step {step}: loss {loss.item():.4f}\n", end="", flush=True
            )  # one write: ranks share the terminal
    digest = sum(float(p.detach().double().abs().sum()) for p in model.parameters())
    print(f"rank {dist.get_rank()} parameters {digest:.6f}\n", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
