"""Compiled modules in the hands of trainers: they pass for torch's own, and train as eager does."""

from __future__ import annotations

import copy
import functools
import importlib.metadata
import importlib.util
import inspect
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import argand
import warm
from argand._core import _C
from argand.api import OptimizedModule
from argand.errors import ArgandError

X, Y = torch.randn(8, 4, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 3


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x).tanh()


def fresh() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # libraries warn of much
        yield


@functools.cache
def _torchvision_is_for_another_torch() -> bool:
    if importlib.util.find_spec("torchvision") is None:
        return False
    return subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True).returncode != 0


def library(name: str) -> Any:
    """The library, or the test is skipped."""
    if _torchvision_is_for_another_torch():
        for operator in ("nms", "qnms"):  # it imports if these exist
            if not hasattr(torch.ops.torchvision, operator):
                torch.library.define(f"torchvision::{operator}", "(Tensor a, Tensor b, float c) -> Tensor")
    return pytest.importorskip(name)


NOTHING_IMPORTED = """
import sys, torch, argand
from argand.api import OptimizedModule
compiled = argand.compile(torch.nn.Linear(2, 2), backend="eager")
compiled(torch.ones(1, 2))
assert compiled.__class__ is type(compiled) is OptimizedModule
assert "torch._dynamo" not in sys.modules
import torch._dynamo
assert isinstance(compiled, torch._dynamo.OptimizedModule)
"""


def test_it_passes_for_torchs_class_and_imports_nothing() -> None:
    warm.run(["-c", NOTHING_IMPORTED], check=True)


def test_the_class_is_still_argands() -> None:
    import torch._dynamo

    compiled = argand.compile(fresh(), backend="eager")
    assert isinstance(compiled, torch._dynamo.OptimizedModule) and isinstance(compiled, torch.nn.Module)
    assert not isinstance(compiled, Net)
    assert compiled._get_name() == "Net"  # by which Hugging Face's Trainer knows a causal model
    for again in (copy.copy(compiled), copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert type(again) is OptimizedModule and isinstance(again, torch._dynamo.OptimizedModule)
        torch.testing.assert_close(again(X), compiled(X))
    assert list(compiled.state_dict()) == ["_orig_mod.fc.weight", "_orig_mod.fc.bias"]


def test_the_mode_is_the_originals() -> None:
    compiled = argand.compile(fresh(), backend="eager")
    tells = argand.compile(lambda x: (compiled(x), compiled.training), backend="eager", fullgraph=True)
    for switch, mode in ((compiled._orig_mod.eval, False), (compiled.train, True), (compiled.eval, False)):
        switch()
        assert compiled.training is compiled._orig_mod.fc.training is tells(X)[1] is mode
        assert copy.deepcopy(compiled).training is mode


def test_what_a_host_wraps_is_the_compiled_modules_own() -> None:
    """Accelerate wraps `forward` for mixed precision, others `train` or `state_dict`, and call the ones before."""
    net = fresh()
    compiled = argand.compile(net, backend="eager")
    for name in ("forward", "train", "state_dict"):
        before = getattr(compiled, name)
        setattr(compiled, name, functools.wraps(before)(functools.partial(_and_count, before, calls := [])))
        if name == "forward":
            torch.testing.assert_close(compiled(X), net(X))
            torch.testing.assert_close(argand.compile(lambda x: compiled(x) + 1, backend="eager")(X), net(X) + 1)
        else:
            getattr(compiled, name)()
        assert calls and name not in vars(net)
        calls.clear()
        delattr(compiled, name)
        compiled(X)
        assert not calls and name not in vars(compiled)
    assert type(copy.deepcopy(compiled)) is OptimizedModule
    compiled.fc.bias.data.zero_()
    compiled.scale = 2  # what the class has not is the original's
    assert net.scale == 2
    del compiled.scale
    assert not hasattr(net, "scale")


def _and_count(fn: Callable[..., Any], calls: list[None], *args: Any, **kwargs: Any) -> Any:
    calls.append(None)
    return fn(*args, **kwargs)


def test_forward_has_the_signature_of_what_was_compiled() -> None:
    net = fresh()
    compiled = argand.compile(net, backend="eager")
    assert list(inspect.signature(compiled.forward).parameters) == ["x"]
    torch.testing.assert_close(compiled.forward(x=X), net(X))
    net.forward = lambda a, scale=2: net.fc(a) * scale  # type: ignore[method-assign,assignment]
    assert list(inspect.signature(compiled.forward).parameters) == ["a", "scale"]
    torch.testing.assert_close(compiled.forward(X, scale=3), net.fc(X) * 3)
    compiled.register_forward_hook(lambda module, inputs, output: output + 1)
    torch.testing.assert_close(compiled(X), net.fc(X) * 2 + 1)


def test_captured_code_asks_for_the_class() -> None:
    import torch._dynamo

    compiled = argand.compile(fresh(), backend="eager")

    def asks(x: torch.Tensor) -> Any:
        inner = compiled._orig_mod if isinstance(compiled, torch._dynamo.OptimizedModule) else None
        return inner is compiled._orig_mod, isinstance(compiled, torch.nn.Linear), compiled(x)

    outer = argand.compile(asks, backend="eager", fullgraph=True)
    for _ in range(2):
        assert outer(X)[:2] == (True, False)
        torch.testing.assert_close(outer(X)[2], compiled(X))


def test_torch_compile_takes_it() -> None:
    compiled = argand.compile(fresh(), backend="eager")
    torch.testing.assert_close(torch.compile(compiled, backend="eager")(X), compiled(X))
    torch.testing.assert_close(torch.compile(lambda x: compiled(x) + 1, backend="eager")(X), compiled(X) + 1)


def test_it_compiles_functions_as_it_was_compiled() -> None:
    graphs = []

    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    net = fresh()
    compiled = argand.compile(net, backend=backend)
    alike = compiled.dynamo_ctx(net.forward)
    torch.testing.assert_close(alike(X), net(X))
    again = compiled.dynamo_ctx(alike)  # as Lightning does where a module is fitted twice
    torch.testing.assert_close(again(X), net(X))
    assert again.__wrapped__ == alike.__wrapped__ == net.forward and len(graphs) == 1
    left_alone = argand.disable(net.forward)
    assert compiled.dynamo_ctx(left_alone) is left_alone
    assert compiled._compile_kwargs["backend"] is backend
    other = argand.compile(net)
    assert other._compile_kwargs["backend"] == "argand"
    other._compile_kwargs = noted = {"backend": "eager"}  # as Lightning does where it saw torch.compile called
    assert other._compile_kwargs is noted


def test_torch_compile_with_argand_as_its_default() -> None:
    if not hasattr(torch.compiler, "set_default_backend"):
        pytest.skip("this torch has no default backend")
    if not importlib.metadata.entry_points(group="torch_dynamo_backends", name="argand"):
        pytest.skip("argand is on the path, not installed")
    torch.compiler.set_default_backend("argand")
    try:
        net = fresh()
        torch.testing.assert_close(torch.compile(net)(X), net(X))
    finally:
        torch.compiler.set_default_backend(None)


class Holder(torch.nn.Module):
    """Calls what it holds, which may be no module."""

    def __init__(self, held: Callable[..., Any]) -> None:
        super().__init__()
        self.held = (held,)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.held[0](x) + 1


def _compiled_in_all_ways(backend: str) -> list[Callable[..., Any]]:
    """Modules and functions of which a part is compiled."""
    module, hooked = argand.compile(fresh(), backend=backend), argand.compile(fresh(), backend=backend)
    hooked.register_forward_hook(lambda module, inputs, output: output + 1)
    by_forward = fresh()
    by_forward.forward = argand.compile(by_forward.forward, backend=backend)  # type: ignore[method-assign]
    without_graph = argand.compile(lambda x: next(iter_of(x)), backend=backend)
    with_backward_hook = fresh()
    with_backward_hook.fc.register_full_backward_hook(lambda *_: None)
    torchs = argand.compile(torch.sin, backend=backend)
    return [
        module, *map(torch.nn.Sequential, (module, by_forward)), hooked, without_graph, torchs, Holder(torchs),
        Holder(argand.compile(with_backward_hook, backend=backend)),
        argand.compile(lambda x: torchs(x) + 1, backend=backend),
    ]  # fmt: skip


def iter_of(x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield x * 2


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_torchs_tracers_refuse_in_one_sentence(backend: str) -> None:
    """What torch refuses for its own modules; `make_fx`, TorchScript's compiler and exporters take the original."""
    sentence = r"^torch.{} does not trace what argand compiled: trace the original, .*`$"
    trace, fx_trace = sentence.format("jit.trace"), sentence.format("fx.symbolic_trace")
    for warm_first in (False, True):
        for compiled in _compiled_in_all_ways(backend):
            if warm_first:
                compiled(X)
            with pytest.raises(ArgandError, match=trace):
                torch.jit.trace(compiled, X)
            with pytest.raises(ArgandError, match=fx_trace):
                torch.fx.symbolic_trace(compiled)
            torch.testing.assert_close(compiled(X), compiled(X))  # the refusal leaves nothing behind
    with argand.set_stance("force_eager"):
        torch.testing.assert_close(torch.jit.trace(within := argand.compile(fresh()), X)(-X), within(-X))


def test_a_call_is_the_forward_alone_unless_somebody_else_has_a_say() -> None:
    net = fresh()
    compiled = argand.compile(net, backend="eager")
    all_modules = vars(torch.nn.modules.module)

    def forward_alone(call: Any = torch.nn.Module.__call__) -> Any:
        return _C.forward_alone(compiled, call, all_modules)

    assert forward_alone() is vars(compiled)["_forward"][0] and forward_alone(Net.__call__.__get__(net)) is None
    for module in (compiled, net):
        for name in ("forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"):
            handle = getattr(module, f"register_{name}")(lambda *_: None)
            assert forward_alone() is None, name
            handle.remove()
            assert forward_alone() is not None
    for name in ("forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"):
        handle = all_modules[f"register_module_{name}"](lambda *_: None)
        assert forward_alone() is None, name
        handle.remove()
    net.forward = lambda x: x  # type: ignore[method-assign]
    assert forward_alone() is None and compiled(X) is X and forward_alone() is not None
    compiled.__dict__["forward"] = net.forward
    assert forward_alone() is None and compiled(X) is X
    outer = argand.compile(
        torch.nn.Sequential(argand.compile(fresh(), backend="eager")), backend="eager", fullgraph=True
    )
    torch.testing.assert_close(outer(X), fresh()(X))


@pytest.mark.parametrize("strict", [False, True])
def test_exporters_take_the_original(strict: bool) -> None:
    compiled = argand.compile(fresh(), backend="eager")
    for model in (compiled, torch.nn.Sequential(compiled)):
        exported = torch.export.export(model, (X,), strict=strict)
        torch.testing.assert_close(exported.module()(X), compiled(X))
    traced = make_fx(compiled)(X)
    assert "tanh" in traced.code
    torch.testing.assert_close(traced(X), compiled(X))


def test_tracers_in_compiled_code_trace_what_is_not_compiled() -> None:
    net = fresh()

    def traces(x: torch.Tensor) -> torch.Tensor:
        return torch.fx.symbolic_trace(net)(x) + torch.jit.trace(net, X)(x)

    torch.testing.assert_close(argand.compile(traces, backend="eager")(X), net(X) * 2)


def trained(net: torch.nn.Module, call: Callable[..., Any], steps: int = 2) -> Net:
    """What hosts' loops should come to."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(call(X), Y).backward()
        optimizer.step()
    return net


def same(ours: torch.nn.Module) -> None:
    net = fresh()
    torch.testing.assert_close(dict(ours.named_parameters()), dict(trained(net, net).named_parameters()))


def test_accelerate() -> None:
    accelerate = library("accelerate")
    from accelerate.utils import extract_model_from_parallel, is_compiled_module

    net = fresh()
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    half = accelerator.prepare(argand.compile(fresh(), backend="aot_eager"))
    torch.testing.assert_close(half(X), fresh()(X), rtol=2e-2, atol=2e-2)
    accelerate.state.AcceleratorState._reset_state(True)
    accelerator = accelerate.Accelerator(cpu=True)
    model = accelerator.prepare(argand.compile(net, backend="aot_eager"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.cross_entropy(model(X), Y))
        optimizer.step()
    assert is_compiled_module(model)
    assert accelerator.unwrap_model(model, keep_torch_compile=False) is net
    assert type(accelerator.unwrap_model(model)) is OptimizedModule
    assert extract_model_from_parallel(model, keep_torch_compile=False) is net
    same(net)


def _lightning_module(lightning: Any) -> Any:
    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x).tanh()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    torch.manual_seed(0)
    return Module()


def test_lightning(tmp_path: Path) -> None:
    lightning = library("lightning")
    module = _lightning_module(lightning)
    graphs = []

    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=8)
    trainer.fit(argand.compile(module, backend=backend), data)
    assert graphs
    same(module)


def test_lightning_fabric() -> None:
    library("lightning")
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    for compile_first in (True, False):
        net = fresh()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        if compile_first:
            model, optimizer = fabric.setup(argand.compile(net), optimizer, _reapply_compile=False)
        else:
            model, optimizer = fabric.setup(net, optimizer)
            model = argand.compile(model, backend="aot_eager")
        for _ in range(2):
            optimizer.zero_grad()
            fabric.backward(torch.nn.functional.cross_entropy(model(X), Y))
            optimizer.step()
        same(net)


def test_huggingface_trainer(tmp_path: Path) -> None:
    library("accelerate")
    transformers = library("transformers")
    config = transformers.GPT2Config(
        vocab_size=20, n_embd=8, n_layer=1, n_head=2, n_positions=8, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    transformers.GPT2LMHeadModel(config)  # the first model imports what draws random numbers
    ids = torch.arange(40).reshape(5, 8) % 20
    rows = [{"input_ids": row, "labels": row} for row in ids]

    def run(compile: Callable[[Any], Any]) -> Any:
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(config)
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / "out"), max_steps=2, report_to=[], use_cpu=True, save_strategy="no", seed=3
        )
        trainer = transformers.Trainer(model=compile(model), args=arguments, train_dataset=rows)
        trainer.train()
        unwrapped = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
        assert unwrapped is model
        unwrapped.save_pretrained(tmp_path / "saved")
        loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "saved")
        torch.testing.assert_close(dict(loaded.named_parameters()), dict(model.named_parameters()))
        return dict(model.named_parameters())

    eager = run(lambda model: model)
    torch.testing.assert_close(run(lambda model: argand.compile(model, backend="aot_eager")), eager)

    def compile_forward(model: Any) -> Any:
        model.forward = argand.compile(model.forward, backend="aot_eager")
        return model

    torch.testing.assert_close(run(compile_forward), eager)


def test_ignite() -> None:
    library("ignite")
    from ignite.engine import create_supervised_trainer

    net = fresh()
    model = argand.compile(net, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    create_supervised_trainer(model, optimizer, torch.nn.functional.cross_entropy).run([(X, Y)], max_epochs=2)
    same(net)


def test_skorch() -> None:
    library("skorch")
    from skorch import NeuralNet

    def train(module: torch.nn.Module) -> Any:
        net = NeuralNet(
            module,
            criterion=torch.nn.CrossEntropyLoss,
            lr=0.1,
            max_epochs=2,
            batch_size=8,
            train_split=None,
            verbose=0,
        )
        return net.fit(X.numpy(), Y.numpy())

    net = fresh()
    train(argand.compile(net, backend="aot_eager"))
    same(net)


def test_fastai() -> None:
    library("fastai")
    import fastai.callback.progress  # noqa: F401 - what no_bar is a method by
    from fastai.data.core import DataLoaders
    from fastai.learner import Learner
    from fastai.optimizer import SGD

    def run(compile: Callable[[Any], Any]) -> Net:
        net = fresh()
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=8)
        learner = Learner(
            DataLoaders(data, data), compile(net), loss_func=torch.nn.functional.cross_entropy, opt_func=SGD, lr=0.1
        )
        with learner.no_bar(), learner.no_logging():
            learner.fit(2)
        return net

    eager = run(lambda net: net)
    compiled = run(lambda net: argand.compile(net, backend="aot_eager"))
    torch.testing.assert_close(dict(compiled.named_parameters()), dict(eager.named_parameters()))


def test_stable_baselines() -> None:
    stable_baselines = library("stable_baselines3")

    def run(compile: Callable[[Any], Any]) -> dict[str, Any]:
        model = stable_baselines.PPO("MlpPolicy", "CartPole-v1", n_steps=16, batch_size=8, n_epochs=1, seed=0)
        model.policy = compile(model.policy)
        model.learn(32)
        return {name.removeprefix("_orig_mod."): p for name, p in model.policy.state_dict().items()}

    eager = run(lambda policy: policy)
    torch.testing.assert_close(run(lambda policy: argand.compile(policy, backend="aot_eager")), eager)


def test_peft(tmp_path: Path) -> None:
    peft = library("peft")
    import torch._dynamo

    def run(compile: Callable[[Any], Any]) -> Any:
        net = fresh()
        torch.manual_seed(1)
        model = peft.get_peft_model(net, peft.LoraConfig(r=2, target_modules=["fc"], lora_dropout=0.0))
        compiled = compile(model)
        trained(model, compiled)
        model.save_pretrained(tmp_path)
        again = peft.PeftModel.from_pretrained(fresh(), tmp_path)
        torch.testing.assert_close(again(X), model(X))
        assert isinstance(compiled, peft.PeftModel) or isinstance(compiled, torch._dynamo.OptimizedModule)
        return peft.get_peft_model_state_dict(model)

    eager = run(lambda model: model)
    torch.testing.assert_close(run(lambda model: argand.compile(model, backend="aot_eager")), eager)
