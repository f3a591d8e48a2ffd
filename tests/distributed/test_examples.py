"""The examples for several processes run under torchrun, with two gloo processes."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from distributed.ranks import ROOT, environment


@pytest.mark.distributed
def test_ddp() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(ROOT / "examples" / "ddp.py"), "--steps", "6"],
        env=environment(CUDA_VISIBLE_DEVICES="", GLOO_SOCKET_IFNAME="lo"), cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert len(set(re.findall(r"parameters (\d+\.\d+)", done.stdout))) == 1 and done.stdout.count("parameters") == 2
    losses = [float(loss) for loss in re.findall(r"rank 0 step \d+: loss (\d+\.\d+)", done.stdout)]
    assert losses[-1] < losses[0]
