"""A sample of CPython's own tests under argand (all of them: bench/cpython_tests.py)."""

from __future__ import annotations

import pytest

import cpython_tests
import sweeps

pytestmark = pytest.mark.slow

GROUPS = (
    "test_super,test_unpack,test_with,test_augassign,test_contains,test_dictcomps,test_class",
    "test_raise,test_bool,test_opcodes,test_keywordonlyarg,test_named_expressions,test_property,test_list",
)


@pytest.mark.parametrize("modules", GROUPS[: sweeps.part(len(GROUPS))])
def test_what_passes_plainly_passes_under_argand(modules: str) -> None:
    pytest.importorskip("test.test_super", reason="this Python comes without its own tests")
    options = cpython_tests.parse([])
    plain = cpython_tests.run_module(modules, False, options)
    compiled = cpython_tests.run_module(modules, True, options)
    assert len(plain) > 100
    assert sum(outcome.status == "pass" for outcome in plain.values()) > 0.9 * len(plain)
    failed = cpython_tests.differences(plain, compiled)
    assert not failed, "\n\n".join(f"{name}: {compiled[name].detail}" for name in failed if name in compiled)
    assert not [name for name, outcome in compiled.items() if outcome.internal]
    assert any(outcome.capture == "whole" for outcome in compiled.values())
