"""The C++ compiler of this machine: find it, know what the CPU can do, turn text into a loaded library.

In: the text of a freestanding C++ file. Out: a loaded shared object and the addresses of its functions. The shared
object comes from `runtime.cache` when the same text was ever compiled here with the same compiler and flags.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

from argand import events
from argand.config import config
from argand.errors import CppCompileError, InternalError, ToolchainMissing, UserLine
from argand.runtime import cache

_WARNINGS = ("-w",)  # what generated code warns of (vector ABI, ignored attributes) is of no use to anybody
_FLAGS = (
    "-std=c++17",
    "-O1",  # vectors are explicit: -O2 gives no faster kernels (bench/kernels.py) and takes 40 % longer
    "-fPIC",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",  # a * b + c rounds twice, as eager does
    "-fwrapv",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-asynchronous-unwind-tables",
    "-fno-stack-protector",
    "-fno-semantic-interposition",
)


@dataclass(frozen=True, slots=True)
class IsaInfo:
    """What vectors the CPU has.

    Arguments:
        name: "avx512", "avx2", "sse2", "neon" or "generic".
        vector_bytes: width of a vector register.
        flags: compiler flags that enable it.
        cache_bytes: size of the last level of cache: larger results are written past it.
    """

    name: str
    vector_bytes: int
    flags: tuple[str, ...] = ()
    cache_bytes: int = 32 << 20


_ISAS = (
    (
        {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd", "fma", "f16c", "bmi2"},
        IsaInfo(
            "avx512",
            64,
            ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512cd", "-mfma", "-mf16c", "-mbmi", "-mbmi2"),
        ),
    ),
    ({"avx2", "fma", "f16c", "bmi2"}, IsaInfo("avx2", 32, ("-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2"))),
    ({"sse4_1"}, IsaInfo("sse4", 16, ("-msse4.1",))),
    ({"sse2"}, IsaInfo("sse2", 16, ())),
    ({"asimd"}, IsaInfo("neon", 16, ())),
)


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A C++ compiler that works.

    Arguments:
        cxx: the compiler's command.
        version: its version and target, part of every cache key.
        linker: a linker that makes shared objects directly, or "" to link through the compiler.
        libgcc: the compiler's support library, or "".
    """

    cxx: str
    version: str
    linker: str
    libgcc: str

    @property
    def is_clang(self) -> bool:
        return "clang" in self.version


@lru_cache(maxsize=1)
def cpu_isa() -> IsaInfo:
    """The widest instruction set that this CPU has and that the generated code knows."""
    features: set[str] = set()
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as stream:
            for line in stream:
                key, _, value = line.partition(":")
                if key.strip() in ("flags", "Features"):
                    features = set(value.split())
                    break
    except OSError:
        pass
    for wanted, isa in _ISAS:
        if wanted <= features:
            return replace(isa, cache_bytes=_cache_bytes() or isa.cache_bytes)
    return IsaInfo("generic", 16)


def _cache_bytes() -> int:
    """Bytes of the last level of cache; 0 when the system does not say."""
    best = 0
    for level in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        try:
            text = level.read_text().strip()
            best = max(best, int(text.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0))
        except (OSError, ValueError):
            continue
    return best


def isa_for(simdlen: int) -> IsaInfo:
    """The instruction set to generate for.

    Arguments:
        simdlen: vector width in bits; -1 is what the CPU has, 0 makes scalar code. More than the CPU has is cut to
        that.
    """
    isa = cpu_isa()
    if simdlen < 0 or simdlen // 8 >= isa.vector_bytes:
        return isa
    return replace(isa, name=f"{isa.name}-{simdlen}", vector_bytes=simdlen // 8)


def _candidates() -> list[str]:
    chosen = str(config.cpp.cxx)
    return [chosen] if chosen else [os.environ.get("CXX", "") or "g++", "g++", "clang++", "c++"]


def find_toolchain() -> Toolchain:
    """The C++ compiler to use.

    Raises:
        ToolchainMissing: there is none, or the configured one does not run.
    """
    return _find_toolchain(tuple(dict.fromkeys(_candidates())), os.environ.get("PATH", ""))


@lru_cache(maxsize=8)
def _find_toolchain(candidates: tuple[str, ...], path: str) -> Toolchain:
    tried = []
    for candidate in candidates:
        words = shlex.split(candidate)
        found = shutil.which(words[0], path=path) if words else None
        if found is None:
            tried.append(f"{candidate}: not found")
            continue
        try:
            return _probe(" ".join([found, *words[1:]]))
        except (OSError, subprocess.SubprocessError) as error:
            tried.append(f"{candidate}: {error}")
    raise ToolchainMissing(
        "no working C++ compiler (" + "; ".join(tried) + ")",
        remedy="install g++ (for example `apt install g++`), or name a compiler in $CXX or argand.config.cpp.cxx; "
        "until then graphs run through ATen kernels",
    )


def _probe(command: str) -> Toolchain:
    """Ask the compiler who it is; remembered on disk until the compiler's file changes."""
    program = shlex.split(command)[0]
    stat = os.stat(os.path.realpath(program))
    key = cache.digest(f"{command} {os.path.realpath(program)} {stat.st_size} {stat.st_mtime_ns}")
    known = cache.read_note("toolchain-" + key)
    if known is not None:
        try:
            return Toolchain(**json.loads(known))
        except (TypeError, ValueError):
            pass  # written by another version of argand: ask again

    def ask(*arguments: str) -> str:
        asked = subprocess.run(
            [*shlex.split(command), *arguments], capture_output=True, text=True, timeout=60, check=True
        )
        return asked.stdout.strip()

    version = ask("--version").splitlines()[0] + " " + ask("-dumpmachine")
    linker = libgcc = ""
    if sys.platform.startswith("linux") and "clang" not in version:
        linker = shutil.which(ask("-print-prog-name=ld")) or ""
        libgcc = ask("-print-libgcc-file-name")
        libgcc = libgcc if os.path.isfile(libgcc) else ""
    made = Toolchain(command, version, linker, libgcc)
    cache.write_note("toolchain-" + key, json.dumps(asdict(made)))
    return made


def compile_flags(tools: Toolchain, isa: IsaInfo) -> tuple[str, ...]:
    """Every flag that generated files are compiled with."""
    flags = [*_FLAGS, *_WARNINGS, *isa.flags]
    if tools.is_clang:  # its OpenMP needs another runtime than the one that torch loads: kernels run on one thread
        flags.remove("-fopenmp")
    return tuple(flags)


def describe() -> str:
    """The compiler and what it compiles for, in one line."""
    tools = find_toolchain()
    isa = isa_for(int(config.cpp.simdlen))
    return f"{tools.cxx}: {tools.version}; {isa.name}, {8 * isa.vector_bytes}-bit vectors"


class Library:
    """A loaded shared object.

    Arguments:
        path: its file.
        handle: ctypes' handle.
    """

    __slots__ = ("_handle", "path")

    def __init__(self, path: Path, handle: ctypes.CDLL) -> None:
        self.path = path
        self._handle = handle

    def address(self, symbol: str) -> int:
        """The address of the function `symbol`."""
        try:
            function = getattr(self._handle, symbol)
        except AttributeError as error:
            raise InternalError(f"{self.path} has no function {symbol!r}") from error
        address = ctypes.cast(function, ctypes.c_void_p).value
        if address is None:
            raise InternalError(f"{self.path}: function {symbol!r} has no address")
        return address

    def function(self, symbol: str) -> ctypes._NamedFuncPointer:
        """`symbol` as a ctypes function `(void** pointers, int64_t* sizes)`."""
        found = getattr(self._handle, symbol)
        found.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        found.restype = None
        return found  # ctypes has no name for what attribute access gives


def compile_text(text: str, isa: IsaInfo | None = None, *, name: str = "kernels", parts: Sequence[str] = ()) -> Path:
    """Compile a freestanding C++ file, or find it in the cache.

    Arguments:
        text: the file.
        isa: instruction set to compile for; None is what `config.cpp.simdlen` says.
        name: stem of the source file's name, for messages.
        parts: the same functions as several files, compiled at the same time; empty compiles `text` itself.

    Returns:
        the shared object.

    Raises:
        CppCompileError: the compiler refused the text.
        ToolchainMissing: there is no compiler.
    """
    isa = isa or isa_for(int(config.cpp.simdlen))
    try:
        tools = find_toolchain()
    except ToolchainMissing as error:
        events.emit("toolchain_missing", "runtime", str(error))
        raise
    flags = compile_flags(tools, isa)
    key = cache.digest("\0".join((cache.code_only(text), *flags, tools.cxx, tools.version, f"v{cache.VERSION}")))

    def build(folder: Path) -> Path:
        with events.span("cpp_compile", "runtime", key=key, bytes=len(text)):
            return _build(tools, flags, [text] if len(parts) < 2 else list(parts), folder, name)

    return cache.get_or_build(key, text, build)


def load_text(text: str, isa: IsaInfo | None = None, *, name: str = "kernels", parts: Sequence[str] = ()) -> Library:
    """Compile (or find) and load a freestanding C++ file. Raises as `compile_text`."""
    return load(compile_text(text, isa, name=name, parts=parts))


def load(path: Path) -> Library:
    """Load a shared object; its OpenMP calls bind to the runtime that torch has loaded."""
    try:
        return Library(path, ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL))
    except OSError as error:
        if "GOMP_" not in str(error) and "omp_" not in str(error):
            raise InternalError(f"cannot load {path}: {error}") from error
    _publish_openmp()
    return Library(path, ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL))


def _publish_openmp() -> None:
    """Make the symbols of the OpenMP runtime in this process visible to libraries loaded from now on."""
    with open("/proc/self/maps", encoding="utf8", errors="replace") as stream:
        mapped = {line.split()[-1] for line in stream if re.search(r"/lib(gomp|iomp5|omp)[^/]*\.so", line)}
    for path in sorted(mapped) or ["libgomp.so.1"]:
        ctypes.CDLL(path, mode=os.RTLD_GLOBAL)


def _build(tools: Toolchain, flags: tuple[str, ...], texts: list[str], folder: Path, name: str) -> Path:
    sources = [folder / (f"{name}.cpp" if len(texts) == 1 else f"{name}_{index}.cpp") for index in range(len(texts))]
    for source, text in zip(sources, texts):
        source.write_text(text, encoding="utf8")

    def compile_one(source: Path) -> Path:
        made = source.with_suffix(".o")
        command = [*shlex.split(tools.cxx), *flags, "-c", source.name, "-o", made.name]
        _run(command, folder, source)
        return made

    if len(sources) == 1:
        objects = [compile_one(sources[0])]
    else:
        with ThreadPoolExecutor(len(sources)) as pool:
            objects = list(pool.map(compile_one, sources))
    library = folder / f"{name}.so"
    # No library is named: OpenMP, libm and libc are in the process, and must be the ones that torch uses.
    inputs = [item.name for item in objects] + ([tools.libgcc] if tools.libgcc else [])
    if tools.linker:
        command = [tools.linker, "-shared", "-o", library.name, *inputs]
    else:
        undefined = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-nostdlib"]
        command = [*shlex.split(tools.cxx), "-shared", *undefined, "-o", library.name, *inputs]
    try:
        _run(command, folder, sources[0])
    except CppCompileError as error:
        # The objects were compiled, so what is wrong is the machine's linker, not the kernels.
        raise ToolchainMissing(f"the linker failed: {error.cause}", remedy="install binutils (ld)") from error
    return library


def _run(command: list[str], folder: Path, source: Path) -> None:
    """Run a compiler; in the C locale, so that messages can be read back."""
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", env=environment)
    except OSError as error:
        raise ToolchainMissing(f"cannot run {command[0]}: {error}", remedy="install a C++ compiler") from error
    if done.returncode:
        kept = cache.keep_failed(source)
        raise compile_error(command, done.stderr or done.stdout, kept, source)


_ERROR_LINE = re.compile(r"^(?P<file>[^\s:]+\.cpp):(?P<line>\d+)(?::\d+)?: (?:fatal )?error: .*$", re.MULTILINE)
_ORIGIN_COMMENT = re.compile(r"^\s*// (?:Corresponding FX code line: )?(?P<code>\w+ = .*?)(?:\s+<- (?P<user>.*))?$")
_USER_LINE = re.compile(r"^(?P<file>.+?):(?P<line>\d+) in (?P<function>[^:]+?)(?:: (?P<text>.*))?$")


def compile_error(command: list[str], output: str, kept: Path, source: Path) -> CppCompileError:
    """The error to raise: command, messages, and for the first error the kernel line, FX node and user's line."""
    lines = [
        "C++ compile error",
        f"Command:\n{shlex.join(command)}",
        f"Source: {kept}",
        f"Output:\n{_shorten(output)}",
    ]
    where: tuple[UserLine, ...] = ()
    text = source.read_text(encoding="utf8").splitlines()
    for match in _ERROR_LINE.finditer(output):
        number = int(match["line"])
        if match["file"] != source.name or number > len(text):
            continue
        origin = _origin_above(text, number)
        lines.append(f"Kernel line {number}: {text[number - 1].strip()}")
        if origin is not None:
            lines.append(f"FX node: {origin['code']}")
            lines_found = (_USER_LINE.match(line) for line in reversed((origin["user"] or "").split("  <- ")))
            where = tuple(
                UserLine(user["file"], int(user["line"]), user["function"], user["text"] or "")
                for user in lines_found
                if user
            )
        lines += _operand_lines(text, number)
        break
    return CppCompileError(
        "\n".join(lines),
        remedy="if you replaced a function of argand.codegen.cpp.overrides, its expression is wrong for these types; "
        'otherwise report this as a bug, and compile with backend="aot_eager" meanwhile',
        where=where,
    )


def _operand_lines(text: list[str], number: int) -> list[str]:
    """Where the operands of a kernel line were computed: the line that the compiler names is often not at fault."""
    statement = text[number - 1].split("=", 1)[-1]
    found: list[str] = []
    for name in dict.fromkeys(re.findall(r"\btmp\d+\b", statement)):
        definition = re.compile(rf"\b{name} = ")
        for at in range(number - 2, -1, -1):
            if text[at].startswith('extern "C"'):
                break
            if definition.search(text[at]) and not text[at].lstrip().startswith("//"):
                origin = _origin_above(text, at + 1)
                user = f"  <- {origin['user']}" if origin and origin["user"] else ""
                source = f"  // {origin['code']}{user}" if origin else ""
                found.append(f"  {name} from line {at + 1}: {text[at].strip()}{source}")
                break
    return [f"Its operands:\n{chr(10).join(found)}"] if found else []


def _shorten(output: str, limit: int = 60) -> str:
    lines = output.rstrip().splitlines()
    return "\n".join(lines if len(lines) <= limit else [*lines[:limit], f"... ({len(lines) - limit} more lines)"])


def _origin_above(text: list[str], number: int) -> re.Match[str] | None:
    for line in reversed(text[: number - 1]):
        match = _ORIGIN_COMMENT.match(line)
        if match:
            return match
        if line.startswith('extern "C"'):
            return None
    return None
