"""Record and replay of frames whose capture failed."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch

import argand
import warm
from argand.debug.frame_records.record import record
from argand.debug.frame_records.record_reader import call_of, open_record, rebuild
from argand.debug.frame_records.record_schema import RecordError
from argand.errors import ArgandError

SCRIPT = """
import torch, argand
argand.config.replay_record_enabled = True
class Settings:
    def __init__(self):
        self.k = 3
def helper(x):
    return x.sin()
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.settings = torch.nn.Linear(4, 4), Settings()
    def forward(self, x, *rest, scale=2.0, **more):
        y = self.fc(x) * scale + helper(x)
        print("written")
        return y.sum() + self.settings.k
model = Model()
try:
    argand.compile(model, fullgraph=True, backend="eager")(torch.randn(3, 4), 1, scale=3.0, u=torch.ones(2))
except argand.errors.Unsupported as error:
    print(error.__notes__[0].split()[2])
"""


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    script = tmp_path / "model.py"
    script.write_text(SCRIPT.replace("import torch, argand", "import torch, argand, argand.errors"))
    done = warm.run([script], check=True, cwd=tmp_path, imported="compiler")
    script.unlink()  # the record needs nothing of the program
    return Path(done.stdout.strip().splitlines()[-1])


def replay(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["-m", "argand.cli", "replay", *arguments]
    return warm.run(command, imported="compiler")


def test_failure_is_replayed_in_another_process(recorded: Path) -> None:
    done = replay(str(recorded))
    assert done.returncode == 1
    assert "print() writes to the terminal" in done.stderr.split("capture failed:")[1].split("argand:")[1]


def test_foreign_record_is_not_run(recorded: Path) -> None:
    os.chmod(recorded, 0o666)
    assert "pass --trust" in replay(str(recorded)).stderr
    assert "pass --trust" not in replay("--trust", str(recorded)).stderr
    shown = replay("--show", str(recorded))
    assert shown.returncode == 0 and "helper(x)" in shown.stdout


def _record(fn: object, *args: object, tmp_path: Path) -> Path:
    with argand.config.config.patch(base_dir=str(tmp_path)):
        return record(fn.__code__, fn.__globals__, fn.__closure__, args, ArgandError("no"))


def test_values_come_back(tmp_path: Path) -> None:
    shared = torch.arange(12.0).reshape(3, 4).t()

    def fn(a, b, c):
        return a, b, c

    weight = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    values = ({"x": [shared, shared], 2: (1, 2.5, 1j, b"x", None, ...)}, weight, torch.Size([3]))
    path = _record(fn, *values, tmp_path=tmp_path)
    function, raw = rebuild(open_record(path))
    a, b, c = call_of(function, raw)(function)
    assert a["x"][0] is a["x"][1] and a["x"][0].stride() == shared.stride() and torch.equal(a["x"][0], shared)
    assert a[2] == values[0][2] and isinstance(b, torch.nn.Parameter) and torch.equal(b, weight) and c == values[2]


def test_tensors_of_a_device_that_is_not_here_are_on_the_cpu(tmp_path: Path) -> None:
    """A record says where its tensors were; they are there again, or a warning says that they are not."""
    import json
    import zipfile

    from argand.debug.frame_records.record_reader import SEAL, seal

    def fn(a, b):
        return a, b

    shared = torch.arange(4.0)
    path = _record(fn, shared, torch.nn.Parameter(torch.ones(2)), tmp_path=tmp_path)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist() if name != SEAL}
    data = json.loads(parts["record.json"])
    for place, device in enumerate(("cuda:7", "hpu")):
        data["args"][place][2] = ["placed", device, data["args"][place][2]]

    def write(text: str) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            for name, part in {**parts, "record.json": text.encode()}.items():
                archive.writestr(name, part)
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(SEAL, seal(archive))

    write(json.dumps(data))
    with pytest.warns(UserWarning, match="were on cuda:7 and hpu, not to be had here"):
        function, raw = rebuild(open_record(path))
    a, b = call_of(function, raw)(function)
    assert torch.equal(a, shared) and isinstance(b, torch.nn.Parameter) and a.device.type == b.device.type == "cpu"
    for wrong in (["placed", "../x", data["args"][0][2][2]], ["placed", "cuda:7", ["size", [2]]], ["placed", "cuda:7"]):
        data["args"][0][2] = wrong
        write(json.dumps(data))
        with pytest.raises(RecordError, match="corrupt"):
            rebuild(open_record(path))


def test_what_cannot_be_recorded_is_said(tmp_path: Path) -> None:
    def fn(a):
        return a

    path = _record(fn, iter([1]), tmp_path=tmp_path)
    assert "not recorded: argument 0: list_iterator" in open_record(path).describe()
    function, raw = rebuild(open_record(path))
    with pytest.raises(RecordError, match="was not recorded"):
        call_of(function, raw)(function).something


def test_size_is_bounded(tmp_path: Path) -> None:
    def fn(a):
        return a

    with argand.config.config.patch(replay_record_limit=1):
        path = _record(fn, torch.randn(1 << 20), tmp_path=tmp_path)
    assert path.stat().st_size < 1 << 16
    function, raw = rebuild(open_record(path))
    assert call_of(function, raw)(function).shape == (1 << 20,)


def test_wrong_files(tmp_path: Path) -> None:
    def fn(a):
        return a

    junk = tmp_path / "junk"
    junk.write_text("no zip")
    with pytest.raises(RecordError, match="is no record"):
        open_record(junk)
    path = _record(fn, 1, tmp_path=tmp_path)
    with zipfile.ZipFile(path) as archive:
        data, code = json.loads(archive.read("record.json")), archive.read("code.bin")

    def changed(code: bytes, **more: object) -> Path:
        made = tmp_path / "changed.argand"
        with zipfile.ZipFile(made, "w") as archive:
            archive.writestr("record.json", json.dumps({**data, **more}))
            archive.writestr("code.bin", code)
        return made

    with pytest.raises(RecordError, match="format 99"):
        open_record(changed(code, format=99))
    with pytest.raises(RecordError, match="corrupt"):
        open_record(changed(code, args="x"))
    with pytest.raises(RecordError, match="Python 2.7"):
        rebuild(open_record(changed(code, python="2.7")))
    with pytest.raises(RecordError, match="corrupt"):
        rebuild(open_record(changed(code[:-1])))
    with pytest.raises(RecordError, match="unknown kind"):
        rebuild(open_record(changed(code, args=[["run", "rm"]])))
