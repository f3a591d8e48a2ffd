"""Trouble with the cache, the disk or the compiler never stops a program: what it computes is eager's, with one warning."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trouble_helpers import OUTPUT, alive, in_child, leftovers, run_compiled, wait_for

import argand
from argand.config import config
from argand.runtime import toolchain
from forks import fork

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
    assert time.monotonic() - start < 500
    assert len(told) == 1 and "did not end within 1 s" in told[0] and "compile_timeout" in told[0]
    assert leftovers(folder) == []
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2  # the second graph did not wait for it again
    wait_for(lambda: not any(alive(pid) for pid in pids))


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
    wait_for(lambda: os.waitpid(child, os.WNOHANG)[0] == child)
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
        toolchain._find_toolchain.cache_clear()  # the next ones find no compiler by themselves


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
        "import argand\nfrom argand.runtime import cache\nfrom argand.errors import CacheError\n"
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
