"""A short variant of `bench/convergence.py`: eager and argand train alike."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench" / "convergence.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("convergence_bench", BENCH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("task", ["GPT", "ResNet"])
def test_losses_follow_eagers(task: str) -> None:
    bench = load()
    curves = bench.measure(task, 12, 1, "native")
    [want], [got] = curves["eager"], curves["argand"]
    assert got == pytest.approx(want, rel=2e-2)
    assert want[-1] < want[0]


def test_the_plot_without_matplotlib(tmp_path: Path) -> None:
    bench = load()
    curves = {"GPT": {"eager": [[3.0, 2.0, 1.0]], "argand": [[3.0, 2.1, 1.0]]}}
    text = bench.svg(curves)
    assert text.count("<polyline") == 2 and "step 3" in text
    assert bench.report("GPT", {"eager": [[2.0], [1.0]], "argand": [[1.4], [1.5]]})
    assert not bench.report("GPT", {"eager": [[2.0], [1.9]], "argand": [[1.0], [1.1]]})
