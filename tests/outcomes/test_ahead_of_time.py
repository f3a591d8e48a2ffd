"""`argand.save` and `argand.load`: a compiled model in a file, and errors that name what does not fit."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import argand
import warm
from argand import ahead_of_time
from argand.errors import ConfigError, SavedModelError
from argand.runtime import environment, toolchain


class Net(torch.nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, width)
        self.second = torch.nn.Linear(width, 4)
        self.scale = 2.0

    def forward(self, x: torch.Tensor, *, offset: float = 1.0) -> dict[str, torch.Tensor]:
        x = torch.relu(self.first(x)) * self.scale
        return {"out": self.second(x) + offset, "hidden": x}


def plain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ y, -1)


def breaking(x: torch.Tensor) -> torch.Tensor:
    x = x * 2
    argand.graph_break()
    return x + 1


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A saved `Net`."""
    folder = tmp_path_factory.mktemp("saved")
    with argand.config.patch({"verify_ir": False, "cache_dir": str(folder / "cache")}), torch.no_grad():
        argand.save(argand.compile(Net().eval()), folder / "net.argand", torch.randn(3, 4), offset=0.5)
    yield folder / "net.argand"


@pytest.fixture(autouse=True)
def without_gradients(tmp_path: Path) -> Iterator[None]:
    with torch.no_grad(), argand.config.patch({"verify_ir": False, "cache_dir": str(tmp_path / "cache")}):
        yield


def same(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    assert got.keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(got[name], value)


def test_a_loaded_model_is_neither_captured_nor_compiled(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise toolchain.ToolchainMissing("no compiler")

    monkeypatch.setattr(toolchain, "find_toolchain", missing)
    net, x = Net().eval(), torch.randn(3, 4)
    loaded = argand.load(file, net)
    for _ in range(3):
        same(loaded(x, offset=0.5), net(x, offset=0.5))
    net.first.weight.mul_(3)  # parameters are the model's
    same(loaded(x, offset=0.5), net(x, offset=0.5))


def test_functions_are_saved(tmp_path: Path) -> None:
    x, y = torch.randn(3, 4), torch.randn(4, 5)
    argand.save(argand.compile(plain), tmp_path / "plain.argand", x, y)
    argand.reset()
    torch.testing.assert_close(argand.load(tmp_path / "plain.argand", plain)(x, y), plain(x, y))


def test_arguments_as_one_tuple_are_explained(tmp_path: Path) -> None:
    with pytest.raises(TypeError) as caught:
        argand.save(argand.compile(plain), tmp_path / "plain.argand", (torch.randn(3, 4), torch.randn(4, 5)))
    assert "one by one" in caught.value.__notes__[-1]


def test_sizes_may_vary_where_they_are_symbolic(tmp_path: Path) -> None:
    argand.save(argand.compile(plain, dynamic=True), tmp_path / "plain.argand", torch.randn(3, 4), torch.randn(4, 5))
    argand.reset()
    loaded = argand.load(tmp_path / "plain.argand", plain)
    for m, n in ((3, 5), (6, 7)):
        x, y = torch.randn(m, 4), torch.randn(4, n)
        torch.testing.assert_close(loaded(x, y), plain(x, y))


CALLS: dict[str, tuple[Callable[[], tuple[Any, ...]], str]] = {
    "another dtype": (lambda: (torch.randn(3, 4, dtype=torch.float64),), "x"),
    "another size": (lambda: (torch.randn(5, 4),), "x"),
    "no tensor": (lambda: (3,), "x"),
    "another default": (lambda: (torch.randn(3, 4),), "offset"),
}


@pytest.mark.parametrize("call", CALLS)
def test_calls_that_do_not_fit_say_which_argument(file: Path, call: str) -> None:
    loaded = argand.load(file, Net().eval())
    made, name = CALLS[call]
    options = {} if call == "another default" else {"offset": 0.5}
    with pytest.raises(SavedModelError, match=rf"(?s){name}.*expected") as raised:
        loaded(*made(), **options)
    assert "save it again" in raised.value.remedy
    x = torch.randn(3, 4)
    net = loaded._orig_mod
    same(loaded(x, offset=0.5), net(x, offset=0.5))
    with pytest.raises(SavedModelError, match=name):
        loaded(*made(), **options)


def _without_scale() -> Net:
    net = Net().eval()
    del net.scale
    return net


def _in_double() -> Net:
    return Net().eval().double()


MODELS: dict[str, tuple[Callable[[], Net], str]] = {
    "a parameter of another shape": (lambda: Net(9).eval(), r"first.*size"),
    "a parameter of another dtype": (_in_double, r"first.*dtype"),
    "an attribute that is missing": (_without_scale, r"scale"),
    "a number": (lambda: setattr(net := Net().eval(), "scale", 3.0) or net, r"scale.*expected 2.0, found 3.0"),
}


@pytest.mark.parametrize("model", MODELS)
def test_models_that_do_not_fit_are_refused_at_once(file: Path, model: str) -> None:
    make, named = MODELS[model]
    with pytest.raises(SavedModelError, match=rf"(?s){named}"):
        argand.load(file, make())


class Deep(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            [torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()) for _ in range(6)]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_the_one_layer_of_many_that_does_not_fit_is_named_at_once(tmp_path: Path) -> None:
    file = tmp_path / "deep.argand"
    argand.save(argand.compile(Deep().eval()), file, torch.randn(3, 4))
    whole, other = Deep().eval(), Deep().eval()
    x = torch.randn(3, 4)
    torch.testing.assert_close(argand.load(file, whole)(x), whole(x))
    other.layers[5][0] = torch.nn.Linear(4, 4, bias=False)
    with pytest.raises(SavedModelError, match=r"layers\W*5"):
        argand.load(file, other)


def test_another_function_is_refused(file: Path) -> None:
    class Other(Net):
        def forward(self, x: torch.Tensor, *, offset: float = 1.0) -> dict[str, torch.Tensor]:
            return {"out": x}

    with pytest.raises(SavedModelError, match="another function"):
        argand.load(file, Other().eval())


AROUND: dict[str, tuple[Callable[[pytest.MonkeyPatch], Any], str]] = {
    "torch": (lambda patch: patch.setattr(torch, "__version__", "9.9.9"), r"for torch .*this is 9\.9\.9"),
    "argand": (lambda patch: patch.setattr(environment, "__version__", "9.9"), "for argand"),
    "processor": (
        lambda patch: patch.setattr(toolchain, "cpu_isa", lambda isa=toolchain.cpu_isa(): replace(isa, flags=())),
        "processor with",
    ),
    "threads": (lambda patch: patch.setattr(torch, "get_num_threads", lambda: 77), "torch has 77"),
}


@pytest.mark.parametrize("change", AROUND)
def test_other_surroundings_are_named(file: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    do, text = AROUND[change]
    try:
        do(monkeypatch)
        environment.versions.cache_clear()
        with pytest.raises(SavedModelError, match=text):
            argand.load(file, Net().eval())
    finally:
        monkeypatch.undo()
        environment.versions.cache_clear()


def test_damaged_files_are_refused(file: Path, tmp_path: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    for content, text in ((bytes(data), "damaged"), (b"something else", "no model"), (bytes(data[:60]), "damaged")):
        (tmp_path / "net.argand").write_bytes(content)
        with pytest.raises(SavedModelError, match=text):
            argand.load(tmp_path / "net.argand", Net().eval())


def test_a_file_that_others_may_write_to_is_refused(file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "net.argand"
    copy.write_bytes(file.read_bytes())
    copy.chmod(0o666)
    with pytest.raises(SavedModelError, match="is not loaded"):
        argand.load(copy, Net().eval())


def test_a_fleets_key_signs(file: Path, tmp_path: Path) -> None:
    signed, x = tmp_path / "signed.argand", torch.randn(3, 4)
    with argand.config.patch(remote_cache_key="secret"):
        with pytest.raises(SavedModelError, match="not signed"):
            argand.load(file, Net().eval())
        argand.save(argand.compile(plain), signed, x, x.t())
        signed.chmod(0o666)  # the signature tells who wrote it
        torch.testing.assert_close(argand.load(signed, plain)(x, x.t()), plain(x, x.t()))
    with argand.config.patch(remote_cache_key="another"), pytest.raises(SavedModelError, match="another key"):
        argand.load(signed, plain)
    signed.chmod(0o600)
    with pytest.raises(SavedModelError, match="no key"):
        argand.load(signed, plain)


def test_what_cannot_be_saved_says_why(tmp_path: Path) -> None:
    path, x = tmp_path / "x.argand", torch.randn(4)
    with pytest.raises(argand.errors.Unsupported if hasattr(argand, "errors") else Exception, match="graph break"):
        argand.save(argand.compile(breaking), path, x)
    net = Net().eval()
    net.register_forward_hook(lambda *args: None)
    with pytest.raises(SavedModelError, match="hooks"):
        argand.save(argand.compile(net), path, torch.randn(3, 4))
    with pytest.raises(SavedModelError, match="backend"):
        argand.save(argand.compile(plain, backend="eager"), path, torch.randn(3, 4), torch.randn(4, 3))
    with pytest.raises(ConfigError, match=re.escape("what argand.compile returns")):
        argand.save(plain, path, x)
    with pytest.raises(ConfigError, match="before argand.compile"):
        argand.load(path, argand.compile(plain)) if path.exists() else _load_compiled(tmp_path)
    assert not path.exists()


def _load_compiled(folder: Path) -> None:
    argand.save(argand.compile(plain), folder / "plain.argand", torch.randn(3, 4), torch.randn(4, 3))
    argand.load(folder / "plain.argand", argand.compile(plain))


OPTIONS: dict[str, tuple[dict[str, object], float]] = {
    "freezing": ({"freezing": True}, 1e-5),
    "quantization": ({"quantization": "int8_weight_only"}, 0.02),
    "both": ({"freezing": True, "quantization": "int8_dynamic"}, 0.02),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_what_follows_from_parameters_is_computed_where_it_is_loaded(tmp_path: Path, name: str) -> None:
    options, error = OPTIONS[name]
    net = torch.nn.Sequential(torch.nn.Conv1d(3, 8, 2), torch.nn.BatchNorm1d(8), torch.nn.Linear(64, 32)).eval()
    x = torch.randn(4, 3, 65)
    argand.save(argand.compile(net, options=options), tmp_path / "net.argand", x)
    argand.reset()
    loaded = argand.load(tmp_path / "net.argand", net)
    for _ in range(3):
        for parameter in net.parameters():
            parameter.mul_(1.25)
        want = net(x)
        assert (loaded(x) - want).norm() < error * want.norm()


SERVER = """
import sys, torch, argand
from {module} import Net
with torch.no_grad():
    net, x = Net().eval(), torch.randn(3, 4)
    loaded = argand.load({file!r}, net)
    torch.testing.assert_close(loaded(x, offset=0.5), net(x, offset=0.5))
print("interpreter", "argand.capture.interp.interpreter" in sys.modules)
"""
BUILDER = """
import torch, argand
from {module} import Net
torch.compile(torch.nn.Linear(2, 2), backend="eager")(torch.ones(2))  # wraps methods of nn.Module
with torch.no_grad():
    argand.save(argand.compile(Net().eval()), {file!r}, torch.randn(3, 4), offset=0.5)
"""


def test_a_server_loads_it(tmp_path: Path) -> None:
    """Both are processes of their own: other tests may have left something in classes of torch's."""
    texts = {"module": Net.__module__, "file": str(tmp_path / "net.argand")}
    around = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    warm.run(["-c", BUILDER.format(**texts)], env={**around, "ARGAND_CACHE_DIR": str(tmp_path / "cache")}, check=True)
    done = warm.run(["-c", SERVER.format(**texts)], env={**around, "ARGAND_CACHE_DIR": "/nonexistent", "PATH": ""})
    assert done.returncode == 0, done.stderr[-2000:]
    assert "interpreter False" in done.stdout


def test_calls_with_gradients_are_not_saved(tmp_path: Path) -> None:
    with torch.enable_grad(), pytest.raises(SavedModelError, match="called with gradients"):
        argand.save(argand.compile(Net()), tmp_path / "net.argand", torch.randn(3, 4))
    assert not (tmp_path / "net.argand").exists()


def test_names_are_public() -> None:
    assert argand.save is ahead_of_time.save and argand.load is ahead_of_time.load
