"""The ATen operations of a backward, recorded while the engine runs it for the first time.

A node's hooks tell when it begins and ends, a dispatch mode sees what it calls in between, and what the engine itself
adds up between two nodes. Whatever an operation is given must be known: a result of an earlier one, a tensor that the
node saved, a gradient that the backward began with, or a number that follows from what the key holds.
"""

from __future__ import annotations

import contextlib
import operator
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import field
from typing import Any, NoReturn

import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakIdKeyDictionary

from argand.engine.buckets import Pending, received, sent_bucket
from argand.engine.checkpoints import computed, give_again
from argand.engine.node_state import DEVICES, NotRecorded, moves_of, number_of, tensor_fact, tensor_facts
from argand.engine.structure import Structure, hooked_within
from argand.graph import compat
from argand.graph.nodes.meta import is_view
from argand.graph.nodes.printing import readable
from argand.graph.trees import rebuilt, tensors_of
from argand.interruptions import let_pass
from argand.quick_dataclasses import dataclass
from argand.runtime.tape.result_nodes import SILENT

aten = torch.ops.aten

_UNSURE = (
    torch.Tag.nondeterministic_seeded,
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
)
_ELSEWHERE = -1  # no node runs whose formula is recorded


Value = tuple[Any, ...]
"""Where a tensor is from: ("grad", n) that the backward began with; ("saved", n) of the structure; ("out", n, node) of
interval n's graph; ("made", node, n) the n-th gradient that an opaque node gave; ("old", r, n) the gradient that the
n-th parameter of reduction r has already."""


@dataclass(slots=True)
class Interval:
    """What is computed until an opaque node runs.

    Arguments:
        graph: of `inputs`; returns `outputs`.
        leaves: the nodes that accumulate a value (None: no gradient), in the engine's order.
        call: the opaque node that runs then, and the gradients that it is given; None at the end.
        layouts: which gradients it gives, with their sizes and strides.
        final: outputs that nothing but its leaves needs.
        reduced: (reduction, bucket, value) of what has been received.
        computed: the checkpoint that computes its saved tensors again then, and what these are like.
        gone: saved tensors that no later interval reads.
    """

    graph: fx.Graph
    inputs: list[Value]
    outputs: list[Value]
    leaves: list[tuple[int, Value | None]]
    call: tuple[int, list[Value | None]] | None = None
    layouts: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    final: frozenset[Value] = frozenset()
    reduced: list[tuple[int, int, Value]] = field(default_factory=list)
    computed: tuple[int, list[Any]] | None = None
    gone: list[Value] = field(default_factory=list)


@dataclass(slots=True)
class Recorded:
    """A backward as graphs and calls.

    Arguments:
        intervals: in order.
        given: per node of a compiled graph, by which of its results gradients came.
        returned: the gradients that are given back.
        differentiable: as of `Structure`.
    """

    intervals: list[Interval]
    given: dict[int, tuple[bool, ...]]
    returned: list[Value | None]
    differentiable: bool

    def text(self) -> str:
        """The graphs."""
        texts = [readable(one.graph) for one in self.intervals]
        return "\n# code of the program runs\n".join(texts)


class _Unknown(NotRecorded):
    """A tensor of which nothing recorded tells where it is from."""


class Recorder(compat.DispatchMode):
    """Records one run of the engine. What it does not understand is a reason not to compile, never an error."""

    def __init__(self, structure: Structure, roots: Sequence[torch.Tensor], grads: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.reason = ""
        self._thread = threading.get_ident()
        self._run: int | None = None
        self._structure = structure
        self._places = {id(node): at for at, node in enumerate(structure.nodes)}
        self._known = WeakIdKeyDictionary()
        self._grads = grads
        self._hold()
        self._at = _ELSEWHERE
        self._probing = self._computing = False
        self._again: set[int] = set()
        self._given: dict[tuple[int, int], list[Value]] = {}
        for number, root in enumerate(roots):
            self._give((self._places[id(root.grad_fn)], root.output_nr), ("grad", number))
        self._given_back: dict[Value, StorageWeakRef] = {}
        self._compiled: dict[int, tuple[bool, ...]] = {}
        self._handles: list[Any] = []
        self._intervals: list[Interval] = []
        self._buckets = [Pending(one) for one in structure.reductions]
        self._cuts = [Pending(one) for one in structure.cuts]
        self._sent: list[tuple[int, int, fx.Node]] = []
        self._begin_interval()

    def _hold(self) -> None:
        self._held = {compat.storage_address(tensor) for tensor in (*self._grads, *self._structure.tensors)}

    def _begin_interval(self) -> None:
        self._graph = fx.Graph()
        self._placeholders: dict[Value, fx.Node] = {}
        self._intervals.append(Interval(self._graph, [], [], []))

    # ------------------------------------------------------------------ what is heard

    def listen(self) -> None:
        """Put hooks on the nodes."""
        for at, node in enumerate(self._structure.nodes):
            if at in self._structure.captured:
                continue
            if at in self._structure.leaves:
                begins, ended = self._accumulates, None
            elif at in self._structure.formulas:
                begins, ended = self._is_watched, self._ended
            elif at in self._structure.opaque:
                begins, ended = self._is_called, self._has_made
            else:
                begins, ended = self._begins, self._ended
            self._handles.append(node.register_prehook(self._of(at, begins)))
            if ended is not None:
                self._handles.append(node.register_hook(self._of(at, ended)))

    def stop(self) -> None:
        """Take them away again."""
        for handle in self._handles:
            handle.remove()
        if not self.reason and hooked_within(self._structure):
            self.reason = "code of the program puts a hook on a tensor of the backward that it runs in"

    def _of(self, at: int, hear: Any) -> Any:
        def hook(*grads: Any) -> None:
            if not self.reason and threading.get_ident() == self._thread and self._is_own_run():  # threads share leaves
                try:
                    hear(at, *grads)
                except NotRecorded as refused:
                    self.reason = str(refused)

        setattr(hook, SILENT, True)
        return hook

    def _is_own_run(self) -> bool:
        """Whether the engine's run is the recorded one: code of the program may run it within, and come to the same
        leaves (a checkpoint with use_reentrant=True does), in a replay, too."""
        now = torch._C._current_graph_task_id()  # runs are counted
        if self._run is None:
            self._run = now
        if now < self._run:
            self.reason = "a hook runs the engine, and comes to the nodes of this run before this run does"
        return now == self._run

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self._probing:
            self._computing |= func is not aten.detach.default and bool(tensors_of(out))
        elif not self.reason and self._at >= 0:
            try:
                self._note(func, args, kwargs or {}, out)
            except NotRecorded as refused:
                self.reason = str(refused)
        return out

    # ------------------------------------------------------------------ nodes

    def _give(self, place: tuple[int, int], value: Value) -> None:
        self._given.setdefault(place, []).append(value)

    def _sum(self, at: int, number: int) -> Value | None:
        """What was given to an input of a node, added up in the engine's order."""
        given = self._given.get((at, number), [])
        while len(given) > 1:
            node = self._graph.call_function(aten.add.Tensor, (self._node(given[0]), self._node(given[1])))
            given[:2] = [("out", len(self._intervals) - 1, node)]
        return given[0] if given else None

    def _sums(self, at: int, count: int) -> list[Value | None]:
        return [self._sum(at, number) for number in range(count)]

    def _begins(self, at: int, grads: tuple[torch.Tensor | None, ...]) -> None:
        node = self._structure.nodes[at]
        seen: dict[int, Value | None] = {}
        for grad, value in zip(grads, self._sums(at, len(grads))):
            if (grad is None) != (value is None) or (grad is not None and seen.setdefault(id(grad), value) != value):
                self._refuse(f"{self._name(at)} was given a gradient that nothing recorded made")
            if grad is not None:
                self._known[grad] = value
        self._compute_again(at)
        self._at = at
        moves = moves_of(node)
        if moves is not None:
            self._compiled[at] = moves.given(grads)
            with compat.without_modes():  # it may have to be traced for that
                moves.backwards.operations(self._compiled[at])
            node.by_operations = True
        elif not isinstance(node, torch._C._FunctionBase):
            self._passes_nothing(at, node, len(grads))

    def _compute_again(self, at: int) -> None:
        """A node begins whose saved tensors a checkpoint computes again: that is code of the program's."""
        tensors = self._structure.tensors
        for number, places in enumerate(self._structure.checkpoints):
            if number in self._again or not any(place in self._structure.saved[at] for place in places):
                continue
            self._again.add(number)
            with compat.without_modes():  # captured checkpoints among them take a mode for a backend's that traces them
                for place in places:
                    tensors[place] = computed(tensors.late[place])
            again = [tensors[place] for place in places]
            if any(number_of(one) is not None for one in again):
                self._refuse("a checkpoint computes a number again, which a graph would be made for")
            like = tensor_facts(again)
            self._hold()
            self._receive()
            self._intervals[-1].computed = (number, like)
            self._begin_interval()

    def _passes_nothing(self, at: int, node: Any, count: int) -> None:
        """A node that is given no gradient must make none: so it is run when its gradients are computed elsewhere."""
        late = [place for place in self._structure.saved[at] if place in self._structure.tensors.late]
        self._probing, self._computing = True, False
        try:
            results = node(*[None] * count)
        except Exception as error:
            let_pass(error)
            self._refuse(f"{self._name(at)} cannot run without a gradient: {type(error).__name__}")
        finally:
            self._probing = False
            for place in late:
                give_again(self._structure.tensors.late[place], self._structure.tensors[place])
        if late and self._computing:
            self._refuse(f"{self._name(at)} computes without a gradient, and a checkpoint computes what it saved")
        if any(one is not None for one in (results if isinstance(results, tuple) else (results,))):
            self._refuse(f"{self._name(at)} makes a gradient of none")

    def _ended(self, at: int, results: tuple[torch.Tensor | None, ...], grads: tuple[torch.Tensor | None, ...]) -> None:
        for one, (to, number) in zip(results, self._structure.nodes[at].next_functions):
            place = self._places.get(id(to))
            if one is not None and place is not None:
                value = self._lookup(one)
                self._give((place, number), value)
                if place in self._structure.leaves or (place, number) in self._structure.returned:
                    self._check_alone(value, one)
        if self._structure.tensors.late:
            self._structure.tensors.let_go(self._structure.saved[at])
            self._hold()
        self._at = _ELSEWHERE

    def _check_alone(self, value: Value, grad: torch.Tensor) -> None:
        """A gradient that lies in the memory of another one, or of what was saved, would show writes to that."""
        if grad.layout is not torch.strided:
            self._refuse("a gradient is sparse")
        if value not in self._given_back:
            storage = StorageWeakRef(grad.untyped_storage())
            shared = storage.cdata in self._held and value[0] == "out"
            if shared or any(storage == other and not other.expired() for other in self._given_back.values()):
                self._refuse("a gradient shares memory with another tensor")
            self._given_back[value] = storage

    def _accumulates(self, at: int, grads: tuple[torch.Tensor | None, ...]) -> None:
        """A leaf's node begins, after hooks of the leaf have seen the sum of what it was given."""
        self._at = _ELSEWHERE
        value = self._sum(at, 0)
        self._intervals[-1].leaves.append((at, value))
        for number, pending in enumerate(self._buckets):
            self._sent += [(number, bucket, self._send(number, bucket)) for bucket in pending.complete(at, value)]
        complete = [one for one in self._cuts if list(one.complete(at, value))]
        if not all(one.is_complete() for one in complete):
            self._receive()
            self._begin_interval()

    def _send(self, number: int, bucket: int) -> fx.Node:
        """Begin to reduce a bucket, of which all gradients are there."""
        pending = self._buckets[number]
        parts = []
        here = {at for at, _ in self._intervals[-1].leaves}
        for place in pending.reduction.buckets[bucket].parameters:
            values = [("old", number, place)] if pending.reduction.old[place] is not None else []
            new = pending.values.get(place)
            if new is not None and not (values and pending.reduction.leaves[place] not in here):
                values.append(new)  # else the leaf has added it to its old gradient, in place, before this graph runs
            parts.append((place, [self._node(value) for value in values]))
        return sent_bucket(self._graph, pending.reduction, parts)

    def _receive(self) -> None:
        """Wait for what was sent, as late as the interval's graph allows."""
        number = len(self._intervals) - 1
        for reduction, bucket, sent in self._sent:
            value = ("out", number, received(self._graph, sent))
            self._intervals[-1].reduced.append((reduction, bucket, value))
        self._sent.clear()

    def _is_called(self, at: int, grads: tuple[torch.Tensor | None, ...]) -> None:
        """An opaque node begins, after its hooks have seen what it was given."""
        self._at = _ELSEWHERE
        values = self._sums(at, len(grads))
        if not any(value is not None for value in values):
            self._refuse(f"{self._name(at)} is given no gradient")
        if isinstance(self._structure.nodes[at], torch._C._FunctionBase):
            told = moves_of(self._structure.nodes[at]) is not None
            if None in values and not told:  # whether it gets zeros instead, Python is not told
                self._refuse(f"{self._name(at)} is given gradients of some results only")
        else:
            self._passes_nothing(at, self._structure.nodes[at], len(grads))
        by_engine = self._structure.opaque[at] and at not in self._structure.watched
        behind = [to for to, _ in self._structure.nodes[at].next_functions if id(to) in self._places]
        if by_engine and _lead_to_each_other(behind):
            self._refuse(f"{self._name(at)} has hooks, and the engine could not run it without nodes behind it")
        self._intervals[-1].call = (at, values)

    def _is_watched(self, at: int, grads: tuple[torch.Tensor | None, ...]) -> None:
        """A node begins, after hooks of the tensors that it made have seen what it is given."""
        values = self._sums(at, len(grads))
        if not any(value is not None for value in values):
            self._refuse(f"{self._name(at)} is given no gradient")
        called = self._intervals[-1]
        called.call = (at, values)
        self._receive()
        self._begin_interval()
        for number, grad in enumerate(grads):
            if grad is not None:
                tensor_fact(grad)
                called.layouts[number] = (tuple(grad.shape), grad.stride())
                self._known[grad] = ("made", at, number)
        self._compute_again(at)
        self._at = at
        self._passes_nothing(at, self._structure.nodes[at], len(grads))

    def _has_made(
        self, at: int, results: tuple[torch.Tensor | None, ...], grads: tuple[torch.Tensor | None, ...]
    ) -> None:
        called = self._intervals[-1]
        for number, (one, (to, place)) in enumerate(zip(results, self._structure.nodes[at].next_functions)):
            if one is not None and id(to) in self._places:
                tensor_fact(one)
                called.layouts[number] = (tuple(one.shape), one.stride())
                self._give((self._places[id(to)], place), ("made", at, number))
        self._receive()
        self._begin_interval()

    # ------------------------------------------------------------------ operations

    def _note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        if not isinstance(func, torch._ops.OpOverload):
            self._refuse(f"{func} is called, which is no operator of torch's")
        unsure = [tag.name for tag in _UNSURE if tag in func.tags]
        if unsure and not _draws_again(func):
            self._refuse(f"{func} is called: {unsure[0]}")
        if any(tensor.layout is not torch.strided or tensor.device.type not in DEVICES for tensor in tensors_of(out)):
            self._refuse(f"{func} gives a tensor that is sparse, or on another device")
        if func is aten.detach.default and self._structure.differentiable:  # reads what was saved, with its history
            value = self._lookup(args[0])
            if value[0] == "saved":
                self._known[out] = value
                return
        if func._schema.is_mutable:
            written = [arg for at, arg in enumerate(args) if _is_written(func, at)]
            named = [kwargs.get(arg.name) for arg in func._schema.arguments if arg.alias_info and arg.kwarg_only]
            if any(compat.storage_address(tensor) in self._held for tensor in tensors_of((written, named))):
                self._refuse(f"{func} writes to a tensor that was saved")
        try:
            node = self._graph.call_function(func, self._as_nodes(args), self._as_nodes(kwargs))
        except _Unknown:  # what comes of it is unknown, too
            if func._schema.is_mutable:
                raise
            return
        self._name_results(node, out)

    def _name_results(self, node: fx.Node, out: Any) -> None:
        if isinstance(out, torch.Tensor):
            self._known[out] = ("out", len(self._intervals) - 1, node)
        elif isinstance(out, (tuple, list)):
            for at, one in enumerate(out):
                if one is not None:
                    self._name_results(self._graph.call_function(operator.getitem, (node, at)), one)

    def _as_nodes(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._node(self._lookup(value))
        if isinstance(value, (torch.Generator, torch.SymInt, torch.SymFloat, torch.SymBool)):
            self._refuse(f"an operation is given a {type(value).__name__}")
        return rebuilt(value, self._as_nodes)

    def _lookup(self, tensor: torch.Tensor) -> Value:
        known: Value | None = self._known.get(tensor)
        if known is not None:
            return known
        for at in self._structure.saved[self._at]:
            if _is_same(self._structure.tensors[at], tensor):
                return ("saved", at)
        raise _Unknown(f"{self._name(self._at)} reads a tensor that it does not tell of")

    def _node(self, value: Value | None) -> fx.Node:
        """The node of the current graph that stands for a value."""
        assert value is not None
        if value[0] == "out" and value[1] == len(self._intervals) - 1:
            node: fx.Node = value[2]
            return node
        placeholder = self._placeholders.get(value)
        if placeholder is None:
            first = next(iter(self._graph.nodes), None)
            name = "_".join(map(str, value))
            with self._graph.inserting_before(first) if first is not None else contextlib.nullcontext():
                placeholder = self._placeholders[value] = self._graph.placeholder(name)
            self._intervals[-1].inputs.insert(0, value)
        return placeholder

    # ------------------------------------------------------------------ what comes of it

    def recorded(self) -> Recorded:
        """What was recorded.

        Raises:
            NotRecorded: the engine has to run this.
        """
        self._receive()
        accumulated = [(at, value) for one in self._intervals for at, value in one.leaves]
        if not all(pending.is_complete() for pending in self._buckets):
            self._refuse("the backward did not come to all parameters of a module under DistributedDataParallel")
        returned = [None if place is None else self._sum(*place) for place in self._structure.returned]
        given_back = [value for value in returned if value is not None]
        if self.reason or not (given_back or any(value is not None for _, value in accumulated)):
            self._refuse(self.reason or "no leaf was given a gradient")
        accumulated = self._without_reduced(accumulated)
        shown = [value for at, value in accumulated if at in self._structure.hooked and value is not None]
        uses = Counter([*[value for _, value in accumulated if value is not None], *given_back])
        for one in self._intervals:
            for value in () if one.call is None else one.call[1]:
                if value is not None:
                    if self._is_shown(one.call[0] if one.call else 0):
                        shown.append(value)
                    uses[value] += 1
            uses.update([value for _, _, value in one.reduced])
        for number in reversed(range(len(self._intervals))):
            self._finish(number, uses)
        self._let_go()
        for value in shown:
            if uses[value] > 1 or not self._is_alone(value, uses):
                self._refuse("code of the program sees a gradient that other formulas read as well")
        return Recorded(self._intervals, self._compiled, returned, self._structure.differentiable)

    def _without_reduced(self, accumulated: list[tuple[int, Value | None]]) -> list[tuple[int, Value | None]]:
        """What leaves are given, where no code of the program runs in between: nothing where the reducer puts what the
        graph has reduced in place of it."""
        if len(self._intervals) > 1:
            return accumulated
        reduced = [pending.reduction for pending in self._buckets if pending.reduction.reducer.overwrites()]
        replaced = {at for one in reduced for at in one.leaves}
        leaves = [(at, None if at in replaced else value) for at, value in accumulated]
        self._intervals[0].leaves = leaves
        return leaves

    def _is_shown(self, at: int) -> bool:
        """Whether code of the program sees what an opaque node is given; a copy of it may be retained."""
        on_node = self._structure.opaque[at]
        return not on_node or any(on_node)

    def _finish(self, number: int, uses: Counter[Value]) -> None:
        """Take out of an interval's graph what nobody uses."""
        one = self._intervals[number]
        one.outputs = [value for value in uses if value[0] == "out" and value[1] == number]
        own = Counter(value for _, value in one.leaves)
        one.final = frozenset(value for value in one.outputs if uses[value] == own[value])
        one.graph.output(tuple([value[2] for value in one.outputs]))
        one.graph.eliminate_dead_code(_has_effect)
        placed = dict(zip(one.inputs, [node for node in one.graph.nodes if node.op == "placeholder"]))
        for node in placed.values():
            if not node.users:
                one.graph.erase_node(node)
        one.inputs = [value for value, node in placed.items() if node.users]
        uses.update(one.inputs)

    def _let_go(self) -> None:
        """Note where each saved tensor that a checkpoint computes is read last."""
        later: set[Value] = set()
        for one in reversed(self._intervals):
            late = [value for value in one.inputs if value[0] == "saved" and value[1] in self._structure.tensors.late]
            one.gone = [value for value in late if value not in later]
            later.update(late)

    def _is_alone(self, value: Value, uses: Counter[Value]) -> bool:
        """Whether nothing else reads a gradient, or what it is a view of: code of the program may write to it."""
        if value[0] != "out":
            return value[0] != "saved"
        one, node = self._intervals[value[1]], value[2]
        while len(node.users) == 1:
            if node.op == "placeholder":
                placed = [other for other in one.graph.nodes if other.op == "placeholder"]
                source = one.inputs[placed.index(node)]
                return source[0] in ("grad", "made") and uses[source] == 1
            if not is_view(node):
                return True
            node = node.all_input_nodes[0]
        return False

    def _name(self, at: int) -> str:
        return self._structure.nodes[at].name() if at >= 0 else "the engine"

    def _refuse(self, reason: str) -> NoReturn:
        raise NotRecorded(reason)


def _lead_to_each_other(nodes: Sequence[Any]) -> bool:
    """Whether one of these nodes comes behind another one."""
    wanted = {id(node) for node in nodes if node is not None}
    behind = {id(to): to for node in nodes if node is not None for to, _ in node.next_functions if to is not None}
    work = list(behind.values())
    while work:
        node = work.pop()
        if id(node) in wanted:
            return True
        for to, _ in node.next_functions:
            if to is not None and id(to) not in behind:
                behind[id(to)] = to
                work.append(to)
    return False


def _has_effect(node: fx.Node) -> bool:
    return node.op in ("placeholder", "output") or (
        isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
    )


def _draws_again(func: Any) -> bool:
    """Whether an operation of a backward computes with the random numbers of the forward, whose seed it is given."""
    names = {argument.name for argument in func._schema.arguments}
    return func._schema.name.endswith("_backward") and "philox_seed" in names


def _is_written(func: Any, at: int) -> bool:
    arguments = func._schema.arguments
    return at < len(arguments) and arguments[at].alias_info is not None and arguments[at].alias_info.is_write


def _is_same(saved: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether a tensor is the saved one, or another object for it."""
    return saved is tensor or (
        saved.dtype is tensor.dtype
        and saved.shape == tensor.shape
        and saved.stride() == tensor.stride()
        and saved.data_ptr() == tensor.data_ptr()
        and not (tensor.is_conj() or tensor.is_neg())
        and tensor.layout is torch.strided
    )
