"""The fleet's cache: entries come from a Redis server, signed; a server that does not answer costs next to nothing."""

from __future__ import annotations

import contextlib
import queue
import random
import shutil
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from redis_server import free_port, needs_redis, redis_server, silent_server

import argand
from argand import events
from argand.config import config
from argand.errors import CacheError
from argand.runtime import archive, cache, remote
from argand.runtime.remote import REMOTE, RemoteCache, Unsigned, pack, unpack

KEY = "ab" * 20
SECRET = b"the fleet's secret"


@pytest.fixture(autouse=True)
def fleet(tmp_path: Path) -> Iterator[None]:
    """A disk cache of the test's own, a key, a remote cache without troubles."""
    with config.patch(cache_dir=str(tmp_path / "disk"), remote_cache_key=SECRET.decode()):
        cache.reset()
        yield
    cache.reset()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(remote, "TIMEOUT", 100.0)  # it answers, however busy the machine is
    with redis_server(tmp_path) as (url, _), config.patch(remote_cache=url):
        yield url


@pytest.fixture
def outcomes() -> Iterator[list[str]]:
    told: list[str] = []
    stop = events.bus.subscribe(lambda event: told.append(event.data["outcome"]), ("remote_cache",))
    yield told
    stop()


def builder(made: list[int], data: bytes = b"library") -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        made.append(1)
        path = folder / "made.so"
        path.write_bytes(data)
        return path

    return build


def elsewhere(tmp_path: Path, name: str) -> None:
    """Go on as another machine of the fleet: with an empty disk cache."""
    REMOTE.flush(100)
    config.cache_dir = str(tmp_path / name)
    cache.reset()


def test_an_entry_that_one_machine_made_is_on_the_disk_of_the_next(tmp_path: Path, server: str, outcomes) -> None:
    made: list[int] = []
    first = cache.get_or_build(KEY, "source", builder(made))
    cache.keep("ef" * 20, b"program", cache.PROGRAM)
    elsewhere(tmp_path, "second")
    second = cache.get_or_build(KEY, "source", builder(made))
    assert made == [1] and second != first and second.read_bytes() == b"library"
    assert second.with_suffix(".cpp").read_text() == "source"
    assert cache.find("ef" * 20, cache.PROGRAM) == b"program"
    assert outcomes == ["miss", "stored", "stored", "hit", "hit"]
    elsewhere(tmp_path, "second")
    config.remote_cache = ""
    assert cache.get_or_build(KEY, "source", builder(made)) == second and made == [1]


def test_compiled_models_come_from_the_server(tmp_path: Path, server: str) -> None:
    import torch

    def program(x: torch.Tensor) -> torch.Tensor:
        return (x * 3).sin().sum(1) + 0.125

    x = torch.randn(8, 40)
    argand.compile(program)(x)
    elsewhere(tmp_path, "second")
    argand.reset()
    config.remote_cache, argand_counters = server, argand.counters().get("remote_cache", {}).get("hit", 0)
    found = argand.compile(program)(x)
    assert torch.allclose(found, program(x), atol=1e-5)
    assert argand.counters()["remote_cache"]["hit"] > argand_counters


def test_a_key_that_is_changed_leaves_the_entries_of_the_old_one(tmp_path: Path, server: str, outcomes) -> None:
    """While a fleet changes its key, machines with the old one and with the new one do not take turns overwriting."""
    made: list[int] = []
    for number, secret in enumerate(["old", "new", "old", "new"]):
        elsewhere(tmp_path, f"machine {number}")
        config.remote_cache_key = secret
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cache.get_or_build(KEY, "source", builder(made))
    assert made == [1, 1]
    assert outcomes == ["miss", "stored", "miss", "stored", "hit", "hit"]


@pytest.mark.parametrize("damage", ["bit", "cut", "other key", "other name", "empty", "bomb", "unsigned"])
def test_what_the_fleet_did_not_sign_is_never_loaded(tmp_path: Path, server: str, outcomes, damage: str) -> None:
    import redis

    made: list[int] = []
    cache.get_or_build(KEY, "source", builder(made))
    elsewhere(tmp_path, "second")
    client = redis.Redis.from_url(server)
    address = remote._address(f"{KEY}.so")
    good = client.get(address)
    bad = {
        "bit": good[:-1] + bytes([good[-1] ^ 1]),
        "cut": good[: len(good) // 2],
        "other key": pack(f"{KEY}.so", b"", b"evil", b"another"),
        "other name": pack(f"{'cd' * 20}.so", b"", b"evil", SECRET),
        "empty": b"x",
        "bomb": good[:40] + b"\0" * 4096,
        "unsigned": b"evil",
    }[damage]
    client.set(address, bad)
    with pytest.warns(UserWarning, match="signature"):
        path = cache.get_or_build(KEY, "source", builder(made))
    assert path.read_bytes() == b"library" and made == [1, 1] and "rejected" in outcomes


def test_unpacking_checks_everything() -> None:
    name = f"{KEY}.so"
    assert unpack(name, pack(name, b"text", b"data", SECRET), SECRET) == (b"text", b"data")
    for wrong in (b"", b"argand1\n", pack(name, b"text", b"data", b"")):
        with pytest.raises(Unsigned):
            unpack(name, wrong, SECRET)
    with pytest.raises(Unsigned):
        unpack(name, pack(name, b"", b"", b""), b"")
    for path in ("../../evil.so", f"{KEY}.py", "/etc/passwd", f"{KEY}.so\n"):
        with pytest.raises(Unsigned):
            unpack(path, pack(path, b"", b"", SECRET), SECRET)


def test_without_a_key_the_server_is_not_asked(server: str) -> None:
    made: list[int] = []
    with config.patch(remote_cache_key=""), pytest.warns(UserWarning, match="remote_cache_key is empty"):
        cache.get_or_build(KEY, "source", builder(made))
    import redis

    assert redis.Redis.from_url(server).dbsize() == 0 and made == [1]


def dead() -> str:
    return "redis://127.0.0.1:1/0"


@pytest.mark.parametrize("kind", ["silent", "dead"])
def test_a_server_that_does_not_answer_costs_little_and_once(
    outcomes, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_WRITE_TIMEOUT", 500.0)
    needs_redis()
    import redis  # noqa: F401  # not timed

    with silent_server() as silent, config.patch(remote_cache=silent if kind == "silent" else dead()):
        made: list[int] = []
        begun = time.monotonic()
        # who does not answer at first may be slow to connect, which nobody waits for
        told = pytest.warns(UserWarning, match="cannot be asked") if kind == "dead" else contextlib.nullcontext()
        with told:
            cache.get_or_build(KEY, "source", builder(made))
        first = time.monotonic() - begun
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for number in range(20):
                cache.get_or_build(f"{number:040x}", "source", builder(made))
        assert len(made) == 21 and outcomes[0] == "error" and set(outcomes[1:]) == {"skipped"}
        if kind == "silent":
            monkeypatch.setattr(remote, "_WRITE_TIMEOUT", 0.0)
            with pytest.warns(UserWarning, match="does not answer in time"):
                cache.get_or_build("cd" * 20, "source", builder(made))
        # it waited 50 ms, on however busy a machine, and not for the thread that talks to the server
        assert first < 250


def test_a_server_that_answers_slowly_is_left_alone(server: str, outcomes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that come in time and bring nothing: together they take no longer than one question may."""
    monkeypatch.setattr(remote, "TIMEOUT", 0.6)
    connect = remote._connect

    class Slow:
        def __init__(self, url: str) -> None:
            self.client = connect(url)

        def ping(self) -> Any:
            return self.client.ping()

        def getrange(self, *args: Any) -> Any:
            time.sleep(0.2)
            return self.client.getrange(*args)

    monkeypatch.setattr(remote, "_connect", Slow)
    asked = RemoteCache()
    asked.prepare()
    while not asked._worker("ask").connected:
        time.sleep(0.01)
    with pytest.warns(UserWarning, match="does not answer in time"):
        assert [asked.fetch(f"{number:040x}.so") for number in range(6)] == [None] * 6
    assert outcomes.count("error") == 1 and outcomes[-2:] == ["skipped"] * 2
    asked.reset()


def test_a_server_that_connects_slowly_is_asked_once_it_is_connected(
    server: str, outcomes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS and a far server take longer than a question may."""
    connect, connecting = remote._connect, threading.Event()

    def slowly(url: str) -> Any:
        connecting.wait()
        return connect(url)

    monkeypatch.setattr(remote, "_connect", slowly)
    monkeypatch.setattr(remote, "TIMEOUT", 0.01)
    monkeypatch.setattr(remote, "_WRITE_TIMEOUT", 500.0)
    asked = RemoteCache()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [asked.fetch(f"{number:040x}.so") for number in range(3)] == [None] * 3
        assert outcomes == ["error", "skipped", "skipped"]
        monkeypatch.setattr(remote, "TIMEOUT", 100.0)
        connecting.set()
        while not asked.usable():
            time.sleep(0.01)
        assert asked.fetch(f"{4:040x}.so") is None and outcomes[-1] == "miss"
    asked.reset()


def test_a_server_that_connects_and_then_answers_slowly_is_waited_for_no_longer_than_one_question(
    server: str, outcomes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However busy the machine is: all waits together are bounded before they begin."""
    connect, connecting, waits = remote._connect, threading.Event(), []

    class Slow:
        def __init__(self, url: str) -> None:
            connecting.wait()
            self.client = connect(url)

        def ping(self) -> Any:
            return self.client.ping()

        def getrange(self, *args: Any) -> Any:
            time.sleep(0.5)
            return b""

    class Watched(queue.SimpleQueue):
        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            waits.append(timeout)
            return super().get(block, timeout)

    monkeypatch.setattr(remote, "_connect", Slow)
    monkeypatch.setattr(remote, "TIMEOUT", 0.4)
    monkeypatch.setattr(remote, "_WRITE_TIMEOUT", 500.0)
    asked = RemoteCache()
    asked.prepare()
    monkeypatch.setattr(remote.queue, "SimpleQueue", Watched)
    assert asked.fetch(f"{8:040x}.so") is None and outcomes == ["error"]
    connecting.set()
    while not asked.usable():
        time.sleep(0.01)
    with pytest.warns(UserWarning, match="does not answer in time"):
        for number in (9, 10):
            assert asked.fetch(f"{number:040x}.so") is None
    assert outcomes == ["error", "error", "skipped"] and 0.3 < sum(filter(None, waits)) <= 0.4
    asked.reset()


def test_an_address_with_a_password_is_not_shown() -> None:
    needs_redis()
    with pytest.raises(ValueError, match="no address") as raised:
        remote._connect("redis://:hunter:2@host:se/cret")
    assert "se" not in str(raised.value).split() and "hunter" not in str(raised.value)


@pytest.mark.parametrize("password", ["p@ss/w:rd", ""])
def test_servers_with_a_password_and_tls(tmp_path: Path, password: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "TIMEOUT", 100.0)
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, *name]
    if shutil.which("openssl") is None or subprocess.run(made, capture_output=True).returncode:
        pytest.skip("no certificate can be made")
    port = free_port()
    tls = ["--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", certificate]
    options = ["--tls-port", str(port), *tls, "--tls-auth-clients", "no"]
    with redis_server(tmp_path, *options, *(["--requirepass", password] if password else [])) as (url, process):
        if process.poll() is not None:
            pytest.skip("this server has no TLS")
        who = f":{quote(password, safe='')}@" if password else ""
        for address in (f"rediss://{who}127.0.0.1:{port}/0?ssl_ca_certs={certificate}", url.replace("//", f"//{who}")):
            with config.patch(remote_cache=address):
                asked = RemoteCache()
                asked.offer(f"{KEY}.so", b"source", b"library")
                asked.flush(100)
                assert asked.fetch(f"{KEY}.so") == (b"source", b"library")
                asked.reset()


def test_outcomes_of_captures_come_from_the_server(tmp_path: Path, server: str, outcomes) -> None:
    cache.keep("ef" * 20, b"outcome", cache.OUTCOME)
    elsewhere(tmp_path, "second")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.find("ef" * 20, cache.OUTCOME) == b"outcome"
    assert outcomes == ["stored", "hit"]


def test_who_cannot_write_an_entry_gives_the_turn_back(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import redis

    one, name, connect = RemoteCache(), f"{KEY}.so", remote._connect

    def full(url: str) -> Any:
        client = connect(url)
        write = client.set

        def refused(address: str, value: Any, **options: Any) -> Any:
            if not options.get("nx"):
                raise redis.exceptions.OutOfMemoryError("full")
            return write(address, value, **options)

        client.set = refused
        return client

    monkeypatch.setattr(remote, "_connect", full)
    assert one.lead(name) is None
    client = redis.Redis.from_url(server)
    assert client.get(remote._address(name) + ":turn")
    one.offer(name, b"source", b"library", 0.1)
    one.flush(100)
    assert client.get(remote._address(name) + ":turn") is None
    one.reset()


def test_a_server_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "TIMEOUT", 100.0)
    made: list[int] = []
    with redis_server(tmp_path) as (url, process), config.patch(remote_cache=url):
        cache.get_or_build(KEY, "source", builder(made))
        REMOTE.flush(100)
        process.kill()
        process.wait()
        with pytest.warns(UserWarning, match="cannot be asked"):
            cache.get_or_build("cd" * 20, "source", builder(made))
        assert len(made) == 2


def test_a_full_server_gives_what_it_has_and_what_it_does_not_take_is_told(
    tmp_path: Path, server: str, outcomes: list[str]
) -> None:
    import redis

    made: list[int] = []
    cache.get_or_build(KEY, "source", builder(made))
    elsewhere(tmp_path, "second")
    redis.Redis.from_url(server).config_set("maxmemory", "1")
    with pytest.warns(UserWarning, match="refuses what it is asked: OutOfMemoryError"):
        cache.get_or_build("cd" * 20, "source", builder(made))
    REMOTE.flush(100)
    with pytest.warns(UserWarning, match="does not get into the remote cache: OutOfMemoryError"):
        assert cache.get_or_build(KEY, "source", builder(made)).read_bytes() == b"library"
    assert made == [1, 1] and outcomes == ["miss", "stored", "miss", "error", "error", "hit"]


def test_an_entry_of_another_type_is_none(tmp_path: Path, server: str, outcomes: list[str]) -> None:
    import redis

    made: list[int] = []
    redis.Redis.from_url(server).rpush(remote._address(f"{KEY}.so"), "a")
    with pytest.warns(UserWarning, match="WRONGTYPE"):
        cache.get_or_build(KEY, "source", builder(made))
    elsewhere(tmp_path, "second")
    assert cache.get_or_build(KEY, "source", builder(made)) and made == [1]  # it was written over


def test_questions_do_not_wait_for_what_is_written(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    free, connect = threading.Event(), remote._connect

    def hanging(url: str) -> Any:
        client = connect(url)
        client.set = lambda *args, **options: free.wait(100)
        return client

    monkeypatch.setattr(remote, "_connect", hanging)
    mine = RemoteCache()
    mine.offer(f"{KEY}.so", b"source", b"library")
    assert mine.fetch(f"{KEY}.so") is None and not free.is_set() and mine._workers["write"].waiting == 1
    free.set()
    mine.flush(100)
    mine.reset()


def test_a_reset_ends_the_thread_that_talks_to_the_server(server: str) -> None:
    mine, before = RemoteCache(), set(threading.enumerate())
    assert mine.fetch(f"{KEY}.so") is None
    (thread,) = [each for each in threading.enumerate() if each.name == "argand-remote-cache" and each not in before]
    mine.reset()
    thread.join()
    assert mine.fetch(f"{KEY}.so") is None and mine._workers
    mine.reset()


def test_one_compiles_and_the_others_wait_for_its_entry(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = RemoteCache(), RemoteCache()
    name = f"{KEY}.so"
    second._builds = [1000.0]
    assert first.lead(name) is None  # its turn
    found: list[object] = []
    answers: queue.SimpleQueue[object] = queue.SimpleQueue()
    ask = second._ask

    def noted(*question: Any) -> Any:
        answers.put(answer := ask(*question))
        return answer

    monkeypatch.setattr(second, "_ask", noted)
    waiting = threading.Thread(target=lambda: found.append(second.lead(name)))
    waiting.start()
    assert [answers.get() for _ in range(3)] == [False, False, b""] and not found
    first.offer(name, b"source", b"library", 0.1)
    waiting.join()
    assert found == [(b"source", b"library")]


def test_who_waits_does_not_wait_longer_than_compiling_takes(server: str) -> None:
    first, second = RemoteCache(), RemoteCache()
    first._builds, second._builds = [1000.0], [0.2]  # nobody takes the first one's turn away
    assert first.lead(f"{KEY}.so") is None
    begun = time.monotonic()
    assert second.lead(f"{KEY}.so") is None
    assert 0.15 < time.monotonic() - begun < 500


def test_archives_carry_the_signed_entries(tmp_path: Path) -> None:
    made: list[int] = []
    cache.get_or_build(KEY, "source", builder(made))
    cache.keep("cd" * 20, b"program", cache.PROGRAM)
    assert archive.write(tmp_path / "a.tar") == 2
    elsewhere(tmp_path, "second")
    assert archive.read(tmp_path / "a.tar") == (2, 0)
    assert cache.get_or_build(KEY, "source", builder(made)).read_bytes() == b"library" and made == [1]
    elsewhere(tmp_path, "third")
    with config.patch(remote_cache_key="another"):
        assert archive.read(tmp_path / "a.tar") == (0, 2)
    with config.patch(remote_cache_key=""), pytest.raises(CacheError, match="no key"):
        archive.read(tmp_path / "a.tar")
    (tmp_path / "b.tar").write_bytes(b"no archive at all" * 100)
    with pytest.raises(CacheError, match="no archive"):
        archive.read(tmp_path / "b.tar")


def with_size(archive: bytes, size: bytes) -> bytes:
    """The archive, of which the first file's header gives another size."""
    header = bytearray(archive[:512])
    header[124:136], header[148:156] = size, b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + archive[512:]


def test_damaged_archives_are_read_to_an_end_and_give_nothing_else(tmp_path: Path) -> None:
    """Cut, overwritten, with sizes that no file has: of what is taken, each entry is what was written."""
    kept = {f"{number:040x}": random.Random(number).randbytes(1 + 1500 * number) for number in range(3)}
    for key, data in kept.items():
        cache.keep(key, data, cache.PROGRAM)
    archive.write(tmp_path / "a.tar")
    good = (tmp_path / "a.tar").read_bytes()
    sizes = [b"\x80" + b"\xff" * 11, b"\xff" * 12, b"77777777777\0", b"-0000000001\0", b"no number  \0"]
    damaged = [with_size(good, size) for size in sizes]
    for seed in range(60):
        chance, place = random.Random(seed), random.Random(seed).randrange(len(good))
        damaged += [good[:place], good[:place] + chance.randbytes(40) + good[place + 40 * (seed % 2) :]]
    for number, content in enumerate(damaged):
        (tmp_path / "b.tar").write_bytes(content)
        elsewhere(tmp_path, f"machine {number}")
        with contextlib.suppress(CacheError):
            archive.read(tmp_path / "b.tar")
        for name, _, data in cache.whole_entries():
            assert kept[name.partition(".")[0]] == data


def test_secrets_are_not_shown(monkeypatch, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from argand.cli import app
    from argand.debug.minify.sources import changed_settings

    with config.patch(remote_cache="redis://:hunter2@host/0"):
        shown = CliRunner().invoke(app, ["env", "--json"]).output
        assert "remote_cache_key" in shown and "hunter2" not in shown and SECRET.decode() not in shown
        assert not {"remote_cache", "remote_cache_key"} & changed_settings().keys()
