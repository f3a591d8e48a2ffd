"""One recorded call: where its inputs go, what is drawn before a replay, what becomes of its results.

Results lie in the recording's memory. Small ones are copied out of it in each replay. Others are handed out as they
are: the recording counts who shares their memory, and is not replayed as long as anybody does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, Literal

import torch

from argand.graph import compat
from argand.graph.metadata.strides import elements_spanned, lies_densely
from argand.graph.operators.random_ops import draw_seed
from argand.quick_dataclasses import dataclass

MANY = 8  # results that are better copied by one call than into memory made for each
SMALL = 1 << 21  # bytes of results, all together, that are copied in each replay


class NotRecorded(Exception):
    """A call that must not be replayed. The message is the reason."""


@dataclass(slots=True, eq=False)
class Copied:
    """A tensor that is copied, as one run of memory where its layout has gaps or shows elements twice.

    Arguments:
        tensor: it.
        flat: None where `copy_` alone does it.
    """

    tensor: torch.Tensor
    flat: torch.Tensor | None

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Copied:
        """For a tensor of any layout."""
        return cls(tensor, None if lies_densely(tensor) else _flat(tensor))

    def like(self) -> tuple[torch.Tensor, torch.Tensor]:
        """A new tensor of the same layout, and what to copy into."""
        tensor = self.tensor
        if self.flat is None:
            twin = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
            return twin, twin
        run = torch.empty_like(self.flat)
        return run.as_strided(tensor.shape, tensor.stride()), run

    @property
    def run(self) -> torch.Tensor:
        """What is copied."""
        return self.tensor if self.flat is None else self.flat

    def run_of(self, value: torch.Tensor) -> torch.Tensor:
        """What of another tensor of this layout is copied into this one."""
        return value if self.flat is None else value.as_strided((self.flat.numel(),), (1,))


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The memory from the first to the last element of `tensor`."""
    return tensor.as_strided((elements_spanned(tensor.shape, tensor.stride()),), (1,))


@dataclass(frozen=True, slots=True)
class Result:
    """What is handed out for one result.

    Arguments:
        kind: "copied": copy `index` of a replay; "lent": tensor `index` of the recording; "large": either; "input":
            the input at the position `index`; "value": `value`.
        index: of the tensor or the input.
        value: what is no tensor.
    """

    kind: Literal["copied", "lent", "large", "input", "value"]
    index: int = -1
    value: Any = None


@dataclass(slots=True, eq=False)
class Results:
    """All results of a recording.

    Arguments:
        plan: one a result.
        copied: tensors that are copied in each replay.
        large: tensors that are copied where they are not lent.
        lent: tensors of the recording that are always lent.
        own: those of the latter in memory that is no input's.
        kept: addresses of what only the backward sees: of `lent`, and of inputs that are used in place.
    """

    plan: list[Result] = field(default_factory=list)
    copied: list[Copied] = field(default_factory=list)
    large: list[Copied] = field(default_factory=list)
    lent: list[torch.Tensor] = field(default_factory=list)
    own: list[torch.Tensor] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)

    @property
    def visible(self) -> int:
        """Bytes of what the program gets."""
        return sum(each.run.nbytes for each in [*self.copied, *self.large])

    def text(self) -> str:
        """How many are of which kind, for logs."""
        kinds = Counter(result.kind for result in self.plan)
        said: dict[Any, str] = {"copied": "copied", "large": "lent or copied", "lent": "kept for the backward"}
        return ", ".join(f"{kinds[kind]} results {text}" for kind, text in said.items() if kinds[kind]) or "no results"


def planned(
    outputs: Sequence[Any], args: Sequence[Any], passed: Sequence[Any], kept: frozenset[int], *, lend: bool
) -> Results:
    """What to do for each result after a replay.

    Arguments:
        outputs: what the call returned while it was recorded.
        args, passed: what it was called with: the program's tensors; the recording's in place of some.
        kept: positions of results that only the backward sees, which reads them where they are.
        lend: the recording's memory lasts, so that large results may stay there.

    Raises:
        NotRecorded: one of them cannot be handed out.
    """
    outside = {id(arg): position for position, arg in enumerate(passed) if isinstance(arg, torch.Tensor)}
    in_place = [arg for arg, given in zip(passed, args) if isinstance(arg, torch.Tensor) and arg is given]
    borrowed = {compat.storage_address(arg) for arg in in_place}
    for output in outputs:
        if id(output) not in outside:
            _check(output)
    shown = {id(out): out for at, out in enumerate(outputs) if isinstance(out, torch.Tensor) and at not in kept}
    small = not lend or sum(out.nbytes for key, out in shown.items() if key not in outside) <= SMALL
    results, seen = Results(), dict[int, Result]()
    for output in outputs:
        key = id(output)
        if not isinstance(output, torch.Tensor):
            results.plan.append(Result("value", value=output))
            continue
        if key not in seen:
            mine = compat.storage_address(output) not in borrowed
            if key in outside and (key in shown or not mine):
                seen[key] = Result("input", outside[key])
            elif key not in shown:
                seen[key] = Result("lent", len(results.lent))
                results.lent.append(output)
                results.own += [output] * mine
            else:
                copies = results.large if mine and not small else results.copied
                seen[key] = Result("large" if copies is results.large else "copied", len(copies))
                copies.append(Copied.of(output))
        results.plan.append(seen[key])
    results.kept = [outputs[at].data_ptr() for at in sorted(kept) if isinstance(outputs[at], torch.Tensor)]
    return results


def _check(output: Any) -> None:
    """Raises NotRecorded for a result that cannot be handed out."""
    if isinstance(output, torch.Tensor):
        why = unfit(output) or ("a result requires grad" if output.requires_grad else "")
    else:
        plain = output is None or type(output) in (int, float, bool)
        why = "" if plain else f"a result is of type {type(output).__name__}"
    if why:
        raise NotRecorded(why)


class Recording:
    """A graph and the tensors around it.

    What a forward keeps is used up by a backward that is recorded in the same room: there its memory is free as soon as
    it was read for the last time. Then the forward's replays write to what that backward's leave, and these to what the
    forward's leave. So the one is replayed while nobody holds the other's results.

    Arguments:
        replay: queues the graph on the current stream.
        fixed: positions of inputs that are used in place and that no key names, and `addresses`, theirs.
        inputs: the other tensors, by position: where their values go.
        seeds: of random numbers; drawn before each replay, in the order of the call.
        results: what is handed out.
        pure: the graph writes to nothing but memory of its own.
        room: of its memory, if nothing else was recorded there; until a backward is.
        source: the recording of the forward that the graph uses up.
    """

    def __init__(
        self,
        replay: Callable[[], None],
        fixed: tuple[int, ...],
        addresses: list[int],
        inputs: Sequence[tuple[int, Copied]],
        seeds: list[torch.Tensor],
        results: Results,
        *,
        pure: bool = False,
        room: Any = None,
        source: Recording | None = None,
    ) -> None:
        self._pure = pure
        self.room = room
        self.uses_up = source is not None
        self.broken = False  # what it keeps has no memory, or nobody to use it up any more
        self._following: compat.Sharing | None = None  # who shares what the backward left in the same room
        self._replay = replay
        self.fixed = fixed
        self._addresses = addresses
        self._inputs = tuple(inputs)
        self._runs = [place.run for _, place in inputs]
        self._seeds = seeds
        self._results = results
        self._large = [each.tensor for each in results.large]
        self._sharing = compat.Sharing([*results.own, *self._large])
        self._starts = [tensor.data_ptr() for tensor in self._large]
        if source is not None:
            source._following = self._sharing

    @property
    def places(self) -> list[int]:
        """Addresses of what the backward of the call reads where it is."""
        return self._results.kept

    @property
    def lends(self) -> bool:
        """Whether it has large results, which may be lent."""
        return bool(self._large)

    def stayed(self, args: Sequence[Any]) -> bool:
        """Whether the inputs that are used in place are where they were."""
        return [args[position].data_ptr() for position in self.fixed] == self._addresses

    def moved(self, args: Sequence[Any]) -> list[int]:
        """Positions of inputs that are used in place and are elsewhere now."""
        pairs = zip(self.fixed, self._addresses)
        return [position for position, address in pairs if args[position].data_ptr() != address]

    def free(self) -> bool:
        """Whether nobody holds what was lent, of its own and of what its replays write to."""
        return self.unheld() and (self._following is None or self._following.alone())

    def outlived(self) -> bool:
        """Whether what the backward left in the same room is all that is held."""
        return self._following is not None and self.unheld() and not self._following.alone()

    def unheld(self) -> bool:
        """Whether nobody holds what was lent."""
        return self._sharing.alone()

    def whole(self) -> bool:
        """Whether the memory that results were lent from is still there: programs may resize storages."""
        return not self.broken and [tensor.data_ptr() for tensor in self._large] == self._starts

    def kept_at(self, tensor: torch.Tensor) -> int | None:
        """Which of the tensors that it keeps for a backward, in memory of its own, this one is."""
        for number, kept in enumerate(self._results.lent):
            if kept.data_ptr() == tensor.data_ptr() and _geometry(kept) == _geometry(tensor):
                return number if any(kept is own for own in self._results.own) else None
        return None

    def kept(self, number: int) -> torch.Tensor:
        """A tensor that it keeps for a backward, as it is handed out."""
        return self._results.lent[number].data

    def give_up(self, unowned: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        """All tensors that it keeps for a backward, for the recording of one that uses them up. From now on it has
        others, which do not own that memory.

        Arguments:
            unowned: the bytes of a tensor's storage, which do not keep it.
        """
        results = self._results
        runs: dict[int, torch.Tensor] = {}
        for tensor in results.own:
            if tensor.untyped_storage().nbytes():
                runs.setdefault(compat.storage_address(tensor), unowned(tensor))
        given = results.lent
        results.lent = [_over(runs.get(compat.storage_address(tensor)), tensor) for tensor in given]
        own = {id(tensor) for tensor in results.own}
        results.own = [new for new, old in zip(results.lent, given) if id(old) in own]
        runs.clear()  # neither they nor the old record are among those who share it
        del self._sharing
        self._sharing = compat.Sharing([*results.own, *self._large])
        self.room = None
        return given

    def run(self, given: Sequence[Any], turn: Any, *, lend: bool) -> tuple[Any, ...]:
        """Replay; the results.

        Arguments:
            given: the inputs.
            turn: entered around what is queued.
            lend: large results are handed out as they are.
        """
        results = self._results
        sources = results.copied if lend else [*results.copied, *results.large]
        at_once = self._pure and len(sources) >= MANY
        with turn, torch.no_grad():
            # Before anything is written that outlasts the call: there may be too little memory.
            room = None if at_once else [each.like() for each in sources]
            if self._inputs:
                copy(self._runs, [place.run_of(given[position]) for position, place in self._inputs])
            for seed in self._seeds:
                draw_seed(seed)
            self._replay()
            if room is None:
                copies = cloned(sources)
            else:
                copies = [tensor for tensor, _ in room]
                if room:
                    copy([target for _, target in room], [each.run for each in sources])
            lent = [tensor.data for tensor in results.lent]
            large = [tensor.data for tensor in self._large] if lend else copies[len(results.copied) :]
        handed = []
        for result in results.plan:
            kind, index = result.kind, result.index
            if kind == "lent":
                handed.append(lent[index])
            elif kind == "copied":
                handed.append(copies[index])
            elif kind == "large":
                handed.append(large[index])
            else:
                handed.append(given[index] if kind == "input" else result.value)
        return tuple(handed)


def _geometry(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype


def _over(run: torch.Tensor | None, tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` again, over the bytes of its storage."""
    if run is None:
        return tensor
    whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return whole.set_(run.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def copy(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Each source into its target."""
    if len(targets) == 1:
        targets[0].copy_(sources[0])
    else:
        torch._foreach_copy_(targets, sources)


def cloned(sources: Sequence[Copied]) -> list[torch.Tensor]:
    """Copies, made by few calls."""
    copies: list[Any] = [None] * len(sources)
    kinds: dict[torch.dtype, list[int]] = {}
    for number, each in enumerate(sources):
        if each.flat is None:
            kinds.setdefault(each.tensor.dtype, []).append(number)
        else:
            copies[number], run = each.like()
            run.copy_(each.flat)
    for numbers in kinds.values():
        for number, copy_ in zip(numbers, compat.foreach_clone([sources[number].tensor for number in numbers])):
            copies[number] = copy_
    return copies


def unfit(value: Any) -> str:
    """Why a tensor can be no input or result of a recording; empty if it can."""
    if not isinstance(value, torch.Tensor):
        return ""
    if value.layout is not torch.strided:
        return f"a tensor has the layout {value.layout}"
    return "a tensor is a conjugate or negated view" if value.is_conj() or value.is_neg() else ""
