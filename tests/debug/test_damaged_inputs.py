"""Commands that are given damaged files say so in a sentence: no traceback, no hang, an exit code that is not zero."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import argand
import sweeps
from argand import cli, files
from argand.debug import repro
from argand.debug.minify.checks import BackendCheck
from argand.errors import ConfigError
from damage import MUTATIONS, retyped
from debug.minify_helpers import graph_for, only_run, targets
from report_traces import GRAPH

HARMLESS = {
    "link_to_another_file",
    "no_permission",
    "writable_by_all",
    "other_owner",
}  # for root, and for any user's files
ASIDE = {"empty", "junk", "cut", "one_bit", "nested", "not_unicode"}  # damage that leaves a file
DAMAGE = [m for m in MUTATIONS if m.__name__ not in HARMLESS]


def refuses_relu(gm: torch.fx.GraphModule, inputs: list[Any]) -> torch.fx.GraphModule:
    if torch.relu in targets(gm):
        raise RuntimeError("no relu")
    return gm


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs the `argand` command in this process: (exit code, what it printed)."""

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["argand", *arguments])
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setenv("COLUMNS", "300")  # the length of a path is no line of a message
        capsys.readouterr()
        code: Any = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
            if isinstance(code, str):
                print(code, file=sys.stderr)
                code = 1
        printed = capsys.readouterr()
        return int(code or 0), printed.out + printed.err

    return run


def one_sentence(answer: tuple[int, str], *named: str) -> None:
    """It failed, says what and which file, and shows nothing of its inside."""
    code, text = answer
    assert code != 0 and "Traceback" not in text, text
    unbroken = "".join(text.replace("│", " ").split())  # a long path goes over several lines
    assert any(name in unbroken for name in named), text
    assert len(text.splitlines()) <= 6 and len(text) < 2500, text
    assert all(c.isprintable() or c == "\n" for c in text), text


@pytest.fixture(scope="module")
def minified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("minified")
    here = os.getcwd()
    os.chdir(folder)
    try:
        gm, inputs = graph_for(lambda x: torch.relu(x + 1).sin() * 2, torch.ones(3))
        repro.minify_to_directory(gm, inputs, BackendCheck(refuses_relu))
    finally:
        os.chdir(here)
    return only_run(folder)


@pytest.fixture
def run_folder(minified: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(minified, tmp_path / "run"))


FILES = ("minifier_launcher.py", "launcher_inputs.pt", "repro.py", "progress.json")


@pytest.mark.parametrize(("mutation", "name"), sweeps.diagonal(DAMAGE, FILES), ids=lambda v: getattr(v, "__name__", v))
def test_minifier(name: str, mutation: Any, run_folder: Path, command: Callable[..., tuple[int, str]]) -> None:
    if mutation.__name__ == "one_bit" and name in ("repro.py", "minifier_launcher.py"):
        (run_folder / name).write_bytes((run_folder / name).read_bytes()[:-40] + b"\x01(")  # a bit may be in a comment
    else:
        mutation(run_folder / name)
    if mutation.__name__ in ("missing", "link_to_nothing") and name == "progress.json":
        return  # a search that begins; test_repro.py has one
    before = (run_folder / name).read_bytes() if mutation.__name__ in ASIDE else b""
    code, text = command("minify", str(run_folder))
    if mutation.__name__ == "missing" and name == "repro.py":
        assert code == 0 and "Traceback" not in text and "repro.py is missing" in text
    else:
        one_sentence((code, text), name)
    if before and not name.endswith(".py"):
        assert "is damaged" in text or "is not JSON" in text or "nested" in text
        assert not (run_folder / name).exists()
        assert (run_folder / f"{name}.corrupt").read_bytes() == before
    if before and name == "progress.json":
        assert command("minify", str(run_folder))[0] == 0  # begins anew


def test_every_bit_of_saved_tensors_counts(run_folder: Path) -> None:
    file = run_folder / "launcher_inputs.pt"
    whole = file.read_bytes()
    assert torch.equal(torch.load(file, weights_only=True)[0], torch.ones(3)), "torch alone reads it too"
    for at in range(0, len(whole), len(whole) // 97):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
        with pytest.raises(SystemExit, match="is damaged"):
            repro.load(str(run_folder / "repro.py"), file.name)
        assert not file.exists()
    file.write_bytes(whole)
    assert torch.equal(repro.load(str(run_folder / "repro.py"), file.name)[0], torch.ones(3))


def test_what_a_damaged_link_leads_to_stays(run_folder: Path, tmp_path: Path) -> None:
    file, elsewhere = run_folder / "progress.json", tmp_path / "kept.json"
    elsewhere.write_bytes(file.read_bytes()[:-9])
    file.unlink()
    file.symlink_to(elsewhere)
    with pytest.raises(ConfigError, match="progress.json is not JSON"):
        repro._tried(file)
    assert elsewhere.exists() and file.is_symlink()


def test_progress_of_other_types(run_folder: Path, command: Callable[..., tuple[int, str]]) -> None:
    import json

    file = run_folder / "progress.json"
    data = json.loads(file.read_text())
    for changed in [d for _, d in retyped(data) if not isinstance(d, dict) or d.get("tried") != data["tried"]][:40]:
        tried = changed.get("tried") if isinstance(changed, dict) else None
        if not (isinstance(tried, dict) and all(isinstance(v, bool) for v in tried.values())):
            with_its_checksum = {k: v for k, v in changed.items() if k != "sha256"} if tried is not None else {}
            file.write_text(files.sealed_json(with_its_checksum))
            one_sentence(command("minify", str(run_folder)), "progress.json")
        file.write_text(json.dumps(changed))
        one_sentence(command("minify", str(run_folder)), "progress.json")


def test_reproduction_whose_tensors_are_damaged(run_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"argand: .*nothing\.pt cannot be loaded.*\nWhat to do"):
        repro.load(str(run_folder / "repro.py"), "nothing.pt")
    (run_folder / "junk.pt").write_bytes(b"PK\x03\x04" + os.urandom(500))
    with pytest.raises(SystemExit, match="junk.pt cannot be loaded"):
        repro.load(str(run_folder / "repro.py"), "junk.pt")


COMMANDS = [["run"], ["explain"], ["bench"], ["doctor"], ["minify"]]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
@pytest.mark.parametrize("mutation", DAMAGE, ids=lambda m: m.__name__)
def test_scripts(words: list[str], mutation: Any, tmp_path: Path, command: Callable[..., tuple[int, str]]) -> None:
    path = tmp_path / "d" / "script.py"
    path.parent.mkdir()
    path.write_text("x = 1\n")
    if mutation.__name__ in ("empty", "cut", "one_bit", "nested"):
        return  # Python's own business
    if mutation.__name__ == "not_unicode" and words[0] in ("doctor", "minify"):
        return  # run in a process of its own
    mutation(path)
    answer = command(*words, str(path))
    if mutation.__name__ == "not_unicode":
        assert answer[0] != 0 and "SyntaxError" in answer[1] and "runpy" not in answer[1]
    else:
        one_sentence(answer, "script.py", "minifier_launcher.py")


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.__name__)
def test_traces(mutation: Any, tmp_path: Path, command: Callable[..., tuple[int, str]]) -> None:
    trace, out = tmp_path / "d" / "trace.log", tmp_path / "out"
    trace.parent.mkdir()
    with argand.config.config.patch(trace_dir=str(trace.parent)):
        argand.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
        argand.reset()
    written = [path for path in trace.parent.iterdir() if path != trace]
    data = b"".join(path.read_bytes() for path in written) or GRAPH.encode()
    for path in written:
        path.unlink()
    trace.write_bytes(data)
    if mutation.__name__ == "huge":
        return  # the reader takes traces of any size; holes in them are lines without end, a test of their own
    mutation(trace)
    code, text = command("report", "-o", str(out), str(trace))
    assert "Traceback" not in text
    if code:
        one_sentence((code, text), "trace.log")
    else:
        assert (out / "index.html").is_file()


def test_files_that_cannot_be_written(tmp_path: Path, command: Callable[..., tuple[int, str]]) -> None:
    script = tmp_path / "script.py"
    script.write_text("x = 1\n")
    (tmp_path / "f").write_text("x")
    for where in ("/no/such/folder/x", str(tmp_path), str(tmp_path / "f" / "x")):
        one_sentence(command("explain", "--output", where, str(script)), where)
    trace = tmp_path / "trace.log"
    trace.write_text("x\n")
    one_sentence(command("report", "-o", "/proc/x/report", str(trace)), "/proc/x")


@pytest.mark.parametrize("word", ["stats", "clear"])
@pytest.mark.parametrize("what", ["/dev/null", "/dev/zero/x", "/no/such", "a\0b", "~nobody-knows/c"])
def test_cache(word: str, what: str, command: Callable[..., tuple[int, str]]) -> None:
    with argand.config.config.patch(cache_dir=what):
        code, text = command("cache", word)
    assert "Traceback" not in text and (code == 0 or "argand:" in text)
