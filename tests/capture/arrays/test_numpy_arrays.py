"""numpy arrays in captured code: traced through torch, values, dtypes, types and aliasing as numpy's."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.capture.arrays.numpy_programs import PROGRAMS
from tests.helpers import CountingBackend

import argand

_X = np.arange(6.0, dtype=np.float32).reshape(2, 3) + 1


def _same(want: Any, got: Any) -> None:
    assert type(want) is type(got), f"{type(got)} is not {type(want)}"
    if isinstance(want, np.ndarray | np.generic):
        assert want.dtype == got.dtype and want.shape == got.shape, (got.dtype, got.shape)
        if want.dtype.kind in "fc":
            np.testing.assert_allclose(got, want, rtol=1e-2 if want.dtype.itemsize == 2 else 1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(got, want)
    elif isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want)
    elif isinstance(want, list | tuple):
        assert len(want) == len(got)
        for a, b in zip(want, got):
            _same(a, b)
    elif isinstance(want, dict):
        assert list(want) == list(got)
        _same(list(want.values()), list(got.values()))
    else:
        assert want == got


def _outcome(fn: Callable[..., Any], args: Any) -> Any:
    try:
        return fn(*args)
    except Exception as e:
        return type(e)


def _check(fn: Callable[..., Any], *args: Any, graphs: int | None = None, calls: int = 2) -> None:
    """Equal results and arguments, several times; with `graphs`, so many graphs and none of them at a break."""
    backend = CountingBackend()
    compiled = argand.compile(fn, backend=backend, fullgraph=graphs is not None)
    for _ in range(calls):
        theirs, ours = copy.deepcopy(args), copy.deepcopy(args)
        _same(_outcome(fn, theirs), _outcome(compiled, ours))
        _same(theirs, ours)
    if graphs is not None:
        assert len(backend.graphs) == graphs


@pytest.mark.parametrize("name", PROGRAMS)
def test_numpy_program_is_one_graph(name: str) -> None:
    fn, args = PROGRAMS[name]
    _check(fn, *args, graphs=1)


def test_a_view_of_an_argument_shares_its_memory() -> None:
    x = _X.copy()
    row, same, transposed = argand.compile(lambda a: (a[1], a, a.T), backend="eager")(x)
    assert same is x and np.shares_memory(row, x) and np.shares_memory(transposed, x)
    row[:] = 0
    assert not x[1].any()


def test_a_copy_does_not_share_memory() -> None:
    x = _X.copy()
    results = argand.compile(
        lambda a: (a.astype(np.float32), a.copy(), a.flatten(), +a, np.array(a), np.clip(a, 0, 9)), backend="eager"
    )(x)
    assert not any(np.shares_memory(result, x) for result in results)


def test_broadcast_result_is_read_only() -> None:
    got = argand.compile(lambda a: np.broadcast_to(a, (4, 2, 3)), backend="eager")(_X.copy())
    assert not got.flags.writeable


def test_layout_changes_recompile() -> None:
    compiled = argand.compile(lambda a: a.reshape(-1) * 2, backend="eager")
    for x in (_X, _X.T, _X.astype(np.int32), _X[:, ::2], np.zeros((0, 3)), _X[::-1], _X.astype(">f4"), _X):
        _same(x.reshape(-1) * 2, compiled(x))


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.array(["a", "b"]), lambda: np.array([1, None], dtype=object), lambda: np.ma.array([1, 2]),
        lambda: np.matrix([[1, 2]]), lambda: np.array(["2020-01-01"], dtype="datetime64[D]"),
        lambda: np.array([1, 2], dtype=np.uint32), lambda: np.broadcast_to(np.arange(3), (2, 3)),
        lambda: np.zeros(2, dtype=[("a", int)]),
    ],
    ids=["str", "object", "masked", "matrix", "datetime", "uint32", "read-only", "structured"],
)  # fmt: skip
def test_arrays_that_torch_cannot_hold_run_in_numpy(make: Callable[[], Any]) -> None:
    _check(lambda x: (type(x), x.shape, x.dtype, len(x), bool((x == x).all())), make())


def test_data_dependent_numpy_breaks_and_is_right() -> None:
    def program(x: Any) -> Any:
        y = x * 2
        if y.sum() > 3:
            y = y[y > 4]
        text = f"{y.mean():.2f} {float(y[0])} {int(y.max())}"
        return y, text, math.sqrt(y[0]), np.unique(y), np.nonzero(y), y.tolist(), y.item(0)

    _check(program, _X)


def test_scalars_are_numpy_scalars() -> None:
    def program(x: Any) -> Any:
        s = x.sum()
        return s, type(s), isinstance(s, np.floating), isinstance(s, float), isinstance(s, np.ndarray), s.dtype, s.ndim

    _check(program, _X)
    _check(program, _X.astype(np.float64))
    _check(program, np.array(3.0))


def test_questions_about_arrays() -> None:
    def program(x: Any) -> Any:
        found = getattr(x, "nothing", 3), hasattr(x, "sum"), x.__class__, np.shape(x), np.ndim(x), callable(x)
        return (x + 1, *found, x is x, type(x) is np.ndarray, x.nbytes)

    _check(program, _X)


def test_arrays_in_objects_and_containers() -> None:
    @dataclasses.dataclass
    class Box:
        a: Any
        scale: Any = 2

    box, log = Box(_X.copy()), [np.ones(3)]

    def program(x: Any) -> Any:
        box.a = box.a + x
        box.scale = box.a.max()
        log.append(x[0])
        log[0] += 1
        return {"sum": box.a.sum(), "log": log[0] * 2}

    want = program(_X), box.a, box.scale, log
    box, log = Box(_X.copy()), [np.ones(3)]
    got = argand.compile(program, backend="eager")(_X), box.a, box.scale, log
    _same(want, got)


def test_same_array_given_twice_and_overlapping_arrays() -> None:
    def program(x: Any, y: Any) -> Any:
        x += 1
        return y * 2, x is y

    compiled = argand.compile(program, backend="eager")
    for pair in (lambda: (_X.copy(), _X.copy()), lambda: (z := _X.copy(), z), lambda: ((z := _X.copy()), z[:1])):
        _same(program(*pair()), compiled(*pair()))


def test_globals_closures_and_module_attributes() -> None:
    table = np.array([1.0, 2.0, 3.0])

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = np.array([1.0, 2.0, 3.0], dtype=np.float32)

        def forward(self, t: torch.Tensor) -> torch.Tensor:
            return t - torch.from_numpy(self.mean) + torch.as_tensor(table).sum() + torch.tensor(table)[0]

    module = Scaled()
    compiled = argand.compile(module, backend="eager", fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(2, 3)), module(torch.ones(2, 3)))
        module.mean[0] += 1
        table[1] = 9


def test_tensor_from_numpy_shares_memory_and_tensor_copies() -> None:
    def program(x: Any) -> Any:
        shared, copied = torch.from_numpy(x), torch.tensor(x)
        shared.add_(1)
        copied.mul_(0)
        return x.sum(), shared, copied, shared is torch.from_numpy(x)

    _check(program, _X)


def test_numpy_of_a_tensor_shares_its_memory() -> None:
    def program(t: torch.Tensor) -> Any:
        a = t.numpy()
        a[0] = 9
        return a, t + 1

    _check(program, torch.zeros(3))
    t = torch.zeros(3)
    array, _ = argand.compile(program, backend="eager")(t)
    t[1] = 4
    assert array[1] == 4


def test_numpy_of_a_tensor_that_needs_a_gradient_raises() -> None:
    _check(lambda t: (t * 2).numpy(), torch.ones(2, requires_grad=True))
    _check(lambda t: t.detach().numpy() * 2, torch.ones(2, requires_grad=True))


def test_numpy_errors_are_numpys() -> None:
    _check(lambda x: x + np.ones(7), _X)
    _check(lambda x: x[9], _X)
    _check(lambda x: x.reshape(4, 4), _X)
    _check(lambda x: np.linalg.inv(x), np.zeros((2, 2)))
    _check(lambda x: x // 0, np.arange(3))
    _check(lambda x: np.arange(3) ** x, np.array([-1, 2, 3]))

    def wrong_cast(x: Any) -> Any:
        x += 0.5
        return x

    _check(wrong_cast, np.arange(3))
    _check(lambda x: x + 300, np.arange(3, dtype=np.uint8))


def test_views_with_negative_strides_stay_views() -> None:
    def program(x: Any) -> Any:
        y = x[::-1]
        x += 1
        return y, np.flip(x)

    _check(program, _X)


def test_array_meets_constant_arrays() -> None:
    def program(x: Any) -> Any:
        made = np.zeros(3)
        made += x[0]
        made[1] = x[0, 2]
        other = np.ones((2, 3)) - x
        return made, other, np.stack([made, x[1]]), np.array([0, 1])[1] + x

    _check(program, _X)


def test_array_meets_tensor() -> None:
    _check(lambda x, t: t * x.sum(), _X, torch.ones(2))
    _check(lambda x, t: t + torch.from_numpy(x), _X, torch.ones(2, 3))
    _check(lambda x, t: t[x], np.array([1, 0]), torch.ones(2))
    _check(lambda x, t: x @ t.numpy(), _X, torch.ones(3))


def test_symbolic_numbers_and_arrays() -> None:
    compiled = argand.compile(lambda x, n: x[:, :n] * n + np.full_like(x, n)[:, :1], backend="eager")
    for n in (1, 2, 3, 2):
        _same(_X[:, :n] * n + np.full_like(_X, n)[:, :1], compiled(_X, n))


def test_argsort_and_random_run_in_numpy() -> None:
    def program(x: Any) -> Any:
        np.random.seed(3)
        return np.argsort(x, axis=1), x + np.random.rand(2, 3)

    _check(program, _X[:, ::-1].copy())


def test_written_array_that_overlaps_another_argument() -> None:
    def program(x: Any, other: Any) -> Any:
        x += 1
        return other * 2

    def pairs() -> list[Any]:
        z = [_X.copy() for _ in range(4)]
        return [(z[0], z[0][:1]), (z[1], torch.from_numpy(z[1])), (z[2], _X.copy()), (z[3], torch.from_numpy(z[3][1]))]

    compiled = argand.compile(program, backend="eager")
    for theirs, ours in zip(pairs(), pairs()):
        _same(program(*theirs), compiled(*ours))

    def own_memory(x: Any, other: Any) -> Any:
        result = x * 0
        result += 1
        return result * 2, other + 1

    compiled = argand.compile(own_memory, backend="eager", fullgraph=True)
    for theirs, ours in zip(pairs(), pairs()):
        _same(own_memory(*theirs), compiled(*ours))


_LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda a: np.asfortranarray(a),
    "with gaps": lambda a: np.repeat(a, 2, 0)[::2] if a.ndim else a,
    "one row": lambda a: a[:1],
    "one column": lambda a: a[..., :1],
    "no row": lambda a: a[:0],
    "one more dimension": lambda a: a.reshape(a.shape + (1,)),
}


@pytest.mark.parametrize("layout", _LAYOUTS)
@pytest.mark.filterwarnings("ignore")
def test_new_arrays_lie_in_memory_as_numpys_do(layout: str) -> None:
    """A copy of a transposed array is not transposed in memory; torch's is."""

    def strides(found: Any) -> Any:
        parts = found if isinstance(found, list | tuple) else [found]
        return [part.strides for part in parts if isinstance(part, np.ndarray)]

    programs: dict[str, Any] = {
        "copy": lambda a: (a.copy(), np.copy(a), a.flatten(), np.array(a), a.ravel()),
        "made from": lambda a: (a + 1, a.astype(np.float32), np.zeros_like(a), np.concatenate([a, a]), a.sum(0)),
        "views": lambda a: (a.T, a[:1], a.T.copy(), a.T.reshape(-1), np.expand_dims(a, 0)),
    }
    for program in programs.values():
        argand.reset()
        compiled = argand.compile(program, backend="eager")
        for dtype in (np.float64, np.int32):
            want, got = (fn(_LAYOUTS[layout](_X.astype(dtype))) for fn in (program, compiled))
            assert strides(got) == strides(want)
            _same(want, got)


_SPECIALS = (
    "hash add radd iadd eq lt neg abs bool int float index len iter getitem setitem contains repr str format copy deepcopy "
    "array matmul divmod pow reduce reduce_ex"
).split()


@pytest.mark.parametrize("name", _SPECIALS)
@pytest.mark.filterwarnings("ignore")
def test_special_methods_read_as_attributes_are_numpys(name: str) -> None:
    """The program may keep them over a break of the graph, or look at them."""

    def outcome(fn: Callable[..., Any], array: Any) -> Any:
        try:
            return repr(fn(torch.ones(2), array.copy()))
        except Exception as error:
            return type(error), str(error)

    def called(x: torch.Tensor, a: Any) -> Any:
        method = getattr(a, f"__{name}__")
        return x, method() if name in ("hash", "neg", "abs", "bool", "len", "repr", "copy") else method(a)

    def kept(x: torch.Tensor, a: Any) -> Any:
        method = getattr(a, f"__{name}__")
        argand.graph_break()
        return x, type(method).__name__, callable(method)

    for fn in (called, kept, lambda x, a: (x, getattr(a, f"__{name}__") is None)):
        for array in (_X, np.arange(3), np.ones(1)):
            argand.reset()
            assert outcome(argand.compile(fn, backend="eager"), array) == outcome(fn, array)


def test_a_function_that_wraps_numpys_is_the_programs() -> None:
    """functools.wraps gives it the module and the name of numpy's: its own code runs each time all the same."""
    calls: list[int] = []

    @functools.wraps(np.mean)
    def mean(*args: Any) -> Any:
        calls.append(len(args))
        return np.mean(*args)

    @functools.wraps(np.shape)
    def shape(tensor: torch.Tensor) -> tuple[int, ...]:
        return tuple(tensor.shape)

    def program(x: torch.Tensor) -> Any:
        return x * float(mean([1.0, 3.0])), shape(x)

    compiled = argand.compile(program, backend="eager", fullgraph=True)
    for count in range(1, 4):
        scaled, size = compiled(torch.ones(3))
        assert torch.equal(scaled, torch.full((3,), 2.0)) and size == (3,)
        assert len(calls) == count


def test_a_write_to_a_view_beside_a_number_that_varies() -> None:
    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        y = x * n
        y.numpy()[...] = 2.0
        return y + n

    compiled = argand.compile(f, backend="eager", fullgraph=True)
    for n in (3, 4, 5):
        assert torch.equal(compiled(torch.ones(2), n), f(torch.ones(2), n))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_number_written_to_an_array_of_one_element(backend: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.numpy()[...] = 2
        return x + 1

    for shape in ((1, 1), (1,), (2, 1)):
        x = torch.zeros(shape)
        assert torch.equal(argand.compile(f, backend=backend)(x), torch.full(shape, 3.0))
        assert torch.equal(x, torch.full(shape, 2.0))


_POSITIONS = {
    "int64": np.array([2, 0, 1]),
    "int32": np.array([2, 0, 1], dtype=np.int32),
    "int8 of two dimensions": np.array([[2, 0], [1, 1]], dtype=np.int8),
    "bool": np.array([True, False, True, False]),
    "backwards": np.arange(3)[::-1],
    "float32": np.array([2, 0, 1], dtype=np.float32),
    "no dimensions": np.array(2),
}


@pytest.mark.parametrize("kind", _POSITIONS)
def test_positions_in_arrays(kind: str) -> None:
    """nflows fills the triangles of a matrix at positions that numpy made."""

    def read(x: torch.Tensor, at: np.ndarray) -> list[torch.Tensor]:
        return [x[at], x[at, :2], x[..., at]]

    def written(x: torch.Tensor, at: np.ndarray) -> torch.Tensor:
        y = x.clone()
        y[at] = 1.0
        y[at, at] += 2
        return y

    for fn in (read, written):
        argand.reset()
        compiled = argand.compile(
            fn, backend="aot_eager", fullgraph="int" in kind or (fn is written and kind == "bool")
        )
        at = _POSITIONS[kind].copy() if kind != "backwards" else np.arange(3)[::-1]
        for _ in range(2):
            results = []
            for run in (fn, compiled):
                try:
                    results.append(run(torch.arange(16.0).view(4, 4), at))
                except ValueError as error:
                    results.append(str(error))
            if isinstance(results[0], str):
                assert results[1] == results[0]
            else:
                torch.testing.assert_close(results[1], results[0])
            at = np.roll(at, 1) if kind != "backwards" else at


def test_what_numpy_itself_computes_is_a_lone_operation_and_its_settings_one_guard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where torch's equivalent gives another dtype, nothing of it stays in the graph; settings are asked at most once a call."""

    def features(x: torch.Tensor) -> torch.Tensor:
        array = x.numpy()
        quantiles = np.quantile(np.abs(array), [0.1, 0.5], axis=-1)
        return torch.from_numpy(np.interp(quantiles, [0.0, 2.0], [1.0, 3.0]))

    backend, x = CountingBackend(), torch.randn(3, 5)
    compiled = argand.compile(features, backend=backend, fullgraph=True)
    assert torch.equal(compiled(x), features(x))
    (graph,) = backend.graphs
    names = [node.name for node in graph.graph.nodes if node.op == "call_function" and "getitem" not in node.name]
    assert [name.removesuffix("_1") for name in names] == ["absolute", "numpy_call_default", "numpy_call_default"]
    asked = []
    geterr = np.geterr
    monkeypatch.setattr(np, "geterr", lambda: asked.append(1) or geterr())
    compiled(x)
    assert len(asked) <= 1  # numpy 2 is not asked: its settings are read where they lie


KEPT = np.array([2, 0])


def indexed(x: torch.Tensor) -> Any:
    """By arrays that are known, from outside, and computed of the tensor; tensors of such."""
    x, places = x.clone(), np.argsort(np.arange(3)[::-1])
    x[places[:1].copy()] = 2.0
    x[np.arange(3) > 1] += 1
    x[0, np.array([1, 2], dtype=np.int32)] = x[1, :2].clone()
    pairs = x[np.array([[0, 1], [1, 0]]), None, np.array([2, 0])]
    return (
        x.new_tensor(KEPT),
        x.new_tensor(places),
        x[places],
        x[:, KEPT],
        pairs,
        x[np.argsort(x[:, 0].numpy())],
        x[np.array([], dtype=np.int64)],
        x[[places, places]],
        x[places.astype(np.uint16)] + x[places.astype(np.float32) + 0.5] + x[np.array(2)],
        x[np.s_[:2, places]],
        x[np.index_exp[: x.shape[0] - 1]],
    )


def test_arrays_are_indices_of_tensors() -> None:
    compiled = argand.compile(indexed, backend="eager", fullgraph=True)
    for number in range(3):
        KEPT[0] = number
        x = torch.randn(3, 4)
        _same(indexed(x), compiled(x))
    for index in (
        np.array([9]),
        np.uint8([1, 0, 1]),
        np.uint64([1]),
        np.array(1.0),
        np.array(True),
        np.array([0.5]),
        np.array([1, 0])[::-1],
        np.array([True, False]),
        np.array(2),
    ):
        want, got = (
            _outcome(call, (torch.ones(3, 4),))
            for call in (lambda x: x[index], argand.compile(lambda x: x[index], backend="eager"))
        )
        _same(want, got)


def constructed(x: torch.Tensor) -> Any:
    """Of arrays that captured code made, among lists and tuples."""
    a, b = np.array([1, 0]), np.array([2.5, -1.0])
    lists = torch.tensor([a, a]), torch.as_tensor([(a, b), (b, a)]), torch.asarray((b, b), dtype=torch.float32)
    legacy = torch.Tensor(b), torch.LongTensor(b), torch.FloatTensor(a)
    results = (
        *lists,
        *legacy,
        x.new_tensor([a, b]),
        x.new_tensor([np.float32(2), 1]),
        torch.tensor([[a.sum()], [b.max()]]),
    )
    a[0] = 7
    lists[0][0, 0] += 1
    return results


def test_tensors_of_lists_of_arrays() -> None:
    compiled = argand.compile(constructed, backend="eager", fullgraph=True)
    for _ in range(2):
        _same(constructed(torch.ones(2)), compiled(torch.ones(2)))
