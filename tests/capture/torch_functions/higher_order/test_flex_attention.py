"""torch.nn.attention.flex_attention: one node with its functions as subgraphs, equal to eager on every backend."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import AuxRequest, and_masks, create_block_mask, flex_attention

import argand
import leftovers
import sweeps
from argand.graph.operators import flex
from helpers import CountingBackend, assert_same, collected

BACKENDS = ("eager", "aot_eager", "native")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that eager's way is slow
        yield


def tensors(
    heads: int = 4, keys: int = 4, length: int = 48, others: int = 48, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    sizes = ((2, heads, length, 16), (2, keys, others, 16), (2, keys, others, 8))
    return [torch.randn(size, generator=generator).to(dtype) for size in sizes]


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def window(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q - k < 9


def block_mask(mod: Any, length: int = 48, others: int = 48, **kwargs: Any) -> Any:
    sizes = {"B": None, "H": None, "BLOCK_SIZE": 16, **kwargs}
    return create_block_mask(mod, Q_LEN=length, KV_LEN=others, device="cpu", **sizes)


SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
BIAS = torch.randn(4, 48, 48, generator=torch.Generator().manual_seed(1))
DOCUMENTS = torch.tensor([0] * 10 + [1] * 30 + [2] * 8)
ZERO = torch.zeros(2, dtype=torch.int32)


def alibi(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + (k - q) * SLOPES[h]


def soft_cap(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.tanh(score / 3) * 3


def biased(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.where((q + k) % 2 == 0, score + BIAS[h, q, k], -float("inf"))


def mixed(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score * 0.5 + torch.where(h > 1, q.float().sqrt(), 2.0 ** (-k))


def summed(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + BIAS[h, q].amax() - BIAS[h, q, k]  # a reduction of a row of what it reads


def document(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (DOCUMENTS[q] == DOCUMENTS[k]) & (q >= k)


def never(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q > 20) & (k < q - 16)  # rows that see nothing, and whole blocks of them


def by_batch(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q + ZERO[b] >= k) | (h == 2)


PROGRAMS: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "plain": (lambda q, k, v: flex_attention(q, k, v), tensors()),
    "alibi": (lambda q, k, v: flex_attention(q, k, v, score_mod=alibi), tensors()),
    "soft_cap": (lambda q, k, v: flex_attention(q, k, v, soft_cap, block_mask(causal), scale=0.7), tensors()),
    "biased": (lambda q, k, v: flex_attention(q, k, v, score_mod=biased), tensors()),
    "mixed": (lambda q, k, v: flex_attention(q, k, v, score_mod=mixed), tensors()),
    "summed": (lambda q, k, v: flex_attention(q, k, v, score_mod=summed), tensors()),
    "document": (lambda q, k, v: flex_attention(q, k, v, block_mask=block_mask(document)), tensors()),
    "window": (lambda q, k, v: flex_attention(q, k, v, block_mask=block_mask(and_masks(causal, window))), tensors()),
    "never": (lambda q, k, v: flex_attention(q, k, v, block_mask=block_mask(never)), tensors()),
    "by_batch": (lambda q, k, v: flex_attention(q, k, v, block_mask=block_mask(by_batch, B=2, H=4)), tensors()),
    "groups": (
        lambda q, k, v: flex_attention(q, k, v, alibi, block_mask(causal), enable_gqa=True), tensors(keys=2),
    ),
    "lengths": (
        lambda q, k, v: flex_attention(q, k, v, block_mask=block_mask(causal, 48, 33)), tensors(others=33),
    ),
    "logarithms": (
        lambda q, k, v: flex_attention(
            q, k, v, soft_cap, block_mask(never), return_aux=AuxRequest(lse=True)
        ), tensors(),
    ),
    "double": (lambda q, k, v: flex_attention(q, k, v, score_mod=alibi), tensors(dtype=torch.float64)),
    "half": (lambda q, k, v: flex_attention(q, k, v, score_mod=alibi), tensors(dtype=torch.bfloat16)),
    "spread": (
        lambda q, k, v: flex_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)),
        tensors(heads=48, keys=48, length=4, others=4),
    ),
    "around": (lambda q, k, v: flex_attention(q * 2, k, v.sin(), soft_cap).cos().sum(1), tensors()),
}  # fmt: skip


@pytest.mark.parametrize(("name", "backend"), sweeps.chessboard(PROGRAMS, BACKENDS))
def test_results(name: str, backend: str) -> None:
    fn, given = PROGRAMS[name]
    with collected("fallback") as fallbacks:
        got = argand.compile(fn, backend=backend, fullgraph=True)(*given)
    want = fn(*given)
    assert_same(list(want) if isinstance(want, tuple) else want, list(got) if isinstance(got, tuple) else got,
                exact=backend == "eager")  # fmt: skip
    assert [event.text() for event in fallbacks if event.data.get("scope") == "graph"] == []


def test_one_node_with_two_subgraphs() -> None:
    def fn(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return flex_attention(q, k, v, alibi, mask)

    backend = CountingBackend()
    argand.compile(fn, backend=backend, fullgraph=True)(*tensors(), block_mask(document))
    (graph,) = backend.graphs
    (node,) = [n for n in graph.graph.nodes if n.target is flex.flex_attention]
    bodies = [getattr(graph, n.target) for n in node.args[:2]]
    assert [sum(n.op == "placeholder" for n in body.graph.nodes) for body in bodies] == [6, 5]
    assert "add" in str(bodies[0].graph) and "ge" in str(bodies[1].graph)


def test_another_function_or_captured_number_is_another_graph() -> None:
    def made(factor: float) -> Callable[..., Any]:
        return lambda score, b, h, q, k: score + (q - k) * factor

    def fn(q: Any, k: Any, v: Any, mod: Any, mask: Any) -> Any:
        return flex_attention(q, k, v, mod, mask)

    compiled = argand.compile(fn, backend="eager", fullgraph=True)
    masks = [block_mask(causal), block_mask(document)]
    for mod in (made(0.1), made(0.2), soft_cap, made(0.1)):
        for mask in masks:
            assert_same(fn(*tensors(), mod, mask), compiled(*tensors(), mod, mask), exact=True)


def test_captured_tensor_is_read_in_every_call() -> None:
    table = torch.randn(48)

    def fn(q: Any, k: Any, v: Any) -> Any:
        return flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + table[j])

    compiled = argand.compile(fn, fullgraph=True)
    for _ in range(3):
        table.normal_()
        assert_same(fn(*tensors()), compiled(*tensors()))


def test_lengths_that_change() -> None:
    def fn(q: Any, k: Any, v: Any) -> Any:
        return flex_attention(q, k, v, score_mod=alibi)

    compiled = argand.compile(fn, fullgraph=True)
    for length in (48, 31, 17, 48):
        given = tensors(length=length, others=length)
        assert_same(fn(*given), compiled(*given))


def test_block_masks_for_lengths_that_change() -> None:
    def fn(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return flex_attention(q, k, v, soft_cap, mask)

    compiled = argand.compile(fn, fullgraph=True)
    for length in (48, 31, 65, 48):
        given = tensors(length=length, others=length)
        mask = block_mask(causal, length, length)
        assert_same(fn(*given, mask), compiled(*given, mask))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_of_a_captured_tensor(backend: str) -> None:
    """On the CPU, queries, keys and values may not require grad; what the functions read may."""

    def fn(q: Any, k: Any, v: Any, bias: Any) -> Any:
        out, aux = flex_attention(
            q, k, v, lambda s, b, h, i, j: s * bias[h, 0] + bias[h, j], block_mask(causal),
            return_aux=AuxRequest(lse=True),
        )  # fmt: skip
        return out.sum() + (aux.lse * 0.5).sum()

    grads = []
    for run in (fn, argand.compile(fn, backend=backend, fullgraph=True)):
        bias = torch.ones(4, 48, requires_grad=True)
        run(*tensors(), bias).backward()
        grads.append(bias.grad)
    torch.testing.assert_close(grads[1], grads[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_on_the_cpu_are_refused_as_in_eager(backend: str) -> None:
    def fn(q: Any, k: Any, v: Any) -> Any:
        return flex_attention(q, k, v)

    q, k, v = tensors()
    q.requires_grad_()
    for run in (fn, argand.compile(fn, backend=backend)):
        with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
            run(q, k, v)


def test_block_mask_for_other_lengths_is_refused_as_in_eager() -> None:
    def fn(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return flex_attention(q, k, v, block_mask=mask)

    for run in (fn, argand.compile(fn, backend="eager")):
        with pytest.raises(ValueError, match="block_mask was created for"):
            run(*tensors(), block_mask(causal, 64, 64))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_under_autocast(dtype: torch.dtype, backend: str) -> None:
    """One graph for tensors that autocast has converted; others break it."""

    def fn(q: Any, k: Any, v: Any) -> Any:
        return flex_attention(q, k, v, alibi) * 2

    given = tensors(dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16), collected("graph_breaks") as breaks:
        got = argand.compile(fn, backend=backend)(*given)
        want = fn(*given)
    assert got.dtype == want.dtype and len(breaks) == (dtype is torch.float32)
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


def random_score(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + torch.rand(())


def row_of_scores(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + SLOPES


def number(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score.item()


def noted(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    NOTES.append(1)
    return score


NOTES: list[int] = []


@pytest.mark.parametrize("mod", [random_score, row_of_scores, number, noted], ids=lambda mod: mod.__name__)
def test_functions_that_are_not_captured_break_the_graph(mod: Any) -> None:
    def fn(q: Any, k: Any, v: Any) -> Any:
        return flex_attention(q + 1, k, v, score_mod=mod)

    outcomes = []
    for run in (fn, argand.compile(fn, backend="eager")):
        with collected("graph_breaks") as breaks:
            try:
                outcomes.append(run(*tensors()))
            except Exception as error:
                outcomes.append(type(error))
    leftovers.take_evaluator_away()
    assert len(breaks) >= 1
    assert_same(*outcomes)


@pytest.mark.parametrize("backend", BACKENDS)
def test_block_mask_made_in_compiled_code(backend: str) -> None:
    def fn(q: Any, k: Any, v: Any, length: int) -> Any:
        mask = create_block_mask(causal, None, None, length, length, device="cpu", BLOCK_SIZE=16)
        return flex_attention(q, k, v, block_mask=mask), mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks

    got = argand.compile(fn, backend=backend, fullgraph=True)(*tensors(), 48)
    assert_same(fn(*tensors(), 48), got, exact=backend == "eager")


def test_what_programs_hand_to_torchs_compiler_is_captured() -> None:
    compiled_by_torch = torch.compile(flex_attention)

    def fn(q: Any, k: Any, v: Any) -> Any:
        return compiled_by_torch(q, k, v, score_mod=alibi)

    got = argand.compile(fn, backend="eager", fullgraph=True)(*tensors())
    assert_same(flex_attention(*tensors(), score_mod=alibi), got, exact=True)


def test_notes_to_torchs_compiler_stay_breaks_in_programs() -> None:
    def fn(x: Any) -> Any:
        torch._dynamo.mark_static(x, 0)
        return x + 1

    with collected("graph_breaks") as breaks:
        argand.compile(fn, backend="eager")(torch.ones(3))
    assert len(breaks) == 1
