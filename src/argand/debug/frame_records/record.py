"""Writes records of frames whose capture failed: `config.replay_record_enabled`. `record_reader.py` opens them.

A record is a zip file: `record.json` (what the frame saw, as plain data), `code.bin` (its code, marshalled), one raw
file for each tensor, and a digest of it all. docs/replay.md describes the format.
"""

from __future__ import annotations

import dis
import hashlib
import inspect
import io
import json
import marshal
import os
import platform
import sys
import time
import types
import zipfile
from collections import OrderedDict
from dataclasses import field
from pathlib import Path
from typing import Any

import torch

from argand import files
from argand._core.calls import capture_off
from argand.config import config
from argand.debug.frame_records.record_reader import FORMAT, SEAL, seal
from argand.events import Event, bus
from argand.graph.metadata.strides import elements_spanned
from argand.quick_dataclasses import dataclass

_DEPTH, _ITEMS = 24, 20_000


# ----------------------------------------------------------------------- writing


@dataclass(slots=True)
class _Writer:
    """Turns objects into plain data; tensors go into files of the archive."""

    archive: zipfile.ZipFile
    left: int
    ids: dict[int, int] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)
    codes: list[types.CodeType] = field(default_factory=list)
    tensors: int = 0
    skipped: list[str] = field(default_factory=list)

    def value(self, value: Any, where: str, depth: int = 0) -> Any:
        """Plain data for an object: [kind, ...]."""
        if type(value) is int and value.bit_length() > 10_000:
            return self._missing(value, where, "a very large number")
        if value is None or isinstance(value, (bool, str)) or type(value) is int:
            return (
                ["plain", value]
                if type(value) in (type(None), bool, str, int)
                else self._missing(value, where, "a subclass")
            )
        if type(value) is float:
            return ["float", value.hex()]
        if type(value) is complex:
            return ["complex", value.real.hex(), value.imag.hex()]
        if type(value) is bytes:
            return ["bytes", value.hex()]
        if value is Ellipsis:
            return ["ellipsis"]
        if isinstance(value, (torch.dtype, torch.device, torch.memory_format, torch.layout)):
            return ["torch", type(value).__name__, str(value)]
        if depth > _DEPTH or len(self.ids) > _ITEMS:
            return self._missing(value, where, "too large")
        if id(value) in self.ids:
            return ["same", self.ids[id(value)]]
        self.ids[id(value)] = number = len(self.ids)
        self.kept.append(value)
        return ["new", number, self._new(value, where, depth + 1)]

    def _new(self, value: Any, where: str, depth: int) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, where)
        kind = type(value)
        if kind in (list, tuple, set, frozenset):
            return [kind.__name__, [self.value(item, f"{where}[{i}]", depth) for i, item in enumerate(value)]]
        if kind is torch.Size:
            return ["size", list(value)]
        if kind is slice:
            return ["slice", [self.value(v, where, depth) for v in (value.start, value.stop, value.step)]]
        if kind is dict or kind is OrderedDict:
            pairs = [[self.value(k, where, depth), self.value(v, f"{where}[{k!r}]", depth)] for k, v in value.items()]
            return [kind.__name__, pairs]
        return self._other(value, where, depth)

    def _other(self, value: Any, where: str, depth: int = 0) -> Any:
        if isinstance(value, types.ModuleType):
            return ["module", value.__name__]
        if isinstance(value, types.MethodType):
            return ["method", self.value(value.__func__, where, depth), self.value(value.__self__, where, depth)]
        path = _path_of(value)
        if path is not None:
            return ["import", *path]
        if isinstance(value, types.FunctionType):
            return self._function(value, where, depth)
        if isinstance(value, type):
            return self._class(value, where, depth)
        if hasattr(value, "__dict__") and _plain_object(type(value)):
            kind = self.value(type(value), where, depth)  # first, as it is read
            return ["object", kind, [[k, self.value(v, f"{where}.{k}", depth)] for k, v in vars(value).items()]]
        return self._missing(value, where, "no plain data")

    def _missing(self, value: Any, where: str, why: str) -> Any:
        self.skipped.append(f"{where}: {type(value).__qualname__} ({why})")
        return ["missing", where, f"{type(value).__module__}.{type(value).__qualname__}"]

    def _tensor(self, value: torch.Tensor, where: str) -> Any:
        plain = value.detach()
        if plain.layout is not torch.strided or plain.is_quantized or plain.device.type == "meta":
            return self._missing(value, where, f"{plain.layout} tensor")
        extent = elements_spanned(plain.shape, plain.stride())
        size = extent * plain.element_size()
        name = ""
        if size <= self.left:
            self.left -= size
            name = f"tensors/{self.tensors}.bin"
            self.tensors += 1
            flat = plain.as_strided((extent,), (1,)).cpu().contiguous()
            raw = flat.view(torch.uint8) if extent else torch.empty(0, dtype=torch.uint8)
            self.archive.writestr(name, bytes(raw.untyped_storage())[:size])
        else:
            self.skipped.append(f"{where}: data of {size} bytes (random instead)")
        kind = "parameter" if isinstance(value, torch.nn.Parameter) else "tensor"
        written = [kind, str(value.dtype).removeprefix("torch."), list(value.shape), list(value.stride()),
                value.requires_grad, extent, name]  # fmt: skip
        return written if value.device.type == "cpu" else ["placed", str(value.device), written]

    def _function(self, value: types.FunctionType, where: str, depth: int) -> Any:
        self.codes.append(value.__code__)
        number = len(self.codes) - 1
        names = names_used(value.__code__)
        used = [[n, self.value(value.__globals__[n], n, depth)] for n in names if n in value.__globals__]
        cells = [self.value(_contents(cell), f"{where} cell", depth) for cell in value.__closure__ or ()]
        defaults = self.value(value.__defaults__, where, depth)
        return [
            "function",
            number,
            value.__name__,
            used,
            cells,
            defaults,
            self.value(value.__kwdefaults__, where, depth),
        ]

    def _class(self, value: type, where: str, depth: int) -> Any:
        skip = ("__dict__", "__weakref__", "__doc__", "__annotations__", "__annotate__", "__annotate_func__")
        bases = [self.value(base, where, depth) for base in value.__bases__]
        body = []
        for name, item in vars(value).items():
            if name in skip or isinstance(item, (types.GetSetDescriptorType, types.MemberDescriptorType)):
                continue
            if isinstance(item, (staticmethod, classmethod)):
                written = [type(item).__name__, self.value(item.__func__, f"{where}.{name}", depth)]
            elif isinstance(item, property):
                parts = [self.value(part, f"{where}.{name}", depth) for part in (item.fget, item.fset, item.fdel)]
                written = ["property", parts]
            else:
                written = self.value(item, f"{where}.{name}", depth)
            body.append([name, written])
        return ["class", value.__name__, bases, body]


def _plain_object(kind: type) -> bool:
    return getattr(kind, "__new__", None) is object.__new__ or issubclass(kind, torch.nn.Module)


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _path_of(value: Any) -> tuple[str, str] | None:
    """(module, name) of an object of an installed module that another machine can import; None for the user's own."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", getattr(value, "__name__", None))
    if isinstance(value, torch._ops.OpOverload):
        return "torch", f"ops.{str(value).replace('::', '.')}"
    if not isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)) and not callable(value):
        return None
    if (
        type(value).__name__ == "builtin_function_or_method"
        and getattr(value, "__self__", None) is torch._C._VariableFunctions
    ):
        return "torch", value.__name__
    if not isinstance(module, str) or not isinstance(name, str) or "<locals>" in name:
        return None
    top = module.split(".")[0]
    if top not in sys.stdlib_module_names and top not in ("torch", "numpy", "transformers", "argand", "builtins"):
        return None
    if module == "__main__":
        return None
    importable: Any = sys.modules.get(module)
    for part in name.split("."):
        importable = getattr(importable, part, None)
    return (module, name) if importable is value else None


def names_used(code: types.CodeType) -> list[str]:
    """Global names that a code object, or one inside it, reads."""
    names = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for item in code.co_consts:
        if isinstance(item, types.CodeType):
            names |= set(names_used(item))
    return sorted(names)


def record(
    code: types.CodeType, globals_: dict[str, Any], closure: tuple[types.CellType, ...] | None, args: tuple[Any, ...],
    error: BaseException,
) -> Path:  # fmt: skip
    """Write the record of a frame.

    Arguments:
        args: raw arguments in localsplus order: positional, keyword-only, the *args tuple, the **kwargs dict.
        error: what capture failed with.

    Returns:
        the file.
    """
    root = Path(str(config.base_dir) or ".").resolve() / "argand_records"
    root.mkdir(parents=True, exist_ok=True)
    stamp = f"{time.strftime('%Y_%m_%d_%H_%M_%S')}-pid_{os.getpid()}"
    path = next(
        p for n in range(100_000) if not (p := root / f"{code.co_name.strip('<>')}_{stamp}_{n}.argand").exists()
    )
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
        writer = _Writer(archive, int(config.replay_record_limit) << 20)
        function = types.FunctionType(code, globals_, code.co_name, None, closure)
        data = {
            "format": FORMAT,
            "python": ".".join(map(str, sys.version_info[:2])),
            "torch": str(torch.__version__),
            "platform": platform.platform(),
            "function": code.co_qualname,
            "place": f"{code.co_filename}:{code.co_firstlineno}",
            "source": _source(code),
            "error": f"{type(error).__name__}: {error}"[:4000],
            "grad": torch.is_grad_enabled(),
            "frame": writer._function(function, "frame", 0),
            "args": [writer.value(arg, f"argument {n}") for n, arg in enumerate(args)],
        }
        packed = marshal.dumps(writer.codes)
        data["skipped"], data["sha256"] = writer.skipped[:200], hashlib.sha256(packed).hexdigest()
        archive.writestr("code.bin", packed)
        archive.writestr("record.json", json.dumps(data))
    with zipfile.ZipFile(memory, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(SEAL, seal(archive))
    files.write_atomically(path, memory.getvalue())
    return path


def _source(code: types.CodeType) -> str:
    try:
        return inspect.getsource(code)[:100_000]
    except (OSError, TypeError):
        return ""


@dataclass(slots=True)
class Records:
    """Writes a record when capture fails; one for each code and error.

    Attributes:
        written: the files, by code and error.
    """

    written: dict[tuple[types.CodeType, str], Path] = field(default_factory=dict)
    installed: bool = False

    def install(self) -> None:
        """Listen from now on."""
        if not self.installed:
            self.installed = True
            bus.subscribe(self.take, ("capture_failed",))

    def take(self, event: Event) -> None:
        """The sink."""
        if not config.replay_record_enabled:
            return
        info, error = event.data["info"], event.data["error"]
        key = (info.code, type(error).__name__)
        if key in self.written:
            return
        with capture_off():
            path = self.written[key] = record(info.code, info.globals, info.closure, info.args, error)
        print(f"argand: recorded {info.code.co_qualname}, whose capture failed: argand replay {path}", file=sys.stderr)
        if isinstance(error, Exception):
            error.add_note(f"argand replay {path} captures just this frame again")


RECORDS = Records()
