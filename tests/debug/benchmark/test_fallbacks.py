"""`argand fallbacks`: operations that run as eager's kernels, with their share of a step."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch

import argand
import warm
from argand.debug.benchmark.fallbacks import FallbackWatch, Step, write_fallbacks, zoo
from argand.errors import ArgandError


def watched(function: object, *args: torch.Tensor) -> tuple[FallbackWatch, list[Step]]:
    watch = FallbackWatch()
    with watch.observing():
        argand.compile(function)(*args)  # type: ignore[arg-type]
        return watch, watch.steps(8, 0.02)


def written(watch: FallbackWatch, steps: list[Step], **options: object) -> str:
    file = io.StringIO()
    write_fallbacks(steps, watch, "finished", file, **options)  # type: ignore[arg-type]
    return file.getvalue()


def third_of_rows(x: torch.Tensor) -> torch.Tensor:
    return torch.kthvalue(x * 2, 3, -1)[0].exp() @ x


def test_an_operation_without_loops_is_listed_and_a_product_is_not() -> None:
    watch, (step,) = watched(third_of_rows, torch.randn(64, 64))
    (found,) = step.fallbacks
    assert (found.op, found.reasons, found.calls) == ("aten.kthvalue.default", ["no lowering"], 1)
    assert found.shapes == ["float32[64, 64]"] and "third_of_rows" in found.where[0]
    assert found.us > 0 and 0 < found.share < 1
    text = written(watch, [step])
    assert "aten.kthvalue.default: no lowering" in text and "together" in text and "aten.mm" not in text
    told = json.loads(written(watch, [step], as_json=True))
    assert told["functions"][0]["fallbacks"][0]["op"] == "aten.kthvalue.default"
    assert "no operation runs as eager's kernel for 101 % or more" in written(watch, [step], above=101)


def test_gradients_are_part_of_the_step() -> None:
    _, (step,) = watched(lambda x: torch.kthvalue(x.sin(), 3)[0].exp(), torch.randn(64, requires_grad=True))
    assert step.what == "forward and backward" and step.fallbacks[0].calls >= 1


def test_nothing_falls_back() -> None:
    watch, (step,) = watched(lambda x: x.sin() + 1, torch.randn(64))
    assert step.fallbacks == [] and "no operation runs as eager's kernel" in written(watch, [step])


def test_the_zoo_has_names() -> None:
    with pytest.raises(ArgandError, match="no model 'Nobody'"):
        next(zoo(["Nobody"], argand.compile))


def test_a_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\nf = torch.compile(lambda x: torch.kthvalue(x, 3)[0] + 1)\nf(torch.randn(8))\n", encoding="utf-8"
    )
    done = warm.run(
        ["-m", "argand.cli", "fallbacks", "--json", "--seconds", "0.01", script], cwd=tmp_path, imported="compiler"
    )
    found = json.loads(done.stdout)
    assert found["outcome"] == "finished" and found["functions"][0]["fallbacks"][0]["op"] == "aten.kthvalue.default"
