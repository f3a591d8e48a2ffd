"""What trainers and other hosts ask of a compiled module: whether it is torch's, and how to compile more like it."""

from __future__ import annotations

import contextlib
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules import module as _modules

from argand._core import _C
from argand.config import config
from argand.errors import not_traced

_TORCHS_NAMES = {"native": "argand"}  # backends that torch.compile knows by another name


class Forward:
    """The `forward` of a compiled module: bound to one, it has the signature of the forward that was compiled.

    Trainers read there which inputs a model takes. Of the class, it is the function as it was written.
    """

    def __init__(self, run: Callable[..., Any]) -> None:
        assert isinstance(run, types.FunctionType)
        self.run = run

    def __get__(self, module: torch.nn.Module | None, owner: type | None = None) -> Any:
        if module is None:
            return self.run
        bound = types.FunctionType(self.run.__code__, self.run.__globals__, self.run.__name__)
        original = module._modules["_orig_mod"]
        if "forward" in vars(original):
            with contextlib.suppress(ValueError, TypeError):  # native code need not tell
                taken = inspect.signature(vars(original)["forward"])
                itself = inspect.Parameter("_compiled", inspect.Parameter.POSITIONAL_ONLY)
                vars(bound)["__signature__"] = taken.replace(parameters=[itself, *taken.parameters.values()])
        else:
            vars(bound)["__wrapped__"] = getattr(type(original), "forward", self.run)  # None of TorchScript's
        return types.MethodType(bound, module)


class HostedModule(torch.nn.Module):
    """The side of a compiled module that is turned to hosts: it passes for an instance of torch's `OptimizedModule`.

    Libraries ask `isinstance(module, torch._dynamo.OptimizedModule)` before they take a wrapper off, unwrap a model to
    save it or refuse what they do not know. `isinstance` looks at `type(x)`, then at `x.__class__`: the latter is
    torch's class from when `torch._dynamo` has been imported, by whoever asks; nothing is imported for it.
    `type(x)`, copies and pickles know argand's class only.
    """

    @property
    def __class__(self) -> type[Any]:
        loaded = sys.modules.get("torch._dynamo.eval_frame")
        cls: type[Any] = getattr(loaded, "OptimizedModule", type(self))  # while it is being imported there is none
        return cls

    @__class__.setter
    def __class__(self, cls: type[Any]) -> None:
        """`fully_shard` gives a module a subclass of what it takes for its class: here it is one of argand's."""
        passed = self.__class__
        bases = tuple([type(self) if base is passed else base for base in cls.__bases__])
        if not issubclass(cls, type(self)) and bases != cls.__bases__:
            held = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
            cls = type(cls.__name__, bases, held)
        vars(object)["__class__"].__set__(self, cls)

    @property
    def training(self) -> bool:
        """The original's, which may be put into another mode by itself."""
        return bool(self._modules["_orig_mod"].training)

    @training.setter
    def training(self, mode: bool) -> None:
        if "_modules" in self.__dict__:  # there are none where torch's own __init__ sets its default
            self._modules["_orig_mod"].training = mode

    def _get_name(self) -> str:
        """The original's, by which trainers know what kind of model they have (whether its labels are shifted)."""
        return str(self._modules["_orig_mod"]._get_name())

    @property
    def dynamo_ctx(self) -> Callable[[Any], Any]:
        """Compiles a function as this module was compiled (Lightning compiles the steps of a module by it)."""
        return self._compile_alike

    def _compile_alike(self, fn: Any) -> Any:
        raise NotImplementedError

    @property
    def _compile_kwargs(self) -> dict[str, Any]:
        """How `torch.compile` would be called for a module like this one, by hosts that wrap it and compile again."""
        kept = self._modules["_orig_mod"].__dict__.get("_compile_kwargs")  # Lightning notes it where it saw the call
        if kept is not None:
            noted: dict[str, Any] = kept
            return noted
        backend, fullgraph, dynamic, mode, options = self.__dict__["_region"][1].request
        if isinstance(backend, str):
            backend = _TORCHS_NAMES.get(backend, backend)
        asked = {"backend": backend, "fullgraph": fullgraph, "dynamic": dynamic}
        if mode not in (None, "default"):
            asked["mode"] = mode
        if options:
            asked["options"] = options
        return asked


def _refuse_symbolic_trace() -> None:
    """torch.fx's tracer asks what it is given for its code: a compiled function has none of its own."""
    if sys._getframe(1).f_globals is vars(sys.modules["torch.fx._symbolic_trace"]):
        raise not_traced("torch.fx.symbolic_trace")


def _refuse_jit_trace() -> None:
    """torch.jit.trace would note down what one call happened to do, and nothing of compiled code."""
    if not config.disable:
        raise not_traced("torch.jit.trace")


def watch_tracers() -> None:
    """Let compiled functions refuse torch's tracers."""
    _C.set_tracers(_refuse_symbolic_trace, torch._C._get_tracing_state, _refuse_jit_trace)


def tell_accelerate() -> None:
    """Let Accelerate, and so Hugging Face's Trainer, take `argand` for a backend: `--torch_compile_backend argand`.

    Accelerate lists torch.compile's backends itself, and refuses others before torch is asked.
    """
    try:
        from accelerate.utils import DynamoBackend
    except ImportError:  # nobody is there to be told
        return
    if "ARGAND" not in DynamoBackend.__members__:
        member = str.__new__(DynamoBackend, "ARGAND")
        member._name_ = member._value_ = "ARGAND"
        DynamoBackend._member_map_["ARGAND"] = DynamoBackend._value2member_map_["ARGAND"] = member
        DynamoBackend._member_names_.append("ARGAND")


def has_own_hooks(module: torch.nn.Module) -> bool:
    """Whether hooks were put on the module itself."""
    own = module.__dict__
    return bool(
        own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"] or own["_backward_pre_hooks"]
    )


_LEFT_TO_TORCH = ("torch.distributed.fsdp.", "torch.distributed._composable", "torch.nn.parallel.")
"""Modules whose hooks communicate in ways that are not captured."""


def hooks_are_capturable(module: torch.nn.Module) -> bool:
    """Whether a module's hooks may be part of its graph: none is called in the backward, none is one that breaks it."""
    own = module.__dict__
    if own["_backward_hooks"] or own["_backward_pre_hooks"]:
        return False
    if _modules._global_backward_hooks or _modules._global_backward_pre_hooks:
        return False
    hooks = (*own["_forward_pre_hooks"].values(), *own["_forward_hooks"].values())
    return not any(str(getattr(hook, "__module__", "")).startswith(_LEFT_TO_TORCH) for hook in hooks)
