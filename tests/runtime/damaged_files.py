"""Damages each file of a cache in each way and runs a program in a new process after each; prints what goes wrong.

    python tests/runtime/damaged_files.py [--program] [--some]

Children are forked before any thread exists, so that a case takes a few milliseconds more than its compile. With
`--program`, they run whole programs (inference, training, many sizes), not single kernels; with `--some`, each file is
damaged in every second way, and in every 20th of those where a value of a JSON file is another.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
import argand
from argand import events
from argand.runtime import toolchain
from damage import MUTATIONS, every_damage, restore
from forks import fork

LIMIT = float(os.environ.get("DAMAGE_LIMIT", "60"))
TEXT = 'extern "C" int answer() { return 42; }\n'


def kernel() -> bool:
    return toolchain.load_text(TEXT)._handle.answer() == 42


def program() -> bool:
    """Inference, training and a size that varies."""
    x = torch.randn(8, 9, generator=torch.Generator().manual_seed(1))

    def inference(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2 + 1, -1)

    def training(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * 3).sum()

    def sizes(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * x.shape[0] + 1

    same = torch.allclose(argand.compile(inference)(x), inference(x))
    one, two = x.clone().requires_grad_(), x.clone().requires_grad_()
    argand.compile(training)(one).backward()
    training(two).backward()
    assert one.grad is not None and two.grad is not None
    compiled = argand.compile(sizes, dynamic=True)
    return (
        same and torch.allclose(one.grad, two.grad) and all(torch.allclose(compiled(y), sizes(y)) for y in (x, x[:5]))
    )


def in_child(run: Callable[[], bool]) -> dict[str, Any]:
    """What a forked process says of `run`."""
    receive, send = os.pipe()
    start = time.monotonic()
    child = fork()
    if child == 0:
        outcomes: list[Any] = []
        events.bus.subscribe(lambda event: outcomes.append(event.data.get("outcome")), ("cache",))
        try:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                right = run()
            said: dict[str, Any] = {"right": right, "warnings": [str(w.message) for w in told]}
        except BaseException as error:
            said = {"right": False, "warnings": [f"{type(error).__name__}: {error}"]}
        os.write(send, json.dumps({**said, "outcomes": outcomes}).encode())
        os._exit(0)
    os.close(send)
    os.set_blocking(receive, False)
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() - start > LIMIT:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.002)
    try:
        data = os.read(receive, 1 << 16)
    except BlockingIOError:
        data = b""
    os.close(receive)
    return {**json.loads(data or b"{}"), "seconds": time.monotonic() - start}


def main() -> int:
    run = program if "--program" in sys.argv else kernel
    root = Path(tempfile.mkdtemp())
    folder, good = root / "cache", root / "good"
    argand.config.cache_dir = str(folder)
    in_child(run)
    os.rename(folder, good)
    wrong = tried = 0
    for at, file in enumerate(sorted(file for file in good.rglob("*") if file.is_file())):
        place = folder / file.relative_to(good)
        for number, (what, damage) in enumerate(every_damage(file)):
            if "--some" in sys.argv and (at + number) % (2 if number < len(MUTATIONS) else 20):
                continue
            restore(good, folder)
            damage(place)
            if place.name.endswith((".lock", ".trimmed", ".cpp")):  # read and written where an entry is missing only
                for library in folder.rglob("*.so"):
                    library.unlink()
            first, second = in_child(run), in_child(run)
            tried += 1
            clean = second.get("right") and not second["warnings"] and set(second["outcomes"]) == {"hit"}
            if not (first.get("right") and clean and not first["warnings"] and first["seconds"] < LIMIT):
                wrong += 1
                print(f"{place.name}: {what}: {first} then {second}")
    print(f"{tried} cases, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
