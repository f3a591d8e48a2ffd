"""Compiler discovery, compiling, loading, and what users see when compiling fails."""

from __future__ import annotations

import ctypes
import re

import pytest

import argand
import warm
from argand import events
from argand.config import config
from argand.errors import CppCompileError, InternalError, ToolchainMissing
from argand.runtime import cache, toolchain
from argand.runtime.kernels import texts
from argand.runtime.kernels.texts import install
from argand.runtime.library import openmp_in

TEXT = """
extern "C" void twice(void** ptrs, const long long* ints) {
  float* out_ptr0 = (float*)ptrs[0];
  // neg = torch.ops.aten.neg.default(arg0_1)  <- model.py:7 in forward: y = -x
  for (long long i = 0; i < ints[0]; ++i) out_ptr0[i] *= 2;
}
"""


def test_compile_load_call():
    import torch

    library = toolchain.load_text(TEXT)
    x = torch.ones(5)
    pointers = (ctypes.c_void_p * 1)(x.data_ptr())
    library.function("twice")(ctypes.addressof(pointers), ctypes.addressof((ctypes.c_int64 * 1)(5)))
    assert x.tolist() == [2.0] * 5
    assert library.address("twice") > 0
    with pytest.raises(InternalError, match="no function 'thrice'"):
        library.address("thrice")


def test_second_compile_is_a_hit_even_when_comments_move():
    seen = []
    remove = events.bus.subscribe(
        lambda event: seen.append(event.data.get("outcome")) if event.name == "cache" else None
    )
    try:
        first = toolchain.compile_text(TEXT + "// one")
        second = toolchain.compile_text(TEXT.replace("model.py:7", "model.py:8"))
    finally:
        remove()
    assert first == second
    assert seen[-1] == "hit"


def test_key_depends_on_flags(monkeypatch):
    first = toolchain.compile_text(TEXT)
    monkeypatch.setattr(toolchain, "_FLAGS", (*toolchain._FLAGS, "-DX=1"))
    assert toolchain.compile_text(TEXT) != first


WIDE = """
typedef float V __attribute__((vector_size(32)));
extern "C" void twice_wide(void** ptrs, const long long* ints) {
  V* out_ptr0 = (V*)ptrs[0];
  for (long long i = 0; i < ints[0]; ++i) out_ptr0[i] *= 2;
}
"""


@pytest.mark.skipif(toolchain.cpu_isa().name not in ("avx2", "avx512"), reason="no registers with upper halves")
def test_kernels_leave_upper_halves_of_registers_clean():
    # Else SSE code of a library that runs next waits for them: MKL's product of (4096, 256) and (256, 3) took 3.4 times
    # as long after a kernel.
    code = toolchain.compile_text(WIDE).read_bytes()
    assert b"\xc5\xf8\x77" in code  # vzeroupper


def test_two_files_in_one_library():
    parts = [TEXT.replace("twice", "first"), TEXT.replace("twice", "second")]
    library = toolchain.load_text("".join(parts), parts=parts)
    assert library.address("first") != library.address("second")


def test_error_names_kernel_line_node_and_user_line():
    broken = TEXT.replace("out_ptr0[i] *= 2", "out_ptr0[i] = maximum(1, 2.0f)")
    with pytest.raises(CppCompileError) as caught:
        toolchain.compile_text(broken)
    text = str(caught.value)
    assert "C++ compile error" in text
    assert re.search(r"Command:\n.*g\+\+ .*-fopenmp", text)
    assert "error: 'maximum' was not declared" in text
    assert "Kernel line 5: for (long long i = 0;" in text
    assert "FX node: neg = torch.ops.aten.neg.default(arg0_1)" in text
    assert 'File "model.py", line 7, in forward' in text and "y = -x" in text
    assert "What to do:" in text
    source = re.search(r"Source: (\S+)", text)
    assert source and open(source[1]).read() == broken


def test_error_before_any_node_has_no_user_line():
    with pytest.raises(CppCompileError) as caught:
        toolchain.compile_text('int broken = "";\n')
    assert caught.value.where == ()
    assert "Kernel line 1" in str(caught.value)


def test_no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    seen = []
    remove = events.bus.subscribe(lambda event: seen.append(event.name))
    try:
        with (
            argand.config.patch({"cpp.cxx": ""}),
            pytest.raises(ToolchainMissing, match=r"no working C\+\+ compiler.*g\+\+: not found") as caught,
        ):
            toolchain.compile_text(TEXT)
    finally:
        remove()
    assert "install g++" in str(caught.value)
    assert "toolchain_missing" in seen


def test_configured_compiler_that_does_not_exist():
    with (
        config.patch({"cpp.cxx": "no-such-compiler"}),
        pytest.raises(ToolchainMissing, match="no-such-compiler: not found"),
    ):
        toolchain.find_toolchain()


def test_compiler_that_fails_to_start(tmp_path):
    fake = tmp_path / "fake++"
    fake.write_text("#!/bin/sh\nexit 3\n")
    fake.chmod(0o755)
    with config.patch({"cpp.cxx": str(fake)}), pytest.raises(ToolchainMissing, match="fake"):
        toolchain.find_toolchain()


def test_compiler_with_arguments():
    with config.patch({"cpp.cxx": "g++ -DANYTHING"}):
        assert toolchain.find_toolchain().cxx.endswith("g++ -DANYTHING")
        assert toolchain.compile_text(TEXT + "static int more;").exists()


def test_a_new_compiler_is_asked_everything_at_once(monkeypatch, tmp_path):
    run, calls = toolchain.run_all, []
    monkeypatch.setattr(toolchain, "run_all", lambda commands, **kw: calls.append(commands) or run(commands, **kw))
    with config.patch({"cpp.cxx": f"g++ -I{tmp_path}"}):
        assert toolchain.find_toolchain().version
    assert len(calls) == 1


def test_probe_is_remembered(monkeypatch):
    toolchain._find_toolchain.cache_clear()  # an earlier test may have found it under another cache directory
    found = toolchain.find_toolchain()
    toolchain._find_toolchain.cache_clear()
    monkeypatch.setattr(toolchain, "run_all", lambda *a, **k: pytest.fail("the compiler was asked again"))
    assert toolchain.find_toolchain() == found
    toolchain._find_toolchain.cache_clear()


def test_isa_limits():
    best = toolchain.cpu_isa()
    assert toolchain.isa_for(-1) == best
    assert toolchain.isa_for(0).vector_bytes == 0
    assert toolchain.isa_for(128).vector_bytes == min(16, best.vector_bytes)
    assert toolchain.isa_for(1 << 20) == best
    assert "512-bit" in toolchain.describe() or best.vector_bytes != 64


def test_only_one_openmp_runtime():
    """The generated code runs on the OpenMP runtime that torch loaded, not on a second one."""
    script = """
import re, sys, torch, ctypes
from argand.runtime import toolchain
library = toolchain.load_text('''
extern "C" int omp_get_max_threads();
extern "C" void fill(void** ptrs, const long long* ints) {
  float* out = (float*)ptrs[0];
  #pragma omp parallel for schedule(static)
  for (long long i = 0; i < ints[0]; ++i) out[i] = omp_get_max_threads();
}''')
x = torch.zeros(100000)
torch.set_num_threads(2)
pointers = (ctypes.c_void_p * 1)(x.data_ptr())
library.function("fill")(ctypes.addressof(pointers), ctypes.addressof((ctypes.c_int64 * 1)(100000)))
assert bool((x == 2).all()), x
mapped = {line.split()[-1] for line in open("/proc/self/maps") if re.search(r"/lib(gomp|omp|iomp5)[^/]*\\.so", line)}
print(len(mapped), "gomp" in str(mapped))
"""
    done = warm.run(["-c", script])
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "True"]


def test_library_names_no_openmp_library():
    path = toolchain.compile_text(
        TEXT + 'extern "C" void p(int* x) {\n#pragma omp parallel for\nfor (int i = 0; i < 9; ++i) x[i] = i; }'
    )
    data = path.read_bytes()
    assert b"GOMP_parallel" in data and b"libgomp.so" not in data


def test_openmp_in_folders_of_any_name():
    begin = "7f00-7f01 r-xp 00000000 103:02 173521                     "
    paths = ["/a b/my .venv/lib/libgomp-a34b.so.1", "/usr/lib/libiomp5.so"]
    maps = [f"{begin}{path}\n" for path in [*paths, "/usr/lib/libc.so.6", "[heap]"]] + [
        "7f00-7f01 rw-p 00000000 00:00 0\n"
    ]
    assert openmp_in(maps) == set(paths)


def test_a_lost_library_is_an_internal_error(tmp_path):
    bad = tmp_path / "bad.so"
    bad.write_bytes(b"not a library")
    with pytest.raises(InternalError, match="cannot load"):
        toolchain.load(bad)


def test_cache_off_still_compiles():
    with config.patch(cache=False):
        path = toolchain.compile_text(TEXT + "static int other;")
        assert path.exists()
        assert cache.stats().directory not in path.parents


def test_kernels_compiled_when_argand_is_installed_are_not_compiled_again(tmp_path, monkeypatch):
    monkeypatch.setattr(toolchain, "INSTALLED", tmp_path / "installed")
    monkeypatch.setattr(texts, "NAMES", ("gru",))
    install.compile_all(toolchain.INSTALLED)
    text, isa = texts.text_here("gru"), toolchain.cpu_isa()
    with monkeypatch.context() as patch, config.patch(cache_dir=str(tmp_path / "first")):
        patch.setattr(toolchain, "_build", lambda *_: pytest.fail("a compiler runs"))
        assert toolchain.load_text(text, isa).address("gru_forward")
    [library] = toolchain.INSTALLED.iterdir()
    library.write_bytes(library.read_bytes()[:1000])  # damaged
    with config.patch(cache_dir=str(tmp_path / "second")):
        assert toolchain.load_text(text, isa).address("gru_forward")
