"""Several GPUs in one process: each graph's kernels on its own device and stream, whichever is current."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import argand
from helpers import collected

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.sin() + y, -1).sum(0) * 2


def close(one: Any, two: Any) -> None:
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)


def inputs(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(33, 70, device=device), torch.randn(70, device=device)


def test_each_device_whichever_is_current() -> None:
    compiled = argand.compile(rows)
    for current in (0, 1):
        with torch.cuda.device(current):
            for device in ("cuda:0", "cuda:1"):
                x, y = inputs(device)
                found = compiled(x, y)
                assert str(found.device) == device and torch.cuda.current_device() == current
                close(found, rows(x, y))


def test_the_current_stream_of_each_device() -> None:
    compiled = argand.compile(rows)
    for device in ("cuda:0", "cuda:1"):
        compiled(*inputs(device))
    x, y = inputs("cuda:1")
    torch.cuda.synchronize(1)
    stream = torch.cuda.Stream("cuda:1")
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        found = compiled(x, y)
    assert not stream.query()  # the kernels wait behind the sleep
    stream.synchronize()
    close(found, rows(x, y))


def test_a_graph_with_tensors_of_both() -> None:
    def both(x: torch.Tensor, y: torch.Tensor) -> Any:
        a = (x * 2).relu()
        b = (y.exp() + 1).sum(0)
        return a + 1, b * 2, a.to("cuda:1").sum(0) + b

    x, y = torch.randn(5, 70, device="cuda:0"), torch.randn(5, 70, device="cuda:1")
    with collected("output_code") as seen:
        close(argand.compile(both)(x, y), both(x, y))
    assert any("'cuda:0'" in event.text() and "'cuda:1'" in event.text() for event in seen)


def test_a_model_on_two_devices_is_trained() -> None:
    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(16, 32).to("cuda:0"), nn.Linear(32, 4).to("cuda:1")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.second(torch.tanh(self.first(x)).to("cuda:1")).square().mean()
            return found

    model, x = Split(), torch.randn(8, 16, device="cuda:0")
    model(x).backward()
    want = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    argand.compile(model)(x).backward()
    close([p.grad for p in model.parameters()], want)


def test_threads_with_a_device_each() -> None:
    compiled, failures = argand.compile(rows), []

    def work(device: str) -> None:
        try:
            with torch.cuda.device(device):
                for _ in range(20):
                    x, y = inputs(device)
                    close(compiled(x, y), rows(x, y))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(device,)) for device in ("cuda:0", "cuda:1") * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_data_parallel_replicas() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32)).cuda()
    x = torch.randn(8, 16, device="cuda:0")
    for device in ("cuda:0", "cuda:1"):
        model.to(device)
        close(argand.compile(model)(x.to(device)), model(x.to(device)))


@pytest.mark.parametrize("way", ["ddp", "fsdp", "tp"])
def test_training_on_two_processes_is_eagers(way: str) -> None:
    """NCCL, twenty steps: parameters, gradients and optimizer states."""
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "bench/distributed.py", "--device", "cuda", "--check", "20", "--ways", way]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600)
    assert not done.returncode, done.stdout + done.stderr[-3000:]
