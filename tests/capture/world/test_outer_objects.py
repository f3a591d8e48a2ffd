"""Objects that existed before the frame: read under guards, never changed while capturing, effects replayed, aliasing kept."""

from __future__ import annotations

import builtins
import copy
import dataclasses
import decimal
import functools
import pprint
import types
import warnings

import pytest

torch = pytest.importorskip("torch")
import argand  # noqa: E402
from argand.capture.world import pending_effects  # noqa: E402
from helpers import collected as argand_events  # noqa: E402


def text(value):
    return pprint.pformat(value, sort_dicts=False)  # sets in one order


def agree(fn, *args, calls=2, fullgraph=True):
    """Compiled and eager agree in values and in what they leave of their arguments, in each of several calls."""
    compiled = argand.compile(fn, backend="eager", fullgraph=fullgraph)
    eager_args, our_args = copy.deepcopy(args), copy.deepcopy(args)
    for _ in range(calls):
        assert text(compiled(*our_args)) == text(fn(*eager_args))
        assert text(our_args) == text(eager_args)


class Node:
    total = 0

    def __init__(self):
        self.count = 0
        self.items = []
        self.table = {"a": 1}

    @property
    def doubled(self):
        return self.count * 2

    @doubled.setter
    def doubled(self, value):
        self.count = value // 2

    @functools.cached_property
    def heavy(self):
        return self.count + 100

    def __repr__(self):
        return f"Node({sorted(vars(self).items(), key=lambda kv: kv[0])})"


def append(x, items):
    items.append(x + 1)
    items[0] = len(items)
    items += [items[-1] * 2]
    return sum(item for item in items if isinstance(item, torch.Tensor))


def dicts(x, d):
    d["new"] = x
    d.setdefault("list", []).append(2)
    d.pop("old", None)
    return {k: v for k, v in d.items() if k != "new"}, x + len(d)


def nested(x, d):
    d["inner"]["deep"].append(x * 2)
    d["inner"]["n"] += 1
    return x + d["inner"]["n"]


def aliased(x, d):
    first = d["a"]
    first.append(1)
    return d["b"], d["a"] is d["b"], x + len(d["b"])


def attributes(x, node):
    node.count += 1
    node.doubled = node.doubled + 4
    node.items.append(node.count)
    node.fresh = x
    del node.table
    return x * node.count + node.heavy, hasattr(node, "table")


def through_dict(x, node):
    node.__dict__["count"] = 7
    vars(node).update(extra=3)
    return x + node.count + node.extra


def sets(x, s):
    s.add(5)
    s.discard(1)
    return x + len(s), sorted(s)


def sorting(x, items):
    items.sort(key=lambda v: -v)
    items.reverse()
    return x, items[0]


def read_only(x, items, d):
    return (
        x + items[1] + d["k"],
        len(items),
        "z" in d,
        d.get("q", 5),
        items[-1],
        list(reversed(items)),
        items == [1, 2, 3],
    )


def broken(x, node):
    node.count += 1
    y = x + node.count
    torch._assert(True, "")
    node.items.append(y.sum().item())
    node.count += 1
    return y * node.count


@pytest.mark.parametrize(
    "fn, args, fullgraph",
    [
        (append, ([1],), True),
        (dicts, ({"old": 1},), True),
        (nested, ({"inner": {"deep": [], "n": 1}},), True),
        (aliased, (dict(zip("ab", [[0]] * 2)),), True),
        (attributes, (Node(),), True),
        (through_dict, (Node(),), True),
        (sets, ({1, 2},), True),
        (sorting, ([3, 1, 2],), True),
        (read_only, ([1, 2, 3], {"k": 4}), True),
        (broken, (Node(),), False),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)
def test_arguments_are_left_as_eager_leaves_them(fn, args, fullgraph):
    agree(fn, torch.ones(2), *args, calls=1 if fn is attributes else 2, fullgraph=fullgraph)


def test_nothing_is_changed_while_capturing():
    node = Node()

    def fails(x, node):
        node.count = 99
        node.items.append(1)
        print(node.items)
        return x

    with pytest.raises(argand.errors.Unsupported):
        argand.compile(fails, backend="eager", fullgraph=True)(torch.ones(1), node)
    assert node.count == 0 and node.items == []


SETTING = 3
HISTORY: list[int] = []


def uses_globals(x):
    global SETTING
    SETTING += 1
    HISTORY.append(SETTING)
    return x * SETTING


def test_globals_are_written_back_and_guarded():
    global SETTING
    compiled = argand.compile(uses_globals, backend="eager", fullgraph=True)
    x = torch.ones(1)
    SETTING = 3
    HISTORY.clear()
    assert [compiled(x).item() for _ in range(3)] == [4, 5, 6]
    assert (SETTING, HISTORY) == (6, [4, 5, 6])


def test_closures_are_written_back_and_guarded():
    count = 0

    def step(x):
        nonlocal count
        count += 1
        return x + count

    compiled = argand.compile(step, backend="eager", fullgraph=True)
    assert [compiled(torch.zeros(1)).item() for _ in range(3)] == [1, 2, 3] and count == 3


def test_class_attributes_are_guarded_and_written_back():
    class Counter:
        calls = 0

        def scale(self):
            return 2

    def f(x, c):
        Counter.calls += 1
        return x * c.scale()

    compiled = argand.compile(f, backend="eager", fullgraph=True)
    x = torch.ones(1)
    assert compiled(x, Counter()).item() == 2 and Counter.calls == 1
    Counter.scale = lambda self: 5
    assert compiled(x, Counter()).item() == 5 and Counter.calls == 2


def test_missing_attribute_that_appears_later():
    node = Node()

    def f(x, node):
        return x + (node.bonus if hasattr(node, "bonus") else 0)

    compiled = argand.compile(f, backend="eager", fullgraph=True)
    assert compiled(torch.zeros(1), node).item() == 0
    node.bonus = 7
    assert compiled(torch.zeros(1), node).item() == 7


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
        self.register_buffer("offset", torch.ones(2))
        self.optional = None

    def forward(self, x):
        y = self.fc(x) + self.offset
        return y if self.optional is None else self.optional(y)


def test_what_nn_modules_hold_is_read_as_getattr_does():
    net = Net().eval()
    compiled = argand.compile(net, backend="eager", fullgraph=True)
    x = torch.ones(1, 2)
    torch.testing.assert_close(compiled(x), net(x))
    net.offset = torch.full((2,), 5.0)
    torch.testing.assert_close(compiled(x), net(x))
    net.fc = torch.nn.Linear(2, 2)
    torch.testing.assert_close(compiled(x), net(x))
    net.optional = torch.nn.ReLU()
    torch.testing.assert_close(compiled(x), net(x))
    net.forward = lambda y: y * 2  # an instance attribute hides the method
    torch.testing.assert_close(compiled(x), net(x))


def test_a_module_attribute_that_is_missing():
    def f(net, x):
        try:
            return net.nothing
        except AttributeError as e:
            return x + 1, str(e)

    net = Net()
    assert argand.compile(f, backend="eager", fullgraph=True)(net, torch.zeros(1))[1] == f(net, torch.zeros(1))[1]


@dataclasses.dataclass
class Box:
    value: torch.Tensor
    tags: list = dataclasses.field(default_factory=list)


def test_local_objects_are_rebuilt():
    def f(x):
        box = Box(x + 1)
        box.tags.append(box.value * 2)
        shared = [box]
        return box, shared, shared[0] is box

    box, shared, same = argand.compile(f, backend="eager", fullgraph=True)(torch.ones(2))
    assert same and shared[0] is box and torch.equal(box.tags[0], torch.full((2,), 4.0))


def test_warnings_are_shown_at_each_call():
    def f(x):
        warnings.warn("careful", UserWarning, stacklevel=1)
        return x + 1

    compiled = argand.compile(f, backend="eager", fullgraph=True)
    for _ in range(2):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            compiled(torch.ones(1))
        assert [str(w.message) for w in seen] == ["careful"]


def test_a_sort_that_raises_leaves_the_list_partly_sorted() -> None:
    def program(x: torch.Tensor, items: list) -> torch.Tensor:
        try:
            items.sort()
        except TypeError:
            items.append("caught")
        return x + 1

    for items in ([0, 1, 0, "s"], [3, "s", 1, 2]):
        mine, theirs = list(items), list(items)
        program(torch.ones(2), theirs)
        argand.compile(program, backend="eager", fullgraph=True)(torch.ones(2), mine)
        assert mine == theirs


def _shared_code(x):
    print(end="")  # a graph break: the rest is a function that the globals hold
    return x * FACTOR  # noqa: F821


def test_functions_that_share_their_code_and_not_their_globals():
    """What is put into the globals of the first is not in those of the second."""
    functions = [
        types.FunctionType(
            _shared_code.__code__, {"__builtins__": builtins, "FACTOR": factor, "__name__": f"m{factor}"}
        )
        for factor in (2, 3)
    ]
    compiled = [argand.compile(function, backend="eager") for function in functions]
    for _ in range(2):
        for function, run in zip(functions, compiled):
            assert torch.equal(run(torch.ones(2)), function(torch.ones(2)))


def test_a_decimal_context_is_read_when_the_call_is_made():
    """The Python implementation calls itself `decimal`, as the one in C does, but keeps its state in Python objects."""
    _pydecimal = pytest.importorskip("_pydecimal")

    def program(x):
        with _pydecimal.localcontext(_pydecimal.Context()) as context:
            context.prec = 7
            with _pydecimal.localcontext() as inner:
                return inner.prec, x + 1

    assert argand.compile(program, backend="eager")(torch.ones(1))[0] == 7


def test_decimals_follow_the_precision_of_each_call():
    def program(x, a, b):
        return a / b, x + 1

    compiled = argand.compile(program, backend="eager")
    one, three = decimal.Decimal(1), decimal.Decimal(3)
    for precision in (28, 4, 9):
        with decimal.localcontext() as context:
            context.prec = precision
            assert compiled(torch.ones(1), one, three)[0] == one / three


def test_asking_a_set_guards_what_was_asked_alone():
    """Of a set of many names (`set(dir(cls))`) the order is not asked for, and a name more means nothing to the graph."""
    names, frozen = set(dir(torch.nn.ParameterDict)), frozenset(("a", 1))

    def f(x, name):
        return x + (name in names) + 2 * (name in frozen) + 4 * ("b" not in names)

    x = torch.arange(3.0)
    compiled = argand.compile(f, backend="eager", fullgraph=True)
    for name in ("keys", "a", 1, True, "keys"):
        assert torch.equal(compiled(x, name), f(x, name))
    with argand_events("frame_start") as captured:
        names.add("something else")
        assert torch.equal(compiled(x, "keys"), f(x, "keys"))
        assert not captured
    names.remove("keys")
    names.add("b")
    assert torch.equal(compiled(x, "keys"), f(x, "keys"))
    with pytest.raises(TypeError, match="unhashable"):
        argand.compile(f, backend="eager")(x, [1])


def test_a_set_that_the_graph_writes_to_is_asked_afterwards():
    def f(x, numbers):
        numbers.add(3)
        numbers.discard(1)
        return x + (3 in numbers) + 2 * (1 in numbers)

    agree(f, torch.arange(3.0), {1, 2})  # of strings, the order would be another in each process


def test_a_dict_with_parameters_and_names_as_keys():
    """The state of optimizers that count steps beside what they keep for each parameter."""
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]

    def program(state):
        def f(x):
            if "steps" not in state:
                state["steps"] = x * 0
            state["steps"] = state["steps"] + 1
            for parameter in parameters:
                mine = state.setdefault(parameter, {})
                mine["sum"] = mine.get("sum", 0) + x * state["steps"]
            return [state[parameter]["sum"] for parameter in parameters], [type(key).__name__ for key in state]

        return f

    eager_state, our_state = {}, {}
    eager, ours = program(eager_state), argand.compile(program(our_state), backend="eager", fullgraph=True)
    for _ in range(4):
        x = torch.randn(2)
        assert text(ours(x)) == text(eager(x))
    for state in (eager_state, our_state):
        del state[parameters[0]]
    assert text(ours(torch.ones(2))) == text(eager(torch.ones(2)))


def test_nobody_asks_whether_a_tuple_was_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network of many layers has hundreds: sizes, strides, paddings."""
    asked: list[type] = []
    real = pending_effects.is_as_made
    monkeypatch.setattr(
        pending_effects, "is_as_made", lambda state, entry: asked.append(type(entry.shadow)) or real(state, entry)
    )
    sizes, steps = (1, 2, 3), [4, 5]

    def f(x: torch.Tensor) -> torch.Tensor:
        steps.append(sum(sizes))
        return x + max(sizes) + max(steps)

    x = torch.ones(2)
    assert argand.compile(f, backend="eager", fullgraph=True)(x).tolist() == [10.0, 10.0]
    assert steps == [4, 5, 6] and list in asked and tuple not in asked
