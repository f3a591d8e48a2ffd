"""What a compiled graph must keep of eager's behaviour besides values: aliasing, mutation, memory, errors, fallbacks."""

import threading
import warnings

import pytest
import torch
from native_helpers import Recorded, check, clone_args, compiled

import warm
from argand import config
from argand.backends import native as native_module
from argand.errors import ToolchainMissing


def r(*size, seed=0):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


# --- aliasing and mutation


def test_outputs_that_are_inputs_or_views_of_them():
    check(lambda x: (x, x.t(), x[1:], x.view(-1), x + 1), r(4, 4))


def test_outputs_that_alias_each_other():
    def fn(x):
        y = x * 2
        return y, y.t(), y[0]

    check(fn, r(4, 4))


def test_the_same_output_twice():
    def fn(x):
        y = x * 2
        return y, y

    got = compiled(fn, [r(3)])(r(3))
    assert got[0] is got[1] or got[0].data_ptr() == got[1].data_ptr()


def test_mutated_inputs():
    def fn(x, y):
        x.add_(1)
        y.mul_(x)
        return x * 2

    check(fn, r(4, 4), r(4, 4, seed=1))


def test_mutation_through_a_view():
    def fn(x):
        x[0].zero_()
        x.t()[1] += 3
        return x.sum()

    check(fn, r(4, 4))


def test_mutation_and_returned_view():
    def fn(x):
        x.mul_(2)
        return x.view(-1)[3:], x.sum(0)

    check(fn, r(4, 4))


def test_inputs_that_share_memory():
    base = r(8)
    check(lambda a, b: (a + b, a * 2), base[:4], base[2:6])


def test_mutated_inputs_that_share_memory():
    def fn(a, b):
        a.add_(1)
        return a + b

    base = r(8)
    check(fn, base[:4], base[2:6])


def test_non_contiguous_mutated_input():
    check(lambda x: x.add_(1).sum(), r(4, 6).t())


# --- memory


def test_results_of_earlier_calls_stay_as_they_are():
    call = compiled(lambda x: torch.tanh(x @ x) * 2, [r(16, 16)])
    first = call(r(16, 16))
    kept = first.clone()
    call(r(16, 16, seed=1))
    assert torch.equal(first, kept)


def test_many_threads():
    call = compiled(lambda x: torch.softmax(x @ x, -1) @ x + x, [r(32, 32)])
    inputs = [r(32, 32, seed=n) for n in range(4)]
    wanted = [torch.softmax(x @ x, -1) @ x + x for x in inputs]
    bad = []

    def work(n):
        with torch.no_grad():
            for _ in range(50):
                if not torch.allclose(call(inputs[n]), wanted[n], atol=1e-4):
                    bad.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not bad


# --- errors, events, fallbacks


def test_equal_graphs_are_compiled_once():
    def fn(x):
        return torch.cos(x) * 3.25 + 1

    first = compiled(fn, [r(5, 7)])
    with Recorded("output_code") as again:
        second = compiled(fn, [r(5, 7)])
    assert again.events == []
    assert torch.equal(first(r(5, 7)), second(r(5, 7)))
    with Recorded("output_code") as other:
        compiled(fn, [r(5, 8)])
    assert len(other.events) == 1


@pytest.mark.parametrize(
    "name", ["aot_inference_graph", "post_grad_graphs", "ir_pre_fusion", "ir_post_fusion", "kernel_code", "output_code"]
)
def test_every_stage_emits_its_artifact(name):
    native_module.reset()
    with Recorded(name) as seen:
        compiled(lambda x: torch.cos(x).sum(1) + 1, [r(5, 7)])
    (event,) = seen.events
    assert len(event.text()) > 20


def test_a_fallback_names_the_op_and_the_reason():
    native_module.reset()
    with Recorded("fallback") as seen:
        compiled(lambda x: torch.kthvalue(x + 1, 2)[0], [r(5, 7)])
    assert any("kthvalue" in str(e.data.get("op")) and e.data.get("reason") for e in seen.events)


def test_output_code_runs_by_itself(tmp_path):
    native_module.reset()
    with Recorded("output_code") as seen:
        compiled(lambda x, w: torch.relu(x @ w) + x, [r(8, 8), r(8, 8)])
    path = tmp_path / "output_code.py"
    path.write_text(seen.events[0].text())
    done = warm.run([path], imported="compiler")
    assert done.returncode == 0, done.stderr
    assert "ms a call" in done.stdout


def test_output_code_setting_prints(capsys):
    native_module.reset()
    with config.patch(output_code=True):
        compiled(lambda x: x * 2 + 1, [r(3)])
    assert "def call(args):" in capsys.readouterr().out


def test_without_a_compiler_the_graph_still_runs_with_one_warning(monkeypatch):
    from argand.runtime import toolchain

    def missing(*args, **kwargs):
        raise ToolchainMissing("no C++ compiler was found", remedy="install g++")

    monkeypatch.setattr(toolchain, "load_text", missing)
    native_module.reset()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        first = compiled(lambda x: x.cos() + 1.25, [r(4)])
        compiled(lambda x: x.cos() + 2.25, [r(4)])
    native_module.reset()
    torch.testing.assert_close(first(r(4)), r(4).cos() + 1.25)
    texts = [str(w.message) for w in seen if "argand" in str(w.message)]
    assert len(texts) == 1 and "no C++ compiler" in texts[0]


def test_a_graph_that_needs_gradients_has_them():
    from torch import fx

    from argand.backends.native import native

    module = fx.symbolic_trace(lambda x: (x * x).sum())
    x = r(4).requires_grad_()
    out = native(module, [x])(x)
    (grad,) = torch.autograd.grad(out, x)
    torch.testing.assert_close(grad, 2 * x.detach())


def test_arguments_are_not_kept_alive():
    import gc
    import weakref

    call = compiled(lambda x: torch.tanh(x) + 1, [r(64, 64)])
    x = r(64, 64)
    alive = weakref.ref(x)
    call(x)
    del x
    gc.collect()
    assert alive() is None


def test_random_numbers_follow_eager_under_fallback_random():
    def fn(x):
        return torch.nn.functional.dropout(x, 0.5, training=True) + torch.rand_like(x)

    with config.patch(fallback_random=True):
        call = compiled(fn, [r(100)])
    torch.manual_seed(3)
    want = fn(r(100))
    torch.manual_seed(3)
    torch.testing.assert_close(call(r(100)), want)


def test_numbers_and_structures_in_the_output():
    def fn(x):
        return {"a": x + 1, "b": [x * 2, 3], "c": (x.sum(),)}

    check(fn, r(3, 4))


def test_cloned_arguments_keep_their_layout():
    a = r(6, 4).t()
    (b,) = clone_args([a])
    assert b.stride() == a.stride() and torch.equal(a, b) and a.data_ptr() != b.data_ptr()
