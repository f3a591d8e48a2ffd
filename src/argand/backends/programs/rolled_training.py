"""Whether a loop of the backward reads the values that are kept as one tensor for all rounds."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from argand.autograd.partitioning.partition import Partition
from argand.errors import ArgandError

aten = torch.ops.aten


def keeps_in_loops(cut: Partition) -> bool:
    """Whether the backward rolls the loops for which values were made one tensor; else that is only a copy.

    Where the forward does not roll them, too, it makes that copy, which takes far less time than such a loop saves.
    """
    from argand.backends.programs.generation import with_rolled_loops

    cut.backward.kind = "backward"
    outputs: Any = cut.forward.output_node.args[0]
    stacks = {number for number in cut.forward.kept if outputs[number].target is aten.stack.default}
    try:
        backward = with_rolled_loops(cut.backward)
    except ArgandError:  # what compiles it for good says why
        return False
    read = zip(backward.placeholders, cut.arguments)
    return all(_is_read_by_loop(node) for node, slot in read if slot.kind == "output" and slot.index in stacks)


def _is_read_by_loop(placeholder: fx.Node) -> bool:
    """Whether at most half of the rounds are read one by one."""
    single = {user.args[2] for user in placeholder.users if user.target is aten.select.int}
    return 2 * len(single) <= placeholder.meta["val"].shape[0]
