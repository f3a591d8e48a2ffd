"""The C++ compiler of this machine: find it, know what the CPU can do, turn text into a loaded library.

In: the text of a freestanding C++ file. Out: a loaded shared object and the addresses of its functions. The shared
object comes from `runtime.cache` when the same text was ever compiled here with the same compiler and flags.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path

from argand import events, files
from argand.config import config
from argand.errors import CppCompileError, InternalError, ToolchainError, ToolchainMissing, UserLine
from argand.quick_dataclasses import dataclass
from argand.runtime import cache, processor
from argand.runtime.library import Library, defect, load
from argand.runtime.process import Ended, run_all

_WARNINGS = ("-w",)  # what generated code warns of (vector ABI, ignored attributes) is of no use to anybody
_FLAGS = (
    "-std=c++17",
    "-O1",  # vectors are explicit: -O2 gives 3 % and takes a third longer (bench/optimisation_levels.py)
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
# Without, GCC's -O1 leaves the upper halves of registers dirty, for which SSE code of a library that runs next waits.
_GCC_FLAGS = ("-fexpensive-optimizations",)


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
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as stream:
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
            text = files.read_text(level, 4096, own=False).strip()
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
        ToolchainError: it hung when it was last used.
    """
    tools = _find_toolchain(tuple(dict.fromkeys(_candidates())), os.environ.get("PATH", ""))
    if isinstance(tools, str):
        raise ToolchainMissing(
            f"no working C++ compiler ({tools})",
            remedy="install g++ (for example `apt install g++`), or name a compiler in $CXX or argand.config.cpp.cxx; "
            "until then graphs run through ATen kernels",
        )
    _failures().check(tools.cxx)
    return tools


class _Failures:
    """Compilers that failed in this process: each graph would wait for the same failure again.

    One that hung is not tried again before `reset`; one that failed otherwise three times, not in the next minute.
    """

    def __init__(self) -> None:
        self.seen: dict[str, tuple[int, float, ToolchainError]] = {}

    def add(self, cxx: str, error: ToolchainError) -> None:
        """`cxx` failed."""
        self.seen[cxx] = self.seen.get(cxx, (0, 0.0, error))[0] + 1, time.monotonic(), error

    def check(self, cxx: str) -> None:
        """Raise what a compiler failed with, if it is not to be tried now."""
        count, when, error = self.seen.get(cxx, (0, 0.0, None))
        if error is not None and (error.hung or (count >= 3 and time.monotonic() - when < 60)):
            raise ToolchainError(error.cause, remedy=error.remedy, hung=error.hung, disk=error.disk)


@functools.cache
def _failures() -> _Failures:
    return _Failures()


def _hung_error(command: str) -> ToolchainError:
    return ToolchainError(
        f"{command} did not end within {float(config.cpp.compile_timeout):g} s (config.cpp.compile_timeout)",
        remedy="see what it waits for, or raise the limit; argand.reset() makes argand try it again",
        hung=True,
    )


def reset() -> None:
    """Look for compilers anew, and try those again that hung."""
    _find_toolchain.cache_clear()
    _failures().seen.clear()


@lru_cache(maxsize=8)
def _find_toolchain(candidates: tuple[str, ...], path: str) -> Toolchain | str:
    """The first that works; what is wrong with each where none does."""
    tried = []
    for candidate in candidates:
        try:
            words = shlex.split(candidate)
            program = shutil.which(words[0], path=path) if words else None
        except ValueError as error:
            tried.append(f"{candidate}: {error}")
            continue
        if program is None:
            tried.append(f"{candidate}: not found")
            continue
        try:
            return _probe([os.path.abspath(program), *words[1:]])
        except (OSError, MemoryError, ValueError, ToolchainError) as error:
            tried.append(f"{candidate}: {error}")
    return files.printable("; ".join(tried), 1000)


def _note_name(command: Sequence[str]) -> str:
    program = os.path.realpath(command[0])
    stat = os.stat(program)
    return "toolchain-" + cache.digest(f"{shlex.join(command)} {program} {stat.st_size} {stat.st_mtime_ns}")


_QUESTIONS = ("--version", "-dumpmachine", "-print-prog-name=ld", "-print-libgcc-file-name")


def _probe(command: Sequence[str]) -> Toolchain:
    """Ask the compiler who it is; remembered on disk until the compiler's file changes.

    Raises:
        ToolchainError: it does not answer.
    """
    name = _note_name(command)
    known = cache.read_note(name)
    if known is not None and set(known) == {"cxx", "version", "linker", "libgcc"}:
        tools = Toolchain(**known)
        if tools.cxx == shlex.join(command) and all(not f or os.path.isfile(f) for f in (tools.linker, tools.libgcc)):
            return tools
        cache.forget_note(name)

    limit = min(30.0, float(config.cpp.compile_timeout))
    answers = run_all([[*command, question] for question in _QUESTIONS], limit=limit, errors=False)
    asked = dict(zip(_QUESTIONS, answers))

    def answer(question: str) -> str:
        ended = asked[question]
        if ended.code or ended.timed_out or not ended.output.strip():
            how = ended.how if ended.code or ended.timed_out else "says nothing"
            raise ToolchainError(f"{shlex.join(ended.command)} {how}")
        return ended.output.strip().splitlines()[0]

    version = answer("--version") + " " + answer("-dumpmachine")
    linker = libgcc = ""
    if sys.platform.startswith("linux") and "clang" not in version:
        linker = shutil.which(answer("-print-prog-name=ld")) or ""
        libgcc = answer("-print-libgcc-file-name")
        libgcc = libgcc if os.path.isfile(libgcc) else ""
    tools = Toolchain(shlex.join(command), version, linker, libgcc)
    cache.write_note(name, asdict(tools))
    return tools


def _ask_again(tools: Toolchain) -> bool:
    """Whether a compiler that failed says something else now than what was remembered of it."""
    command = shlex.split(tools.cxx)
    try:
        cache.forget_note(_note_name(command))
        _find_toolchain.cache_clear()
        return find_toolchain() != tools
    except (OSError, MemoryError, ToolchainError):
        return False


def compile_flags(tools: Toolchain, isa: IsaInfo) -> tuple[str, ...]:
    """Every flag that generated files are compiled with."""
    flags = [*_FLAGS, *_WARNINGS, *isa.flags]
    if not tools.is_clang:
        return (*flags, *_GCC_FLAGS, *(("-DGATHERS",) if processor.gathers() else ()))
    flags.remove("-fopenmp")  # clang's needs another runtime than the one that torch loads: kernels run on one thread
    return tuple(flags)


def describe() -> str:
    """The compiler and what it compiles for, in one line."""
    tools = find_toolchain()
    isa = isa_for(int(config.cpp.simdlen))
    return f"{tools.cxx}: {tools.version}; {isa.name}, {8 * isa.vector_bytes}-bit vectors"


def compile_text(
    text: str, isa: IsaInfo | None = None, *, name: str = "kernels", parts: Sequence[str] = (), shared: bool = True
) -> Path:
    """Compile a freestanding C++ file, or find it in the cache.

    Arguments:
        text: the file.
        isa: instruction set to compile for; None is what `config.cpp.simdlen` says.
        name: stem of the source file's name, for messages.
        parts: the same functions as several files, compiled at the same time; empty compiles `text` itself.
        shared: False keeps the result from other processes.

    Returns:
        the shared object.

    Raises:
        CppCompileError: the compiler refused the text.
        ToolchainError: there is no compiler, or it does not work.
    """
    isa = isa or isa_for(int(config.cpp.simdlen))
    try:
        tools = find_toolchain()
    except ToolchainMissing as error:
        events.emit("toolchain_missing", "runtime", str(error))
        raise
    try:
        path = _compile_with(tools, text, isa, name, parts, shared)
    except ToolchainError as error:
        if error.hung or not _ask_again(tools):
            _failures().add(tools.cxx, error)
            raise
        path = _compile_with(find_toolchain(), text, isa, name, parts, shared)
    _failures().seen.pop(tools.cxx, None)
    return path


def _compile_with(tools: Toolchain, text: str, isa: IsaInfo, name: str, parts: Sequence[str], shared: bool) -> Path:
    flags = compile_flags(tools, isa)
    key = cache.digest("\0".join((cache.code_only(text), *flags, tools.cxx, tools.version, f"v{cache.VERSION}")))

    def build(folder: Path) -> Path:
        if (installed := _installed(key, folder)) is not None:
            return installed
        with events.span("cpp_compile", "runtime", key=key, bytes=len(text)):
            return _build(tools, flags, [text] if len(parts) < 2 else list(parts), folder, name)

    return cache.get_or_build(key, text, build) if shared else cache.get_or_build(key, text, build, shared=False)


INSTALLED = Path(__file__).parent / "kernels" / "texts" / "installed"
"""Where libraries lie that were compiled when argand was installed."""


def _installed(key: str, folder: Path) -> Path | None:
    """A copy of such a library, in a folder."""
    copy = folder / f"{key}.so"
    try:
        shutil.copyfile(INSTALLED / copy.name, copy)
    except OSError:
        return None
    return copy if not defect(copy) else None


class Archived:
    """Libraries that came with a saved model, by the text that they were built from; no compiler is asked for these.

    Fields:
        noted: where not None, gets the path of each library that is loaded, by its text's digest.
    """

    def __init__(self) -> None:
        self._paths: dict[str, Path] = {}
        self.noted: dict[str, Path] | None = None

    def add(self, key: str, path: Path) -> None:
        """A library of an archive."""
        self._paths[key] = path

    def find(self, text: str, parts: Sequence[str]) -> Path | None:
        """The library of a text."""
        return self._paths.get(self._key(text, parts)) if self._paths else None

    def note(self, text: str, parts: Sequence[str], path: Path) -> None:
        """A library was loaded."""
        if self.noted is not None:
            self.noted[self._key(text, parts)] = path

    def _key(self, text: str, parts: Sequence[str]) -> str:
        return cache.digest("\0".join([text, *parts]))


ARCHIVED = Archived()


def load_text(text: str, isa: IsaInfo | None = None, *, name: str = "kernels", parts: Sequence[str] = ()) -> Library:
    """Compile (or find) and load a freestanding C++ file.

    What cannot be loaded (another process deleted it; it is damaged, and so is its record) is built again: first for
    all, then for this process alone.

    Raises:
        CppCompileError: the compiler refused the text.
        ToolchainError: there is no compiler, it does not work, or what it writes cannot be loaded.
    """
    if (archived := ARCHIVED.find(text, parts)) is not None:
        return load(archived)
    trouble = InternalError("")
    try:
        for shared in (True, True, False):
            path = compile_text(text, isa, name=name, parts=parts, shared=shared)
            try:
                library = load(path)
                ARCHIVED.note(text, parts, path)
                return library
            except InternalError as error:
                trouble = error
                cache.discard(path, error.cause)
    except (OSError, MemoryError) as error:  # what `compile_text` does not know of: no room for the answer, perhaps
        raise ToolchainError(f"kernels cannot be built: {error or type(error).__name__}", remedy=_LIMITS) from error
    raise ToolchainError(f"what the compiler writes cannot be loaded: {trouble.cause}", remedy=_BROKEN) from trouble


_LIMITS = "see to room on the disk and to this process's limits (`ulimit -a`)"
_BROKEN = "check that the compiler makes shared objects for this machine, or name another in argand.config.cpp.cxx"


def _build(tools: Toolchain, flags: tuple[str, ...], texts: list[str], folder: Path, name: str) -> Path:
    sources = [folder / (f"{name}.cpp" if len(texts) == 1 else f"{name}_{index}.cpp") for index in range(len(texts))]
    for source, text in zip(sources, texts):
        source.write_text(text, encoding="utf8")
    compiler = shlex.split(tools.cxx)
    objects = [source.with_suffix(".o") for source in sources]
    commands = [[*compiler, *flags, "-c", s.name, "-o", o.name] for s, o in zip(sources, objects)]
    for ended, source, compiled in zip(_run(commands, folder), sources, objects):
        if ended.code and _blames(ended.output, source):
            raise compile_error(list(ended.command), ended.output, cache.keep_failed(source), source)
        _demand(ended, compiled, "the C++ compiler")
    library = folder / f"{name}.so"
    # No library is named: OpenMP, libm and libc are in the process, and must be the ones that torch uses.
    inputs = [item.name for item in objects] + ([tools.libgcc] if tools.libgcc else [])
    if tools.linker:
        command = [tools.linker, "-shared", "-o", library.name, *inputs]
    else:
        undefined = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-nostdlib"]
        command = [*compiler, "-shared", *undefined, "-o", library.name, *inputs]
    _demand(_run([command], folder)[0], library, "the linker")
    os.chmod(library, 0o700)
    problem = defect(library)
    if problem:
        raise ToolchainError(f"the linker ({command[0]}) wrote no usable library: {problem}", remedy=_BROKEN)
    return library


def _run(commands: Sequence[Sequence[str]], folder: Path) -> list[Ended]:
    """Run compilers; raises ToolchainError where one cannot be run, or hangs."""
    try:
        ran = run_all(commands, limit=float(config.cpp.compile_timeout), folder=folder)
    except (OSError, MemoryError) as error:
        raise ToolchainError(
            f"cannot run {commands[0][0]}: {error or type(error).__name__}", remedy=f"install a C++ compiler; {_LIMITS}"
        ) from error
    for ended in ran:
        if ended.timed_out:
            raise _hung_error(shlex.join(ended.command[:1]))
    return ran


def _blames(output: str, source: Path) -> bool:
    """Whether a compiler's messages are about the text that it was given, not about itself or the machine."""
    return any(match["file"] == source.name for match in _ERROR_LINE.finditer(output))


_DISK = re.compile(
    r"No space left|File too large|SIGXFSZ|File size limit|quota exceeded|Read-only file|Input/output error"
    r"|Permission denied|No such file or directory|final close failed"
)


def _demand(ended: Ended, product: Path, what: str) -> None:
    """Raise a ToolchainError unless a command ended well and wrote its file."""
    if not ended.code and product.is_file() and product.stat().st_size:
        return
    how = ended.how if ended.code else f"wrote no {product.suffix} file"
    said = files.printable(_shorten(ended.output.strip(), 8), 300)
    raise ToolchainError(
        f"{what} ({ended.command[0]}) {how}" + (f":\n{said}" if said else ""),
        remedy="run it by hand to see whether it works, and see to room on the disk and in memory; "
        "argand.config.cpp.cxx names another compiler",
        disk=bool(_DISK.search(ended.output)),
    )


_ERROR_LINE = re.compile(r"^(?P<file>[^\s:]+\.cpp):(?P<line>\d+)(?::\d+)?: (?:fatal )?error: .*$", re.MULTILINE)
_ORIGIN_COMMENT = re.compile(r"^\s*// (?:Corresponding FX code line: )?(?P<code>\w+ = .*?)(?:\s+<- (?P<user>.*))?$")
_HEADS = ('extern "C"', "static ")  # how functions begin
_USER_LINE = re.compile(r"^(?P<file>.+?):(?P<line>\d+) in (?P<function>[^:]+?)(?:: (?P<text>.*))?$")


def compile_error(command: list[str], output: str, kept: Path, source: Path) -> CppCompileError:
    """The error to raise: command, messages, and for the first error the kernel line, FX node and user's line."""
    lines = [
        "C++ compile error",
        f"Command:\n{shlex.join(command)}",
        f"Source: {kept}",
        f"Output:\n{files.printable(_shorten(output))}",
    ]
    where: tuple[UserLine, ...] = ()
    text = files.read_text(source, 1 << 28).splitlines()
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
    lines: list[str] = []
    for name in dict.fromkeys(re.findall(r"\btmp\d+\b", statement)):
        definition = re.compile(rf"\b{name} = ")
        for at in range(number - 2, -1, -1):
            if text[at].startswith(_HEADS):
                break
            if definition.search(text[at]) and not text[at].lstrip().startswith("//"):
                origin = _origin_above(text, at + 1)
                user = f"  <- {origin['user']}" if origin and origin["user"] else ""
                source = f"  // {origin['code']}{user}" if origin else ""
                lines.append(f"  {name} from line {at + 1}: {text[at].strip()}{source}")
                break
    return [f"Its operands:\n{chr(10).join(lines)}"] if lines else []


def _shorten(output: str, limit: int = 60) -> str:
    lines = output.rstrip().split("\n")
    return "\n".join(lines if len(lines) <= limit else [*lines[:limit], f"... ({len(lines) - limit} more lines)"])


def _origin_above(text: list[str], number: int) -> re.Match[str] | None:
    for line in reversed(text[: number - 1]):
        match = _ORIGIN_COMMENT.match(line)
        if match:
            return match
        if line.startswith(_HEADS):
            return None
    return None
