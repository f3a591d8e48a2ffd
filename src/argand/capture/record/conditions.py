"""What code of installed packages asks of the values that came in: `if t[0] > t[1]`, `torch.equal(x1, x2)`.

A library looks at what it was given before it begins, and mostly finds the same. So such a question is answered with
what is true of the call at hand, and becomes a guard: a later call asks it of its own tensors before the graph runs,
for the price that eager pays. A few cheap operations on tensors on the CPU may lie between what came in and the
question. Where answers vary more than a few versions of the function are worth, the graph breaks at the question, as
it does at those of the program's own code: what this branches on is its data. Torch's own code is answered about
flags and counters that objects keep (`AveragedModel.n_averaged`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from argand.capture.facts.code.skip import library_of
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import GraphBuilder, History
from argand.capture.facts.kinds import is_a
from argand.capture.facts.name_tables import words
from argand.capture.facts.sources import Source, is_attribute
from argand.capture.facts.values.tensor_info import Cost, Deferred, Leaf
from argand.graph import compat
from argand.graph.sizes.expr import Sym
from argand.graph.sizes.relations import Relation
from argand.graph.sizes.symbols import SymbolTable
from argand.interruptions import let_pass
from argand.quick_dataclasses import dataclass
from argand.runtime.recipes import compile_wrapper

LABEL = "CONDITION_MATCH"  # of a guard on a `Condition`
_LARGEST = 1 << 16  # elements of a tensor that is asked
_LONGEST = 32  # calls between what came in and an answer
_MOST_VARYING = 2  # questions of a function that may have two answers: each doubles its versions
_NONE_DIFFERS = -1
_NESTED = (list, tuple, torch.Size, slice)
_LISTED = 64  # numbers of an answer that is a list
_CHEAP = frozenset(
    words(
        "eq ne lt le gt ge equal allclose isclose any all sum max min amax amin mean count_nonzero isnan isfinite "
        "isinf logical_and logical_or logical_not logical_xor and or xor invert bitwise_and bitwise_or bitwise_not "
        "abs neg sign add radd sub rsub mul rmul div truediv rtruediv floordiv floor_divide remainder mod pow sqrt "
        "square exp log softplus ceil floor round trunc clamp diff getitem select narrow unbind squeeze unsqueeze "
        "view reshape flatten expand expand_as view_as permute transpose t to float double long int bool type type_as "
        "detach clone contiguous cat stack item tolist index is_nonzero one_hot where "
        "masked_fill cumsum setitem fill zero copy"
    )
)


class _Unanswerable(Exception):
    """A question is not about what came in alone, or takes more than a few cheap operations."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Stands for a value of a question: its number, and which part of it."""

    number: int
    path: tuple[int, ...]


_Step = tuple[Function | None, list[object], dict[str, object]]
"""A call with places in its arguments; without a function: the next tensor that came in."""


def askable(real: torch.Tensor) -> bool:
    """Whether an answer about a tensor may become a guard."""
    if type(real) not in (torch.Tensor, torch.nn.Parameter) or real.layout is not torch.strided:
        return False
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(real)
    return real.device.type == "cpu" and 0 < real.numel() <= _LARGEST and not wrapped


def is_cheap(func: Function) -> bool:
    """Whether a call may lie between what came in and a question."""
    name = getattr(func, "__name__", func)
    return isinstance(name, str) and name.strip("_") in _CHEAP and not torch.is_autocast_enabled("cpu")


def ask(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    """The answer to a question for values, guarded from now on; NotImplemented where there is none."""
    library = asked_by(builder)
    if not is_cheap(func) or not library:
        return NotImplemented
    with torch._C.DisableTorchFunction():
        try:
            question = _Question(builder)
            question.add_call(func, args, kwargs)
        except _Unanswerable:
            return NotImplemented
        if library == "torch" and not all(map(_is_counter, question.leaves)):
            return NotImplemented
        return _answer(builder, question)


def ask_relation(builder: GraphBuilder, relation: Relation) -> object:
    """Whether a condition on numbers that were read from tensors is true, guarded from now on; or NotImplemented."""
    dynamics = builder.dynamics
    if dynamics is None or dynamics.unbacked is None or asked_by(builder) in ("", "torch"):
        return NotImplemented
    symbols = dynamics.unbacked.among(relation)
    nodes = [dynamics.unbacked.origins[symbol].node for symbol in symbols]
    if not set(relation.symbols) <= set(symbols) or not all(
        node is not None and node.target == "item" for node in nodes
    ):
        return NotImplemented
    infos = {info.node: info for info in builder.tensors.values()}
    with torch._C.DisableTorchFunction():
        try:
            question = _Question(builder)
            tensors = [infos[node.args[0]].tensor for node in nodes if node is not None]
            numbers: list[object] = [question.add_call(torch.Tensor.item, (tensor,), {}) for tensor in tensors]
        except (_Unanswerable, KeyError):
            return NotImplemented
        question.steps.append((_Holds(dynamics.table, relation, symbols), numbers, {}))
        answer = _answer(builder, question)
    if type(answer) is bool:
        dynamics.unbacked.learn(relation if answer else relation.negated())
    return answer


def asked_by(builder: GraphBuilder) -> str:
    """The installed package that the innermost code that is captured belongs to; "" for the program's own."""
    code, _ = builder.state.position()
    return "" if builder.state.policy is None else library_of(code.co_filename)


def _is_counter(leaf: Leaf) -> bool:
    """Whether a tensor is a flag or a number that a module or an optimizer keeps: torch asks nothing else in Python but
    what a graph can be asked."""
    return is_kept(leaf.source) and leaf.real.numel() == 1 and not leaf.real.dtype.is_floating_point


def is_kept(source: Source) -> bool:
    """Whether a tensor is kept in an object, a global or a closure, and is no argument or item of one."""
    return is_attribute(source) or source.kind in ("closure", "global")


def _answer(builder: GraphBuilder, question: _Question) -> object:
    policy = builder.state.policy
    assert policy is not None
    text = _Text(len(question.leaves))
    result = text.add(question.steps, range(len(question.leaves)))
    answer = _run(text.function(result), [leaf.real for leaf in question.leaves])
    if not question.leaves or not _is_plain(answer):
        return NotImplemented
    if type(answer) is float and any(leaf.real.grad_fn is not None for leaf in question.leaves):
        return NotImplemented  # a loss, which is another one in the next call
    key = f"condition {question.text()}"
    if not _settled(policy.history, key, answer):
        return NotImplemented
    if type(answer) is not bool:
        _forget_if_written(builder, question.leaves, policy.history, key)
    if key not in builder.conditions:
        builder.conditions.add(key)
        sources = [leaf.source for leaf in question.leaves]
        condition = Condition(tuple(question.steps), answer)
        builder.state.guards.add(None, "python", condition, sources, label=LABEL)
    return answer


def _forget_if_written(builder: GraphBuilder, leaves: Sequence[Leaf], history: History, key: str) -> None:
    """A number that is read from a tensor which the graph then writes to is another one in the next call."""
    for leaf in leaves:
        stand_in = builder.state.inputs_by_real.get(id(leaf.real))
        before = builder.asked.get(id(stand_in))

        def note(before: Callable[[], None] | None = before) -> None:
            history.changing.add(key)
            if before is not None:
                before()

        builder.asked[id(stand_in)] = note


class _Holds:
    """Whether a condition on symbols is true of numbers."""

    def __init__(self, table: SymbolTable, relation: Relation, symbols: list[Sym]) -> None:
        self.table, self.relation, self.symbols = table, relation, symbols

    def __call__(self, *numbers: int | float) -> bool | None:
        return self.table.holds(self.relation, dict(zip(self.symbols, numbers)))

    def __repr__(self) -> str:
        return str(self.relation)


class _Question:
    """The calls from what came in to an answer, in order.

    Fields:
        leaves: the tensors that came in, in the order in which steps take them.
        steps: one for each value.
    """

    def __init__(self, builder: GraphBuilder) -> None:
        self.leaves: list[Leaf] = []
        self.steps: list[_Step] = []
        self._tensors = builder.tensors
        self._numbers: dict[int, int] = {}  # by id of what a value comes from

    def text(self) -> str:
        """What tells it from other questions of its frame."""
        names = [leaf.source.name() for leaf in self.leaves]
        return f"{names} {[(getattr(func, '__name__', func), args, kwargs) for func, args, kwargs in self.steps]}"

    def add_call(self, func: Function, args: Sequence[object], kwargs: Kwargs) -> _Place:
        given = [self._placed(arg) for arg in args]
        self.steps.append((func, given, {key: self._placed(value) for key, value in kwargs.items()}))
        return _Place(len(self.steps) - 1, ())

    def _placed(self, value: object) -> object:
        """An argument, with a place instead of what a call waits for."""
        if type(value) in _NESTED:
            return mapped(value, self._placed)
        if is_a(value, torch.Tensor) and id(value) in self._tensors:  # a stand-in
            value = self._tensors[id(value)].constant
            if value is None:
                raise _Unanswerable
        if type(value) is not Deferred:
            return value
        if value.cost is Cost.NOTHING:
            known = value.get()
            if known is None:
                raise _Unanswerable
            return known
        if id(value.origin) not in self._numbers:
            self._add(value)
        return _Place(self._numbers[id(value.origin)], value.path)

    def _add(self, value: Deferred) -> None:
        origin = value.origin
        if origin is None:
            raise _Unanswerable
        if isinstance(origin, Leaf):
            if not askable(origin.real):
                raise _Unanswerable
            self.leaves.append(origin)
            self.steps.append((None, [], {}))
        elif len(self.steps) >= _LONGEST or not is_cheap(origin.func):
            raise _Unanswerable
        else:
            self.add_call(origin.func, origin.args, origin.kwargs)
        self._numbers[id(origin)] = len(self.steps) - 1


class Condition:
    """A question and the answer that the graph was recorded for; `Conditions` asks it."""

    def __init__(self, steps: tuple[_Step, ...], answer: object) -> None:
        self.steps = steps
        self.answer = answer

    def __repr__(self) -> str:
        names = [str(getattr(func, "__name__", func)).strip("_") for func, _, _ in self.steps if func is not None]
        return f"{' of '.join(reversed(names))} == {self.answer}"


class Conditions:
    """The guard: whether all questions of a graph have their answers. What several ask for is computed once.

    Fields:
        sources: of the tensors that it takes.
        conditions: in the order in which they are asked.
        differs: the number of the one whose answer was another in the last call that found one.
    """

    def __init__(self, asked: Sequence[tuple[Condition, Sequence[Source]]]) -> None:
        self.sources = list(dict.fromkeys(source for _, sources in asked for source in sources))
        self.conditions = [condition for condition, _ in asked]
        self.differs = 0
        text = _Text(len(self.sources))
        for number, (condition, sources) in enumerate(asked):
            answer = text.add(condition.steps, [self.sources.index(source) for source in sources])
            text.return_unless(answer, condition.answer, number)
        self._ask = text.function(str(_NONE_DIFFERS))

    def __call__(self, *tensors: torch.Tensor) -> bool:
        with torch._C.DisableTorchFunction():
            differs = _run(self._ask, tensors)
        if type(differs) is int and differs != _NONE_DIFFERS:
            self.differs = differs
        return differs == _NONE_DIFFERS

    def __repr__(self) -> str:
        return repr(self.conditions[self.differs])


class _Text:
    """Questions as the text of one Python function of the tensors that came in."""

    def __init__(self, tensors: int) -> None:
        self._tensors = [f"t{number}" for number in range(tensors)]
        self._lines: list[str] = []
        self._names: dict[str, object] = {}
        self._name_of: dict[int, str] = {}  # of objects, by id; `_names` keeps them
        self._values: dict[str, str] = {}  # the name of what a call gives

    def add(self, steps: Sequence[_Step], tensors: Sequence[int]) -> str:
        """Lines that answer a question about the tensors with these numbers, and what they call the answer."""
        values: list[str] = []
        given = iter(tensors)
        writes = any(_writes(func, kwargs) for func, _, kwargs in steps)
        for func, args, kwargs in steps:
            if func is None:
                values.append(self._tensors[next(given)])
                continue
            parts = [self._argument(values, arg) for arg in args]
            parts += [f"{key}={self._argument(values, value)}" for key, value in kwargs.items()]
            call = f"{self._name(func)}({', '.join(parts)})"
            name = None if writes else self._values.get(call)  # what a question writes to is its own
            if name is None:
                name = f"v{len(self._lines)}"
                self._lines.append(f"{name} = {call}")
                if not writes:
                    self._values[call] = name
            values.append(name)
        return values[-1]

    def return_unless(self, value: str, answer: object, number: int) -> None:
        if type(answer) is bool:
            self._lines.append(f"if {value} is not {answer}: return {number}")
        else:
            self._lines.append(f"if not {self._name(_same)}({value}, {self._constant(answer)}): return {number}")

    def function(self, result: str) -> Callable[..., object]:
        lines = "\n    ".join([*self._lines, f"return {result}"])
        return compile_wrapper(f"def call({', '.join(self._tensors)}):\n    {lines}\n", self._names)

    def _argument(self, values: Sequence[str], value: object) -> str:
        """The text of an argument of a step, with values in their places."""
        if type(value) is _Place:
            return values[value.number] + "".join(f"[{index}]" for index in value.path)
        if type(value) is slice:
            return f"slice({', '.join(self._argument(values, part) for part in (value.start, value.stop, value.step))})"
        if type(value) is list:
            return f"[{self._arguments(values, value)}]"
        if is_a(value, tuple) and type(value) in _NESTED:
            return f"({self._arguments(values, value)})"
        return self._constant(value)

    def _arguments(self, values: Sequence[str], items: Sequence[object]) -> str:
        return "".join([self._argument(values, item) + ", " for item in items])

    def _constant(self, value: object) -> str:
        return repr(value) if type(value) in (bool, int, str, type(None)) else self._name(value)

    def _name(self, value: object) -> str:
        name = self._name_of.setdefault(id(value), f"c{len(self._name_of)}")
        self._names[name] = value
        return name


def _writes(func: Function | None, kwargs: Kwargs) -> bool:
    """Whether a step writes to its argument or to `out`."""
    name = str(getattr(func, "__name__", func))
    return name.strip("_") == "setitem" or (name[-1:] == "_" != name[-2:-1]) or "out" in kwargs


def _run(ask: Callable[..., object], tensors: Sequence[torch.Tensor]) -> object:
    """What a question's function gives; None where a step raises."""
    records = torch.is_grad_enabled()
    try:
        if records:
            torch._C._set_grad_enabled(False)
        if compat.watched_by_modes() or torch.is_autocast_enabled("cpu"):
            with compat.without_modes(), torch.autocast("cpu", enabled=False):  # operations are plain ones
                return ask(*tensors)
        return ask(*tensors)
    except Exception as error:  # the program meets it itself, where it asks
        let_pass(error)
        return None
    finally:
        if records:
            torch._C._set_grad_enabled(True)


def mapped(value: Any, leaf: Callable[[object], object]) -> object:
    """An argument with `leaf(each)` for each leaf of its lists, tuples and slices."""
    if type(value) in (list, tuple, torch.Size):
        return type(value)(mapped(item, leaf) for item in value)
    if type(value) is slice:
        return slice(*(mapped(part, leaf) for part in (value.start, value.stop, value.step)))
    return leaf(value)


def _numbers(answer: object) -> Iterator[object]:
    if type(answer) is list:
        for item in answer:
            yield from _numbers(item)
    else:
        yield answer


def _is_plain(answer: object) -> bool:
    parts = list(_numbers(answer))
    return len(parts) <= _LISTED and all(type(each) in (bool, int, float) for each in parts)


def _same(one: object, other: object) -> bool:
    return type(one) is type(other) and (one is other or repr(one) == repr(other))


def _settled(history: History, key: str, answer: object) -> bool:
    """Whether a question has had few enough answers."""
    seen = history.values.setdefault(key, set())
    bits = repr(answer).encode()
    if bits not in seen and seen and key not in history.changing:
        varying = sum(len(values) > 1 for values in history.values.values())
        if type(answer) is not bool or varying >= _MOST_VARYING:
            history.changing.add(key)
    if key in history.changing:
        return False
    seen.add(bits)
    return True
