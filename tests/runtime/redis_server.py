"""A real Redis server for a test, where one is installed (`apt-get install redis-server`, `pip install redis`)."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest


def needs_redis() -> None:
    """Skip the test where no server can be started."""
    pytest.importorskip("redis", reason="the Python package redis is not installed")
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def started(folder: Path, options: Sequence[str]) -> tuple[int, subprocess.Popen[bytes]]:
    """Port and process of a server that answers. One that ends at once has lost its port to somebody else."""
    for _ in range(20):
        port = free_port()
        bound = ["--port", str(port), "--bind", "127.0.0.1"]
        command = ["redis-server", *bound, "--save", "", "--dir", str(folder), *options]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                return port, process
            time.sleep(0.02)
    raise AssertionError("redis-server does not start")


@contextlib.contextmanager
def redis_server(folder: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """URL and process of a server."""
    needs_redis()
    port, process = started(folder, options)
    try:
        yield f"redis://127.0.0.1:{port}/0", process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def silent_server() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(8)
        yield f"redis://127.0.0.1:{listening.getsockname()[1]}/0"
