"""A damaged record is one RecordError, whatever the damage; nothing of it reaches the terminal as it is."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import os
import random
import resource
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import argand
import warm
from argand.debug.frame_records.record import record
from argand.debug.frame_records.record_reader import call_of, open_record, rebuild, seal
from argand.debug.frame_records.record_schema import RecordError
from argand.errors import ArgandError
from damage import MUTATIONS, retyped


class Part:
    """Of everything that a record can hold, a little."""

    def __init__(self) -> None:
        self.weight = torch.nn.Parameter(torch.ones(2, 3, dtype=torch.bfloat16))
        self.view = torch.arange(12.0).reshape(3, 4).t()
        self.values = {"a": [1, 2.5, 1j, b"x", None, ..., True], (1, 2): {3}, "s": slice(1, None), "d": torch.float16}
        self.me = self

    @property
    def double(self) -> float:
        return self.values["a"][1] * 2

    @staticmethod
    def plain(x: Any) -> Any:
        return x


def helper(x: Any) -> Any:
    return x + 1


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    free = 3

    def frame(x: Any, part: Any, *rest: Any, scale: float = 2.0, **more: Any) -> Any:
        return helper(x) * scale + free + part.double

    folder = tmp_path_factory.mktemp("records")
    args = (torch.randn(3, 4), Part(), 1.5, (1, torch.Size([2])), {"u": json.dumps, "m": Part().plain})
    with argand.config.config.patch(base_dir=str(folder)):
        path = record(frame.__code__, frame.__globals__, frame.__closure__, args, ArgandError("no"))
    data = path.read_bytes()
    path.unlink()
    return data


def members(whole: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(parts: dict[str, bytes], sealed: bool = True) -> bytes:
    """A record of these files; with a digest that fits, as an attacker would make it."""
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        for name, data in parts.items():
            if name != "seal.txt" or not sealed:
                archive.writestr(name, data)
    if sealed:
        with zipfile.ZipFile(memory, "a") as archive:
            archive.writestr("seal.txt", seal(archive))
    return memory.getvalue()


def outcome(path: Path) -> str:
    """ "refused" or "read"; any other exception is not caught."""
    try:
        opened = open_record(path)
        shown = opened.describe() + opened.source
        assert all(c.isprintable() or c in "\n\t" for c in shown)
        function, raw = rebuild(opened, trust=True)
        call_of(function, raw)
    except RecordError as error:
        assert all(c.isprintable() or c in "\n\t" for c in str(error)) and len(str(error)) < 3000
        return "refused"
    return "read"


def count(cases: Iterator[bytes], path: Path) -> dict[str, int]:
    found = {"refused": 0, "read": 0}
    for data in cases:
        path.write_bytes(data)
        found[outcome(path)] += 1
    return found


def test_undamaged_is_read(whole: bytes, tmp_path: Path) -> None:
    assert count(iter([whole, packed(members(whole))]), tmp_path / "r.argand") == {"refused": 0, "read": 2}


def test_flipped_bits(whole: bytes, tmp_path: Path) -> None:
    rng = random.Random(5)

    def cases() -> Iterator[bytes]:
        for at in range(0, len(whole), max(len(whole) // 600, 1)):
            data = bytearray(whole)
            data[at] ^= 1 << rng.randrange(8)
            yield bytes(data)

    found = count(cases(), tmp_path / "r.argand")
    assert found["refused"] > 5 * found["read"]  # what is read differs in dates, say


def test_cut_and_mixed_up(whole: bytes, tmp_path: Path) -> None:
    rng = random.Random(6)

    def cases() -> Iterator[bytes]:
        for n in range(100):
            yield whole[: len(whole) * n // 100]
            yield whole[len(whole) * n // 100 :][1:]
            begin, end = sorted(rng.sample(range(len(whole)), 2))
            yield whole[:begin] + whole[end:]
            yield whole[:begin] + rng.randbytes(end - begin) + whole[end:]
            yield whole[:begin] + whole[begin:end] * 2 + whole[end:]

    assert count(cases(), tmp_path / "r.argand")["refused"] >= 500 - 40


@pytest.mark.parametrize("sealed", [True, False])
def test_fields_of_other_types(sealed: bool, whole: bytes, tmp_path: Path) -> None:
    parts = members(whole)
    data = json.loads(parts["record.json"])

    def cases() -> Iterator[bytes]:
        for number, (_, changed) in enumerate(retyped(data)):
            if number % (7 if sealed else 29) == 0:
                yield packed({**parts, "record.json": json.dumps(changed).encode()}, sealed)

    found = count(cases(), tmp_path / "r.argand")
    assert found["refused"] > 100 and (sealed or found["read"] == 0)


def test_other_members(whole: bytes, tmp_path: Path) -> None:
    parts = members(whole)
    deep = b'{"a":' * 5000 + b"[" * 200_000
    broken = [
        {**parts, name: data}
        for name in parts
        for data in (b"", b"\0", b"\xff" * 100, deep, parts[name][:-1], parts[name] + b"x", b'{"a": 1, "a": 2}', b"NaN")
    ]
    cases = [packed(made, sealed) for made in broken for sealed in (True, False)]
    cases += [packed({k: v for k, v in parts.items() if k != name}, False) for name in parts]
    cases += [packed({**parts, name: b"x"}) for name in ("../x", "/etc/x", "a\\b", "tensors/../record.json", "x")]
    parts["record.json"] = parts["record.json"].replace(b'"format": 2', b'"format": 2, "format": 2')
    cases += [packed(parts)]
    found = count(iter(cases), tmp_path / "r.argand")
    assert found["read"] <= 2 * len(parts)  # without its last byte, or with one more: a seal that was made to fit


def test_more_than_a_file_can_hold(whole: bytes, tmp_path: Path) -> None:
    """Sizes in the zip's directory, and of tensors, are not believed."""
    parts, path = members(whole), tmp_path / "r.argand"
    data = json.loads(parts["record.json"])
    sizes = [1 << 40, 1 << 62, 1 << 80, -1]
    cases = []
    for size in sizes:
        for tensor in (
            ["tensor", "float32", [size], [1], False, size, ""],
            ["tensor", "float32", [2], [size], False, 3, "tensors/0.bin"],
            ["tensor", "float32", [size], [0], False, 1, ""],
            ["tensor", "uint8", [1 << 33], [1], False, 1 << 33, ""],
            ["tensor", "float32", [2] * 100, [1] * 100, False, 101, ""],
            ["tensor", "float32", [3, 4], [4, -1], False, 12, "tensors/0.bin"],
            ["tensor", "float32", [3, 4], [4], False, 12, "tensors/0.bin"],
            ["tensor", "nn", [3], [1], False, 3, ""],
            ["tensor", "complex64", [3], [1], False, 3, "../../etc/passwd"],
            ["size", [size]],
        ):
            changed = copy.deepcopy(data)
            changed["args"][0] = ["new", 9999, tensor]
            cases.append(packed({**parts, "record.json": json.dumps(changed).encode()}))
    at = whole.rindex(b"PK\x01\x02")
    for value in (0xFFFFFFF0, 0x7FFFFFFF):
        cases.append(whole[: at + 24] + value.to_bytes(4, "little") + whole[at + 28 :])
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("record.json", b" " * (65 << 20) + json.dumps(data).encode())
    cases.append(bomb.getvalue())
    limit = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + (400 << 10)
    found = count(iter(cases), path)
    assert found["read"] <= len(sizes)  # a torch.Size may say anything
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < limit


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.__name__)
def test_something_else_in_its_place(mutation: Any, whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "d" / "r.argand"
    path.parent.mkdir()
    path.write_bytes(whole)
    mutation(path)
    harmless = ("link_to_another_file", "no_permission", "writable_by_all", "other_owner")
    assert outcome(path) == ("read" if mutation.__name__ in harmless and os.geteuid() == 0 else "refused")


def test_record_of_somebody_else_is_not_run(whole: bytes, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    path = tmp_path / "r.argand"
    path.write_bytes(whole)
    os.chown(path, 12345, 12345)
    with pytest.raises(RecordError, match="not yours alone"):
        rebuild(open_record(path))


def test_nothing_reaches_the_terminal_as_it_is(whole: bytes, tmp_path: Path) -> None:
    parts, path = members(whole), tmp_path / "r.argand"
    evil = "\x1b]0;evil\x07\x1b[2J\u202e\u2066\x9b31m\r\x00"
    data = json.loads(parts["record.json"])
    for key in ("python", "torch", "platform", "function", "place", "source", "error"):
        data[key] += evil
    data["skipped"] = [evil] * 3
    path.write_bytes(packed({**parts, "record.json": json.dumps(data).encode()}))
    for arguments in (["--show"], ["--trust"]):
        done = warm.run(["-m", "argand.cli", "replay", *arguments, path])
        shown = done.stdout + done.stderr
        assert "evil" in shown and "Traceback" not in shown
        assert all(c.isprintable() or c in "\n\t" for c in shown)


def test_digest_covers_everything(whole: bytes) -> None:
    parts = members(whole)
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        assert (
            seal(archive) == parts["seal.txt"].decode() and len(parts["seal.txt"]) == hashlib.sha256().digest_size * 2
        )
