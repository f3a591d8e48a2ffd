"""Tensor metadata through the exchange API, and the "tensor" check against what torch itself says."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sweeps
from argand._core import _C

torch = pytest.importorskip("torch")
_C.set_exchange_api(torch.Tensor.__dlpack_c_exchange_api__)


@pytest.fixture(autouse=True, scope="module", params=["by layout", "by attributes"])
def layout(request: Any) -> Any:
    """Guards compare fields where they were learnt to be, or else ask torch: both must agree with torch."""
    learnt = _C.learn_tensor_layout(request.param == "by layout")
    if request.param == "by layout" and learnt is None and not torch.__version__.startswith("2.13"):
        pytest.skip("the layout of this torch's tensors could not be learnt: guards ask torch, as the other half tests")
    assert (learnt is not None) is (request.param == "by layout")
    yield request.param
    _C.learn_tensor_layout(True)


class Sub(torch.Tensor):
    pass


class Wrapped(torch.Tensor):
    """Sees every torch function called on it."""

    calls: list[str] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


def guard(value: Any, *dynamic: Any) -> _C.GuardTree:
    tree = _C.GuardTree()
    tree.check(tree.child(0, "local", 0), "tensor", *_C.tensor_guard_args(value, *dynamic), label="t")
    return tree


def why(tree: _C.GuardTree, value: Any) -> Any:
    for _ in range(3):  # a check may learn from what it has seen
        result = tree.evaluate((value,))
        assert tree.matches((value,)) is (result is True)
    return result if result is True else result[2]


def inference(make: Any) -> Any:
    with torch.inference_mode():
        return make()


VARIANTS: dict[str, Any] = {
    "plain": lambda: torch.zeros(2, 3),
    "requires_grad": lambda: torch.zeros(2, 3, requires_grad=True),
    "non_leaf": lambda: torch.zeros(2, 3, requires_grad=True) * 1,
    "parameter": lambda: torch.nn.Parameter(torch.zeros(2, 3)),
    "frozen parameter": lambda: torch.nn.Parameter(torch.zeros(2, 3), requires_grad=False),
    "buffer": lambda: torch.nn.Buffer(torch.zeros(2, 3)),
    "subclass": lambda: torch.zeros(2, 3).as_subclass(Sub),
    "torch function": lambda: torch.zeros(2, 3).as_subclass(Wrapped),
    "inference": lambda: inference(lambda: torch.zeros(2, 3)),
    "transposed": lambda: torch.zeros(3, 2).t(),
    "offset": lambda: torch.zeros(10)[4:],
    "other shape": lambda: torch.zeros(3, 3),
    "1 dim": lambda: torch.zeros(6),
    "0 dims": lambda: torch.zeros(()),
    "7 dims": lambda: torch.zeros(1, 2, 1, 2, 1, 2, 1),
    "7 dims, other": lambda: torch.zeros(1, 2, 1, 2, 1, 1, 2),
    "5 dims": lambda: torch.zeros(1, 2, 1, 2, 1),
    "6 dims": lambda: torch.zeros(1, 2, 1, 2, 1, 3),
    "empty": lambda: torch.zeros(0, 3),
    "double": lambda: torch.zeros(2, 3, dtype=torch.float64),
    "half": lambda: torch.zeros(2, 3, dtype=torch.float16),
    "bfloat16": lambda: torch.zeros(2, 3, dtype=torch.bfloat16),
    "int": lambda: torch.zeros(2, 3, dtype=torch.int32),
    "uint32": lambda: torch.zeros(2, 3, dtype=torch.uint32),
    "bool": lambda: torch.zeros(2, 3, dtype=torch.bool),
    "uint8": lambda: torch.zeros(2, 3, dtype=torch.uint8),
    "int8": lambda: torch.zeros(2, 3, dtype=torch.int8),
    "fp8": lambda: torch.zeros(2, 3).to(torch.float8_e4m3fn),
    "other fp8": lambda: torch.zeros(2, 3).to(torch.float8_e4m3fnuz),
    "complex": lambda: torch.zeros(2, 3, dtype=torch.complex64),
    "conj": lambda: torch.zeros(2, 3, dtype=torch.complex64).conj(),
    "neg": lambda: torch.zeros(2, 3, dtype=torch.complex64).conj().imag,
    "imag": lambda: torch.zeros(2, 3, dtype=torch.complex64).imag,
    "zero tensor": lambda: torch._efficientzerotensor(2, 3),
    "sparse": lambda: torch.eye(2, 3).to_sparse(),
    "csr": lambda: torch.eye(2, 3).to_sparse_csr(),
    "meta": lambda: torch.zeros(2, 3, device="meta"),
    "meta grad": lambda: torch.zeros(2, 3, device="meta", requires_grad=True),
    "quantized": lambda: torch.quantize_per_tensor(torch.zeros(2, 3), 0.1, 0, torch.qint8),
    "quint8": lambda: torch.quantize_per_tensor(torch.zeros(2, 3), 0.1, 0, torch.quint8),
    "mkldnn": lambda: torch.zeros(2, 3).to_mkldnn(),
    "nested": lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
    "uint1": lambda: torch.empty(2, 3, dtype=torch.uint1),
    "int4": lambda: torch.empty(2, 3, dtype=torch.int4),
    "uint2": lambda: torch.empty(2, 3, dtype=torch.uint2),
}


def test_the_layout_is_learnt(layout: str) -> None:
    found = _C.tensor_layout()
    if layout == "by attributes":
        assert found is None
        return
    assert set(found) == {
        "impl",
        "rank",
        "sizes",
        "strides",
        "keys",
        "dtype",
        "device",
        "autograd",
        "requires_grad",
        "grad_fn",
    }
    assert found["strides"] == found["sizes"] + 40


def test_guards_made_before_the_layout_is_forgotten_still_hold(layout: str) -> None:
    x = torch.zeros(2, 3)
    before = guard(x)
    _C.learn_tensor_layout(False)
    forgotten = guard(x)
    _C.learn_tensor_layout(True)
    for tree in (before, forgotten, guard(x)):
        assert why(tree, x) is True and why(tree, x.half()) is not True
    _C.learn_tensor_layout(layout == "by layout")


@pytest.mark.filterwarnings("ignore")
def test_each_variant_passes_its_own_guard_and_no_other() -> None:
    made = {name: make() for name, make in VARIANTS.items()}
    again = {name: make() for name, make in VARIANTS.items()}
    trees = {name: guard(value) for name, value in made.items()}
    assert {name for name in made if why(trees[name], made[name]) is not True} == set()
    assert {name for name in made if why(trees[name], again[name]) is not True} == set()
    same = {frozenset(p) for p in [("requires_grad", "non_leaf"), ("plain", "buffer"), ("1 dim", "offset")]}
    wrong = []
    for a, b in itertools.permutations(made, 2):
        text = why(trees[a], again[b])
        if frozenset((a, b)) in same:
            assert text is True, (a, b)
        elif text is True:
            wrong.append((a, b))
        else:
            assert isinstance(text, str) and text and "tensor properties differ" not in text, (a, b, text)
    assert wrong == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("have", "other", "text"),
    [
        ("plain", "other shape", "expected size 2 at dim 0, found 3"),
        ("plain", "transposed", "expected stride 3 at dim 0, found 1"),
        ("plain", "1 dim", "expected 2 dims, found 1"),
        ("plain", "double", "expected dtype torch.float32, found torch.float64"),
        ("plain", "meta", "expected device cpu, found meta"),
        ("plain", "requires_grad", "expected requires_grad=False, found True"),
        ("parameter", "frozen parameter", "expected requires_grad=True, found False"),
        ("plain", "parameter", "expected type Tensor, found Parameter"),
        ("plain", "inference", "expected a tensor that is no inference tensor"),
        ("inference", "plain", "expected an inference tensor"),
        ("complex", "conj", "expected a plain tensor, found a conjugated view"),
        ("imag", "neg", "expected a plain tensor, found a negated view"),
        ("plain", "zero tensor", "expected a plain tensor, found a zero tensor"),
    ],
)
def test_explanations(have: str, other: str, text: str) -> None:
    assert why(guard(VARIANTS[have]()), VARIANTS[other]()) == text


def test_other_values_fail() -> None:
    tree = guard(torch.zeros(2))
    for value in (None, 3, [1.0], torch.Size([2]), torch.float32):
        assert "expected type Tensor" in why(tree, value)


def test_dynamic_dims() -> None:
    tree = guard(torch.zeros(2, 3), (0,))
    assert why(tree, torch.zeros(9, 3)) is True
    assert why(tree, torch.zeros(2, 4)) == "expected size 3 at dim 1, found 4"
    assert why(tree, torch.zeros(9, 6)[:, ::2]) == "expected stride 3 at dim 0, found 6"
    tree = guard(torch.zeros(2, 3), (0, 1), (0,))
    assert why(tree, torch.zeros(5, 7)) is True
    assert why(tree, torch.zeros(7, 5).t()) == "expected stride 1 at dim 1, found 5"
    tree = guard(torch.zeros(2, 3), None, None)
    assert why(tree, torch.zeros(5)) is True and why(tree, torch.zeros(5, dtype=torch.int32)) is not True
    assert guard(torch.zeros(2, 3), (-1,)).matches((torch.zeros(2, 3),))
    with pytest.raises((IndexError, TypeError)):
        guard(torch.zeros(2, 3), (5,))


def test_in_place_changes_are_seen() -> None:
    x = torch.zeros(2, 3)
    tree = guard(x)
    assert why(tree, x) is True
    x.requires_grad_()
    assert why(tree, x) == "expected requires_grad=False, found True"
    x.requires_grad_(False)
    assert why(tree, x) is True
    x.resize_(3, 3)
    assert why(tree, x) == "expected size 2 at dim 0, found 3"
    x.resize_(2, 3)
    assert why(tree, x) is True
    x.t_()
    assert "expected size 2 at dim 0, found 3" == why(tree, x)
    x.t_()
    x.data = torch.zeros(2, 3, dtype=torch.float64)
    assert why(tree, x) == "expected dtype torch.float32, found torch.float64"
    x.data = torch.zeros(2, 3)
    assert why(tree, x) is True
    x.data = torch.zeros(2, 3, dtype=torch.complex64).conj().imag
    assert why(tree, x) is not True
    x.data = torch.zeros(2, 3)
    assert why(tree, x) is True
    x.resize_(1, 1, 1, 1, 1, 1, 6)
    assert why(tree, x) == "expected 2 dims, found 7"
    x.resize_(2, 3)
    assert why(tree, x) is True


def test_parameters_changed_in_place() -> None:
    module = torch.nn.Linear(3, 2)
    weight = module.weight
    tree = guard(weight)
    assert why(tree, weight) is True
    module.requires_grad_(False)
    assert module.weight is weight and why(tree, weight) == "expected requires_grad=True, found False"
    module.requires_grad_(True)
    assert why(tree, weight) is True
    module.half()
    assert module.weight is weight and why(tree, weight) == "expected dtype torch.float32, found torch.float16"
    module.float()
    assert why(tree, weight) is True
    module(torch.ones(1, 3)).sum().backward()
    assert weight.grad is not None and why(tree, weight) is True


def test_non_leaf_becoming_and_detaching() -> None:
    x = torch.zeros(2, requires_grad=True)
    y = x * 2
    tree = guard(torch.zeros(2))
    assert why(tree, y) == "expected requires_grad=False, found True"
    assert why(tree, y.detach()) is True
    y.detach_()
    assert why(tree, y) is True
    z = torch.zeros(2)
    z.add_(x)
    assert z.requires_grad and why(tree, z) == "expected requires_grad=False, found True"
    grad_tree = guard(x)
    assert why(grad_tree, z) is True and why(grad_tree, x) is True and why(grad_tree, y) is not True
    hooked = torch.zeros(2, requires_grad=True)
    hooked.register_hook(lambda g: g)
    assert why(grad_tree, hooked) is True
    hooked.requires_grad_(False)
    assert why(grad_tree, hooked) is not True and why(tree, hooked) is True


def test_views_require_grad_when_their_base_comes_to() -> None:
    base = torch.zeros(4)
    view = base[:2]
    tree, grad_tree = guard(torch.zeros(2)), guard(torch.zeros(2, requires_grad=True))
    assert why(tree, view) is True and why(grad_tree, view) is not True
    base.mul_(torch.ones(4, requires_grad=True))
    assert view.requires_grad
    assert why(tree, view) == "expected requires_grad=False, found True" and why(grad_tree, view) is True
    with torch.no_grad():
        other = torch.zeros(4, requires_grad=True)[:2]
    assert (why(tree, other) is True) is (not other.requires_grad)
    assert (why(grad_tree, other) is True) is other.requires_grad


def test_functorch_wrappers_fail_plain_guards() -> None:
    tree = guard(torch.zeros(3))
    seen: list[Any] = []

    def f(x: Any) -> Any:
        seen.append((x.shape, tree.matches((x,))))
        return x.sum()

    torch.func.vmap(f)(torch.zeros(2, 3))
    torch.func.grad(f)(torch.zeros(3))
    torch.func.functionalize(f)(torch.zeros(3))
    assert [shape for shape, _ in seen] == [torch.Size([3])] * 3
    assert [ok for _, ok in seen] == [False] * 3


def test_fake_tensors_fail_plain_guards() -> None:
    from torch._subclasses import FakeTensorMode

    tree = guard(torch.zeros(3))
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.zeros(3))
    assert "expected type Tensor, found FakeTensor" in why(tree, fake)


def test_tensor_guard_args_shape() -> None:
    x = torch.zeros(2, 3)
    assert _C.tensor_guard_args(x) == (torch.Tensor, torch.float32, torch.device("cpu"), False, None, (2, 3), (3, 1), 0)
    assert _C.tensor_guard_args(x, (1,), None)[5:7] == ((2, None), None)
    assert _C.tensor_guard_args(VARIANTS["inference"]())[7] == _C.TENSOR_INFERENCE
    sparse = _C.tensor_guard_args(VARIANTS["sparse"]())
    assert isinstance(sparse[4], int) and sparse[5] == (2, 3)
    nested = _C.tensor_guard_args(VARIANTS["nested"]())
    assert isinstance(nested[4], int) and nested[5] is None and nested[6] is None
    with pytest.raises(TypeError, match="expected a tensor, not int"):
        _C.tensor_guard_args(3)


def test_any_inference_flag() -> None:
    args = _C.tensor_guard_args(torch.zeros(2, 3))
    tree = _C.GuardTree()
    tree.check(tree.child(0, "local", 0), "tensor", *args[:7], _C.TENSOR_ANY_INFERENCE, label="t")
    assert why(tree, VARIANTS["plain"]()) is True and why(tree, VARIANTS["inference"]()) is True


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({0: int}, TypeError),
        ({1: "float32"}, ValueError),
        ({2: "cpu"}, (TypeError, AttributeError)),
        ({4: "x"}, TypeError),
        ({5: [2, 3]}, TypeError),
        ({5: (2, "x")}, TypeError),
        ({7: "x"}, TypeError),
    ],
)
def test_bad_guard_args(change: dict[int, Any], error: Any) -> None:
    args = list(_C.tensor_guard_args(torch.zeros(2, 3)))
    for i, value in change.items():
        args[i] = value
    tree = _C.GuardTree()
    with pytest.raises(error):
        tree.check(tree.child(0, "local", 0), "tensor", *args, label="t")


def test_torch_function_subclass_sees_no_metadata_reads_when_class_differs() -> None:
    Wrapped.calls.clear()
    value = torch.zeros(2, 3).as_subclass(Wrapped)
    assert not guard(torch.zeros(2, 3)).matches((value,))
    assert Wrapped.calls == []


def test_tensor_info() -> None:
    x = torch.zeros(2, 3)
    assert _C.tensor_info(x) == (2, 32, 1, 1, 0, (2, 3), (3, 1), x.data_ptr())
    y = torch.zeros(10, dtype=torch.int64)[3:]
    assert _C.tensor_info(y) == (0, 64, 1, 1, 0, (7,), (1,), y.data_ptr())
    assert _C.tensor_data_ptr(y) == y.data_ptr() and _C.tensor_info(torch.tensor(True))[:3] == (6, 8, 1)
    for fn in (_C.tensor_info, _C.tensor_data_ptr):
        with pytest.raises(TypeError, match="expected a tensor, not int"):
            fn(3)


def test_repeated_tensor_checks_are_one() -> None:
    tree = _C.GuardTree()
    node = tree.child(0, "local", 0)
    first = tree.check(node, "tensor", *_C.tensor_guard_args(torch.zeros(2, 3)), label="t")
    assert tree.check(node, "tensor", *_C.tensor_guard_args(torch.ones(2, 3)), label="t") == first
    assert tree.check(node, "tensor", *_C.tensor_guard_args(torch.ones(2, 4)), label="t") != first


dtypes = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
]


@st.composite
def tensors(draw: Any) -> Any:
    shape = draw(st.lists(st.integers(0, 3), max_size=7))
    x = torch.empty(shape, dtype=draw(st.sampled_from(dtypes)))
    if len(shape) > 1 and draw(st.booleans()):
        x = x.permute(draw(st.permutations(range(len(shape)))))
    if shape and draw(st.booleans()):
        dim = draw(st.integers(0, len(shape) - 1))
        x = x.narrow(dim, 0, x.shape[dim] // 2)
    if shape and draw(st.booleans()):
        x = x.expand(draw(st.integers(1, 2)), *x.shape)
    if x.is_complex() and draw(st.booleans()):
        x = x.conj()
        if draw(st.booleans()):
            x = x.imag
    if (x.is_floating_point() or x.is_complex()) and draw(st.booleans()):
        x = x.detach().requires_grad_()
    return x


def facts(x: Any) -> Any:
    return (type(x), x.dtype, x.device, x.requires_grad, x.shape, x.stride(), x.is_conj(), x.is_neg(), x.is_inference())


@settings(max_examples=sweeps.part(300, 4), deadline=None)
@given(tensors(), st.lists(tensors(), min_size=1, max_size=6))
def test_the_guard_holds_exactly_for_tensors_with_the_same_facts(x: Any, others: list[Any]) -> None:
    tree = guard(x)
    for _ in range(2):
        for y in [x, *others]:
            assert tree.matches((y,)) is (facts(x) == facts(y))
