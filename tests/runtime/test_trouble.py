"""Trouble with the cache, the disk or the compiler never stops a program: what it computes is eager's, with one warning."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import argand
from argand.config import config
from argand.errors import CacheError
from argand.runtime import cache, places, toolchain
from forks import fork

# What a compiler is asked for first; then each fake does what it is for.
HEAD = '#!/bin/sh\ncase "$1" in --version|-dump*|-print*) exec g++ "$@";; esac\n'
OUTPUT = 'for last; do [ "$previous" = -o ] && out="$last"; previous="$last"; done\n'
FAKES = {
    "fails": ("exit 1", "exit code 1"),
    "is killed": ("kill -9 $$", "SIGKILL"),
    "crashes": ("kill -11 $$", "SIGSEGV"),
    "prints junk": ("head -c 40000 /dev/urandom; exit 3", "exit code 3"),
    "prints escapes": (r"printf '\033[2J\302\233 \342\200\256 evil'; exit 1", "x1b[2J"),
    "prints without end": ("head -c 60000000 /dev/zero; exit 1", "exit code 1"),
    "writes nothing": ("exit 0", "wrote no .o file"),
    "writes an empty file": (OUTPUT + ': > "$out"', "wrote no .o file"),
    "writes junk": (OUTPUT + 'head -c 5000 /dev/urandom > "$out"', "the linker"),
    "makes a directory": (OUTPUT + 'mkdir "$out"', "wrote no .o file"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with config.patch(cache_dir=str(tmp_path / "c")):
        yield tmp_path / "c" / "kernels"


@pytest.fixture
def fake(tmp_path: Path) -> Callable[[str], str]:
    def make(body: str) -> str:
        path = tmp_path / "fake++"
        path.write_text(HEAD + body + "\n")
        path.chmod(0o755)
        return str(path)

    return make


def run_compiled() -> list[str]:
    """Compile and run two new functions; the warnings that it gives."""
    x = torch.randn(8, 9)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for number in (1.5, 2.5):

            def function(x: torch.Tensor) -> torch.Tensor:
                return torch.softmax(x * number + 1, -1)

            torch.testing.assert_close(argand.compile(function)(x), function(x))
    return [str(w.message) for w in told]


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.glob(".*") if path.name.startswith((".build-", ".new-"))]


@pytest.mark.parametrize("what", FAKES)
def test_compiler_that(what: str, folder: Path, fake: Callable[[str], str]) -> None:
    body, said = FAKES[what]
    with config.patch({"cpp.cxx": fake(body)}):
        told = run_compiled()
    assert len(told) == 1 and "\x1b" not in told[0] and "\u202e" not in told[0] and len(told[0]) < 6000
    assert said in told[0] and "What to do" in told[0] and "eager's kernels" in told[0]
    assert leftovers(folder) == []


@pytest.mark.parametrize("cxx", ["g++ '", "/tmp", "/bin/echo", "/bin/true", "/etc/passwd", "/no/such", "\x01\u202e"])
def test_compiler_that_is_none(cxx: str, folder: Path) -> None:
    with config.patch({"cpp.cxx": cxx}):
        told = run_compiled()
    assert len(told) == 1 and "eager's kernels" in told[0]
    assert told[0].replace("\n", "").isprintable()


def test_cache_directory_whose_name_turns_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "\x1b[31m\u202e").touch()
    with config.patch(cache_dir=str(tmp_path / "\x1b[31m\u202e")):
        told = run_compiled()
    assert len(told) == 1 and told[0].replace("\n", "").isprintable()


def test_compiler_whose_name_is_a_binary_of_nothing(folder: Path, tmp_path: Path) -> None:
    junk = tmp_path / "junk"
    junk.write_bytes(bytes(range(256)) * 20)
    junk.chmod(0o755)
    with config.patch({"cpp.cxx": str(junk)}):
        assert "no working C++ compiler" in run_compiled()[0]


def test_compiler_that_hangs_is_killed_with_what_it_started(
    folder: Path, fake: Callable[[str], str], tmp_path: Path
) -> None:
    body = f"sleep 1000 & echo $! >> {tmp_path}/pids; echo $$ >> {tmp_path}/pids; wait"
    with config.patch({"cpp.cxx": fake(body), "cpp.compile_timeout": 1.0}):
        start = time.monotonic()
        told = run_compiled()
    assert time.monotonic() - start < 30
    assert len(told) == 1 and "did not end within 1 s" in told[0] and "compile_timeout" in told[0]
    assert leftovers(folder) == []
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2  # the second graph did not wait for it again
    wait_for(lambda: not any(alive(pid) for pid in pids))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_compiler_that_leaves_a_process_with_its_output_open(folder: Path, fake: Callable[[str], str]) -> None:
    with config.patch({"cpp.cxx": fake('sleep 1000 & exec g++ "$@"')}):
        assert run_compiled() == []


def test_compiler_is_tried_again_when_it_works(folder: Path, fake: Callable[[str], str], tmp_path: Path) -> None:
    with config.patch({"cpp.cxx": fake(f'[ -e {tmp_path}/works ] || exit 1; exec g++ "$@"')}):
        assert len(run_compiled()) == 1
        (tmp_path / "works").touch()
        argand.reset()
        assert run_compiled() == [] and len(list(folder.glob("*.so"))) == 2


def test_disk_of_the_cache_is_full(folder: Path, fake: Callable[[str], str]) -> None:
    body = f'case "$PWD" in {folder}*) echo "fatal error: No space left on device"; exit 1;; esac; exec g++ "$@"'
    with config.patch({"cpp.cxx": fake(body)}):
        told = run_compiled()
    assert len(told) == 1 and "not kept in" in told[0] and "No space left" in told[0]
    assert "eager's kernels" not in told[0] and not list(folder.glob("*.so"))


def test_temporary_directory_is_full_too(folder: Path, fake: Callable[[str], str]) -> None:
    body = 'case "$PWD" in /dev/shm/*) exec g++ "$@";; esac; echo "fatal error: No space left on device"; exit 1'
    if not os.access("/dev/shm", os.W_OK):
        pytest.fail("no /dev/shm")
    with config.patch({"cpp.cxx": fake(body)}):
        told = run_compiled()
    assert len(told) == 1 and "not kept in" in told[0]


def test_writing_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.replace

    def replace(source: Any, target: Any) -> None:
        if str(target).startswith(str(folder)):
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    told = run_compiled()
    assert len(told) == 1 and "No space left" in told[0]
    assert leftovers(folder) == []


def in_child(prepare: Callable[[], None], tmp_path: Path) -> tuple[bool, str]:
    """Whether `run_compiled` works in a forked child, and its warnings."""
    answer = tmp_path / "answer"
    answer.write_text(" " * 2000)
    file = os.open(answer, os.O_WRONLY)
    child = fork()
    if child == 0:
        try:
            prepare()
            text = "right\n" + "\n".join(run_compiled())
        except BaseException as error:
            text = f"wrong: {type(error).__name__}: {error}"
        os.pwrite(file, text.encode()[:1990], 0)
        os._exit(0)
    os.close(file)
    wait_for(lambda: os.waitpid(child, os.WNOHANG)[0] == child, 100)
    text = answer.read_text().strip()
    return text.startswith("right"), text


def set_limit(which: int, value: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(which, (value, resource.getrlimit(which)[1]))


@pytest.mark.parametrize("size", [0, 100, 3000, 9000])
def test_limit_on_the_size_of_files(size: int, folder: Path) -> None:
    def prepare() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        toolchain.reset()
        set_limit(resource.RLIMIT_FSIZE, size)()

    receive, send = os.pipe()  # a file would be limited too
    child = fork()
    if child == 0:
        try:
            prepare()
            told = run_compiled()
            os.write(send, f"right {len(told)} {told}".encode()[:60000])
        except BaseException as error:
            os.write(send, f"wrong {type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(send)
    wait_for(lambda: os.waitpid(child, os.WNOHANG)[0] == child, 100)
    text = os.read(receive, 1 << 16).decode()
    os.close(receive)
    assert text.startswith("right 1 "), text
    assert leftovers(folder) == []


def test_limit_on_open_files(folder: Path, tmp_path: Path) -> None:
    used = len(os.listdir("/proc/self/fd"))
    for spare in (0, 1, 2, 4, 6, 8):
        right, text = in_child(set_limit(resource.RLIMIT_NOFILE, used + spare), tmp_path)
        assert right, text


def test_limit_on_memory_of_compilers(folder: Path, fake: Callable[[str], str]) -> None:
    with config.patch({"cpp.cxx": fake('ulimit -v 20000; exec g++ "$@"')}):
        assert len(run_compiled()) == 1


def test_no_process_can_be_started(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toolchain.find_toolchain()
    for error in (
        BlockingIOError(11, "Resource temporarily unavailable"),
        OSError(12, "Cannot allocate memory"),
        MemoryError(),
    ):

        def refuse(*args: Any, error: Exception = error, **kwargs: Any) -> Any:
            raise error

        monkeypatch.setattr(subprocess, "Popen", refuse)
        argand.reset()
        assert len(run_compiled()) == 1


# ----------------------------------------------------------------------- directories


def damaged_directories(tmp_path: Path) -> dict[str, Callable[[], Any]]:
    root = tmp_path / "c"
    return {
        "a file": lambda: root.write_text("x"),
        "a FIFO": lambda: os.mkfifo(root),
        "a link to a file": lambda: (tmp_path / "f").write_text("x") and root.symlink_to(tmp_path / "f"),
        "a link to nothing": lambda: root.symlink_to(tmp_path / "no" / "where"),
        "a link to itself": lambda: root.symlink_to(root),
        "a link to a device": lambda: root.symlink_to("/dev/zero"),
        "below a file": lambda: config.__setattr__("cache_dir", "/etc/passwd/c"),
        "in /proc": lambda: config.__setattr__("cache_dir", "/proc/c"),
        "a name with NUL": lambda: config.__setattr__("cache_dir", "a\0b"),
        "a name too long": lambda: config.__setattr__("cache_dir", "/tmp/" + "x" * 5000),
        "a home that is not known": lambda: config.__setattr__("cache_dir", "~nobody-knows/c"),
    }


@pytest.mark.parametrize("what", damaged_directories(Path("/")))
def test_cache_directory_is(what: str, tmp_path: Path) -> None:
    with config.patch(cache_dir=str(tmp_path / "c")):
        damaged_directories(tmp_path)[what]()
        told = run_compiled()
    assert len(told) == 1 and "not kept in" in told[0] and "What to do" in told[0]


@pytest.mark.parametrize("owner", ["of another user", "linked by another user"])
def test_cache_directory_of_somebody_else(owner: str, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    root = tmp_path / "c"
    if owner == "of another user":
        root.mkdir()
        os.chown(root, 12345, 12345)
    else:
        (tmp_path / "mine").mkdir()
        root.symlink_to(tmp_path / "mine")
        os.chown(root, 12345, 12345, follow_symlinks=False)
    with config.patch(cache_dir=str(root)):
        told = run_compiled()
    assert len(told) == 1 and "belongs to user 12345" in told[0]


def test_cache_on_another_disk_by_a_link_is_used(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "c").symlink_to(tmp_path / "disk")
    with config.patch(cache_dir=str(tmp_path / "c")):
        assert run_compiled() == [] and len(list((tmp_path / "disk" / "kernels").glob("*.so"))) == 2


@pytest.mark.parametrize("kind", [os.mkfifo, Path.touch])
def test_something_in_the_place_of_the_inner_directory_goes(kind: Callable[[Path], None], folder: Path) -> None:
    folder.parent.mkdir()
    kind(folder)
    assert run_compiled() == [] and len(list(folder.glob("*.so"))) == 2


def test_temporary_directory_is_missing(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert run_compiled() == []
    with config.patch(cache=False):
        argand.reset()
        assert run_compiled() == []


def test_no_home(tmp_path: Path) -> None:
    script = (
        "import os, pwd\n"
        "def nobody(uid): raise KeyError(uid)\n"
        "pwd.getpwuid = nobody; os.environ.pop('HOME', None); os.environ.pop('XDG_CACHE_HOME', None)\n"
        "import argand\nfrom argand.runtime import cache, places\nfrom argand.errors import CacheError\n"
        "try: cache.directory()\nexcept CacheError as e: print('no directory for caches' in str(e))\n"
        "import pathlib\n"
        "def build(work):\n made = work / 'k.so'; made.write_bytes(b'x'); return made\n"
        "print(cache.get_or_build('a' * 40, 's', build).read_bytes() == b'x')"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("ARGAND_CACHE_DIR", "HOME", "XDG_CACHE_HOME")}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert done.stdout.split() == ["True", "True"], done.stderr
    assert list(tmp_path.iterdir()) == []


# ----------------------------------------------------------------------- other processes and threads


def builder(seconds: float = 0.0, log: list[int] | None = None) -> Callable[[Path], Path]:
    def build(work: Path) -> Path:
        if log is not None:
            log.append(1)
        time.sleep(seconds)
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
def test_lock_held_by_a_process_that_does_not_get_on(stopped: bool, folder: Path) -> None:
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
        assert 2 < time.monotonic() - start < 15
        assert path.read_bytes() == b"library" and folder not in path.parents
    finally:
        holder.kill()
        holder.wait()
    assert folder in cache.get_or_build(key, "source", builder()).parents


def test_lock_of_a_process_that_gets_on_is_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "PATIENCE", 1.0)
    log: list[int] = []

    def slow(work: Path) -> Path:
        for _ in range(15):
            time.sleep(0.2)
            places.beat()
        return builder(log=log)(work)

    threads = [threading.Thread(target=cache.get_or_build, args=("a" * 40, "source", slow)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log == [1]


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
    wait_for((tmp_path / "pid_").exists, 100)
    running.kill()
    running.wait()
    os.kill(int((tmp_path / "pid_").read_text()), signal.SIGKILL)
    assert len(leftovers(folder)) == 1
    cache.get_or_build("b" * 40, "source", builder())
    assert leftovers(folder) == []


def test_daemon_thread_that_compiles_ends_with_the_process(
    folder: Path, fake: Callable[[str], str], tmp_path: Path
) -> None:
    compiler = fake(f"echo $$ > {tmp_path}/pid; mv {tmp_path}/pid {tmp_path}/pid_; sleep 1000")
    script = f"""
import os, threading, time
from argand.config import config
from argand.runtime import toolchain
config.cpp.cxx = {compiler!r}
threading.Thread(target=toolchain.load_text, args=("int x;",), daemon=True).start()
while not os.path.exists({str(tmp_path / "pid_")!r}): time.sleep(0.01)
"""
    environment = {**os.environ, "ARGAND_CACHE_DIR": str(folder.parent)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=120)
    wait_for(lambda: not alive(int((tmp_path / "pid_").read_text())))


def test_fork_while_a_thread_builds(folder: Path, tmp_path: Path) -> None:
    """The child has neither the thread nor its locks."""
    begun = threading.Event()

    def slow(work: Path) -> Path:
        begun.set()
        return builder(4.0)(work)

    thread = threading.Thread(target=cache.get_or_build, args=("a" * 40, "source", slow))
    thread.start()
    begun.wait()
    right, text = in_child(lambda: None, tmp_path)
    assert right and text == "right", text
    thread.join()
    # a child that lives on does not hold the lock
    child = fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    try:
        start = time.monotonic()
        (folder / f"{'a' * 40}.so").unlink()
        assert folder in cache.get_or_build("a" * 40, "source", builder()).parents
        assert time.monotonic() - start < 2.5
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_private_directory_survives_a_forked_child_and_its_own_removal(folder: Path) -> None:
    import shutil

    with config.patch(cache=False):
        path = cache.get_or_build("a" * 40, "source", builder())
        child = fork()
        if child == 0:
            places._private.remove()
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
