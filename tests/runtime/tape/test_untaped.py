"""Compiled graphs whose results need no gradients, called where gradients are on."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from argand.runtime.tape.function import untaped


@pytest.mark.parametrize("before", [True, False])
def test_gradients_are_off_while_it_runs_and_no_python_code_runs_for_that(before: bool) -> None:
    seen: list[bool] = []

    def run(args: Sequence[Any]) -> list[torch.Tensor]:
        seen.append(torch.is_grad_enabled())
        if args:
            raise ValueError("as asked")
        return [torch.ones(2)[1:], torch.ones(2)]

    frames: list[str] = []
    call = untaped(run)
    with torch.set_grad_enabled(before):
        sys.setprofile(lambda frame, event, _: frames.append(frame.f_code.co_name) if event == "call" else None)
        try:
            results = call([])
        finally:
            sys.setprofile(None)
        assert not any(result._is_view() or result.requires_grad for result in results)
        assert torch.is_grad_enabled() is before
        with pytest.raises(ValueError, match="as asked"):
            call([1])
        assert torch.is_grad_enabled() is before
    assert seen == [False, False]
    assert [name for name in frames if name != "<listcomp>"] == ["call", "run", "without_base", "without_base"]
