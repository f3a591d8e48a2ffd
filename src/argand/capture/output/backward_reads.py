"""What checkpoints of a graph look at, noted behind its call, to be compared in its backward."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from argand.capture.facts.interfaces import CaptureState
from argand.capture.output.emit import Emitter
from argand.capture.torch_functions.higher_order import checkpoints
from argand.runtime.tape import checkpoint_reads


def emit(state: CaptureState, emitter: Emitter, names: Sequence[str], outputs: Sequence[object]) -> None:
    """Nothing where no checkpoint looks at what may change, or no backward comes.

    Who holds what is read is looked up behind the call; what is read there, once what the program did is done.

    Arguments:
        names, outputs: temporaries that hold what the graph returned, and the stand-ins for that.
    """
    with torch._C.DisableTorchFunction():
        results = {
            name: one for name, one in zip(names, outputs) if isinstance(one, torch.Tensor) and one.requires_grad
        }
        reads = checkpoints.reads_of_later_backwards(state, list(results.values())) if results else {}
    if not reads:
        return
    owners = list(dict.fromkeys([owner for owner, _, _ in reads if owner is not None]))
    place = {owner: at for at, owner in enumerate(owners)}
    told = tuple([(-1 if owner is None else place[owner], *read, shown) for (owner, *read), shown in reads.items()])
    held = []
    for owner in owners:
        emitter.load_source(owner)
        held.append(emitter.store_temp("o"))

    def note() -> None:
        emitter.asm.load_const(told)
        emitter.asm.load_const(len(results))
        for name in (*results, *held):
            emitter.asm.load_fast(name)
        emitter.call_on(checkpoint_reads.note, 2 + len(results) + len(held))
        emitter.asm.pop_top()

    emitter.afterwards.append(note)
