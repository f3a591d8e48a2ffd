"""A driver library that writes down what it is asked for, built once."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from argand.runtime.gpu.device.driver import Driver
from argand.runtime.gpu.kernels.launch import Place

CPU = 1  # DLPack's number
MANY = 64


class Launch(ctypes.Structure):
    """What one call of cuLaunchKernel got."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in "function gx gy gz threads shared stream context count".split()),
        ("words", ctypes.c_int64 * MANY),
    ]


@dataclass
class FakeCuda:
    """The fake, and a driver over it."""

    path: str
    library: Any
    driver: Driver

    def place(self, stream: int = 0x57) -> Place:
        """Where kernels take CPU tensors."""
        return Place(self.driver, CPU, 0, lambda index: stream + index)

    def get(self, name: str) -> int:
        return ctypes.c_int.in_dll(self.library, f"fake_{name}").value

    def set(self, **values: int) -> None:
        for name, value in values.items():
            ctypes.c_int.in_dll(self.library, f"fake_{name}").value = value

    @property
    def launches(self) -> list[Any]:
        return list((Launch * 256).in_dll(self.library, "fake_launches"))[: self.get("count")]


@pytest.fixture(scope="session")
def fake_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("fake") / "libfakecuda.so"
    source = Path(__file__).with_name("fake_cuda.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(made), str(source)], check=True)
    return made


@pytest.fixture
def fake(fake_path: Path, tmp_path: Path) -> FakeCuda:
    """A fresh copy: its counters begin at 0."""
    mine = tmp_path / "libcuda.so.1"
    mine.write_bytes(fake_path.read_bytes())
    driver = Driver(str(mine))
    return FakeCuda(str(mine), driver.library, driver)
