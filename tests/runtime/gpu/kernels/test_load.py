"""From source text to loaded kernels: compiled for a real target, kept in the cache, loaded by a driver that writes down."""

from __future__ import annotations

import os
import shutil
import textwrap
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import argand
import damage
import warm
from argand.errors import GpuError
from argand.runtime import cache
from argand.runtime.gpu.device.kernel_image import parse
from argand.runtime.gpu.device.target import GpuTarget
from argand.runtime.gpu.kernels import entries, load, triton_compile
from argand.runtime.gpu.kernels.entries import Request
from argand.runtime.gpu.kernels.spec import launch_spec
from runtime.gpu.kernel_texts import ADD, ADD_SPEC, HEAD

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
H100 = GpuTarget("cuda", 90, 32)
HERE = Path(__file__).resolve().parent
SPEC = launch_spec("add", ADD_SPEC)
WIDE = (
    HEAD
    + """

@triton.jit
def wide(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at) * 2)
"""
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path):
    load._loaded.cache_clear()
    with argand.config.patch(cache_dir=str(tmp_path / "cache")):
        yield tmp_path / "cache" / "kernels"
    load._loaded.cache_clear()


class Counted:
    """Compilations, without Triton."""

    def __init__(self, monkeypatch) -> None:
        self.names: list[tuple[str, bool]] = []
        monkeypatch.setattr(triton_compile, "compile_image", self.compile)

    def compile(self, text, spec, target, *, aligned, filename=""):
        self.names.append((spec.name, aligned))
        params = tuple(8 if kind != "i32" else 4 for kind in spec.signature)
        return triton_compile.Image(spec.name, 32 * spec.num_warps, 0, (*params, 8, 8), f"code {aligned}".encode())


def request_of(text=ADD, spec=SPEC, **changes) -> Request:
    return replace(Request(text, spec, H100), **changes)


# ----------------------------------------------------------------------- keys and texts


def test_keys() -> None:
    first = request_of()
    assert first.key == request_of().key
    assert first.key == request_of("# of line 7\n" + ADD.replace("BLOCK)\n", "BLOCK)  # model.py:8\n")).key
    others = [
        request_of(ADD.replace("+ tl.load(y", "- tl.load(y")),
        request_of(spec=replace(SPEC, num_warps=8)),
        request_of(spec=replace(SPEC, constants=(("BLOCK", 256),))),
        request_of(spec=replace(SPEC, signature=("*fp32", "*fp32", "*fp32", "i64"))),
        request_of(spec=replace(SPEC, checks=True)),
        request_of(target=GpuTarget("cuda", 80, 32)),
        request_of(aligned=False),
        request_of(ADD + '\n"#1"\n'),
        request_of(ADD + '\n"#2"\n'),
    ]
    assert len({first.key, *(other.key for other in others)}) == 1 + len(others)


def test_keys_depend_on_triton_and_its_variables(monkeypatch) -> None:
    first = request_of().key
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
    assert request_of().key == first
    monkeypatch.setenv("TRITON_PTXAS_PATH", "/elsewhere")
    second = request_of().key
    monkeypatch.setattr(entries, "triton_version", lambda: "9.9")
    assert len({first, second, request_of().key}) == 3


def test_texts_of_single_kernels() -> None:
    helper = "\n@triton.jit\ndef helper(x):\n    return x\n"
    both = ADD + helper + ADD.replace(HEAD, "").replace("def add", "def sub").replace("+ tl.load(y", "- tl.load(y")
    texts = entries.single_texts(both, ["add", "sub"])
    assert entries.code_only(texts["add"]).split() == (ADD + helper).split()
    assert "def sub" in texts["sub"] and "def add" not in texts["sub"] and "def helper" in texts["sub"]
    with pytest.raises(GpuError, match="no kernel 'mul'"):
        entries.single_texts(both, ["mul"])
    with pytest.raises(GpuError, match="not Python"):
        entries.single_texts('def (""""""', ["mul"])


def test_functions_are_found_at_the_margin_as_by_the_parser() -> None:
    text = (
        HEAD
        + """
LIMIT = 3
@triton.jit

# a comment
@other(
    1
)
def one(
    x,
):
    if x:
        return (
            1
        )
# at the margin \u2028def four(x):
    # and inside \x0bdef five(x):

    return 2

def helper(x): return x
@triton.jit
def two(x):
    return 3
LAST = [
    4,
]
@triton.jit
def three(x):
    return 4
"""
    )
    places = entries._by_margin([line + "\n" for line in text.split("\n")])
    assert places == entries._by_ast(text)
    texts = entries.single_texts(text, ["three", "one", "two"])
    for name, single in texts.items():
        kept = [line for line in text.splitlines() if line.startswith(("LIMIT", "LAST", "def helper"))]
        assert [line for line in single.splitlines() if line.startswith(("LIMIT", "LAST", "def h"))] == kept
        assert [other for other in texts if f"def {other}(" in single] == [name]
        compile(single, name, "exec")


@pytest.mark.parametrize(
    "bad",
    [
        (("i32", "*fp32"), (), 4, 1),
        (("fp32",), (), 4, 1),
        (("*fp32",), (), 3, 1),
        (("*fp32",), (), 64, 1),
        (("*fp32",), (("B", "x"),), 4, 1),
        (("*fp32",), ()),
        None,
        {"signature": ("*fp32",)},
    ],
)
def test_descriptions_that_are_none(bad) -> None:
    with pytest.raises(argand.errors.InternalError, match="kernel k"):
        launch_spec("k", bad)


def test_descriptions_of_every_form() -> None:
    fields = {"name": "add", "signature": ADD_SPEC[0], "constants": ADD_SPEC[1], "num_warps": 4, "num_stages": 2}
    assert launch_spec("add", fields) == launch_spec("add", SPEC) == SPEC == launch_spec("add", (*ADD_SPEC, False))


# ----------------------------------------------------------------------- the cache


def test_second_load_compiles_nothing(fake, monkeypatch, own_cache) -> None:
    counted = Counted(monkeypatch)
    load.load_on([request_of(), request_of(WIDE, launch_spec("wide", (("*fp32", "*fp32"), (), 4, 1)))], fake.place())
    assert sorted(counted.names) == [("add", True), ("wide", True)] and fake.get("loads") == 2
    load.load_on([request_of()], fake.place())  # known in this process
    assert len(counted.names) == 2 and fake.get("loads") == 2
    load._loaded.cache_clear()  # another process
    load.load_on([request_of()], fake.place())
    assert len(counted.names) == 2 and fake.get("loads") == 3
    assert cache.stats().entries == 2
    source = next(own_cache.glob("*.py")).read_text()
    assert "@triton.jit" in source
    assert cache.clear() == 2 and not list(own_cache.glob("*.kernel"))


def test_memory_that_torch_keeps_is_given_back(fake, monkeypatch) -> None:
    Counted(monkeypatch)
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty_cache"))
    fake.set(fail_load=2, fail_loads=1)
    load.load_on([request_of()], fake.place())
    assert calls == ["empty_cache"] and fake.get("loads") == 2
    load._loaded.cache_clear()
    fake.set(fail_load=2, fail_loads=2)
    with pytest.raises(GpuError, match="no memory left"):
        load.load_on([request_of()], fake.place())
    fake.set(fail_load=200, fail_loads=1)
    with pytest.raises(GpuError, match="damaged"):
        load.load_on([request_of()], fake.place())
    assert len(calls) == 2


def test_the_same_kernel_twice_is_compiled_once(fake, monkeypatch) -> None:
    counted = Counted(monkeypatch)
    kernels = load.load_on([request_of(), request_of()], fake.place())
    assert counted.names == [("add", True)] and kernels[0] is not kernels[1]


def test_the_other_variant_is_compiled_when_it_is_needed(fake, monkeypatch) -> None:
    counted = Counted(monkeypatch)
    fake.set(num_params=6)
    (kernel,) = load.load_on([request_of()], fake.place())
    x = torch.zeros(20)
    kernel(1, 1, 1, x, x, x, 4)
    assert counted.names == [("add", True)]
    for _ in range(2):
        kernel(1, 1, 1, x, x[1:], x, 4)
    assert counted.names == [("add", True), ("add", False)]
    assert [each.function for each in fake.launches] == [0xF01, 0xF02, 0xF02]


@pytest.mark.parametrize("how", ["cut", "changed", "empty", "record", "header", "gone"])
def test_damaged_entries_are_rebuilt(how, fake, monkeypatch, own_cache) -> None:
    counted = Counted(monkeypatch)
    entries.get_image(request_of())
    (entry,) = own_cache.glob("*.kernel")
    data = entry.read_bytes()
    if how == "gone":
        entry.unlink()
    elif how == "record":
        entry.with_suffix(".json").write_text("{")
    elif how == "header":  # a whole file of another version: its checksum is right
        import hashlib
        import json

        entry.write_bytes(b"not JSON\n" + data)
        digest = hashlib.sha256(entry.read_bytes()).hexdigest()
        entry.with_suffix(".json").write_text(json.dumps({"key": entry.stem, "sha256": digest}))
    else:
        entry.write_bytes({"cut": data[:-3], "changed": data[:-1] + b"?", "empty": b""}[how])
    assert entries.get_image(request_of()).code == b"code True"
    assert len(counted.names) == 2
    assert bool(list(own_cache.glob("*.corrupt"))) == (how != "gone")
    entries.get_image(request_of())
    assert len(counted.names) == 2


@pytest.mark.parametrize("suffix", [".kernel", ".json", ".py"])
def test_every_damage_of_every_file(suffix, monkeypatch, own_cache, tmp_path) -> None:
    counted = Counted(monkeypatch)
    entries.get_image(request_of())
    shutil.copytree(own_cache.parent, tmp_path / "whole")
    (entry,) = own_cache.glob(f"*{suffix}")
    rebuilt = 0
    for name, mutation in damage.every_damage(entry):
        damage.restore(tmp_path / "whole", own_cache.parent)
        before = len(counted.names)
        mutation(entry)
        assert entries.get_image(request_of()).code == b"code True", name
        rebuilt += len(counted.names) - before
        assert entries.get_image(request_of()).code == b"code True", name
        assert len(counted.names) - before <= 1, name
    assert rebuilt > 10 or suffix == ".py"  # which nothing reads


def test_a_cache_that_cannot_be_used(monkeypatch, tmp_path) -> None:
    counted = Counted(monkeypatch)
    (tmp_path / "file").write_text("")
    cache.reset()
    with argand.config.patch(cache_dir=str(tmp_path / "file")), pytest.warns(UserWarning, match="not kept"):
        assert entries.get_image(request_of()).code == b"code True"
    with argand.config.patch(cache=False):
        entries.get_image(request_of())
    assert counted.names == [("add", True)]  # this process kept it


def test_errors_of_the_compiler_in_threads(fake, monkeypatch) -> None:
    def refuse(text, spec, target, *, aligned, filename=""):
        raise GpuError(f"Triton refused kernel {spec.name}")

    monkeypatch.setattr(triton_compile, "compile_image", refuse)
    others = [launch_spec(f"k{i}", ADD_SPEC) for i in range(6)]
    with pytest.raises(GpuError, match="refused kernel k"):
        load.load_on([request_of(ADD.replace("def add", f"def {spec.name}"), spec) for spec in others], fake.place())


def test_images() -> None:
    image = triton_compile.Image("k", 128, 7, (8, 4, 8), b"\n\0code")
    assert parse(image.dump()) == image
    for bad in (b"", b"\n", b"{}\n", image.dump()[:-1], image.dump() + b"x", image.dump().replace(b"128", b"1.5"),
                image.dump().replace(b"[8, 4, 8]", b"[8, 4, 9]"), image.dump().replace(b'"k"', b"[17]")):  # fmt: skip
        with pytest.raises(GpuError, match="no compiled kernel"):
            parse(bad)


# ----------------------------------------------------------------------- Triton itself


def in_new_process(body: str, tmp_path: Path, **variables: str) -> str:
    text = (
        f"import sys; sys.path[:0] = [{str(HERE.parents[2])!r}]\n"
        "from runtime.gpu.kernels.test_load import *\n" + textwrap.dedent(body)
    )
    environment = {**os.environ, "ARGAND_CACHE_DIR": str(tmp_path / "own"), **variables}
    done = warm.run(["-c", text], env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@needs_triton
def test_compiled_for_real(tmp_path) -> None:
    in_new_process(
        """
        for target in (H100, GpuTarget("cuda", 100, 32), GpuTarget("cuda", 80, 32), GpuTarget("cuda", 75, 32)):
            image = triton_compile.compile_image(ADD, SPEC, target, aligned=True)
            assert (image.symbol, image.threads, image.shared) == ("add", 128, 0), image
            assert image.params[:4] == (8, 8, 8, 4) and set(image.params[4:]) <= {8}, image.params
            assert image.code[:4] == b"\\x7fELF"
        image = triton_compile.compile_image(ADD, SPEC, GpuTarget("hip", "gfx942", 64), aligned=True)
        assert image.threads == 256
        spec = launch_spec("wide", (("*fp32", "*fp32"), (("BLOCK", 512),), 4, 1))
        wide = {aligned: triton_compile.compile_stages(WIDE, spec, H100, aligned=aligned)[1]["ptx"] for aligned in (True, False)}
        assert "v4" in wide[True] and "v4" not in wide[False]
        for bad in (ADD.replace("tl.load(y", "tl.lode(y"), ADD.replace("n, BLOCK", "BLOCK"), ADD.replace("@triton.jit", "")):
            try:
                triton_compile.compile_image(bad, SPEC, H100, aligned=True)
            except GpuError as error:
                assert "add" in str(error), error
            else:
                raise AssertionError(bad)
        """,
        tmp_path,
    )


@needs_triton
def test_a_refused_kernel_names_the_statement_and_the_programs_line(tmp_path) -> None:
    in_new_process(
        """
        line = "# neg = torch.ops.aten.neg.default(x)  <- model.py:7 in f: y = torch.neg(x)"
        text = ADD.replace("    mask =", "    " + line + "\\n    mask = tl.no_such(at) +")
        try:
            triton_compile.compile_image(text, SPEC, H100, aligned=True)
        except GpuError as error:
            assert "at `mask = tl.no_such(at) +" in str(error) and "y = torch.neg(x)" in str(error), error
        else:
            raise AssertionError
        """,
        tmp_path,
    )


@needs_triton
def test_multiply_and_add_stay_two_operations(tmp_path) -> None:
    in_new_process(
        """
        text = WIDE.replace("tl.load(x + at) * 2", "tl.load(x + at) * tl.load(x + at) + 1.5")
        spec = launch_spec("wide", (("*fp32", "*fp32"), (("BLOCK", 512),), 4, 1))
        ptx = triton_compile.compile_stages(text, spec, H100, aligned=True)[1]["ptx"]
        assert "fma" not in ptx and "mul" in ptx
        """,
        tmp_path,
    )


@needs_triton
def test_a_warm_process_does_not_import_triton(tmp_path, fake_path) -> None:
    body = f"""
        from argand.runtime.gpu.device.driver import Driver
        from argand.runtime.gpu.kernels.launch import Place
        load.load_on([request_of()], Place(Driver({str(fake_path)!r}), 1, 0, lambda index: 0))
        print("triton" in sys.modules)
        """
    assert in_new_process(body, tmp_path).split() == ["True"]
    assert in_new_process(body, tmp_path).split() == ["False"]


@needs_triton
def test_triton_compiles_itself_where_its_stages_are_watched(tmp_path) -> None:
    in_new_process(
        """
        import triton
        seen = []
        triton.knobs.compilation.listener = lambda **data: seen.append(data)
        image = triton_compile.compile_image(ADD, SPEC, H100, aligned=True)
        assert len(seen) == 1 and image.symbol == "add" and image.params[:4] == (8, 8, 8, 4)
        """,
        tmp_path,
        TRITON_CACHE_DIR=str(tmp_path / "tritons"),
    )


@needs_triton
def test_kernels_are_compiled_in_threads(tmp_path) -> None:
    in_new_process(
        """
        from argand.runtime.gpu.kernels.load import get_images
        specs = [launch_spec(f"k{i}", ADD_SPEC) for i in range(5)]
        load.processor.count = lambda: 4
        images = get_images([request_of(ADD.replace("def add", f"def {spec.name}"), spec) for spec in specs])
        assert [image.symbol for image in images] == [spec.name for spec in specs]
        """,
        tmp_path,
    )
