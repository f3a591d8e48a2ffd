"""Trouble with what processes and threads share: locks, builds under way, leftovers; a program goes on, in eager's values."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from trouble_helpers import alive, in_child, leftovers, wait_for

from argand.config import config
from argand.errors import CacheError
from argand.runtime import cache, kernel_directories, toolchain
from forks import fork

# ----------------------------------------------------------------------- other processes and threads


def builder(log: list[int] | None = None) -> Callable[[Path], Path]:
    def build(work: Path) -> Path:
        if log is not None:
            log.append(1)
        made = work / "k.so"
        made.write_bytes(b"library")
        return made

    return build


HOLDER = """
import fcntl, sys, time
with open(sys.argv[1], "a") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    print("held", flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("stopped", [True, False])
def test_lock_held_by_a_process_that_does_not_get_on(
    stopped: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_directories, "PATIENCE", 0.2)
    folder.mkdir(parents=True)
    key = "a" * 40
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder / f"{key}.lock")], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        if stopped:
            holder.send_signal(signal.SIGSTOP)
        start = time.monotonic()
        with pytest.warns(UserWarning, match="does not get on"):
            path = cache.get_or_build(key, "source", builder())
        assert time.monotonic() - start > kernel_directories.PATIENCE
        assert path.read_bytes() == b"library" and folder not in path.parents
    finally:
        holder.kill()
        holder.communicate()
    assert folder in cache.get_or_build(key, "source", builder()).parents


class Clock:
    """What `places` takes for the time: it stands still while nobody moves it, however busy the machine is."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: dict[int | None, int] = {}  # by thread: how often it found the lock taken

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
        me = threading.get_ident()
        self.pauses[me] = self.pauses.get(me, 0) + 1

    def looks(self, thread: threading.Thread) -> int:
        """How often a thread, which may not have begun yet, found the lock taken."""
        return self.pauses.get(thread.ident, 0)


def test_lock_of_a_process_that_gets_on_is_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(kernel_directories, "time", clock)
    log: list[int] = []

    def slow(work: Path) -> Path:
        for _ in range(6):
            clock.now += 0.9 * kernel_directories.PATIENCE
            time.sleep(0.02)  # the clock of files ticks every few milliseconds
            kernel_directories.beat()
            # Both others are to look twice more, for the first look may have begun before the beat. Threads that another
            # test has left may look as well.
            others = [thread for thread in threads if thread is not threading.current_thread()]
            enough = [clock.looks(thread) + 2 for thread in others]
            wait_for(lambda: all(clock.looks(thread) >= count for thread, count in zip(others, enough)))  # noqa: B023
        return builder(log=log)(work)

    threads = [threading.Thread(target=cache.get_or_build, args=("a" * 40, "source", slow)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log == [1]


def test_a_directory_that_another_has_just_made_stays(tmp_path: Path) -> None:
    """Several processes of one job start at a time, with no cache yet: none deletes what another has begun."""
    for number in range(100):
        root, at_once = tmp_path / f"{number}" / "c", threading.Barrier(4)

        def begin(name: str) -> None:
            at_once.wait()  # noqa: B023
            (kernel_directories.checked_directory(root) / name).write_text("begun")  # noqa: B023

        threads = [threading.Thread(target=begin, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(path.name for path in (root / "kernels").iterdir()) == list("abcd")


@pytest.mark.parametrize("what", ["file", "link"])
def test_what_is_no_directory_gives_way(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "kernels"
    if what == "file":
        folder.write_text("in the way")
    else:
        folder.symlink_to(tmp_path / "nowhere")
    assert kernel_directories.checked_directory(tmp_path) == folder and folder.is_dir() and not folder.is_symlink()


def test_clear_beside_builds_loses_nothing(folder: Path) -> None:
    ended = threading.Event()

    def clear() -> None:
        while not ended.is_set():
            cache.clear()

    thread = threading.Thread(target=clear)
    thread.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for number in range(30):
                text = f'extern "C" int answer() {{ return {number}; }}\n'
                assert toolchain.load_text(text)._handle.answer() == number
    finally:
        ended.set()
        thread.join()


def test_directory_removed_while_building(folder: Path) -> None:
    import shutil

    def build(work: Path) -> Path:
        if not log:
            shutil.rmtree(folder.parent)
        log.append(1)
        work.mkdir(parents=True, exist_ok=True) if len(log) == 1 else None
        return builder()(work)

    log: list[int] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert cache.get_or_build("a" * 40, "source", build).read_bytes() == b"library"
    assert leftovers(folder) == []


@pytest.mark.parametrize("mode", ["whole", "cut", "text"])
def test_library_that_cannot_be_loaded_is_built_again(mode: str, folder: Path) -> None:
    """Its record was changed with it, so that only loading finds out."""
    import hashlib
    import json

    text = 'extern "C" int answer() { return 42; }\n'
    path = toolchain.compile_text(text)
    data = path.read_bytes()
    if mode == "whole":
        data = (
            data[:18] + b"\xb7\x00" + data[20:] if data[18:20] != b"\xb7\x00" else data[:18] + b"\x3e\x00" + data[20:]
        )
    data = data if mode == "whole" else data[: len(data) // 2] if mode == "cut" else b"not a library"
    path.write_bytes(data)
    record = json.loads(path.with_suffix(".json").read_text())
    path.with_suffix(".json").write_text(json.dumps({**record, "sha256": hashlib.sha256(data).hexdigest()}))
    library = toolchain.load_text(text)
    assert library._handle.answer() == 42 and library.path == path


def test_library_of_another_key_is_not_loaded(folder: Path) -> None:
    import shutil

    texts = [f'extern "C" int answer() {{ return {n}; }}\n' for n in (1, 2)]
    one, two = map(toolchain.compile_text, texts)
    for suffix in (".so", ".json"):
        shutil.copy2(one.with_suffix(suffix), two.with_suffix(suffix))
    assert toolchain.load_text(texts[1])._handle.answer() == 2


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises; shells switch it off for what they start in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_interrupt_while_compiling(folder: Path, fake: Callable[[str], str], tmp_path: Path) -> None:
    body = f"echo $$ > {tmp_path}/pid; mv {tmp_path}/pid {tmp_path}/pid_; sleep 1000"

    def interrupt() -> None:
        wait_for((tmp_path / "pid_").exists)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    with config.patch({"cpp.cxx": fake(body)}):
        toolchain.find_toolchain()
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            toolchain.load_text('extern "C" int answer() { return 42; }\n')
        thread.join()
    assert leftovers(folder) == [] and not alive(int((tmp_path / "pid_").read_text()))
    assert toolchain.load_text('extern "C" int answer() { return 42; }\n')._handle.answer() == 42


def test_killed_process_leaves_nothing_for_long(folder: Path, fake: Callable[[str], str], tmp_path: Path) -> None:
    compiler = fake(f"echo $$ > {tmp_path}/pid; mv {tmp_path}/pid {tmp_path}/pid_; sleep 1000")
    script = f"from argand.config import config; from argand.runtime import toolchain; config.cpp.cxx = {compiler!r}\n"
    script += "toolchain.load_text('int x;')"
    environment = {**os.environ, "ARGAND_CACHE_DIR": str(folder.parent)}
    running = subprocess.Popen([sys.executable, "-c", script], env=environment)
    wait_for((tmp_path / "pid_").exists)
    running.kill()
    running.wait()
    os.kill(int((tmp_path / "pid_").read_text()), signal.SIGKILL)
    assert len(leftovers(folder)) == 1
    cache.get_or_build("b" * 40, "source", builder())
    assert leftovers(folder) == []


SLOW_START = """
import subprocess
class Popen(subprocess.Popen):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        time.sleep(0.3)  # the command runs, and this process does not know its number
subprocess.Popen = Popen
"""


@pytest.mark.parametrize("start", ["", SLOW_START], ids=["started", "being started"])
def test_daemon_thread_that_compiles_ends_with_the_process(
    folder: Path, fake: Callable[[str], str], tmp_path: Path, start: str
) -> None:
    compiler = fake(f"echo $$ > {tmp_path}/pid; mv {tmp_path}/pid {tmp_path}/pid_; sleep 1000")
    script = f"""
import os, threading, time
from argand.config import config
from argand.runtime import toolchain
{start}
config.cpp.cxx = {compiler!r}
threading.Thread(target=toolchain.load_text, args=("int x;",), daemon=True).start()
while not os.path.exists({str(tmp_path / "pid_")!r}): time.sleep(0.01)
"""
    environment = {**os.environ, "ARGAND_CACHE_DIR": str(folder.parent)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=120)
    wait_for(lambda: not alive(int((tmp_path / "pid_").read_text())))


def test_fork_while_a_thread_builds(folder: Path, tmp_path: Path) -> None:
    """The child has neither the thread nor its locks."""
    begun, ended = threading.Event(), threading.Event()

    def slow(work: Path) -> Path:
        begun.set()
        ended.wait()
        return builder()(work)

    thread = threading.Thread(target=cache.get_or_build, args=("a" * 40, "source", slow))
    thread.start()
    begun.wait()
    try:
        right, text = in_child(lambda: None, tmp_path)
    finally:
        ended.set()
        thread.join()
    assert right and text == "right", text
    # a child that lives on does not hold the lock
    child = fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    try:
        (folder / f"{'a' * 40}.so").unlink()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # which a lock that is held by somebody would give
            assert folder in cache.get_or_build("a" * 40, "source", builder()).parents
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_private_directory_survives_a_forked_child_and_its_own_removal(folder: Path) -> None:
    import shutil

    with config.patch(cache=False):
        path = cache.get_or_build("a" * 40, "source", builder())
        child = fork()
        if child == 0:
            kernel_directories._private.remove()
            os._exit(0)
        os.waitpid(child, 0)
        assert path.exists()
        shutil.rmtree(path.parent)
        assert cache.get_or_build("a" * 40, "source", builder()).exists()


# ----------------------------------------------------------------------- bounds


def test_size_is_bounded_at_every_write(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MAX_BYTES", 100_000)
    sizes: list[int] = []

    def many(start: int) -> None:
        for number in range(start, start + 20):
            cache.get_or_build(f"{number:040d}", "s" * 100, big)
            sizes.append(sum(size_of(p) for p in folder.glob("*.so")))

    def size_of(path: Path) -> int:
        try:
            return path.stat().st_size
        except FileNotFoundError:  # the other thread made room
            return 0

    def big(work: Path) -> Path:
        made = work / "k.so"
        made.write_bytes(os.urandom(12_000))
        return made

    threads = [threading.Thread(target=many, args=(100 * n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sizes) == 40 and max(sizes) <= 100_000 and sizes[-1] > 40_000


def test_entry_larger_than_the_cache_is_private(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MAX_BYTES", 5000)
    with pytest.warns(UserWarning, match="more than the cache may hold"):
        path = cache.get_or_build("a" * 40, "s" * 6000, builder())
    assert path.exists() and folder not in path.parents


def test_leftovers_are_few(folder: Path) -> None:
    cache.get_or_build("a" * 40, "source", builder())
    for number in range(40):
        (folder / f"failed-{number:012x}.cpp").write_text("x")
        (folder / f"{number:040d}.so.corrupt").write_text("x")
    (folder / ".build-dead").mkdir()
    (folder / ".build-dead" / "kernels.cpp").write_text("x")
    (folder / ".new-old").write_text("x")
    os.utime(folder / ".new-old", (1, 1))
    os.utime(folder / f"failed-{1:012x}.cpp", (1, 1))
    cache.get_or_build("b" * 40, "source", builder())
    names = [path.name for path in folder.iterdir()]
    assert leftovers(folder) == []
    assert sum(name.startswith("failed-") for name in names) == cache.LEFTOVERS
    assert sum(name.endswith(".corrupt") for name in names) == cache.LEFTOVERS
    assert f"failed-{1:012x}.cpp" not in names and len(list(folder.glob("*.so"))) == 2


def test_stats_and_clear_without_a_directory(tmp_path: Path) -> None:
    for where in ("/dev/null", str(tmp_path / "none")):
        with config.patch(cache_dir=where):
            assert cache.stats().entries == 0 and cache.clear() == 0
    with config.patch(cache_dir="~nobody-knows/c"), pytest.raises(CacheError):
        cache.stats()


def test_a_directory_that_is_swept_as_it_is_made_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its making and its lock it looks like a leftover: who takes it for one has it locked until it is gone."""
    lock, remove, begun, waits = kernel_directories.lock, shutil.rmtree, threading.Event(), threading.Event()

    def slowly(path: Path, **options: bool) -> None:
        begun.set()
        assert waits.wait(10)
        remove(path, **options)

    def first_the_sweeper(descriptor: int, seconds: float) -> bool:
        if threading.current_thread() is not sweeper and not begun.is_set():
            sweeper.start()
            assert begun.wait(10)
            threading.Timer(0.05, waits.set).start()
        return lock(descriptor, seconds)

    def sweep() -> None:
        for path in tmp_path.glob(".build-*"):
            kernel_directories.remove_left(path)

    sweeper = threading.Thread(target=sweep)
    monkeypatch.setattr(kernel_directories, "lock", first_the_sweeper)
    monkeypatch.setattr(kernel_directories.shutil, "rmtree", slowly)
    with kernel_directories.work_directory(tmp_path) as path:
        sweeper.join(10)
        assert path.is_dir()
