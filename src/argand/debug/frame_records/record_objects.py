"""Builds the objects of a record, whose data `record_schema` has looked at."""

from __future__ import annotations

import builtins
import importlib
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from argand.debug.frame_records.record_schema import MAX_RANDOM, RecordError, malformed


class Builder:
    """Builds the recorded objects.

    Arguments:
        member: the content of a file of the record.
        codes: its code objects.
    """

    def __init__(self, member: Callable[[str], bytes], codes: Any) -> None:
        if not isinstance(codes, list) or not all(isinstance(code, types.CodeType) for code in codes):
            raise malformed("its code is not code")
        self.member = member
        self.codes: list[types.CodeType] = codes
        self.objects: dict[int, Any] = {}
        self.random = 0
        self.elsewhere: set[str] = set()  # devices of tensors that this machine lacks

    def frame(self, data: Any) -> types.FunctionType:
        """The recorded function."""
        function: types.FunctionType = self._make_function(-1, data)
        return function

    def value(self, data: Any) -> Any:
        """The object for `[kind, ...]`."""
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
            return self.objects[data[1]]
        if kind in ("staticmethod", "classmethod"):
            return (staticmethod if kind == "staticmethod" else classmethod)(self.value(data[1]))
        if kind == "property":
            return property(*map(self.value, data[1]))
        if kind == "missing":
            return Missing(data[1], data[2])
        make: Callable[[int, Any], Any] = getattr(self, f"_make_{data[2][0]}")
        rebuilt = self.objects[data[1]] = make(data[1], data[2])
        return rebuilt

    def _make_list(self, number: int, data: Any) -> Any:
        items = self.objects[number] = []
        items.extend(map(self.value, data[1]))
        return items

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

    def _make_dict(self, number: int, data: Any, kind: type[dict[Any, Any]] = dict) -> Any:
        entries = self.objects[number] = kind()
        for key, item in data[1]:
            entries[self.value(key)] = self.value(item)
        return entries

    def _make_OrderedDict(self, number: int, data: Any) -> Any:
        return self._make_dict(number, data, OrderedDict)

    def _make_placed(self, number: int, data: Any) -> Any:
        """A tensor on another device than the CPU; on the CPU, where that device is not here."""
        place = torch.device(data[1])
        try:
            torch.empty(0, device=place)
        except Exception:  # torch has many kinds of errors for this
            self.elsewhere.add(data[1])
            return self._make_tensor(number, data[2])
        return self._make_tensor(number, data[2], place)

    def _make_tensor(self, number: int, data: Any, place: torch.device | None = None) -> Any:
        kind, dtype_name, size, stride, requires_grad, extent, name = data
        dtype = getattr(torch, dtype_name, None)
        if not isinstance(dtype, torch.dtype):
            raise malformed(f"{dtype_name[:40]} is no type of tensors")
        if name:
            raw = bytearray(self.member(name))
            if len(raw) != extent * dtype.itemsize:
                raise malformed(f"{name} has another size than its tensor")
            flat = torch.frombuffer(raw, dtype=dtype) if extent else torch.empty(0, dtype=dtype)
        else:
            self.random += extent * max(dtype.itemsize, 4)
            if self.random > MAX_RANDOM:
                raise RecordError(
                    f"tensors without data would take {self.random} bytes, more than {MAX_RANDOM}",
                    remedy="record the failure again, with smaller tensors",
                )
            flat = torch.rand(extent).to(dtype)
        tensor = (flat if place is None else flat.to(place)).as_strided(size, stride)
        if kind == "parameter":
            return torch.nn.Parameter(tensor, requires_grad=requires_grad)
        return tensor.requires_grad_(requires_grad)

    _make_parameter = _make_tensor

    def _make_module(self, number: int, data: Any) -> Any:
        try:
            return importlib.import_module(data[1])
        except (Exception, SystemExit) as error:  # a module may do anything when it is imported
            raise RecordError(f"the record needs the module {data[1]}: {error}", remedy="install it") from error

    def _make_import(self, number: int, data: Any) -> Any:
        imported: Any = importlib.import_module(data[1])
        for part in data[2].split("."):
            imported = getattr(imported, part)
        return imported

    def _make_method(self, number: int, data: Any) -> Any:
        return types.MethodType(self.value(data[1]), self.value(data[2]))

    def _make_function(self, number: int, data: Any) -> Any:
        _, code, name, used, cells, defaults, kwdefaults = data
        globals_: dict[str, Any] = {"__builtins__": builtins, "__name__": "argand_replay"}
        closure = tuple(types.CellType() for _ in cells)
        function = types.FunctionType(self.codes[code], globals_, name, None, closure or None)
        self.objects[number] = function
        for key, item in used:
            globals_[key] = self.value(item)
        for cell, item in zip(closure, cells):
            cell.cell_contents = self.value(item)
        function.__defaults__, function.__kwdefaults__ = self.value(defaults), self.value(kwdefaults)
        return function

    def _make_class(self, number: int, data: Any) -> Any:
        _, name, bases, body = data
        rebuilt = type(name, tuple(map(self.value, bases)), {"__module__": "argand_replay"})
        self.objects[number] = rebuilt
        for key, item in body:
            if key not in ("__module__", "__qualname__", "__slots__", "__dict__"):
                value = self.value(item)
                if isinstance(value, types.FunctionType) and "__class__" in value.__code__.co_freevars:
                    value.__closure__[value.__code__.co_freevars.index("__class__")].cell_contents = rebuilt  # type: ignore[index]
                setattr(rebuilt, key, value)
        return rebuilt

    def _make_object(self, number: int, data: Any) -> Any:
        kind = self.value(data[1])
        rebuilt = kind.__new__(kind)
        self.objects[number] = rebuilt
        for key, item in data[2]:
            rebuilt.__dict__[key] = self.value(item)
        return rebuilt

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
