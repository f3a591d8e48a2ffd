"""Random faults of what a fleet shares, under ranks that compile: a Redis server, the disk cache, each other.

    python -m tests.runtime.fleet_faults [--count 40] [--first 0] [--only 7]

Each world is a job of a few processes that compile the same functions, behind a real Redis server and a proxy that can be
slow or cut connections. Something goes wrong (`SERVER`, `ENTRIES`, `DISK`, `RANKS`), often several things at once. Ranks
that live have to compute what eager computes, soon, whatever happens; the server's share of their time is shown.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

SERVER = [
    "",
    "",
    "dead",
    "killed",
    "killed at once",
    "slow",
    "slow",
    "full",
    "silent",
    "cut",
    "garbage",
    "stopped",
    "no key",
]
ENTRIES = [
    "",
    "",
    "unsigned",
    "another key",
    "cut",
    "enormous",
    "other content",
    "replayed",
    "a list",
    "empty",
    "lease of the dead",
]
DISK = [
    "",
    "",
    "",
    "removed",
    "read-only",
    "no room",
    "no room for temporary files",
    "damaged",
    "locks of the dead",
    "future",
    "past",
]
RANKS = ["", "", "", "killed", "stopped", "killed with the server's turn"]
SECRET = "the fleet's secret"
LONGEST = 90.0  # seconds of a rank, on a machine that is overloaded


def drawn(seed: int) -> dict[str, Any]:
    chance = random.Random(f"fleet {seed}")
    return {
        "ranks": chance.choice([1, 2, 2, 3]),
        "own disks": chance.random() < 0.4,
        "job": chance.random() < 0.6,  # ranks know of each other, and take turns
        "server": chance.choice(SERVER),
        "entries": chance.choice(ENTRIES),
        "disk": chance.choice(DISK),
        "of ranks": chance.choice(RANKS),
        "when": chance.randrange(1, 6),  # how many things are compiled, or asked for, before
        "seconds": chance.choice([0.02, 0.06, 0.3]),  # of a slow server
    }


# ------------------------------------------------------------------------ what the ranks compile


def _scaled(x: torch.Tensor) -> torch.Tensor:
    return (x * 3).sin().sum(1) + 0.125


def _normed(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, 1).cumsum(0).tanh()


def _squares(x: torch.Tensor) -> torch.Tensor:
    return (x.square() - x.mean(0)).exp().log1p()


PROGRAMS = (_scaled, _normed, _squares)


def compile_all(told: dict[str, Any]) -> None:
    """Compile the programs, with gradients, and compare with eager."""
    import argand
    from argand.runtime.remote import REMOTE

    for name in ("fetch", "lead"):
        _timed(REMOTE, name, told["asked"])
    for program in PROGRAMS:
        x = torch.linspace(-1, 1, 24).view(4, 6)
        ours, eager = x.clone().requires_grad_(), x.clone().requires_grad_()
        begun = time.monotonic()
        got, want = argand.compile(program)(ours), program(eager)
        got.sum().backward()
        want.sum().backward()
        told["seconds"].append(round(time.monotonic() - begun, 2))
        if not (torch.allclose(got, want, atol=1e-5) and torch.allclose(ours.grad, eager.grad, atol=1e-5)):
            told["wrong"].append(program.__name__)
    REMOTE.flush(1.0)
    told["counters"] = argand.counters().get("remote_cache", {})
    told["frames"] = argand.counters().get("frames", {})


def _timed(owner: Any, name: str, spent: list[float]) -> None:
    ask = getattr(owner, name)

    def asked(*args: Any) -> Any:
        begun = time.monotonic()
        try:
            return ask(*args)
        finally:
            spent.append(round(time.monotonic() - begun, 3))

    setattr(owner, name, asked)


# ------------------------------------------------------------------------ faults


class Proxy:
    """Passes bytes between clients and a server: slowly, in part, or others."""

    def __init__(self, port: int, fault: str, seconds: float, when: int) -> None:
        self.fault, self.seconds, self.left, self.port = fault, seconds, when, port
        self.listening = socket.socket()
        self.listening.bind(("127.0.0.1", 0))
        self.listening.listen(16)
        self.url = f"redis://127.0.0.1:{self.listening.getsockname()[1]}/0"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            client, _ = self.listening.accept()
            if self.fault == "silent":
                self._kept = [*getattr(self, "_kept", []), client]
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                client.close()
                continue
            for one, two, answers in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pass, args=(one, two, answers), daemon=True).start()

    def _pass(self, one: socket.socket, two: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                if answers:
                    self.left -= 1
                    if self.fault == "slow":
                        time.sleep(self.seconds)
                    if self.left <= 0 and self.fault == "cut":
                        two.sendall(data[: len(data) // 2])
                        break
                    if self.left <= 0 and self.fault == "garbage":
                        data = b"$100\r\n" + bytes(random.Random(0).randbytes(90)) + b"\r\n*-7\r\n"
                two.sendall(data)
        for each in (one, two):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def tamper(client: Any, fault: str) -> None:
    """Change every entry that is in the server."""
    from argand.runtime import remote

    names = [key for key in client.keys("*") if not key.endswith(b":turn")]
    values = {key: client.get(key) for key in names}
    for number, key in enumerate(names):
        name, good = key.decode().rsplit(":", 1)[1], values[key]
        another = values[names[(number + 1) % len(names)]]
        if fault == "a list":
            client.delete(key)
            client.rpush(key, "a")
        elif fault == "lease of the dead":
            client.set(key + b":turn", "nobody", px=60_000)
            client.delete(key)
        elif fault:
            client.set(key, {
                "unsigned": b"argand1\n" + b"\0" * 32 + good[40:],
                "another key": remote.pack(name, b"", b"evil", b"another"),
                "cut": good[: len(good) * 2 // 3],
                "enormous": b"argand1\n" + os.urandom(1 << 20) * 40,
                "other content": good[:40] + another[40:],
                "replayed": another,
                "empty": b"",
            }[fault])  # fmt: skip


@contextlib.contextmanager
def disk_fault(fault: str, folder: Path, chance: random.Random) -> Iterator[None]:
    """What happens to a disk cache before the ranks begin."""
    kernels = folder / "kernels"
    if fault == "damaged":
        for path in kernels.glob("*"):
            if path.is_file() and chance.random() < 0.5:
                data = path.read_bytes()
                path.write_bytes(data[: len(data) // 2])
    if fault == "locks of the dead":
        for path in list(kernels.glob("*.json")):
            path.with_suffix(".lock").touch()
        (kernels / ".build-dead").mkdir(parents=True, exist_ok=True)
    if fault in ("future", "past"):
        when = time.time() + (1e8 if fault == "future" else -1e9)
        for path in kernels.glob("*"):
            os.utime(path, (when, when), follow_symlinks=False)
    yield


def rank_fault(rank: int, world: dict[str, Any], folder: Path) -> None:
    """Sees to it that rank 0 ends, or stops, or that the disk goes, at the n-th thing that is compiled."""
    from argand.runtime import cache, remote

    left = [world["when"]]

    def fault() -> None:
        left[0] -= 1
        if left[0]:
            return
        if rank == 0 and world["of ranks"] in ("killed", "killed with the server's turn"):
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 0 and world["of ranks"] == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        if world["disk"] == "removed":
            shutil.rmtree(folder, ignore_errors=True)

    owner, name = (remote.REMOTE, "offer") if "turn" in world["of ranks"] else (cache, "_build_entry")
    do = getattr(owner, name)

    def faulty(*args: Any, **options: Any) -> Any:
        fault()
        return do(*args, **options)

    setattr(owner, name, faulty)


# ------------------------------------------------------------------------ ranks


def become_rank(rank: int, world: dict[str, Any], folder: Path, disk: Path, url: str) -> None:
    """Compile, and tell."""
    import argand
    from argand.config import config
    from argand.runtime import build_turns

    if world["own disks"]:
        disk = disk.with_name(f"{disk.name}-{rank}")
    config.cache_dir, config.remote_cache = str(disk), url
    config.remote_cache_key = "" if world["server"] == "no key" else SECRET
    if world["job"]:
        build_turns.others = lambda: True
    told: dict[str, Any] = {"seconds": [], "asked": [], "wrong": [], "raised": ""}
    if world["disk"] == "no room":
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))
    rank_fault(rank, world, disk)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        begun = time.monotonic()
        try:
            compile_all(told)
        except BaseException:
            told["raised"] = traceback.format_exc()
        told["all"] = round(time.monotonic() - begun, 2)
    told["warned"] = sorted({str(one.message) for one in caught if "argand" in str(one.message)})
    if world["disk"] == "no room":
        os.write(1, json.dumps(told).encode())
    (folder / f"{rank}.json").write_text(json.dumps(told))
    argand.reset()


def run_world(seed: int, world: dict[str, Any]) -> dict[str, Any]:
    """What the ranks tell; {"problem": ...} of what ought not to be."""
    import redis
    from redis_server import started

    with tempfile.TemporaryDirectory() as name:
        folder, chance = Path(name), random.Random(f"fault {seed}")
        options = ["--maxmemory", "1mb", "--maxmemory-policy", "noeviction"] if world["server"] == "full" else []
        port, server = started(folder, options)
        proxy = Proxy(port, world["server"], world["seconds"], world["when"])
        try:
            if world["entries"] or world["disk"] in ("damaged", "future", "past", "locks of the dead"):
                _fork(
                    0,
                    {**world, "server": "", "disk": "", "of ranks": "", "own disks": False, "job": False},
                    folder,
                    folder / "first",
                    f"redis://127.0.0.1:{port}/0",
                    wait=True,
                )
                if world["entries"]:
                    with contextlib.suppress(redis.exceptions.OutOfMemoryError):
                        tamper(redis.Redis(port=port), world["entries"])
            disk = folder / ("first" if not world["entries"] else "second")
            if world["server"] in ("dead", "killed at once"):
                server.kill()
                server.wait()
            if world["server"] == "stopped":
                os.kill(server.pid, signal.SIGSTOP)
            if world["disk"] == "read-only":
                disk = Path("/proc/argand")
            with disk_fault(world["disk"], disk, chance):
                children = [_fork(rank, world, folder, disk, proxy.url) for rank in range(world["ranks"])]
                if world["server"] == "killed":
                    time.sleep(0.05 * world["when"])
                    server.kill()
                return _ended(world, folder, children)
        finally:
            server.kill()
            server.wait()
            proxy.listening.close()


def _fork(rank: int, world: dict[str, Any], folder: Path, disk: Path, url: str, wait: bool = False) -> int:
    child = os.fork()
    if child == 0:
        output = os.open(folder / f"{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        try:
            become_rank(rank, world, folder, disk, url)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(0)
    if wait:
        os.waitpid(child, 0)
        (folder / f"{rank}.json").unlink(missing_ok=True)
    return child


def _ended(world: dict[str, Any], folder: Path, children: list[int]) -> dict[str, Any]:
    """What each rank told when it ended."""
    alive, begun, found = dict(enumerate(children)), time.monotonic(), dict[str, Any]()
    harmed = {0} if world["of ranks"] else set[int]()
    while set(alive) - (harmed if world["of ranks"] == "stopped" else set()) and time.monotonic() < begun + LONGEST:
        for rank, child in list(alive.items()):
            if os.waitpid(child, os.WNOHANG)[0]:
                del alive[rank]
        time.sleep(0.02)
    for rank, child in alive.items():
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if rank not in harmed or world["of ranks"] != "stopped":
            found["problem"] = f"rank {rank} hangs"
    told = {}
    for rank in range(world["ranks"]):
        path = folder / f"{rank}.json"
        text = path.read_text() if path.exists() else ""
        if not text and world["disk"] == "no room":
            text = (folder / f"{rank}.txt").read_text()
        if text:
            told[rank] = json.loads(text)
        elif rank not in harmed:
            found["problem"] = f"rank {rank} ended: {(folder / f'{rank}.txt').read_text()[-2000:]}"
    for rank, one in told.items():
        if one["raised"] or one["wrong"]:
            found["problem"] = f"rank {rank}: {one['wrong']} {one['raised']}"
    return {**found, "told": told}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=int, default=-1)
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    import redis  # noqa: F401  # forked ranks have it

    from argand.debug.trial.process import warm as import_compiler

    import_compiler()
    torch.set_num_threads(1)
    problems, most = 0, 0.0
    for seed in [options.only] if options.only >= 0 else range(options.first, options.first + options.count):
        world = drawn(seed)
        found = run_world(seed, world)
        asked = [max(one["asked"], default=0.0) for one in found["told"].values()]
        total = [round(sum(one["asked"]), 3) for one in found["told"].values()]
        seconds = [one.get("all") for one in found["told"].values()]
        told = [one.get("counters") for one in found["told"].values()]
        most = max([most, *asked])
        plain = {key: value for key, value in world.items() if value not in ("", False)}
        print(f"{seed} {plain}: {seconds} s, server {total} s, at most {asked}; {told}", flush=True)
        for text in sorted({text for one in found["told"].values() for text in one["warned"]}):
            print(f"    warned: {text[:260]}", flush=True)
        if "problem" in found:
            problems += 1
            print(f"    PROBLEM {found['problem']}", flush=True)
    print(f"{problems} problems; the server's longest share of a compile was {most} s")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
