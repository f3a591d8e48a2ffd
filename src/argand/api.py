"""The front door: `argand.compile` and the functions around it.

Importing this module imports torch; `argand/__init__.py` resolves these names on first use.
"""

from __future__ import annotations

import contextlib
import copy
import copyreg
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, overload

import torch
from torch.nn.modules import module as _modules

from argand._core import _C
from argand.backends.in_parts.choice import compile_in_parts
from argand.backends.registry import check_backend, list_backends, lookup_backend, register_backend
from argand.capture.driver import stance, strict
from argand.capture.driver.entrance import answer_frame
from argand.capture.driver.explain import Explanation, Findings
from argand.capture.driver.region import CompilerFn, Region
from argand.capture.driver.stance import set_stance
from argand.capture.driver.strict import error_on_graph_break
from argand.capture.facts.code import directives
from argand.capture.facts.code.directives import (
    allow_in_graph,
    assume_constant_result,
    graph_break,
    is_compiling,
    mark_dynamic,
    mark_static,
    mark_step_begin,
)
from argand.capture.facts.code.skip import in_frame, with_frame
from argand.capture.output.tracebacks import tidy
from argand.config import config
from argand.debug.accuracy import same
from argand.debug.logs import set_logs
from argand.debug.observe import JOINT, code_of
from argand.debug.profiler import CompileProfiler
from argand.debug.times import compile_times
from argand.errors import ArgandError, BackendCompilerFailed, ConfigError, not_traced
from argand.events import bus
from argand.graph import thread_state
from argand.hosts import Forward, HostedModule, has_own_hooks, hooks_are_capturable, watch_tracers
from argand.outcomes.store import STORE
from argand.report.sinks import counters, metrics
from argand.runtime import profile
from argand.warm_starts import stored_as

__all__ = [
    "CompileProfiler", "OptimizedModule", "allow_in_graph", "answer_torch_compile", "assume_constant_result",
    "compile", "compile_times", "counters", "disable", "error_on_graph_break", "explain", "graph_break",
    "is_compiling", "list_backends", "lookup_backend", "mark_dynamic", "mark_static", "mark_step_begin", "metrics",
    "register_backend", "reset", "same", "set_logs", "set_stance",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])
_plain_call, _all_modules = torch.nn.Module.__call__, vars(_modules)
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class _Process:
    """The process-wide state: regions by what was asked for, so that equal requests share compiled code."""

    def __init__(self) -> None:
        self.regions: dict[tuple[Any, ...], Region] = {}
        self.callbacks: dict[Region, Callable[[_C.FrameInfo], _C.Answer]] = {}
        self.exchange_api_set = False


_process = _Process()


def _frozen(value: Any) -> Any:
    """A hashable form of compile options."""
    if isinstance(value, dict):
        return tuple(sorted((key, _frozen(item)) for key, item in value.items()))
    if isinstance(value, (list, set, tuple)):
        return tuple(map(_frozen, value))
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value


def _backend_name(backend: str | Callable[..., Any]) -> str:
    """How messages call a backend."""
    return backend if isinstance(backend, str) else getattr(backend, "__name__", type(backend).__name__)


def _compiler(request: tuple[Any, ...]) -> CompilerFn:
    """The backend as capture calls it: resolved on first use, its failures told apart from capture's."""
    backend, _, _, mode, options = request
    name, kwargs = _backend_name(backend), dict[str, Any]()
    if mode not in (None, "default"):
        kwargs["mode"] = mode
    if options:
        kwargs["options"] = options

    def call_backend(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Callable[..., Any]:
        ahead = functools.partial(stored_as, request)
        parts = compile_in_parts(gm, example_inputs, compile_whole, backend, ahead)
        return parts or compile_whole(gm, example_inputs)

    def compile_whole(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Callable[..., Any]:
        function = lookup_backend(backend)
        if JOINT.observer is not None:
            function = JOINT.observer.backend(function, backend)
        if config.check_numerics:
            from argand.debug.numerics import checked

            function = checked(function)
        if config.repro_after:
            from argand.debug.repro_after import watch

            function = watch(function, backend)
        try:
            compiled = function(gm, example_inputs, **kwargs)
        except Exception as error:
            where = error.where if isinstance(error, ArgandError) else ()
            raise BackendCompilerFailed(name, error, where=where) from error
        if not callable(compiled):
            error = TypeError(f"the backend returned {type(compiled).__name__}, which cannot be called")
            raise BackendCompilerFailed(name, error)
        return compiled

    return call_backend


def connect() -> None:
    """Tell the core what it needs of torch."""
    if not _process.exchange_api_set:  # twice, from two threads, does no harm
        _C.set_exchange_api(torch.Tensor.__dlpack_c_exchange_api__)
        _C.set_exception_filter(tidy)
        _C.set_ambient(thread_state.snapshot, thread_state.restore)
        watch_tracers()
        _C.set_other_compiler(torch._C._dynamo.eval_frame.set_eval_frame)
        profile.connect()
        copyreg.pickle(_C.Region, _reduce_function)
        _process.exchange_api_set = True


def _region(
    backend: str | Callable[..., Any],
    fullgraph: bool,
    dynamic: bool | None,
    mode: str | None,
    options: dict[str, Any] | None,
) -> tuple[Region, Callable[[_C.FrameInfo], _C.Answer]]:
    """The region of these settings and its frame-hook callback; the same objects for the same settings."""
    key = (backend if isinstance(backend, str) else id(backend), fullgraph, dynamic, mode, _frozen(options))
    connect()
    region = _process.regions.get(key)
    if region is None:
        # The closure of call_backend keeps a callable backend alive, so its id stays its own.
        observe = getattr(backend, "observe_only", False) is True
        request = (backend, fullgraph, dynamic, mode, options)
        call, kept = _compiler(request), functools.partial(stored_as, request)
        told = backend in ("native", "aot_eager", "eager")
        sizes = told or getattr(backend, "takes_data_sizes", False) is True
        cuts = _callback if backend == "native" and not fullgraph else None
        own_region = Region(call, _backend_name(backend), fullgraph, dynamic, observe, request, kept, sizes, told, cuts)
        region = _process.regions.setdefault(key, own_region)
        if config.remote_cache:
            from argand.runtime.remote import REMOTE

            REMOTE.prepare()
    return region, _process.callbacks.setdefault(region, _callback(region))


def _callback(region: Region) -> Callable[[_C.FrameInfo], _C.Answer]:
    """The frame hook's."""
    return functools.partial(answer_frame, region=region)


def _check_request(backend: Any, fullgraph: Any, dynamic: Any, mode: Any, options: Any, disable: Any) -> None:
    """Refuse a wrong argument where the user wrote it, not at the first call."""
    for name, value in (("fullgraph", fullgraph), ("disable", disable)):
        if not isinstance(value, bool):
            raise ConfigError(f"{name} takes True or False, not {value!r}", remedy=f"pass {name}=True or leave it out")
    if dynamic is not None and not isinstance(dynamic, bool):
        raise ConfigError(f"dynamic takes None, True or False, not {dynamic!r}", remedy="leave it out for None")
    if mode is not None and mode not in MODES:
        raise ConfigError(f"unknown mode {mode!r}", remedy=f"known modes: {', '.join(MODES)}")
    if mode not in (None, "default") and options:
        raise ConfigError("mode and options cannot both be given", remedy="put what the mode stands for into options")
    if options is not None and not isinstance(options, dict):
        raise ConfigError(f"options takes a dict, not {type(options).__name__}", remedy="see `argand env` for names")
    check_backend(backend, options)


@overload
def compile(
    model: None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "native",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
) -> Callable[[F], F]: ...
@overload
def compile(
    model: F,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "native",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
) -> F: ...
def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "native",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """Compile a function, method or module; also a decorator, with or without arguments.

    Nothing is compiled until the first call. Calls with inputs that the compiled code's guards refuse are captured
    again, up to `config.cache_size_limit` times.

    Random numbers: with backend "native" graphs draw numbers of their own, repeatable by `torch.manual_seed` and of the
    same distributions, but not those that eager draws (dropout, `torch.rand`, augmentations). `config.fallback_random =
    True` at the first call, or backend "aot_eager" or "eager", gives eager's numbers in eager's order.

    Arguments:
        model: what to compile; None returns a decorator.
        fullgraph: raise `errors.Unsupported` at the first graph break instead of splitting the program.
        dynamic: None makes a size (or a Python number) symbolic once a second call shows that it varies; True makes
            all sizes of inputs symbolic at the first compile; False compiles for each size. See `mark_dynamic`.
        backend: a name of `list_backends()` or `(gm: fx.GraphModule, example_inputs: list[Tensor]) -> Callable`.
        mode: "default": graphs of a GPU that gain time by it are recorded as CUDA graphs (docs/gpu.md);
            "reduce-overhead", "max-autotune": all; "max-autotune-no-cudagraphs": none. In the last two, products of
            matrices on a GPU are kernels of argand's where these are timed to be faster. Handed to backends as `mode=`.
        options: handed to the backend as `options=`. Of "native": `{"never_slower": True}` compares each graph with
            eager in its third call, and runs the faster; `{"freezing": True}` takes parameters for constants until one
            changes; `{"quantization": "int8_dynamic"}` gives weights 8 bits (see docs/).
        disable: return `model` unchanged.

    Raises:
        ConfigError: a wrong argument.
    """
    _check_request(backend, fullgraph, dynamic, mode, options, disable)
    if model is None:
        return functools.partial(
            compile, fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode, options=options, disable=disable
        )
    if disable or config.disable:
        return model
    bus.prepare()
    region, callback = _region(backend, fullgraph, dynamic, mode, options)
    model = _original(model)
    if directives.is_disabled_by_torch(model) and not isinstance(model, torch.nn.Module):
        return model  # torch.compiler.disable wins
    if isinstance(model, torch.nn.Module):
        return OptimizedModule(model, callback, region)
    if isinstance(model, type) or not callable(model):
        kind = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        raise ConfigError(
            f"argand.compile takes a function, method or module, not {kind}", remedy="compile an instance"
        )
    return model if isinstance(model, _C.Region) else compiled_function(model, callback, region)


def _original(model: Any) -> Any:
    """What was compiled before, by argand or by torch.compile; `model` itself where nothing was, or it is disabled."""
    if isinstance(model, _C.Region):
        return model if model.callback is None else model.fn
    if isinstance(model, OptimizedModule) or type(model).__module__ == "torch._dynamo.eval_frame":
        return getattr(model, "_orig_mod", model)
    original = directives.wrapped_by_compiler(model)
    return model if original is None or directives.is_disabled_by_torch(model) else original


def compiled_function(fn: Callable[..., Any], callback: Any, region: Region) -> Any:
    """`fn` in a region: a C callable that looks like `fn`."""
    compiled = _entry(callback, region, fn)
    functools.update_wrapper(compiled, fn)
    compiled.__dict__["__prepare_scriptable__"] = lambda: fn  # what torch.jit.script takes instead
    return _audited(compiled, fn)


def _entry(callback: Any, region: Region, fn: Any) -> _C.Region:
    region.asked.add(code_of(fn))
    return _C.Region(callback, region, with_frame(fn))


def _audited(compiled: Any, fn: Any) -> Any:
    """`compiled`, checked as `config.audit_rate` says; or what an observer makes of it."""
    if JOINT.observer is not None:
        return JOINT.observer.function(compiled, fn)
    if config.audit_rate <= 0:
        return compiled
    from argand.debug.audit import audited

    return audited(compiled, fn)


class OptimizedModule(HostedModule):
    """A compiled module: calls run compiled, everything else is the original module's.

    Attributes, parameters, buffers, `train()` and so on are those of the original (`_orig_mod`); names of parameters
    and keys of `state_dict()` start with `_orig_mod.`, as under torch.compile. Copying or pickling copies the original
    and compiles the copy on its first call, in the process that loads it. `isinstance` takes it for torch's class of
    this name, which trainers ask for.
    """

    _orig_mod: torch.nn.Module

    def __init__(self, module: torch.nn.Module, callback: Any, region: Region) -> None:
        super().__init__()
        self._modules["_orig_mod"] = module
        self.__dict__["_region"] = (callback, region)
        self.__dict__["_forward"] = self._make_forward(module)

    def _make_forward(self, module: torch.nn.Module) -> Any:
        callback, region = self.__dict__["_region"]
        compiled = _audited(_entry(callback, region, module.forward), module.forward)
        return compiled, module.__dict__.get("forward"), getattr(type(module), "forward", None)  # None: TorchScript's

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler._is_exporting_flag:  # torch.export takes the original's operations
            original: Any = self._modules["_orig_mod"]
            return original(*args, **kwargs)
        compiled = _C.forward_alone(self, _plain_call, _all_modules)
        if compiled is not None:
            return compiled(*args, **kwargs)  # one frame of argand's in tracebacks, not two
        # a host has wrapped this module's forward; hooks of every module are the original's to call, once, as in eager
        if "forward" in self.__dict__ or has_own_hooks(self):
            return super().__call__(*args, **kwargs)
        return self._call_original(self._modules["_orig_mod"], args, kwargs)

    @Forward
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if type(args) is not tuple:  # torch.fx.symbolic_trace runs this code with a Proxy in its place
            raise not_traced("torch.fx.symbolic_trace")
        return self._call_original(self._modules["_orig_mod"], args, kwargs)

    def _call_original(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if has_hooks(module):
            return self._with_hooks(module)(*args, **kwargs)
        compiled, own, on_class = self.__dict__["_forward"]
        if module.__dict__.get("forward") is not own or getattr(type(module), "forward", None) is not on_class:
            self.__dict__["_forward"] = self._make_forward(module)
            compiled = self.__dict__["_forward"][0]
        return compiled(*args, **kwargs)

    def _compile_alike(self, fn: Any) -> Any:
        original = _original(fn)
        return fn if isinstance(original, _C.Region) else _restore(original, _Request(*self.__dict__["_region"]))

    def _with_hooks(self, module: Any) -> Any:
        """A callable that runs the module, its hooks included: these are part of its graph where they can be, else they
        run under the frame hook, one by one."""
        whole = hooks_are_capturable(module)
        hooked = self.__dict__.get("_hooked")
        if hooked is None or hooked[0] is not module or hooked[1] != whole:
            framed = in_frame(module.__call__, type(module).__name__)
            callback, region = self.__dict__["_region"]
            compiled = _C.Region(callback, region, framed if whole else module)
            hooked = self.__dict__["_hooked"] = (module, whole, _audited(compiled, module.__call__))
        return hooked[2]

    def __getattr__(self, name: str) -> Any:
        modules = self.__dict__.get("_modules")
        if modules is None or "_orig_mod" not in modules:
            raise AttributeError(name)
        if name == "_orig_mod":
            return modules["_orig_mod"]
        return getattr(modules["_orig_mod"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_orig_mod":
            self._modules["_orig_mod"] = value
            self.__dict__["_forward"] = self._make_forward(value)
        elif name in self.__dict__ or callable(getattr(type(self), name, None)):  # hosts wrap methods
            super().__setattr__(name, value)
        else:
            setattr(self._modules["_orig_mod"], name, value)

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__:
            super().__delattr__(name)
        else:
            delattr(self._modules["_orig_mod"], name)

    def __dir__(self) -> list[str]:
        return sorted({*dir(type(self)), *dir(self._orig_mod)})

    def __len__(self) -> int:
        return len(self._orig_mod)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._orig_mod)

    def __getitem__(self, key: Any) -> Any:
        return self._orig_mod[key]

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"OptimizedModule({self._orig_mod!r})"

    def __reduce__(self) -> Any:
        # hooks that were put on this module, not on the original
        own = {name: held for name, held in self.__dict__.items() if held and "_hook" in name}
        return _restore, (self._orig_mod, _Request(*self.__dict__["_region"])), own or None

    def __copy__(self) -> Any:
        restore, (module, request), own = self.__reduce__()
        copied = restore(copy.copy(module), request)
        copied.__dict__.update(own or {})
        return copied

    def __prepare_scriptable__(self) -> torch.nn.Module:
        return self._orig_mod  # what torch.jit.script takes instead


class _Request:
    """What `compile` was asked for, as copies of compiled functions share it and pickles tell of it."""

    def __init__(self, callback: Any, region: Region | None) -> None:
        self.asked = callback, region

    def __deepcopy__(self, memo: dict[int, Any]) -> _Request:
        return self

    def __reduce__(self) -> Any:
        region = self.asked[1]
        if region is not None and not isinstance(region.request[0], str):
            raise TypeError(f"what the callable backend {region.backend_name!r} compiles cannot be pickled")
        return _request, () if region is None else region.request


def _request(*asked: Any) -> _Request:
    return _Request(*(_region(*asked)[::-1] if asked else (None, None)))


def _reduce_function(compiled: _C.Region) -> Any:
    """How a compiled function is copied and pickled: by its name, as functions are, or else compiled again."""
    named: Any = sys.modules.get(getattr(compiled, "__module__", None) or "")
    name: str = getattr(compiled, "__qualname__", "")
    for part in name.split("."):
        named = getattr(named, part, None)
    if named is compiled:
        return name
    fn = compiled.__dict__.get("__wrapped__", compiled.fn)
    return _restore, (fn, _Request(compiled.callback, compiled.key))


def _restore(model: Any, request: _Request) -> Any:
    callback, region = request.asked
    if region is None:
        return disable(model)
    make: Any = OptimizedModule if isinstance(model, torch.nn.Module) else compiled_function
    return make(model, callback, region)


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether calling the module does more than calling its forward."""
    call = type(module).__call__
    return bool(
        has_own_hooks(module)
        or _modules._global_forward_hooks
        or _modules._global_forward_pre_hooks
        or _modules._global_backward_hooks
        or _modules._global_backward_pre_hooks
        or (call is not torch.nn.Module.__call__ and call is not OptimizedModule.__call__)
    )


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """Never capture `fn`; with `recursive` (the default) nothing that it calls either. Also a decorator.

    Calling it from compiled code breaks the graph there; `reason` is shown where that is reported.

    Raises:
        ConfigError: `fn` cannot be called, or a wrong `recursive` or `reason`.
    """
    if not isinstance(recursive, bool) or not isinstance(reason, str | None):
        wrong = f"recursive={recursive!r}" if not isinstance(recursive, bool) else f"reason={reason!r}"
        raise ConfigError(f"argand.disable got {wrong}", remedy="recursive is True or False, reason is a text or None")
    if fn is None:
        return functools.partial(disable, recursive=recursive, reason=reason)
    if isinstance(fn, OptimizedModule):
        fn = fn._orig_mod
    if isinstance(fn, _C.Region):
        fn = fn.fn
    if isinstance(fn, torch.nn.Module):
        fn.forward = disable(fn.forward, recursive, reason=reason)
        return fn
    if not callable(fn):
        raise ConfigError(
            f"argand.disable takes a callable, not {type(fn).__name__}", remedy="pass a function or module"
        )
    if not recursive:
        code = getattr(getattr(fn, "__func__", fn), "__code__", None)
        if code is not None:
            _C.skip_code(code)
        return directives.mark_disabled(fn, reason)
    wrapper = _C.Region(None, None, fn)
    functools.update_wrapper(wrapper, fn)
    return directives.mark_disabled(wrapper, reason)


def reset() -> None:
    """Forget all compiled code, recompile counts and regions, in this process. Kernels on disk are kept."""
    _process.regions.clear()
    _process.callbacks.clear()
    _C.reset_all()
    STORE.clear()
    strict.reset()
    stance.reset()
    bus.times.clear()
    for name in ("argand.capture.driver.frame", "argand.backends.native", "argand.engine.entries"):
        if (module := sys.modules.get(name)) is not None:
            module.reset()


def explain(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Find out which graphs `fn` makes and why it breaks: `print(argand.explain(fn)(*args))`.

    Runs `fn` once under the "eager" backend, in a region of its own. `argand.explain(fn, *args)` is accepted too.

    Returns:
        A function that takes fn's arguments and returns an `Explanation`.
    """

    compile(fn, backend="eager")  # refuses here what cannot be compiled

    def run(*args: Any, **kwargs: Any) -> Explanation:
        findings = Findings()

        def eager(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Callable[..., Any]:
            forward: Callable[..., Any] = gm.forward
            return forward

        eager.takes_data_sizes = True  # type: ignore[attr-defined]  # as the backends do whose graphs it tells of
        compiled = compile(fn, backend=eager)
        with findings.listening(), config.patch(suppress_errors=False):
            compiled(*args, **kwargs)
        return Explanation.of(findings)

    return run(*args, **kwargs) if args or kwargs else run


def _answer_set_stance(stance: str = "default", **options: Any) -> set_stance:
    """`torch.compiler.set_stance` of a program that argand answers; its further options have no meaning here."""
    nearest = {"eager_then_compile": "default", "aot_eager_then_compile": "default"}
    return set_stance(nearest.get(stance, stance))


@contextlib.contextmanager
def answer_torch_compile(backend: str = "native", override: bool = False) -> Iterator[None]:
    """While active, `torch.compile(...)` is answered by argand, `torch.compiler.set_stance` and `reset` too.

    Arguments:
        backend: used where the program names none or names torch's default, "inductor".
        override: use it everywhere, whatever the program asks for, also in `argand.compile`.
    """
    package = vars(sys.modules[__package__ or "argand"])

    def answer(model: Any = None, *, backend: Any = "inductor", **kwargs: Any) -> Any:
        chosen = default if override or backend in ("inductor", "argand", None) else backend
        return original(model, backend=chosen, **{k: v for k, v in kwargs.items() if k in names})

    def answer_argand(model: Any = None, *, backend: Any = "native", **kwargs: Any) -> Any:
        return original(model, backend=default, **kwargs)

    default, original, names = backend, compile, ("fullgraph", "dynamic", "mode", "options", "disable")
    saved = torch.compile
    saved_stance, saved_reset = torch.compiler.set_stance, torch.compiler.reset
    torch.compile, torch.compiler.set_stance, torch.compiler.reset = answer, _answer_set_stance, reset
    if override:
        package["compile"] = answer_argand
    try:
        yield
    finally:
        torch.compile, torch.compiler.set_stance, torch.compiler.reset = saved, saved_stance, saved_reset
        if override:
            package.pop("compile", None)
