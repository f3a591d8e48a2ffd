"""The verifier finds each kind of broken graph, and names the node and the pass."""

from __future__ import annotations

import pytest
import torch
from pass_helpers import traced

from argand.errors import VerificationError
from argand.passes import Pass, run_passes, verify

aten = torch.ops.aten


def program_of_two():
    return traced(lambda x: (x + 1).exp(), torch.ones(2))


def node_called(program, target):
    return next(node for node in program.graph.nodes if node.target is target)


def test_sound_program_passes():
    verify(program_of_two())


def test_use_before_definition():
    program = program_of_two()
    program.placeholders[0].append(node_called(program, aten.exp.default))
    with pytest.raises(VerificationError, match="before it is computed"):
        verify(program)


def test_write_to_an_argument():
    program = program_of_two()
    node_called(program, aten.exp.default).target = aten.exp_.default
    with pytest.raises(VerificationError, match="writes to its arguments"):
        verify(program)


def test_missing_metadata():
    program = program_of_two()
    del node_called(program, aten.add.Tensor).meta["device"]
    with pytest.raises(VerificationError, match="metadata"):
        verify(program)


@pytest.mark.parametrize("val", [torch.empty(3, device="meta"), torch.empty(2, dtype=torch.int64, device="meta")])
def test_wrong_metadata(val):
    program = program_of_two()
    node_called(program, aten.exp.default).meta["val"] = val
    with pytest.raises(VerificationError, match="exp"):
        verify(program)


def test_not_an_aten_overload():
    program = program_of_two()
    node_called(program, aten.exp.default).target = torch.exp
    with pytest.raises(VerificationError, match="ATen overload"):
        verify(program)


def test_result_that_does_not_exist():
    program = program_of_two()
    program.output_node.args = ((),)
    with pytest.raises(VerificationError, match="no result 0"):
        verify(program)


def test_error_names_the_pass():
    import argand

    def damage(program):
        del node_called(program, aten.add.Tensor).meta["val"]
        return 1

    with argand.config.patch(verify_ir=True), pytest.raises(VerificationError, match="damage"):
        run_passes(program_of_two(), [Pass("damage", damage)])
