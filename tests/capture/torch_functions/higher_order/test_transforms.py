"""Functions of functions and the breadth of torch: snippets in one graph, equal to eager with their gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import argand
from helpers import CountingBackend, assert_same, collected
from torch_snippets import SNIPPETS, Scale

# Captured with breaks, as torch.compile does it too.
_BREAK = {
    "autograd_grad", "autograd_grad_detached", "context_fork_rng", "context_saved_tensors_hooks", "rng_manual_seed",
    "rng_generator", "subclass_made",
}  # fmt: skip


def _inputs(grad: bool) -> Any:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(3, 4, generator=generator).requires_grad_(grad) for _ in range(2)]


def outcome(fn: Any, grad: bool) -> Any:
    """Results, gradients and the next random number."""
    torch.manual_seed(0)
    x, y = _inputs(grad)
    result = fn(x, y)
    leaves = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
    wanted = [t for t in leaves if t.requires_grad and not t.is_inference()]
    if wanted:
        sum((t.abs() * (i + 1)).sum() for i, t in enumerate(wanted)).backward()
    return result, x.grad, y.grad, torch.rand(1)


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "plain"])
@pytest.mark.parametrize("name", SNIPPETS)
def test_snippet(name: str, grad: bool) -> None:
    fn = SNIPPETS[name]
    try:
        want = outcome(fn, grad)
    except RuntimeError as error:  # a program that needs gradients
        with pytest.raises(type(error)):
            outcome(argand.compile(fn, backend="eager"), grad)
        return
    backend = CountingBackend()
    with collected("graph_breaks") as breaks:
        got = outcome(argand.compile(fn, backend=backend), grad)
    assert_same(want, got, exact=True)
    if name not in _BREAK:
        assert [event.data["reason"].kind for event in breaks] == []
        assert len(backend.graphs) == 1
    argand.reset()


def test_saved_tensor_changed_in_place_raises_in_backward() -> None:
    def f(x):
        y = x * 2
        z = Scale.apply(y, 2.0)
        y.add_(1)
        return z

    for fn in (f, argand.compile(f, backend="eager", fullgraph=True)):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            fn(torch.ones(3, requires_grad=True)).sum().backward()


class CallsOut(torch.autograd.Function):
    seen: list[str] = []

    @staticmethod
    def forward(ctx, x):
        CallsOut.seen.append("forward")
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        CallsOut.seen.append("backward")
        return grad * 2


def test_side_effects_of_an_autograd_function_happen_as_in_eager() -> None:
    def f(x):
        return CallsOut.apply(x) + 1

    compiled = argand.compile(f, backend="eager")
    CallsOut.seen.clear()
    for _ in range(2):
        compiled(torch.ones(3, requires_grad=True)).sum().backward()
    assert CallsOut.seen == ["forward", "backward"] * 2


def test_one_argument_twice() -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a * b

        @staticmethod
        def backward(ctx, grad):
            a, b = ctx.saved_tensors
            return grad * b, grad * a * 3

    def f(x):
        return Product.apply(x, x)

    grads = []
    for fn in (f, argand.compile(f, backend="eager", fullgraph=True)):
        x = torch.arange(3.0).requires_grad_()
        fn(x).sum().backward()
        grads.append(x.grad)
    assert torch.equal(*grads)


def test_intermediate_saved_on_ctx() -> None:
    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.scale = x.abs().max()
            ctx.parts = [x.sin(), weight]
            return x / ctx.scale

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.parts[0] / ctx.scale, (grad * ctx.parts[1]).sum(0)

    def f(x, weight):
        return Keeps.apply(x, weight).cos()

    grads = []
    for fn in (f, argand.compile(f, backend="eager", fullgraph=True)):
        x, weight = torch.arange(1.0, 7.0).view(2, 3).requires_grad_(), torch.ones(3, requires_grad=True)
        fn(x, weight).sum().backward()
        grads.append((x.grad, weight.grad))
    assert_same(grads[0], grads[1], exact=True)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_module_with_dropout(reentrant: bool) -> None:
    torch.manual_seed(1)
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 4))

    def f(x):
        return checkpoint(layers, x, use_reentrant=reentrant).sin()

    results = []
    for fn in (f, argand.compile(f, backend="eager", fullgraph=True)):
        torch.manual_seed(0)
        layers.zero_grad()
        x = torch.ones(2, 4, requires_grad=True)
        out = fn(x)
        out.sum().backward()
        results.append((out.detach(), x.grad, [p.grad.clone() for p in layers.parameters()], torch.rand(1)))
    assert_same(results[0], results[1], exact=True)


def test_checkpoint_recomputes() -> None:
    """The body's intermediates are not kept for the backward."""
    saved: list[int] = []

    def pack(tensor):
        saved.append(tensor.numel())
        return tensor

    def f(x):
        return checkpoint(lambda a: a.sin().cos().tanh().exp(), x, use_reentrant=False)

    counts = []
    for fn in (f, argand.compile(f, backend="eager", fullgraph=True)):
        saved.clear()
        x = torch.ones(3, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            fn(x)
        counts.append(len(saved))
    assert counts[0] == counts[1]


def test_side_effect_in_a_checkpoint_breaks_the_graph() -> None:
    log: list[int] = []

    def f(x):
        def inner(a):
            log.append(1)
            return a.sin()

        return checkpoint(inner, x * 2, use_reentrant=False)

    for fn in (f, argand.compile(f, backend="eager")):
        log.clear()
        fn(torch.ones(3, requires_grad=True)).sum().backward()
        assert log == [1, 1]


def test_tensor_that_leaves_a_transformed_function() -> None:
    def f(x):
        kept = []

        def inner(a):
            kept.append(a * 2)
            return a.sin()

        y = checkpoint(inner, x, use_reentrant=False)
        return y + kept[0]

    x = torch.ones(3, requires_grad=True)
    assert torch.equal(argand.compile(f, backend="eager")(x), f(x))


def test_transforms_made_outside() -> None:
    batched = torch.vmap(torch.dot)
    gradient = torch.func.grad(lambda a: (a**3).sum())
    jacobian = torch.func.jacrev(torch.sin)

    def f(x, y):
        return batched(x, y), gradient(x), jacobian(x[0])

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    assert_same(f(x, y), argand.compile(f, backend="eager", fullgraph=True)(x, y), exact=True)


def test_transformed_functions_are_compiled_themselves() -> None:
    scale = [2.0]

    def g(a):
        return (a.sin() * scale[0]).prod()

    x = torch.randn(3, 4)
    func = torch.func
    columns = func.jacfwd(lambda a, b: a * b, argnums=1)
    for made, given in (
        (func.jacrev(g), x[:1]), (func.jacfwd(g), x[:1]), (func.hessian(g), x[:1]), (torch.vmap(func.hessian(g)), x[None, 0]),
        (torch.vmap(func.jacrev(torch.sin, chunk_size=2)), x[None]), (func.functionalize(lambda a: a.clone().mul_(2)), x[None]),
        (columns, (x[0], x[1])),
    ):  # fmt: skip
        compiled = argand.compile(made, backend="eager", fullgraph=True)
        for scale[0] in (2.0, 3.0):
            assert_same(made(*given), compiled(*given), exact=False)


def test_data_and_sorting_in_a_transformed_function() -> None:
    def loss(x):
        ordered, places = x.sort(-1)
        return (ordered * x[torch.tensor([2, 0, 1])]).sum() + x[places.sort()[1]].sum() * torch.tensor(2.0)

    def f(x):
        return torch.func.grad(loss)(x[0]), torch.vmap(loss)(x), torch.func.hessian(loss)(x[1])

    x = torch.randn(4, 3)
    for backend in ("eager", "aot_eager"):
        assert_same(f(x), argand.compile(f, backend=backend, fullgraph=True)(x), exact=False)


def test_vmap_errors_are_eagers() -> None:
    def f(x):
        return torch.vmap(lambda a: a.sum(), in_dims=5)(x)

    for fn in (f, argand.compile(f, backend="eager")):
        with pytest.raises(ValueError):
            fn(torch.ones(3, 4))


@pytest.mark.parametrize("options", [{"randomness": "different"}, {"randomness": "same", "chunk_size": 2}])
def test_vmap_keeps_random_numbers(options: dict[str, object]) -> None:
    def f(x):
        torch.manual_seed(3)
        return torch.vmap(lambda a: a + torch.rand(4), **options)(x), torch.rand(1)

    for backend in ("eager", "aot_eager"):
        assert_same(argand.compile(f, backend=backend)(torch.zeros(3, 4)), f(torch.zeros(3, 4)), exact=True)


def test_cond_takes_the_branch_of_each_call() -> None:
    def f(x):
        return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,))

    backend = CountingBackend()
    compiled = argand.compile(f, backend=backend, fullgraph=True)
    for x in (torch.ones(3), -torch.ones(3), torch.ones(3)):
        assert torch.equal(compiled(x), x.sin() if x.sum() > 0 else x.cos())
    assert len(backend.graphs) == 1


@pytest.mark.parametrize(
    "name", ["func_vmap", "func_grad", "checkpoint_closure", "function_scale", "func_vjp", "control_cond"]
)
def test_native_backend(name: str) -> None:
    for grad in (True, False):
        want = outcome(SNIPPETS[name], grad)
        got = outcome(argand.compile(SNIPPETS[name]), grad)
        assert_same(want, got, strides=False)
    argand.reset()


# ---------------------------------------------------------------------- contexts and overriding


def test_flags_are_as_they_were_set() -> None:
    def f(x):
        torch.use_deterministic_algorithms(True)
        return x + 1, torch.are_deterministic_algorithms_enabled()

    compiled = argand.compile(f, backend="eager", fullgraph=True)
    for _ in range(2):
        assert compiled(torch.ones(3))[1] is True
        assert torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(False)


def test_flags_are_guarded_at_entry() -> None:
    def f(x):
        return x + (1 if torch.backends.cuda.flash_sdp_enabled() else 2)

    compiled = argand.compile(f, backend="eager", fullgraph=True)
    before = torch.backends.cuda.flash_sdp_enabled()
    try:
        for enabled in (True, False, True):
            torch.backends.cuda.enable_flash_sdp(enabled)
            assert compiled(torch.zeros(1)).item() == (1 if enabled else 2)
    finally:
        torch.backends.cuda.enable_flash_sdp(before)


class Counting(torch.overrides.TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_mode_sees_every_call() -> None:
    def f(x):
        with Counting() as mode:
            y = torch.relu(x * 2 + torch.ones(3))
            y += 1
        return y, mode.names

    x = torch.ones(3)
    assert_same(f(x), argand.compile(f, backend="eager", fullgraph=True)(x))


def test_nested_modes_and_a_break_inside() -> None:
    class Adds(torch.overrides.TorchFunctionMode):
        def __init__(self, by):
            self.by = by

        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            return result + self.by if func is torch.mul else result

    def f(x):
        with Adds(1.0), Adds(10.0):
            y = torch.mul(x, 2)
            if y.sum() > 0:
                y = torch.mul(y, 3)
        return torch.mul(y, 2)

    for x in (torch.ones(3), -torch.ones(3) * 100):
        assert torch.equal(argand.compile(f, backend="eager")(x), f(x))


def test_device_context() -> None:
    def f(x):
        with torch.device("meta"):
            with torch.device("cpu"):
                y = torch.ones(3) + x
            return y, torch.ones(2).device

    x = torch.ones(3)
    assert_same(f(x), argand.compile(f, backend="eager", fullgraph=True)(x))


class Wrapped:
    def __init__(self, tensor, log):
        self.tensor, self.log = tensor, log

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.sub:
            return NotImplemented
        owner = next(a for a in args if isinstance(a, cls))
        owner.log.append((func.__name__, [t.__name__ for t in types]))
        return func(*[a.tensor if isinstance(a, cls) else a for a in args], **(kwargs or {}))


class Special(Wrapped):
    pass


def test_classes_with_torch_function() -> None:
    def f(x):
        log: list[Any] = []
        a, b = Wrapped(x, log), Special(x * 2, log)
        return torch.add(a, x), torch.mul(x, b), torch.cat([a.tensor, b.tensor]), torch.add(a, b), log

    x = torch.ones(3)
    assert_same(f(x), argand.compile(f, backend="eager", fullgraph=True)(x))


def test_torch_function_that_declines_raises_type_error() -> None:
    def f(x):
        try:
            return torch.sub(Wrapped(x, []), x)
        except TypeError:
            return x

    x = torch.ones(3)
    assert torch.equal(argand.compile(f, backend="eager")(x), f(x))


# ---------------------------------------------------------------------- hooks, calls that torch does not announce, aliases


def test_hook_with_a_side_effect_breaks_the_graph() -> None:
    seen: list[int] = []

    def f(x):
        y = x * 2
        y.register_hook(lambda grad: seen.append(1))
        return y.sin()

    for fn in (f, argand.compile(f, backend="eager")):
        seen.clear()
        for _ in range(2):
            fn(torch.ones(3, requires_grad=True)).sum().backward()
        assert seen == [1, 1]


def test_handle_of_a_hook() -> None:
    def f(x):
        y = x * 2
        handle = y.register_hook(lambda grad: grad * 10)
        z = y.sin()
        handle.remove()
        return z

    grads = []
    for fn in (f, argand.compile(f, backend="eager")):
        x = torch.ones(3, requires_grad=True)
        fn(x).sum().backward()
        grads.append(x.grad)
    assert torch.equal(*grads)


def test_set_is_not_lost() -> None:
    """Tensor.set_ with a tensor does not reach torch-function modes."""

    def f(x):
        y = torch.empty(0)
        y.set_(x)
        y.add_(1)
        return y, y.shape

    for fn in (f, argand.compile(f, backend="eager")):
        x = torch.ones(3)
        y, shape = fn(x)
        assert y.data_ptr() == x.data_ptr() and shape == (3,) and x.tolist() == [2.0] * 3


def test_write_to_an_expanded_tensor_raises_where_it_stands() -> None:
    def f(x):
        y = torch.zeros(1, 4).expand(3, 4)
        try:
            y.add_(x)
        except RuntimeError:
            return x * 2
        return y

    x = torch.ones(3, 4)
    assert torch.equal(argand.compile(f, backend="eager")(x), f(x))


def _views() -> Any:
    x = torch.arange(6.0).view(2, 3)
    return x, x[1]


def _copies() -> Any:
    x = torch.arange(6.0).view(2, 3)
    return x, x.clone()[1]


def test_mutated_input_and_its_view() -> None:
    def f(x, v):
        x.add_(1)
        y = v * 2
        v.mul_(3)
        return y, x + 1

    backend = CountingBackend()
    compiled = argand.compile(f, backend=backend)
    for make in (_views, _copies, _views, _copies):
        eager, captured = make(), make()
        assert_same((f(*eager), eager), (compiled(*captured), captured), exact=True)
    assert len(backend.graphs) == 2


def test_legacy_constructors_and_type_names() -> None:
    def f(x):
        a, b = torch.Tensor([1.0, 2.0]), torch.LongTensor([[1, 2], [3, 4]])
        return a, b, torch.FloatTensor(2, 3).shape, x.type("torch.DoubleTensor"), x.type(torch.int64)

    x = torch.ones(3)
    assert_same(f(x), argand.compile(f, backend="eager", fullgraph=True)(x), exact=True)


def test_detach_in_place_of_a_result() -> None:
    def f(x):
        y = x * 2
        y.detach_()
        return y * 3, y.requires_grad

    x = torch.ones(3, requires_grad=True)
    assert_same(f(x), argand.compile(f, backend="eager", fullgraph=True)(x), exact=True)


def test_default_dtype_changes() -> None:
    def f(x):
        torch.set_default_dtype(torch.float64)
        y = torch.ones(2)
        torch.set_default_dtype(torch.float32)
        return x + 1, y, torch.ones(2)

    assert_same(f(torch.ones(2)), argand.compile(f, backend="eager", fullgraph=True)(torch.ones(2)), exact=True)


def test_functional_call_under_grad_and_vmap() -> None:
    models = [torch.nn.Linear(4, 2) for _ in range(3)]
    base = models[0]

    def f(x):
        parameters = {name: value.detach() for name, value in base.named_parameters()}

        def loss(parameters, sample):
            return torch.func.functional_call(base, parameters, (sample.unsqueeze(0),)).pow(2).sum()

        return torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)

    def ensemble(x):
        parameters, buffers = torch.func.stack_module_state(models)
        call = lambda p, b, x: torch.func.functional_call(base, (p, b), (x,))  # noqa: E731
        return torch.vmap(call, in_dims=(0, 0, None))(parameters, buffers, x)

    x = torch.randn(5, 4)
    for fn in (f, ensemble):
        assert_same(fn(x), argand.compile(fn, backend="eager", fullgraph=True)(x), exact=True)


class ScaledBy(torch.autograd.Function):
    """Its backward leaves it to autograd to sum the gradient of an argument that was broadcast."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, scale = ctx.saved_tensors
        return grad * scale, grad * x * torch.arange(1.0, 4.0)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("size", [(), (1,), (3,), (1, 1), (2, 1), (1, 3)])
def test_gradients_of_broadcast_arguments_are_summed(size: tuple[int, ...], backend: str) -> None:
    def f(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = ScaledBy.apply(x, scale).sin().sum()
        return result

    gradients = []
    for fn in (f, argand.compile(f, backend=backend, fullgraph=True)):
        x = torch.arange(6.0).reshape(2, 3).requires_grad_()
        scale = torch.full(size, 0.5, requires_grad=True)
        fn(x, scale).backward()
        gradients.append((x.grad, scale.grad))
    torch.testing.assert_close(gradients[1], gradients[0])


class Flattening(ScaledBy):
    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad.flatten(), None


def test_gradients_that_do_not_fit_are_refused_as_in_eager() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = Flattening.apply(x, torch.ones(3)).sum()
        return result

    for fn in (f, argand.compile(f, backend="eager")):
        with pytest.raises(RuntimeError, match="invalid gradient"):
            fn(torch.ones(2, 3, requires_grad=True)).backward()
