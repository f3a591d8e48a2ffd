"""Compiled ahead of time: `argand.save` writes a compiled model to a file, `argand.load` runs it without a compiler.

The file holds what capture made (guards, code), the programs and their libraries, and what it was made for. Parameters
are not in it: they are the model's. It is signed with the fleet's key where there is one; else it must be a file that
belongs to the user and that nobody else may write to, as everything that argand loads code from.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import hashlib
import hmac
import marshal
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import torch

from argand import files, garbage_collection
from argand._core import _C
from argand.api import OptimizedModule, compiled_function, connect, has_hooks
from argand.backends.programs.memo import memo
from argand.capture.driver.region import Region
from argand.capture.facts.code.skip import with_frame
from argand.config import config
from argand.errors import ArgandError, ConfigError, SavedModelError
from argand.outcomes import fingerprints, records, store
from argand.outcomes.resolver import Mismatch
from argand.runtime import remote, stored_modules, toolchain
from argand.runtime.environment import versions

F = TypeVar("F", bound=Callable[..., Any])
_MAGIC: Final = b"argand model 1\n"
_LARGEST: Final = 2 << 30
_AGAIN: Final = "save the model again in this environment"


class _Libraries:
    """Folders of libraries that were loaded from archives: they live as long as the process."""

    def __init__(self) -> None:
        self.folders: list[tempfile.TemporaryDirectory[str]] = []

    def add(self, libraries: dict[str, bytes]) -> None:
        """Make libraries known to the loader."""
        folder = tempfile.TemporaryDirectory(prefix="argand-model-", ignore_cleanup_errors=True)
        self.folders.append(folder)
        for number, (key, data) in enumerate(libraries.items()):
            path = Path(folder.name) / f"{number}.so"
            path.write_bytes(data)
            toolchain.ARCHIVED.add(key, path)


_libraries = _Libraries()


def save(compiled: Callable[..., Any], path: str | Path, /, *args: Any, **kwargs: Any) -> None:
    """Write a compiled function or module to a file, from which `argand.load` runs it without capture or compiler.

    The model is called once with the example arguments. What is saved is for arguments of the same types, dtypes and
    sizes (for those sizes that are symbolic at the first compile, see `mark_dynamic` and `dynamic=True`, for others
    too), and for a model of the same classes and parameters' sizes. The values of parameters are not saved.

    Arguments:
        compiled: what `argand.compile` returned, with backend "native".
        path: the file; one that exists is replaced.
        args, kwargs: of a call.

    Raises:
        ConfigError: `compiled` is not what `argand.compile` returns.
        SavedModelError: the graph breaks, or a part of the program is known to this process alone.
        OSError: the file cannot be written.
    """
    fn, region = _asked_for(compiled)
    record = _captured(fn, region, args, kwargs)
    libraries = _libraries_of(record)
    content = marshal.dumps(
        {
            "versions": versions(),
            "processor": toolchain.isa_for(config.cpp.simdlen).flags,
            "threads": torch.get_num_threads(),
            "code": fingerprints.of_code(_code_of(fn)),
            "function": f"{fn.__module__}.{fn.__qualname__}",
            "record": record,
            "libraries": libraries,
        }
    )
    files.write_atomically(Path(path), _MAGIC + _seal(content) + content)


def load(path: str | Path, model: F) -> F:
    """A compiled function or module from a file of `argand.save`: calls run its code, and nothing is ever captured.

    Arguments:
        path: the file.
        model: the function or module that was saved, not compiled.

    Returns:
        What `argand.compile(model)` returns; calls with arguments that the saved code is not for raise SavedModelError.

    Raises:
        SavedModelError: the file is damaged or not signed, or is for another torch, Python, argand, processor or
            number of threads, another version of the program, or a model of another shape. The error names what.
        OSError: it cannot be read.
    """
    saved = _read(Path(path))
    fn: Any = model.forward if isinstance(model, torch.nn.Module) else model
    if isinstance(model, OptimizedModule | _C.Region) or not isinstance(fn, types.FunctionType | types.MethodType):
        raise ConfigError("argand.load takes the model as it is before argand.compile", remedy="pass the original")
    connect()
    problem = _misfit(saved, fn)
    if problem:
        raise SavedModelError(f"{path} does not fit: {problem}", remedy=_AGAIN)
    _libraries.add(saved["libraries"])
    request = ("native", True, None, None, None)
    region = Region(_never, "saved", fullgraph=True, request=request)
    callback = functools.partial(_answer, saved=saved, path=str(path), region=region)
    if isinstance(model, torch.nn.Module):
        return OptimizedModule(model, callback, region)
    return compiled_function(model, callback, region)


# ---------------------------------------------------------------------- saving


def _asked_for(compiled: Any) -> tuple[Any, Region]:
    """The function that is compiled, and how."""
    if isinstance(compiled, OptimizedModule):
        if has_hooks(compiled._orig_mod):
            raise SavedModelError("a module with hooks is not saved", remedy="remove the hooks before saving")
        fn, region = compiled._orig_mod.forward, compiled.__dict__["_region"][1]
    elif isinstance(compiled, _C.Region) and isinstance(compiled.key, Region):
        fn, region = compiled.fn, compiled.key
    else:
        raise ConfigError("argand.save takes what argand.compile returns", remedy="compile it first")
    if with_frame(fn) is not fn or not isinstance(fn, types.FunctionType | types.MethodType):
        raise SavedModelError("only Python functions and modules are saved", remedy="wrap it in a function")
    if not region.stored_as():
        raise SavedModelError(
            'only backend "native" in its default mode, with no options but "freezing" and "quantization", is saved, '
            "and what nobody watches",
            remedy='compile with backend="native", no mode and no other options',
        )
    return fn, region


def _code_of(fn: Any) -> types.CodeType:
    code: types.CodeType = fn.__code__
    return code


def _captured(fn: Any, region: Region, args: tuple[Any, ...], kwargs: dict[str, Any]) -> records.Record:
    """The record of a call, captured anew."""
    from argand.capture.driver.frame import capture_frame

    again = dataclasses.replace(region, fullgraph=True)
    memo.clear()  # programs that were compiled while none were kept
    collected: list[records.Record | str] = []
    settings = {"cache": True, "program_cache": True, "outcome_cache": True}
    with config.patch(settings):
        if not store.wanted():
            raise SavedModelError(
                "somebody listens to what is captured, or a setting looks into it",
                remedy="save without ARGAND_LOGS, traces, debug directories and settings that check compiled code",
            )
        store.STORE.collected = collected
        try:
            _C.run_with_callback(functools.partial(capture_frame, region=again), again, fn, args, kwargs)
        except Exception as error:
            if len(args) == 1 and isinstance(args[0], (tuple, list)) and not kwargs:
                error.add_note("argand.save takes a call's arguments one by one: argand.save(compiled, path, *args)")
            raise
        finally:
            store.STORE.collected = None
        whole = [record for record in collected if isinstance(record, dict)]
        reasons = [reason for reason in collected if isinstance(reason, str)]
        if len(whole) != 1 or reasons:
            why = "; ".join(reasons) or "the call made no graph, or more than one"
            raise SavedModelError(
                f"{fn.__qualname__} cannot be saved: {why}",
                remedy="see docs/ahead-of-time.md for what can be saved; argand.explain shows the graphs",
            )
        if gpus := records.gpus(whole[0]):
            raise SavedModelError(
                f"{fn.__qualname__} cannot be saved: tensors on {gpus[0]}",
                remedy="save it on the CPU; on a GPU a second process starts from the cache (docs/cache.md)",
            )
        if records.has_backward(whole[0]):
            raise SavedModelError(
                f"{fn.__qualname__} cannot be saved: it is called with gradients",
                remedy="call argand.save under torch.no_grad()",
            )
        try:
            return records.with_programs(whole[0], stored_modules.text_of)
        except ArgandError as error:
            raise SavedModelError(str(error), remedy="see that argand.config.cache_dir can be written to") from error


def _libraries_of(record: records.Record) -> dict[str, bytes]:
    """The libraries that a record's programs load."""
    noted: dict[str, Path] = {}
    toolchain.ARCHIVED.noted = noted
    try:
        for text, kind in records.texts(record):
            stored_modules.call_of_text(text, kind)
    finally:
        toolchain.ARCHIVED.noted = None
    return {key: files.read(path, _LARGEST) for key, path in noted.items()}


def _seal(content: bytes) -> bytes:
    """The signature where there is a key, else the digest."""
    key = remote.fleet_key()
    kind = b"signed" if key else b"sealed"
    return kind + hmac.digest(key or kind, content, hashlib.sha256)


# ---------------------------------------------------------------------- loading


def _read(path: Path) -> dict[str, Any]:
    key = remote.fleet_key()
    try:
        data = files.read(path, _LARGEST, own=not key)
    except files.UnusableFile as error:
        raise SavedModelError(
            f"{path} is not loaded: it {error.reason}",
            remedy="own it alone (chmod go-w), or sign with ARGAND_REMOTE_CACHE_KEY",
        ) from error
    start = len(_MAGIC) + len(b"sealed") + hashlib.sha256().digest_size
    seal, content = data[len(_MAGIC) : start], data[start:]
    if not data.startswith(_MAGIC):
        raise SavedModelError(f"{path} is no model that argand.save wrote", remedy="name another file")
    if key and not seal.startswith(b"signed"):
        raise SavedModelError(f"{path} is not signed", remedy="save it with ARGAND_REMOTE_CACHE_KEY set")
    if not key and seal.startswith(b"signed"):
        raise SavedModelError(f"{path} is signed, and there is no key", remedy="set ARGAND_REMOTE_CACHE_KEY")
    if not hmac.compare_digest(seal, _seal(content)):
        raise SavedModelError(f"{path} is damaged, or signed with another key", remedy="copy it again, or save again")
    saved: dict[str, Any] = marshal.loads(content)
    return saved


def _misfit(saved: dict[str, Any], fn: Any) -> str:
    """What of a saved model does not fit, in words; "" when nothing is found without a call."""
    for name, now in versions().items():
        if saved["versions"].get(name) != now:
            return f"it is for {name} {saved['versions'].get(name)}, and this is {now}"
    lacking = [flag for flag in saved["processor"] if flag not in toolchain.cpu_isa().flags]
    if lacking:
        return f"it is for a processor with {' '.join(flag.removeprefix('-m') for flag in lacking)}"
    if saved["threads"] != torch.get_num_threads():
        return f"it is for {saved['threads']} threads, and torch has {torch.get_num_threads()} (torch.set_num_threads)"
    if saved["code"] != fingerprints.of_code(_code_of(fn)):
        return f"it is of {saved['function']}, and {fn.__module__}.{fn.__qualname__} is another function, or was edited"
    info, given = _frame_of(fn)
    return records.fits(saved["record"], info, given)


def _frame_of(fn: Any) -> tuple[Any, list[int]]:
    """What is known of the frame of a call before there is one, and which of its arguments are."""
    function = getattr(fn, "__func__", fn)
    code = function.__code__
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    first = [fn.__self__] if isinstance(fn, types.MethodType) else []
    if first and not code.co_argcount:  # `def forward(*args)`
        first = []
    held: Any = types.SimpleNamespace(
        code=code,
        globals=function.__globals__,
        builtins=vars(builtins),
        closure=function.__closure__,
        args=(*first, *[None] * (count - len(first))),
    )
    return held, list(range(len(first)))


def _never(graph: Any, inputs: Any) -> Any:
    raise SavedModelError("a saved model is not compiled", remedy=_AGAIN)


def _answer(info: _C.FrameInfo, *, saved: dict[str, Any], path: str, region: Region) -> _C.Answer:
    """Answers the frame hook: the saved entry for the saved function, and nothing for any other."""
    if saved["code"] != fingerprints.of_code(info.code):
        return _C.SKIP
    label = f"Argand-Saved Region: ({info.code.co_name})"
    try:
        with garbage_collection.paused():
            return records.installed(saved["record"], info, region, label)
    except (Mismatch, ArgandError) as error:
        raise SavedModelError(
            f"this call does not fit {path}: {error}",
            remedy="call it as it was saved, or save it again with such arguments",
        ) from None
