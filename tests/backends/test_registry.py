"""Backends by name: ours, registered ones, torch's; and clear errors."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

import warm
from argand.backends import registry
from argand.backends.registry import list_backends, lookup_backend, register_backend
from argand.errors import ConfigError


@pytest.fixture
def clean_registry(monkeypatch):
    monkeypatch.setattr(registry, "_registry", registry._Registry())


def module() -> fx.GraphModule:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.relu, (x,)),))
    return fx.GraphModule(nn.Module(), graph)


@pytest.mark.parametrize("name", ["eager", "aot_eager", "native"])
def test_builtin_backends_run(name):
    x = torch.randn(4)
    assert name in list_backends()
    (got,) = lookup_backend(name)(module(), [x])(x)
    assert torch.equal(got, x.relu())


def test_register_as_decorator_with_and_without_name(clean_registry):
    @register_backend
    def mine(gm, inputs):
        return gm.forward

    @register_backend(name="other")
    def _unnamed(gm, inputs):
        return gm.forward

    assert lookup_backend("mine") is mine
    assert lookup_backend("other") is _unnamed
    assert list_backends()[-2:] == ["mine", "other"]


def test_callables_are_their_own_backend():
    fn = lambda gm, inputs: gm.forward
    assert lookup_backend(fn) is fn


def test_names_of_argand_cannot_be_taken(clean_registry):
    with pytest.raises(ConfigError, match="backend of argand"):
        register_backend(lambda gm, inputs: gm.forward, name="native")


@pytest.mark.parametrize("bad", [3, None])
def test_neither_name_nor_callable(bad):
    with pytest.raises(ConfigError):
        lookup_backend(bad)


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(ConfigError) as caught:
        lookup_backend("nativ")
    assert "did you mean 'native'" in str(caught.value)
    assert "aot_eager" in str(caught.value)


def test_looking_up_ours_does_not_import_torchs_compiler():
    code = (
        "import sys\nfrom argand.backends.registry import lookup_backend\nlookup_backend('aot_eager')\n"
        "assert 'torch._dynamo' not in sys.modules and 'torch._inductor' not in sys.modules"
    )
    warm.run(["-c", code], check=True)
