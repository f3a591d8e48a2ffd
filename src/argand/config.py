"""One typed config object: each setting declared once, with its default and one sentence of help.

`argand.config.cache_size_limit = 16` sets; an unknown name or a wrong type is refused. `config.patch(...)` is a
context manager and a decorator. The documentation's table is generated from `describe()`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from argand.errors import ConfigError
from argand.quick_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """Declaration of one setting: its default, one sentence of help, the environment variables that set it, the types
    it takes besides that of the default, and names that it takes."""

    default: Any
    help: str
    env: tuple[str, ...] = ()
    types: tuple[type, ...] = ()
    names: tuple[str, ...] = ()

    def accepts(self, value: Any) -> bool:
        if type(value) is str and value in self.names:
            return True
        allowed = self.types or (type(self.default),)
        if isinstance(value, bool) and bool not in allowed:
            return False
        return isinstance(value, allowed) or (float in allowed and isinstance(value, int))

    def from_env(self, text: str) -> Any:
        if isinstance(self.default, bool):
            return text.strip().lower() not in ("", "0", "false", "off", "no")
        if isinstance(self.default, int):
            return int(text)
        if isinstance(self.default, float):
            return float(text)
        return text


SECRETS = frozenset(("remote_cache", "remote_cache_key"))
"""Settings that nobody shows or writes down: a secret, and an address that may hold a password. The variables that set
them begin with ARGAND_REMOTE_CACHE."""

ALIASES = {"recompile_limit": "cache_size_limit"}
"""Names that users of torch know for a setting that has another one here."""


class Section:
    """A namespace of settings; attribute access is checked against the declarations."""

    _settings: dict[str, Setting]
    _values: dict[str, Any]
    _followers: dict[str, Callable[[], None]]
    _name: str

    def __init__(self, name: str, settings: dict[str, Setting], sections: dict[str, Section] | None = None) -> None:
        object.__setattr__(self, "_name", name)
        object.__setattr__(self, "_settings", settings)
        object.__setattr__(self, "_sections", sections or {})
        object.__setattr__(self, "_values", {key: _initial(setting) for key, setting in settings.items()})
        object.__setattr__(self, "_followers", {})

    def __getattr__(self, key: str) -> Any:
        key = ALIASES.get(key, key)
        sections: dict[str, Section] = object.__getattribute__(self, "_sections")
        if key in sections:
            return sections[key]
        values: dict[str, Any] = object.__getattribute__(self, "_values")
        if key in values:
            return values[key]
        if key.startswith("__"):
            raise AttributeError(key)
        raise self._unknown(key)

    def __setattr__(self, key: str, value: Any) -> None:
        key = ALIASES.get(key, key)
        setting = self._settings.get(key)
        if setting is None:
            raise self._unknown(key)
        if not setting.accepts(value):
            types = [t.__name__ for t in (setting.types or (type(setting.default),))]
            wanted = " or ".join([*types, *map(repr, setting.names)])
            raise ConfigError(
                f"argand.{self._name}.{key} takes {wanted}, not {type(value).__name__} ({value!r})",
                remedy=setting.help,
            )
        self._values[key] = value
        self._follow(key)

    def __delattr__(self, key: str) -> None:
        """Back to the initial value: what tools that patch attributes (pytest's monkeypatch) do in the end."""
        key = ALIASES.get(key, key)
        if key not in self._settings:
            raise self._unknown(key)
        self._values[key] = _initial(self._settings[key])
        self._follow(key)

    def follow(self, key: str, changed: Callable[[], None]) -> None:
        """Call `changed` whenever this setting is set."""
        self._followers[key] = changed

    def _follow(self, key: str) -> None:
        if key in self._followers:
            self._followers[key]()

    def __dir__(self) -> list[str]:
        return [*self._settings, *object.__getattribute__(self, "_sections"), "patch", "describe", "reset"]

    def _unknown(self, key: str) -> ConfigError:
        import difflib

        close = difflib.get_close_matches(key, list(dir(self)), n=3)
        hint = f"did you mean {', '.join(close)}?" if close else f"known names: {', '.join(sorted(self._settings))}"
        return _UnknownSetting(f"argand.{self._name} has no setting {key!r}", remedy=hint)

    def reset(self) -> None:
        """Every setting back to its initial value."""
        self._values.update({key: _initial(setting) for key, setting in self._settings.items()})
        for section in object.__getattribute__(self, "_sections").values():
            section.reset()
        for key in self._settings:
            self._follow(key)

    @contextlib.contextmanager
    def patch(self, changes: dict[str, Any] | None = None, /, **kwargs: Any) -> Iterator[None]:
        """Temporarily change settings; dotted names reach sections: `patch({"trace.enabled": True})`."""
        saved: list[tuple[Section, str, Any]] = []
        try:
            for dotted, value in {**(changes or {}), **kwargs}.items():
                *path, key = dotted.split(".")
                section: Section = self
                for part in path:
                    section = getattr(section, part)
                key = ALIASES.get(key, key)
                if key not in section._settings:
                    raise section._unknown(key)
                saved.append((section, key, section._values[key]))
                setattr(section, key, value)
            yield
        finally:
            for section, key, value in reversed(saved):
                section._values[key] = value
                section._follow(key)

    def describe(self, prefix: str = "") -> list[tuple[str, Any, str]]:
        """(dotted name, default, help) of every setting, for the documentation and `argand env`."""
        rows = [(prefix + key, s.default, s.help) for key, s in self._settings.items()]
        for name, section in object.__getattribute__(self, "_sections").items():
            rows += section.describe(f"{prefix}{name}.")
        return rows


class _UnknownSetting(ConfigError, AttributeError):
    """An AttributeError too, so that hasattr() and copy protocols behave."""


def _initial(setting: Setting) -> Any:
    for name in setting.env:
        text = os.environ.get(name)
        if text is not None:
            try:
                return setting.from_env(text)
            except ValueError:  # perhaps meant for another program, which this must not stop
                if text.strip():
                    wanted = type(setting.default).__name__
                    warnings.warn(f"argand: {name}={text[:80]!r} is no {wanted} and is ignored", stacklevel=2)
    return setting.default


def default_cache_dir() -> Path:
    """`ARGAND_CACHE_DIR`, or the platform's user cache directory."""
    explicit = config.cache_dir
    if explicit:
        return Path(explicit)
    import platformdirs

    return Path(platformdirs.user_cache_dir("argand"))


_TRACE = {
    "enabled": Setting(False, "Write the debug directory.", ("ARGAND_COMPILE_DEBUG", "TORCH_COMPILE_DEBUG")),
    "debug_log": Setting(True, "In the debug directory: debug.log, what each stage said."),
    "info_log": Setting(False, "In the debug directory: info.log, debug.log's lines of level INFO and above."),
    "fx_graph": Setting(True, "In the debug directory: fx_graph_readable.py and fx_graph_runnable.py."),
    "fx_graph_transformed": Setting(True, "In the debug directory: fx_graph_transformed.py, the graph after passes."),
    "ir_pre_fusion": Setting(True, "In the debug directory: ir_pre_fusion.txt."),
    "ir_post_fusion": Setting(True, "In the debug directory: ir_post_fusion.txt."),
    "output_code": Setting(True, "In the debug directory: output_code.py."),
    "capture": Setting(True, "In the debug directory: the folder capture/ (graph, bytecode, guards of every compile)."),
    "graph_diagram": Setting(False, "In the debug directory: graph_diagram.svg, the fused graph as a picture."),
    "compile_profile": Setting(
        False, "In the debug directory: compile_profile.txt and .json, the time of every stage."
    ),
    "save_data_limit": Setting(
        1 << 26, "Bytes of constants that fx_graph_runnable.py keeps beside it; beyond that they are random."
    ),
}

_CPP = {
    "enable_kernel_profile": Setting(False, "Make every generated kernel appear by name in torch.profiler."),
    "simdlen": Setting(-1, "Vector width in bits: -1 is what the CPU has, 0 generates scalar code."),
    "threads": Setting(-1, "OpenMP threads of generated kernels: -1 follows torch.get_num_threads()."),
    "kept_heap": Setting(
        0,
        "Bytes at the end of the C library's heap that it keeps for the next step, for all of the process; 0 leaves "
        "it to the C library.",
    ),
    "min_parallel_work": Setting(32768, "Scalar operations below which a kernel runs on one thread."),
    "own_products": Setting(
        None,
        "Products of float32 matrices go to argand's kernel (needs AVX-512 and GCC); None: where timing says so.",
        types=(bool, type(None)),
    ),
    "onednn_products": Setting(
        False, "Large float32 matrix products go to oneDNN, whose sums are less exact than those of ATen's library."
    ),
    "compile_timeout": Setting(
        120.0, "Seconds after which the C++ compiler counts as hung; graphs then run with eager's kernels."
    ),
    "cxx": Setting("", "The C++ compiler; empty tries $CXX, g++, clang++, c++.", ("ARGAND_CXX", "CXX")),
}

_TRITON = {
    "on_cpu": Setting(
        False,
        "Generate Triton kernels for CPU tensors and run them in Triton's interpreter (needs TRITON_INTERPRET=1): for "
        "tests, and for looking at GPU code without a GPU.",
    ),
    "direct_products": Setting(
        True,
        "Let matrix products of 16-bit floats go to cuBLASLt past ATen, which takes a third of the CPU time of a call.",
    ),
    "cudagraphs": Setting(
        None,
        "Record graphs as CUDA graphs and replay them: None, as argand.compile's mode says, and in the default mode "
        "where that is safe and measured to gain time; True, always; False, never.",
        types=(bool, type(None)),
    ),
}

_ROOT = {
    "disable": Setting(
        False, "Make argand.compile return its argument unchanged.", ("ARGAND_DISABLE", "TORCH_COMPILE_DISABLE")
    ),
    "verbose": Setting(False, "Show argand's own stack trace in errors.", ("ARGAND_VERBOSE", "TORCHDYNAMO_VERBOSE")),
    "suppress_errors": Setting(
        False,
        "Run a frame eagerly when capturing or compiling it fails.",
        ("ARGAND_SUPPRESS_ERRORS", "TORCHDYNAMO_SUPPRESS_ERRORS"),
    ),
    "exact_sizes_limit": Setting(8, "Sizes that a graph which depends on its sizes too much is compiled for."),
    "error_on_graph_break": Setting(False, "Make a graph break an error (argand.error_on_graph_break for a part)."),
    "cache_size_limit": Setting(8, "Compiled versions of one code object before it runs eagerly."),
    "debug_function": Setting(
        "",
        "Capture only functions of this name (or these, with commas between).",
        ("ARGAND_DEBUG_FUNCTION", "TORCHDYNAMO_DEBUG_FUNCTION"),
    ),
    "cache_dir": Setting("", "Where compiled kernels are kept; empty is the user's cache.", ("ARGAND_CACHE_DIR",)),
    "cache": Setting(True, "Keep compiled kernels on disk."),
    "program_cache": Setting(
        True,
        "Keep the code of whole graphs on disk too: later processes neither lower nor schedule them.",
        ("ARGAND_PROGRAM_CACHE",),
    ),
    "outcome_cache": Setting(
        True,
        "Keep what capture made of functions on disk too (with program_cache): later processes do not capture them.",
        ("ARGAND_OUTCOME_CACHE",),
    ),
    "remote_cache": Setting(
        "",
        "A Redis server (redis://host:port/0) with a fleet's compiled kernels; empty is none.",
        ("ARGAND_REMOTE_CACHE",),
    ),
    "remote_cache_key": Setting(
        "",
        "The secret with which a fleet signs entries of its remote cache and its archives; without it neither is used.",
        ("ARGAND_REMOTE_CACHE_KEY",),
    ),
    "automatic_dynamic_shapes": Setting(
        True, "Make a size or number symbolic when the next compile sees that it changed (dynamic=None)."
    ),
    "assume_static_by_default": Setting(True, "Sizes are constants until they change; False is dynamic=True."),
    "specialize_int": Setting(False, "Treat Python ints as constants even if they change."),
    "specialize_float": Setting(False, "Treat Python floats as constants even if they change."),
    "capture_scalar_outputs": Setting(
        False, "Capture Tensor.item() as a symbolic number instead of breaking the graph."
    ),
    "capture_dynamic_output_shape_ops": Setting(
        False,
        "Capture operations whose result's size depends on data (nonzero, x[mask]) instead of breaking the graph.",
    ),
    "capture_time_limit": Setting(
        10.0,
        "Seconds of the thread's CPU time that capturing a frame may take, all attempts together; then the graph "
        "breaks there. 0 is no limit.",
    ),
    "prepare_time_limit": Setting(
        120.0,
        "Seconds of the thread's CPU time that backends take to prepare a graph of 1000 operations (in proportion "
        "where it is larger), or any one operation; then the graph runs with eager's kernels. 0 is no limit.",
    ),
    "inline_limit": Setting(600, "Depth of inlined Python calls before the graph breaks."),
    "output_code": Setting(False, "Print the generated code."),
    "debug": Setting(False, "Print the native compiler's debug output."),
    "log_level": Setting(30, "Level of argand's loggers (logging.WARNING).", types=(int,)),
    "base_dir": Setting("", "Where files for debugging are written; empty is the current directory."),
    "debug_dir_root": Setting(
        "",
        "Where the debug directory is written; empty is argand_compile_debug in base_dir.",
        ("ARGAND_COMPILE_DEBUG_DIR", "TORCH_COMPILE_DEBUG_DIR"),
    ),
    "trace_dir": Setting("", "Write a structured trace into this directory.", ("ARGAND_TRACE", "TORCH_TRACE")),
    "chrome_trace": Setting("", "Write a Chrome trace of compiling to this file.", ("ARGAND_CHROME_TRACE",)),
    "metrics_file": Setting("", "Append each compile's metrics to this file, as JSON lines.", ("ARGAND_METRICS",)),
    "fallback_random": Setting(False, "Use eager's random number generation in compiled code."),
    "partitioner": Setting("min_cut", 'What the forward keeps: "min_cut" weighs memory and work, "default" keeps all.'),
    "activation_memory_budget": Setting(
        1.0, "Between 0 and 1: the share of the kept bytes that the backward may use; the rest is computed again."
    ),
    "tell_slower": Setting(
        True,
        "Say once when a compiled graph of the CPU takes longer than eager's kernels: one of its first calls is timed.",
    ),
    "freezing": Setting(
        False,
        "Take parameters and buffers for constants where no gradients are recorded, until one changes: "
        "docs/freezing.md.",
    ),
    "lazy_backward": Setting(
        True,
        "Compile a backward when the first gradient is asked for, or while its forward's kernels are being compiled.",
    ),
    "compiled_autograd": Setting(
        False,
        "Compile backwards that are called outside of captured code, too: once per structure of autograd's graph.",
        ("ARGAND_COMPILED_AUTOGRAD",),
    ),
    "repro_after": Setting(
        "",
        'Find the smallest graph that fails: "dynamo" for any backend, "aot" for the native compiler; "" does not.',
        ("ARGAND_REPRO_AFTER", "TORCHDYNAMO_REPRO_AFTER"),
    ),
    "repro_level": Setting(
        2,
        "1 writes the graph that failed; 2 makes it small too; 3 writes every graph first and tries it in a process of "
        "its own (crashes, hangs); 4 looks for wrong results.",
        ("ARGAND_REPRO_LEVEL", "TORCHDYNAMO_REPRO_LEVEL"),
    ),
    "repro_tolerance": Setting(0.0, "Relative error from which a result is wrong; 0 is that of its dtype."),
    "repro_time_limit": Setting(60.0, "Seconds after which one attempt of the minifier counts as hung."),
    "repro_total_time": Setting(1800.0, "Seconds after which the minifier gives the smallest graph so far."),
    "repro_memory_limit": Setting(0, "MiB that one attempt of the minifier may take; 0 is no limit."),
    "repro_setup": Setting(
        "", "Python code that reproductions run first (imports that register operators, say).", ("ARGAND_REPRO_SETUP",)
    ),
    "check_numerics": Setting(
        False,
        "Compare every kernel's output with ATen's while the program runs, and stop at the first that deviates.",
        ("ARGAND_CHECK_NUMERICS",),
    ),
    "audit_rate": Setting(
        0.0, "Share of the calls that are also run eagerly, and compared (between 0 and 1).", ("ARGAND_AUDIT_RATE",)
    ),
    "replay_record_enabled": Setting(
        False,
        "Write a record of each frame whose capture fails, for `argand replay`.",
        ("ARGAND_REPLAY_RECORD", "TORCHDYNAMO_REPLAY_RECORD"),
    ),
    "replay_record_limit": Setting(256, "MiB of tensors that a record of a frame keeps; the rest are random."),
    "fusion": Setting(True, "Fuse loops into common kernels; False gives one kernel per operation (to find faults)."),
    "disabled_passes": Setting("", "Names of ATen passes that are left out, with commas between (to find faults)."),
    "optimize_ddp": Setting(
        True,
        "Cut graphs of a module under DistributedDataParallel where its buckets end, so that gradients are reduced "
        'while the backward still runs ("ddp_optimizer" is True; with torch\'s other modes, graphs stay whole).',
        names=("ddp_optimizer", "python_reducer", "python_reducer_without_compiled_forward", "no_optimization"),
    ),
    "check_ranks": Setting(
        False,
        "Compare what the ranks of a torch.distributed job compile; warn where they differ, with the reasons of both.",
        ("ARGAND_CHECK_RANKS",),
    ),
    "reuse_graphs": Setting(True, "Share the compiled code of equal graphs in a process."),
    "verify_ir": Setting(False, "Run every IR's verifier after every pass.", ("ARGAND_VERIFY_IR",)),
}

_SECTIONS = {"trace": _TRACE, "cpp": _CPP, "triton": _TRITON}
config = Section("config", _ROOT, {name: Section(f"config.{name}", settings) for name, settings in _SECTIONS.items()})


class _ConfigModule(types.ModuleType):
    """Lets `argand.config.name = value` reach the checked object although `argand.config` is also this module."""

    def __getattr__(self, key: str) -> Any:
        return getattr(config, key)

    def __setattr__(self, key: str, value: Any) -> None:
        if key.startswith("__") or key in self.__dict__:
            super().__setattr__(key, value)
        else:
            setattr(config, key, value)

    def __delattr__(self, key: str) -> None:
        if key in self.__dict__:
            super().__delattr__(key)
        else:
            delattr(config, key)


sys.modules[__name__].__class__ = _ConfigModule
