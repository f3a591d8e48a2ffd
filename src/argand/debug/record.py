"""Records of frames whose capture failed, and replaying them: `config.replay_record_enabled`, `argand replay FILE`.

A record is a zip file: `record.json` (what the frame saw, as plain data), `code.bin` (its code, marshalled) and one raw
file for each tensor. Opening one runs nothing: there is no pickle in it. Replaying runs the recorded function, so that
takes the user's word for it (`--trust`), unless the file is the user's own. docs/replay.md describes the format.
"""

from __future__ import annotations

import dis
import hashlib
import importlib
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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from argand.autograd.training import uncaptured
from argand.config import config
from argand.errors import ArgandError, UserLine
from argand.events import Event, bus

FORMAT = 1
_DEPTH, _ITEMS = 24, 20_000
_MAX_JSON, _MAX_CODE = 64 << 20, 16 << 20


class RecordError(ArgandError):
    """A record cannot be read, or cannot be replayed here."""

    stage = "replay"


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
        extent = 1 + sum((n - 1) * s for n, s in zip(plain.shape, plain.stride())) if plain.numel() else 0
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
        return [kind, str(value.dtype).removeprefix("torch."), list(value.shape), list(value.stride()),
                value.requires_grad, extent, name]  # fmt: skip

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
                made = [type(item).__name__, self.value(item.__func__, f"{where}.{name}", depth)]
            elif isinstance(item, property):
                parts = [self.value(part, f"{where}.{name}", depth) for part in (item.fget, item.fset, item.fdel)]
                made = ["property", parts]
            else:
                made = self.value(item, f"{where}.{name}", depth)
            body.append([name, made])
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
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return (module, name) if found is value else None


def names_used(code: types.CodeType) -> list[str]:
    """Global names that a code object, or one inside it, reads."""
    found = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for item in code.co_consts:
        if isinstance(item, types.CodeType):
            found |= set(names_used(item))
    return sorted(found)


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
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(memory.getvalue())
    os.replace(temporary, path)
    return path


def _source(code: types.CodeType) -> str:
    import inspect

    try:
        return inspect.getsource(code)[:100_000]
    except (OSError, TypeError):
        return ""


# ----------------------------------------------------------------------- reading


@dataclass(slots=True)
class Record:
    """An opened record: nothing of it has run.

    Arguments:
        path: the file.
        data: `record.json`.
    """

    path: Path
    data: dict[str, Any]

    @property
    def is_own(self) -> bool:
        """Whether this user wrote the file, and nobody else may write to it."""
        if not hasattr(os, "getuid"):
            return False
        status = self.path.stat()
        return status.st_uid == os.getuid() and not status.st_mode & 0o022

    def describe(self) -> str:
        """What it is a record of."""
        data = self.data
        lines = [f"{data['function']} ({data['place']}), Python {data['python']}, torch {data['torch']}"]
        lines += [f"capture failed: {data['error']}"]
        skipped = data.get("skipped", [])
        lines += [f"not recorded: {text}" for text in skipped[:8]]
        lines += [f"and {len(skipped) - 8} more"] if len(skipped) > 8 else []
        return "\n".join(lines)


def open_record(path: Path) -> Record:
    """Read a record's description; runs nothing.

    Raises:
        RecordError: it is no record, is corrupt, or of another format.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.getinfo("record.json").file_size > _MAX_JSON:
                raise RecordError(f"{path} is too large to be a record", remedy="make a new one")
            data = json.loads(archive.read("record.json"))
    except RecordError:
        raise
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, RecursionError) as error:
        raise RecordError(
            f"{path} is no record of argand: {error}", remedy="give a file that replay_record_enabled wrote"
        ) from error
    wanted = {"format": int, "python": str, "torch": str, "frame": list, "args": list, "function": str, "sha256": str,
              "place": str, "error": str}  # fmt: skip
    if not isinstance(data, dict) or any(not isinstance(data.get(key), kind) for key, kind in wanted.items()):
        raise RecordError(f"{path} is a corrupt record", remedy="record the failure again")
    if data["format"] != FORMAT:
        raise RecordError(f"{path} has format {data['format']}, not {FORMAT}", remedy="use the argand that wrote it")
    return Record(path, data)


class _Reader:
    """Builds the recorded objects."""

    def __init__(self, archive: zipfile.ZipFile, codes: list[types.CodeType]) -> None:
        self.archive = archive
        self.codes = codes
        self.made: dict[int, Any] = {}

    def value(self, data: Any) -> Any:
        kind = data[0]
        if kind == "plain":
            return data[1]
        if kind == "float":
            return float.fromhex(data[1])
        if kind == "complex":
            return complex(float.fromhex(data[1]), float.fromhex(data[2]))
        if kind == "bytes":
            return bytes.fromhex(data[1])
        if kind == "ellipsis":
            return ...
        if kind == "torch":
            return torch.device(data[2]) if data[1] == "device" else getattr(torch, data[2].removeprefix("torch."))
        if kind == "same":
            return self.made[data[1]]
        if kind in ("staticmethod", "classmethod"):
            return (staticmethod if kind == "staticmethod" else classmethod)(self.value(data[1]))
        if kind == "property":
            return property(*map(self.value, data[1]))
        if kind == "new":
            made = self._new(data[1], data[2])
            self.made[data[1]] = made
            return made
        raise RecordError(f"unknown kind of object {kind!r}", remedy="record the failure again")

    def _new(self, number: int, data: Any) -> Any:
        kind = data[0]
        builder: Callable[[int, Any], Any] | None = getattr(self, f"_make_{kind}", None)
        if builder is None:
            raise RecordError(f"unknown kind of object {kind!r}", remedy="record the failure again")
        return builder(number, data)

    def _make_list(self, number: int, data: Any) -> Any:
        made = self.made[number] = []
        made.extend(map(self.value, data[1]))
        return made

    def _make_tuple(self, number: int, data: Any) -> Any:
        return tuple(map(self.value, data[1]))

    def _make_set(self, number: int, data: Any) -> Any:
        return set(map(self.value, data[1]))

    def _make_frozenset(self, number: int, data: Any) -> Any:
        return frozenset(map(self.value, data[1]))

    def _make_size(self, number: int, data: Any) -> Any:
        return torch.Size(data[1])

    def _make_slice(self, number: int, data: Any) -> Any:
        return slice(*map(self.value, data[1]))

    def _make_dict(self, number: int, data: Any) -> Any:
        made: dict[Any, Any] = {}
        self.made[number] = made
        for key, item in data[1]:
            made[self.value(key)] = self.value(item)
        return made

    def _make_OrderedDict(self, number: int, data: Any) -> Any:
        made: OrderedDict[Any, Any] = OrderedDict()
        self.made[number] = made
        for key, item in data[1]:
            made[self.value(key)] = self.value(item)
        return made

    def _make_tensor(self, number: int, data: Any) -> Any:
        kind, dtype_name, size, stride, requires_grad, extent, name = data
        dtype = getattr(torch, dtype_name)
        if not isinstance(dtype, torch.dtype) or not 0 <= extent <= 1 << 40:
            raise RecordError("a tensor in the record is not well-formed", remedy="record the failure again")
        if name:
            info = self.archive.getinfo(name)
            if info.file_size != extent * dtype.itemsize:
                raise RecordError(f"{name} has another size than its tensor", remedy="record the failure again")
            raw = bytearray(self.archive.read(name))
            flat = torch.frombuffer(raw, dtype=dtype) if extent else torch.empty(0, dtype=dtype)
        else:
            flat = torch.rand(extent).to(dtype)
        made = flat.as_strided(size, stride)
        if kind == "parameter":
            return torch.nn.Parameter(made, requires_grad=requires_grad)
        return made.requires_grad_(requires_grad)

    _make_parameter = _make_tensor

    def _make_module(self, number: int, data: Any) -> Any:
        try:
            return importlib.import_module(data[1])
        except ImportError as error:
            raise RecordError(f"the record needs the module {data[1]}: {error}", remedy="install it") from error

    def _make_import(self, number: int, data: Any) -> Any:
        found: Any = importlib.import_module(data[1])
        for part in data[2].split("."):
            found = getattr(found, part)
        return found

    def _make_method(self, number: int, data: Any) -> Any:
        return types.MethodType(self.value(data[1]), self.value(data[2]))

    def _make_function(self, number: int, data: Any) -> Any:
        _, code, name, used, cells, defaults, kwdefaults = data
        import builtins

        globals_: dict[str, Any] = {"__builtins__": builtins, "__name__": "argand_replay"}
        closure = tuple(types.CellType() for _ in cells)
        made = types.FunctionType(self.codes[code], globals_, name, None, closure or None)
        self.made[number] = made
        for key, item in used:
            globals_[key] = self.value(item)
        for cell, item in zip(closure, cells):
            cell.cell_contents = self.value(item)
        made.__defaults__, made.__kwdefaults__ = self.value(defaults), self.value(kwdefaults)
        return made

    def _make_class(self, number: int, data: Any) -> Any:
        _, name, bases, body = data
        made = type(name, tuple(map(self.value, bases)), {"__module__": "argand_replay"})
        self.made[number] = made
        for key, item in body:
            if key not in ("__module__", "__qualname__", "__slots__", "__dict__"):
                value = self.value(item)
                if isinstance(value, types.FunctionType) and "__class__" in value.__code__.co_freevars:
                    value.__closure__[value.__code__.co_freevars.index("__class__")].cell_contents = made  # type: ignore[index]
                setattr(made, key, value)
        return made

    def _make_object(self, number: int, data: Any) -> Any:
        kind = self.value(data[1])
        made = kind.__new__(kind)
        self.made[number] = made
        for key, item in data[2]:
            made.__dict__[key] = self.value(item)
        return made

    def _make_missing(self, number: int, data: Any) -> Any:
        return Missing(data[1], data[2])


class Missing:
    """Stands for an object that was not recorded; using it says so."""

    def __init__(self, where: str, kind: str) -> None:
        self.__dict__.update(_where=where, _kind=kind)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RecordError(f"{self._where}, a {self._kind}, was not recorded", remedy="replay cannot go past this")


def rebuild(record: Record, *, trust: bool = False) -> tuple[types.FunctionType, tuple[Any, ...]]:
    """The recorded function and its raw arguments.

    Arguments:
        trust: the file may come from anybody.

    Raises:
        RecordError: it is not the user's own (and not trusted), is corrupt, or was made by another Python.
    """
    if not trust and not record.is_own:
        raise RecordError(
            f"{record.path} is not yours alone, and replaying runs code that is in it",
            remedy="pass --trust if you know where it comes from",
        )
    here = ".".join(map(str, sys.version_info[:2]))
    if record.data["python"] != here:
        raise RecordError(
            f"the record was made by Python {record.data['python']}, this is {here}, whose bytecode differs",
            remedy=f"replay it with Python {record.data['python']}",
        )
    try:
        with zipfile.ZipFile(record.path) as archive:
            if archive.getinfo("code.bin").file_size > _MAX_CODE:
                raise RecordError(f"{record.path} holds too much code", remedy="record the failure again")
            packed = archive.read("code.bin")
            if hashlib.sha256(packed).hexdigest() != record.data["sha256"]:
                raise RecordError(f"{record.path} is corrupt", remedy="record the failure again")
            reader = _Reader(archive, marshal.loads(packed))
            function = reader._make_function(-1, record.data["frame"])
            args = tuple(map(reader.value, record.data["args"]))
    except (zipfile.BadZipFile, KeyError, ValueError, IndexError, TypeError, EOFError, AttributeError) as error:
        raise RecordError(
            f"{record.path} is corrupt or needs what this machine does not have: {type(error).__name__}: {error}",
            remedy="record the failure again, or install what is missing",
        ) from error
    return function, args


def call_of(function: types.FunctionType, raw: tuple[Any, ...]) -> Callable[[Callable[..., Any]], Any]:
    """A function that calls its argument as the recorded frame was called."""
    code = function.__code__
    positional, keyword = code.co_argcount, code.co_kwonlyargcount
    plain = list(raw[:positional])
    names = code.co_varnames[positional : positional + keyword]
    keywords = dict(zip(names, raw[positional : positional + keyword]))
    rest = list(raw[positional + keyword :])
    if code.co_flags & 0x04 and rest:
        plain += rest.pop(0)
    if code.co_flags & 0x08 and rest:
        keywords.update(rest.pop(0))
    return lambda target: target(*plain, **keywords)


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
        with uncaptured():
            path = self.written[key] = record(info.code, info.globals, info.closure, info.args, error)
        print(f"argand: recorded {info.code.co_qualname}, whose capture failed: argand replay {path}", file=sys.stderr)
        if isinstance(error, Exception):
            error.add_note(f"argand replay {path} captures just this frame again")


RECORDS = Records()


def user_line(record: Record) -> UserLine:
    """Where the recorded function is defined."""
    file, _, line = str(record.data["place"]).rpartition(":")
    return UserLine(file, int(line) if line.isdigit() else 0, str(record.data["function"]))
