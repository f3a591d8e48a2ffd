"""The kernel cache: hits, corruption, ownership, two processes, bounds."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from argand import events
from argand.config import config
from argand.errors import CacheError
from argand.runtime import cache


@pytest.fixture
def folder(tmp_path):
    with config.patch(cache_dir=str(tmp_path / "c")):
        yield tmp_path / "c" / "kernels"


@pytest.fixture
def outcomes():
    seen = []
    remove = events.bus.subscribe(lambda event: seen.append(event.data["outcome"]) if event.name == "cache" else None)
    yield seen
    remove()


def builder(content=b"library", log=None):
    def build(work: Path) -> Path:
        if log is not None:
            log.append(work)
        made = work / "k.so"
        made.write_bytes(content)
        return made

    return build


def test_built_once_then_found(folder, outcomes):
    log = []
    first = cache.get_or_build("a" * 40, "source", builder(log=log))
    second = cache.get_or_build("a" * 40, "source", builder(log=log))
    assert first == second == folder / f"{'a' * 40}.so"
    assert len(log) == 1
    assert outcomes == ["miss", "hit"]
    assert first.with_suffix(".cpp").read_text() == "source"
    assert not log[0].exists(), "the build folder stays behind"


def test_only_the_user_may_read(folder):
    path = cache.get_or_build("a" * 40, "source", builder())
    for place in (folder.parent, folder, path):
        assert stat.S_IMODE(os.stat(place).st_mode) & 0o077 == 0


def test_changed_file_is_set_aside_and_rebuilt(folder, outcomes):
    path = cache.get_or_build("a" * 40, "source", builder())
    path.write_bytes(b"tampered")
    again = cache.get_or_build("a" * 40, "source", builder(b"library"))
    assert again.read_bytes() == b"library"
    assert (folder / f"{'a' * 40}.so.corrupt").read_bytes() == b"tampered"
    assert outcomes == ["miss", "corrupt", "miss"]


@pytest.mark.parametrize("record", [None, b"", b"{", b"[]", b'{"sha256": 3}'])
def test_bad_record_means_rebuild(folder, record):
    path = cache.get_or_build("a" * 40, "source", builder())
    if record is None:
        path.with_suffix(".json").unlink()
    else:
        path.with_suffix(".json").write_bytes(record)
    log = []
    cache.get_or_build("a" * 40, "source", builder(log=log))
    assert len(log) == 1
    assert json.loads(path.with_suffix(".json").read_bytes())["sha256"]


def test_writable_by_others_is_not_run(folder):
    path = cache.get_or_build("a" * 40, "source", builder())
    os.chmod(path, 0o722)
    log = []
    cache.get_or_build("a" * 40, "source", builder(log=log))
    assert len(log) == 1


def test_directory_of_another_user_is_refused(folder, outcomes, monkeypatch):
    folder.mkdir(parents=True, mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    cache._checked_directory.cache_clear()
    with pytest.raises(CacheError, match="belongs to user"):
        cache.directory()
    path = cache.get_or_build("a" * 40, "source", builder())
    assert folder not in path.parents
    assert "unusable" in outcomes
    cache._checked_directory.cache_clear()


def test_unwritable_place_falls_back(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with config.patch(cache_dir=str(blocked / "c")):
        assert cache.get_or_build("a" * 40, "source", builder()).read_bytes() == b"library"


def test_cache_off_keeps_nothing(folder):
    with config.patch(cache=False):
        path = cache.get_or_build("b" * 40, "source", builder())
    assert path.exists() and not (folder / path.name).exists()


def test_removed_directory_is_made_again(folder):
    import shutil

    cache.get_or_build("a" * 40, "source", builder())
    shutil.rmtree(folder.parent)
    assert cache.get_or_build("a" * 40, "source", builder()).exists()


def test_failure_leaves_no_entry(folder):
    def broken(work: Path) -> Path:
        raise RuntimeError("no compiler today")

    with pytest.raises(RuntimeError):
        cache.get_or_build("a" * 40, "source", broken)
    assert not list(folder.glob("*.so")) and not list(folder.glob(".build-*"))


def test_stats_clear_and_bound(folder):
    for index in range(5):
        path = cache.get_or_build(str(index) * 40, "source", builder(b"x" * 1000))
        os.utime(path, (index, index))
    found = cache.stats()
    assert found.entries == 5 and found.bytes > 5000 and found.directory == folder
    assert cache._trim(folder, limit=3 * 1200) == 2
    assert sorted(p.name[0] for p in folder.glob("*.so")) == ["2", "3", "4"]
    assert cache.clear() == 3
    assert cache.stats().entries == 0


def test_entries_are_not_looked_at_after_every_build(folder, monkeypatch):
    """Found in a report: `load` took twice as long as the compiler, to go through the ten thousand entries there were."""
    looked = []
    monkeypatch.setattr(cache, "_trim", looked.append)
    for index in range(3):
        cache.get_or_build(str(index) * 40, "source", builder())
    assert looked == [folder]
    for age in (cache._TRIM_SECONDS + 5, -3600):  # long ago; by a clock that was wrong
        then = time.time() - age
        os.utime(folder / ".trimmed", (then, then))
        cache.get_or_build(f"{abs(age):x}".rjust(40, "0"), "source", builder())
    assert looked == [folder] * 3 and cache.clear() == 5


def test_comments_do_not_count():
    one = "// x = relu(y)  <- a.py:1 in f: x\nint a; // first\n"
    two = "// z = relu(w)  <- b.py:9 in g: z\nint a;\n"
    assert cache.code_only(one).split() == cache.code_only(two).split()


def test_notes(folder):
    assert cache.read_note("n") is None
    cache.write_note("n", {"a": "text"})
    assert cache.read_note("n") == {"a": "text"}


RACE = """
import sys, time
from pathlib import Path
from argand.runtime import cache
def build(work):
    with open(sys.argv[1], "a") as log: log.write("built\\n")
    time.sleep(0.3)
    made = work / "k.so"; made.write_bytes(b"library" * 1000); return made
print(cache.get_or_build("c" * 40, "source", build).read_bytes() == b"library" * 1000)
"""


def test_processes_share_and_build_once(tmp_path):
    log = tmp_path / "log"
    environment = {**os.environ, "ARGAND_CACHE_DIR": str(tmp_path / "c")}
    running = [
        subprocess.Popen([sys.executable, "-c", RACE, str(log)], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert [process.communicate(timeout=280)[0].strip() for process in running] == ["True"] * 3
    assert log.read_text().count("built") == 1
