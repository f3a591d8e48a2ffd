"""A few samples of every family in torch's operator descriptions; `opdb_lower.py` runs all."""

import pytest
from opdb_lower import run

import sweeps

PATTERNS = [
    "^(add|sub|mul|div|remainder|fmod|floor_divide|pow|where|clamp|maximum|lerp|addcmul)",
    "^(exp|log|sin|tanh|sigmoid|erf|sqrt|rsqrt|round|trunc|sign|isnan|nn.functional.(gelu|silu|elu|softplus|hardswish))",
    "^(view|reshape|permute|transpose|slice|select|expand|squeeze|unsqueeze|split|unbind|diagonal|unfold|as_strided)",
    "^(sum|mean|prod|amax|amin|argmax|any|all|var|std|std_mean|softmax|log_softmax|logsumexp|norm|max|min)",
    "^(cat|stack|flip|roll|tril|triu|repeat|gather|index_select|index_put|slice_scatter|select_scatter|nn.functional.pad)",
    "^(nn.functional.(layer_norm|group_norm|batch_norm|embedding|cross_entropy|mse_loss|linear|conv2d|interpolate))",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_samples(pattern, capsys):
    failed = run(pattern, ["float32", "int64"], 1, False, dealt=not sweeps.WHOLE)
    assert not failed, capsys.readouterr().out


def test_samples_in_other_layouts(capsys):
    failed = run("^(cummax|index_put|take|histc)$", ["int16"], 1, False, True, True)
    assert not failed, capsys.readouterr().out
