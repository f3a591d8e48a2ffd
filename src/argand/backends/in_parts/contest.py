"""Whether the graphs of a module under DistributedDataParallel are faster in parts or whole: its first steps tell.

Parts let buckets be reduced while the backward runs, and each costs the host some time, forward and backward. Which
counts for more depends on the model, the machine and the network, so some steps of training run the parts, some the
whole graphs, in turns; what their steps took decides, the rest of the program included. What is communicated, and in
which order, is DDP's in both: ranks may run either. They count the same steps, and take what the first to decide found.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from argand import events
from argand.backends.in_parts.buckets import active_ddp
from argand.backends.in_parts.parts import Part, stored_part
from argand.graph import compat
from argand.runtime.recipes import Described, with_recipe

_WINDOWS = ((False, 3), (True, 3), (False, 1), (True, 1))
"""What runs (True: whole graphs), and how many steps settle before the time of some is taken: compiles are in them."""
_STEPS = 4
_PART = 3e-4  # seconds that a part may cost the host
_LITTLE = 0.03  # of a step, which parts may cost: then nothing is compiled to find out
_FASTER = 0.97  # of a step in parts, from which whole graphs run


class Contest:
    """Of one module under DDP.

    Arguments:
        ddp: the module.

    Fields:
        parts: how many there are, of all its graphs.
        whole: whether graphs run whole now; `over`: and from now on.
        leader: the graph whose calls begin steps. `differentiated`: a backward has come to it since the last step.
    """

    def __init__(self, ddp: Any) -> None:
        self._ddp = weakref.ref(ddp)
        self.parts = 0
        self.whole = self.over = False
        self.leader: object = None
        self.differentiated = True
        self._window = self._step = 0
        self._began = 0.0
        self._best = {False: float("inf"), True: float("inf")}

    def begins_step(self, device: torch.device) -> bool:
        """The graph that leads is called. Whether a step begins that counts: its backward reduces gradients."""
        ddp = self._ddp()
        if not getattr(ddp, "require_backward_grad_sync", False) or not self.differentiated or _cannot_compare(device):
            return False
        self.differentiated = False
        settling = _WINDOWS[self._window][1]
        if self._step == settling + _STEPS:
            self._window, self._step = self._window + 1, 0
            if self._window == len(_WINDOWS) or self.parts * _PART < _LITTLE * self._best[False]:
                self._decide()
                return False
        self.whole = _WINDOWS[self._window][0]
        self._step += 1
        self._began = _now(device) if self._step > _WINDOWS[self._window][1] else 0.0
        return True

    def _ended(self, device: torch.device) -> None:
        """The backward of a step has ended, and DDP has waited for its buckets."""
        if self._began:
            self._best[self.whole] = min(self._best[self.whole], _now(device) - self._began)
            self._began = 0.0

    def _decide(self) -> None:
        best = self._best
        whole = _agreed(self._ddp(), best[True] < _FASTER * best[False])
        self.whole, self.over, self.leader = whole, True, None
        if self._window == len(_WINDOWS):
            text = f"a step takes {best[False] * 1e3:.3g} ms in {self.parts} parts, {best[True] * 1e3:.3g} ms whole"
            chosen = "whole" if whole else "in parts"
            events.emit("optimize_ddp", "backend", f"{text}: graphs run {chosen}", parts=self.parts, reason=text)

    def watch(self, results: Any, device: torch.device) -> None:
        """Notice a backward that comes to what the leading graph has made."""
        for each in results if isinstance(results, (tuple, list)) else (results,):
            node = each.grad_fn if isinstance(each, torch.Tensor) else None
            if node is not None:
                node.register_prehook(functools.partial(_mark, weakref.ref(self), device))

    def differentiates(self, device: torch.device) -> None:
        """A backward has come to what the leading graph has made. It ends when DDP, which asks for a call at its end
        too, but later, has waited for what it sent."""
        if not self.differentiated:
            self.differentiated = True
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: engine.queue_callback(functools.partial(self._ended, device)))


def _mark(contest: weakref.ref[Contest], device: torch.device, grads: Any) -> None:
    held = contest()
    if held is not None:
        held.differentiates(device)


def _cannot_compare(device: torch.device) -> bool:
    """Whether both may not differ in the last bits, or compiled autograd may send gradients itself."""
    return (compat.compiled_autograd_active() and device.type == "cpu") or torch.are_deterministic_algorithms_enabled()


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _agreed(ddp: Any, whole: bool) -> bool:
    """What the first rank has found; this one's own where ranks cannot tell each other."""
    c10d = torch.distributed.distributed_c10d
    try:
        name = f"argand/ddp/{ddp.process_group.group_name}/{_place(ddp)}"
        return bool(c10d._get_default_store().compare_set(name, "", "12"[whole]) == b"2")
    except (RuntimeError, ValueError):
        return whole


@functools.cache
def _contests() -> weakref.WeakKeyDictionary[Any, tuple[int, Contest]]:
    return weakref.WeakKeyDictionary()


@functools.cache
def _numbers() -> dict[str, int]:
    """How many modules of each group had a contest."""
    return {}


def _place(ddp: Any) -> int:
    return _contests()[ddp][0]


def contest_of(ddp: Any) -> Contest:
    """The contest of a module under DDP."""
    entry = _contests().get(ddp)
    if entry is None:
        group, numbers = getattr(getattr(ddp, "process_group", None), "group_name", ""), _numbers()
        numbers[group] = numbers.get(group, 0) + 1
        entry = _contests()[ddp] = numbers[group], Contest(ddp)
    return entry[1]


class Alternatives(Described):
    """A graph in parts, or whole.

    Arguments:
        in_parts: calls its parts, of which there are `count`.
        whole: the graph as one part.
    """

    def __init__(self, in_parts: Callable[..., Any], whole: Part, count: int) -> None:
        self.in_parts, self.whole, self.count = in_parts, whole, count
        self.known: weakref.WeakSet[Contest] = weakref.WeakSet()
        with_recipe(self, "cut or whole", lambda: (in_parts, whole.forward, count))

    def __call__(self, *args: Any) -> Any:
        ddp = active_ddp()
        if ddp is None or compat.saved_tensor_hooks_active():  # a checkpoint runs again outside, and saves the same
            return self.in_parts(*args)
        contest = contest_of(ddp)
        if contest.over:
            return (self.whole if contest.whole else self.in_parts)(*args)
        if contest not in self.known:
            self.known.add(contest)
            contest.parts += self.count
            contest.leader = contest.leader or self
        device = next(arg.device for arg in args if isinstance(arg, torch.Tensor))
        counts = contest.leader is self and torch.is_grad_enabled() and contest.begins_step(device)
        results = (self.whole if contest.whole else self.in_parts)(*args)
        if counts:
            contest.watch(results, device)
        return results


def stored_alternatives(in_parts: Callable[..., Any], graph: Callable[..., Any], count: int) -> Alternatives:
    """Both, as an earlier process has stored them: the whole graph is compiled where it is to run.

    Arguments:
        graph: of `resolver.run_graph`.
    """
    return Alternatives(in_parts, stored_part(graph, (), []), count)


def whole_part(gm: fx.GraphModule, compile_graph: Any) -> Part:
    """A graph as one part, of a copy that nobody else changes."""
    graph = fx.Graph()
    known: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(gm.graph, known))
    module = fx.GraphModule(gm, graph, class_name="Whole")
    return Part(module.forward, lambda: module, (), compile_graph)
