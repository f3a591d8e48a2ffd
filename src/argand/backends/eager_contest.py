"""Compiled graphs beside the graph itself, which eager's kernels run: one of the first calls finds which is faster.

Both are run a few times apart from that call: on copies of its arguments (where some are written to, or gradients
recorded), with gradients taken where the call records them (and added up nowhere), and with the random generator put
back. So no effect is seen, and none is repeated: graphs of which that is not sure are never run twice. A graph that
turns out slower is said to be so, once, with the kernel that loses most time; with `options={"never_slower": True}` it
is then run by eager's kernels. So is, without being asked for, a graph of few small operations that gains less than
3 %: a call of compiled code costs a microsecond or two, as one of eager's does, and where gradients are recorded the
node that it puts on autograd's tape some ten more.
"""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tag, fx

from argand import events
from argand._core import _C
from argand._core.calls import uncaptured
from argand.backends import slow_kernels
from argand.backends.small_graphs import Comparison, left_to_eager, small_graph
from argand.config import config
from argand.graph import compat, profiler_compat
from argand.graph.metadata.strides import elements_spanned, lies_densely
from argand.graph.nodes.devices import devices_of
from argand.graph.nodes.module_text import lazy_forward
from argand.graph.nodes.program import AtenProgram
from argand.graph.trees import tensors_of
from argand.interruptions import let_pass
from argand.quick_dataclasses import dataclass
from argand.runtime.kernels.calm import Watch, is_known
from argand.runtime.recipes import same_recipe

Call = Callable[..., Any]

_CHOOSE_AT, _TELL_AT = 3, 16  # calls: whoever only wants to be told pays less
_LEAST_ELEMENTS = 1 << 18  # of the arguments of a graph that is watched without being asked to
_MOST_ELEMENTS = 1 << 26  # they are copied
_LEAST_SECONDS = 5e-3  # of a call of such a graph
_ROUNDS = 5
_MORE_ROUNDS, _SHORT = 25, 0.02  # as many, while all take no longer than so many seconds
_ENOUGH = 1.0  # seconds that all rounds may take, from the second on
_LONGER = 0.1  # as many, from which there are no more rounds only because others had the processors in some
_LAST = 4096  # calls, among which the last ones are compared, should nothing be known of those before
_APART = 250  # calls between two comparisons: each takes as long as ten or more of them
_CLEARLY = 1.15  # of eager's time, from which a graph is said to be slower
_SLOWER = 1.03  # from which it is run by eager's kernels
_GAINS = 0.97  # of eager's time, which a small graph may take: where memory is cold, compiled code costs more
_COLD = 10e-6  # seconds that a node on autograd's tape takes longer there
_SMALL_ELEMENTS = 1 << 20  # of the arguments of a graph that may be too small to gain: they are copied
_SMALL_NODES = 128
_TAPE = 10  # operations whose gains are what a node on autograd's tape costs that draws random numbers
_POINTS = 3500  # numbers, computed one by one, that gain as much as an operation does
_TORCHS = ("torch", "_operator", "operator", "math", "builtins")


def contested(
    compiled: Call,
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    choose: bool,
    kept: frozenset[int] = frozenset(),
    written: Sequence[bool] = (),
) -> Call:
    """`compiled`, until it was found to be slower than the graph `gm`.

    Arguments:
        choose: the faster one runs from then on; else it is only said, of those that take long and record no gradients.
        kept: arguments that a copied call gets as they are where no gradients are recorded: a copy would be new to it.
        written: gets for each program that is compiled whether it writes to its arguments: where none does, and no
            gradients are recorded, a copied call gets them all as they are.
    """
    if getattr(compiled, "__self__", None) is gm:
        return left_to_eager(compiled, varies=False) if is_small(gm) else compiled
    if not _comparable(gm, example_inputs):
        return compiled
    if not choose and not _LEAST_ELEMENTS <= _elements(example_inputs) <= _MOST_ELEMENTS:
        return compiled
    contest = Contest(compiled, lazy_forward(gm), choose, kept, written)
    settled_for, size_class = contest.settled.get, _C.size_class

    def call(*args: Any) -> Any:
        return settled_for(size_class(), contest)(*args)

    return call if choose else same_recipe(call, compiled)


def unless_too_small(
    compiled: Call,
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    has_backward: Callable[[], bool] | None,
    key: Callable[[], str],
    written: Sequence[bool] = (),
) -> Call:
    """`compiled`, where that is small, until the graph `gm` was found to be faster.

    Arguments:
        has_backward: whether the backward has been compiled: where it was not, nobody has asked for it, and forwards
            are compared. None: no gradients are recorded.
        key: gives the key of an entry in the disk cache: the backward's, or the program's.
        written: as `contested`'s.
    """
    if (
        not config.tell_slower
        or not is_small(gm)
        or _elements(example_inputs) > _SMALL_ELEMENTS
        or not _comparable(gm, example_inputs)
    ):
        return compiled
    records, asked = has_backward is not None, has_backward or (lambda: False)
    contest = Contest(compiled, lazy_forward(gm), written=written)
    return small_graph(
        compiled,
        contest.forward,
        key,
        lambda args: contest.is_slower(args, asked()),
        records=records,
        varies="symbols" in gm.meta,
    )


@dataclass(slots=True)
class _Times:
    """Seconds of a call, by eager's kernels and compiled: the least of several. And what the compiled one gains in its
    backward."""

    eager: float
    compiled: float
    gain_later: float


class Contest:
    """One compiled graph and the graph itself. Arguments: as `contested`'s."""

    def __init__(
        self,
        compiled: Call,
        forward: Call,
        choose: bool = True,
        kept: frozenset[int] = frozenset(),
        written: Sequence[bool] = (),
    ) -> None:
        self.compiled, self.forward, self.choose = compiled, forward, choose
        self.kept, self.written = kept, written
        self.calls: dict[int, int] = {}
        self.next: dict[int, int] = {}
        self.settled: dict[int, Call] = {}

    def __call__(self, *args: Any) -> Any:
        """A call of a size for which it was not decided yet."""
        if compat.saved_tensor_hooks_active():  # a checkpoint's: what is saved must be the same when it runs again
            return self.compiled(*args)
        sizes = _C.size_class()
        self.calls[sizes] = self.calls.get(sizes, 0) + 1
        if self.calls[sizes] < self.next.get(sizes, _CHOOSE_AT if self.choose else _TELL_AT):
            return self.compiled(*args)
        self.settled[sizes] = self.compiled
        if not self.may_run(args):
            return self.compiled(*args)
        if not self.choose:
            begin = time.perf_counter()
            result = self.compiled(*args)
            if time.perf_counter() - begin >= _LEAST_SECONDS:
                uncaptured(self._decide, args, sizes)
            return result
        uncaptured(self._decide, args, sizes)
        return self.settled.get(sizes, self.compiled)(*args)

    def _eager(self, *args: Any) -> Any:
        return (self.compiled if compat.saved_tensor_hooks_active() else self.forward)(*args)

    def may_run(self, args: Sequence[Any]) -> bool:
        """Whether a copy of the call would do what the call does, and nobody looks on."""
        space, flag = profiler_compat.profiler_flag()
        if space.get(flag) or compat.watched_by_modes():
            return False
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        if any(not isinstance(arg, (torch.Tensor, int, float, bool, type(None))) for arg in args):
            return False
        if not self.choose and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            return False
        if any(type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_inference() for tensor in tensors):
            return False
        if any(tensor.layout is not torch.strided for tensor in tensors):
            return False
        if any(elements_spanned(tensor.shape, tensor.stride()) > _MOST_ELEMENTS for tensor in tensors):
            return False
        places = [tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()]
        return len(set(places)) == len(places)

    def _decide(self, args: Sequence[Any], sizes: int) -> None:
        with _unseen():
            times = self._times(args)
            if times is None:
                if self.calls[sizes] < _LAST:
                    self.next[sizes] = self.calls[sizes] + max(self.calls[sizes], _APART)
                    self.settled.pop(sizes, None)
            elif times.compiled > times.eager * (_SLOWER if self.choose else _CLEARLY):
                self._lost(times, args, sizes)

    def is_slower(self, args: Sequence[Any], backward: bool) -> Comparison:
        """That a small graph is as fast by eager's kernels, in words; "" where it is not. None: that is not known. And
        how many seconds a call of the compiled one gains, infinite where they were not compared, and of these how many
        in the backward.

        Arguments:
            backward: gradients are computed, too.
        """
        if _elements(args) > _SMALL_ELEMENTS:  # of a graph for many sizes
            return "", math.inf, 0.0
        if torch.are_deterministic_algorithms_enabled() or torch.is_autocast_enabled("cpu") or not self.may_run(args):
            return None, math.inf, 0.0
        return uncaptured(self._is_slower, args, backward)

    def _is_slower(self, args: Sequence[Any], backward: bool) -> Comparison:
        with _unseen():
            times = self._times(args, backward)
            if times is None:
                return None, math.inf, 0.0
            text = (
                f"a small graph takes {times.compiled * 1e6:.0f} us{' with its gradients' * backward}, and "
                f"{times.eager * 1e6:.0f} us by eager's kernels, which run it from now on"
            )
            compiled = times.compiled + _COLD * backward
            slower = "" if compiled <= times.eager * _GAINS else text
            return slower, times.eager - compiled, times.gain_later
        return None, math.inf, 0.0

    def _lost(self, times: _Times, args: Sequence[Any], sizes: int) -> None:
        if self.choose:
            self.settled[sizes] = self._eager
        kernel = slow_kernels.slowest(lambda: self._run(self.compiled, args), lambda: self._run(self.forward, args))
        text = (
            f"a compiled graph takes {times.compiled * 1e3:.3g} ms a call, eager's kernels take "
            f"{times.eager * 1e3:.3g} ms: {kernel}"
        )
        after = "it runs with eager's kernels from now on"
        if not self.choose:
            after = 'options={"never_slower": True} would run eager\'s'
        data = {"eager_s": times.eager, "compiled_s": times.compiled, "kernel": kernel, "chosen": self.choose}
        events.emit("slower", "backend", text, **data)
        warnings.warn(f"argand: {text}; {after}.", stacklevel=2)

    def _times(self, args: Sequence[Any], backward: bool = True) -> _Times | None:
        """None where others had the processors so often that nothing is known."""
        times: tuple[list[float], list[float]] = ([], [])
        later: tuple[list[float], list[float]] = ([], [])
        copies: list[Any] | None = None
        watch, begin = Watch(), time.perf_counter()
        for number in range(_MORE_ROUNDS):
            for place, call in enumerate((self.forward, self.compiled)):
                given = copies or self._copies(args)  # the same ones: in the caches, as the program's are
                before = _versions(given)
                taken = self._time(call, given, backward)
                copies = given if _versions(given) == before else None
                if watch.calm() and number:  # the first warms caches up
                    times[place].append(sum(taken))
                    later[place].append(taken[1])
            passed = time.perf_counter() - begin
            limit = _ENOUGH if number < _ROUNDS - 1 else _SHORT if all(map(is_known, times)) else _LONGER
            if number and passed > limit:
                break
        if not all(map(is_known, times)):
            return None
        return _Times(min(times[0]), min(times[1]), min(later[0]) - min(later[1]))

    def _run(self, call: Call, args: Sequence[Any]) -> float:
        """Seconds that a call takes, with the gradients of its results where they are recorded."""
        return sum(self._time(call, self._copies(args), True))

    def _copies(self, args: Sequence[Any]) -> list[Any]:
        """Arguments of a call that is not the program's."""
        records = torch.is_grad_enabled() and any(each.requires_grad for each in tensors_of(args))
        copied = records or not self.written or any(self.written)
        same = frozenset[int]() if records else self.kept
        apart = [copied and isinstance(arg, torch.Tensor) and place not in same for place, arg in enumerate(args)]
        return [_apart(arg) if alone else arg for arg, alone in zip(args, apart)]

    def _time(self, call: Call, args: Sequence[Any], backward: bool) -> tuple[float, float]:
        """Seconds that a call takes, and its backward, where gradients are recorded."""
        begin = time.perf_counter()
        results = call(*args)
        taken, later = time.perf_counter() - begin, 0.0
        leaves = [each for each in args if isinstance(each, torch.Tensor) and each.requires_grad]
        if backward and leaves and torch.is_grad_enabled():
            ends = [each for each in tensors_of(results) if each.requires_grad]
            ones = [torch.ones_like(each) for each in ends]
            begin = time.perf_counter()
            if ends:
                torch.autograd.grad(ends, leaves, ones, allow_unused=True)
            later = time.perf_counter() - begin
        return taken, later


def _versions(args: Sequence[Any]) -> list[int]:
    return [arg._version for arg in args if isinstance(arg, torch.Tensor)]


@contextlib.contextmanager
def _unseen() -> Iterator[None]:
    """The random generator is put back; an error is left to the call itself."""
    try:
        state = torch.get_rng_state()
        try:
            yield
        finally:
            if not torch.equal(torch.get_rng_state(), state):  # else left alone: other threads may draw as well
                torch.set_rng_state(state)
    except Exception as error:
        let_pass(error)
        events.emit("fallback", "backend", str(error), scope="contest", reason=f"not compared: {error}")


def _apart(tensor: torch.Tensor) -> torch.Tensor:
    """A copy, laid out alike, that autograd does not connect with the program's."""
    if lies_densely(tensor):
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)
    once = tensor.detach()[tuple([slice(None if stride else 1) for stride in tensor.stride()])]  # not what is expanded
    copy = torch.empty_strided(once.shape, once.stride(), dtype=once.dtype).copy_(once)
    return copy.as_strided(tensor.shape, tensor.stride()).requires_grad_(tensor.requires_grad)


def _elements(inputs: Sequence[Any]) -> int:
    return sum(each.numel() for each in inputs if isinstance(each, torch.Tensor))


def _comparable(gm: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether a graph is one of torch's own functions, on the CPU, which may be run once more."""
    return devices_of(gm, inputs) == {"cpu"} and _is_of_torchs(gm)


def _is_of_torchs(gm: fx.GraphModule) -> bool:
    bodies = [getattr(gm, str(node.target)) for node in gm.graph.nodes if node.op == "get_attr"]
    if not all(_is_of_torchs(body) for body in bodies if isinstance(body, fx.GraphModule)):
        return False
    return all(node.op != "call_module" and _is_torchs(node) for node in gm.graph.nodes)


def is_small(gm: fx.GraphModule) -> bool:
    """Whether a graph has so few operations that a call of compiled code may cost more than it gains."""
    return sum(1 for node in gm.graph.nodes if node.op.startswith("call")) <= _SMALL_NODES


def draws_too_few(gm: fx.GraphModule, program: AtenProgram, example_inputs: Sequence[Any]) -> bool:
    """Whether a graph that draws random numbers, and records gradients, is so small that eager's kernels are faster.

    It is never compared: which numbers a program draws must not hang on how long something took.
    """
    if not config.tell_slower or not draws(program) or devices_of(gm, example_inputs) != {"cpu"}:
        return False
    points = sum(
        node.meta["val"].numel() for node in program.graph.nodes if Tag.pointwise in getattr(node.target, "tags", ())
    )
    return sum(node.op.startswith("call") for node in gm.graph.nodes) + points / _POINTS <= _TAPE


def draws(program: AtenProgram) -> bool:
    """Whether random numbers are drawn, by torch's own generators or from a seed of theirs."""
    seeded = (n for n in program.graph.nodes if Tag.nondeterministic_seeded in getattr(n.target, "tags", ()))
    return any(_dropped(node) != 0.0 for node in seeded)


def _dropped(node: fx.Node) -> object:
    """The probability with which an attention drops what it has computed; None for other operations."""
    target: Any = node.target
    names = {argument.name: argument.default_value for argument in target._schema.arguments}
    return (names | compat.bound_arguments(target, node.args, node.kwargs)).get("dropout_p")


def _is_torchs(node: fx.Node) -> bool:
    target: Any = node.target
    if node.kwargs.get("generator") is not None:
        return False
    if node.op != "call_function":
        return True
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace in ("aten", "prims") or target._schema.name == "argand::numpy_call"
    home = str(getattr(target, "__module__", None) or type(target).__module__)
    if home.startswith("argand."):
        return target.__name__ == "autograd_function"  # of graphs that are looked at, too
    return home.split(".")[0] in _TORCHS and not home.startswith("torch.distributed")
