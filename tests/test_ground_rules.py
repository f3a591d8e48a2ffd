"""Rules of the house that a reader of the source should be able to rely on (DESIGN.md, ground rules)."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import warm
from capture import native_door

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "argand"
FILES = sorted(SRC.rglob("*.py"))
TORCH_COMPILER = ("torch._dynamo", "torch._inductor", "torch._functorch", "functorch", "sympy")


def imported_names(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def uses_of_torchs_compiler(text: str) -> list[str]:
    """What of it a module imports and calls."""
    if not re.search(r"\b(_dynamo|_inductor|_functorch|functorch|sympy)\b|\btorch\s*\.\s*compile\b", text):
        return []
    tree = ast.parse(text)
    found = [n for n in imported_names(tree) if any(n == t or n.startswith(t + ".") for t in TORCH_COMPILER)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if ast.unparse(node.func) in ("torch.compile", "torch._dynamo.optimize"):
                found.append(f"line {node.lineno}: {ast.unparse(node.func)}")
    return found


def test_own_compiler() -> None:
    found = {path.relative_to(SRC).as_posix(): uses_of_torchs_compiler(path.read_text()) for path in FILES}
    assert found.pop("backends/torch_compile_backends.py")
    assert not any(found.values()), {path: uses for path, uses in found.items() if uses}


@pytest.mark.parametrize(
    "line", ["import sympy", "from torch import _inductor", "def f(): import torch._dynamo.x", "torch.compile(f)"]
)
def test_uses_of_torchs_compiler_are_found(line: str) -> None:
    assert len(uses_of_torchs_compiler(line)) == 1


def test_no_torch_headers_in_c_sources() -> None:
    for path in SRC.rglob("*.[ch]"):
        for line in path.read_text().splitlines():
            if line.startswith("#include"):
                assert not any(part in line for part in ("torch/", "ATen/", "c10/")), f"{path}: {line}"


def test_import_is_cheap() -> None:
    """`import argand` pulls in neither torch nor any heavy third party."""
    code = (
        "import sys, argand; heavy = {'torch', 'numpy', 'typer', 'rich', 'jinja2', 'sympy', 'transformers'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_compiling_does_not_import_torchs_compiler() -> None:
    code = (
        "import sys, torch, argand\n"
        "@argand.compile\n"
        "def f(x):\n    return torch.softmax(x * 2 + 1, -1)\n"
        "f(torch.randn(8, 8))\n"
        "bad = [m for m in sys.modules if m.startswith(('torch._dynamo', 'torch._inductor'))]\n"
        "print(sorted(bad)[:5])"
    )
    done = warm.run(["-c", code])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_dispatch_modes_keep_torchs_compiler_out() -> None:
    """torch imports torch._dynamo (0.8 s) when a plain one first runs: in each child of the doctor, for instance."""
    texts = {path.relative_to(SRC).as_posix(): path.read_text() for path in FILES}
    mode = re.compile(r"^class \w+\(.*\bTorchDispatchMode\b", re.M)
    assert [name for name, text in texts.items() if mode.search(text)] == ["graph/compat.py"]


def test_rounding_otherwise_and_counting_do_not_import_torchs_compiler() -> None:
    code = (
        "import sys, torch\n"
        "from argand.debug.benchmark.bench_profile import operation_work\n"
        "from argand.debug.trial.rounding import nudged\n"
        "with nudged(1):\n    y = torch.rand(6) / 3\n"
        "print(len(operation_work(lambda: y + 1)), 'torch._dynamo' in sys.modules)"
    )
    done = warm.run(["-c", code])
    assert done.stdout.split() == ["1", "False"], done.stderr


LINES_OF_A_FILE = 600
LINES_OF_A_FUNCTION = 60
FILES_OF_A_FOLDER = 20
# Still longer or larger: each goes from here when it is split.
LARGER: set[str] = set()
LONGER_FUNCTIONS: set[str] = set()


def files_of(*folders: str) -> list[Path]:
    """Files in these folders, from the root of the checkout, but for what is built."""
    return [
        path.relative_to(ROOT)
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".so", ".o")
    ]


def functions_in(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every one, wherever it stands; expressions, most of a file's nodes, hold none."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield child
            yield from functions_in(child)


def test_files_and_functions_are_short() -> None:
    """Longer ones are split at their seams."""
    endings = (".py", ".pyi", ".c", ".h", ".js", ".css")
    files = [path for path in files_of("src", "tests", "bench") if path.suffix in endings]
    lines = {str(path): len((ROOT / path).read_text().splitlines()) for path in files}
    long = {name: count for name, count in lines.items() if count > LINES_OF_A_FILE}
    assert not long, f"of more than {LINES_OF_A_FILE} lines: {long}"
    functions = [
        f"{path.relative_to(SRC)}:{node.lineno} {node.name}"
        for path in FILES
        for node in functions_in(ast.parse(path.read_text()))
        if (node.end_lineno or 0) - node.lineno >= LINES_OF_A_FUNCTION and node.name not in LONGER_FUNCTIONS
    ]
    assert not functions, f"of more than {LINES_OF_A_FUNCTION} lines: {functions}"


def test_folders_are_small() -> None:
    """A larger one has rooms, whose docstrings say what lives there."""
    counts = Counter(str(path.parent) for path in files_of("src", "tests"))
    large = {folder: count for folder, count in counts.items() if count > FILES_OF_A_FOLDER and folder not in LARGER}
    assert not large, f"of more than {FILES_OF_A_FOLDER} files: {large}"


ANY_IN_CAPTURE = 797
"""How often capture's annotations say `Any`, about what nothing is checked: it only falls."""
NO_NAMES = {"found", "made", "there"}


def test_annotations_of_capture_say_types() -> None:
    """`object` where nothing is asked of a value, what is asked of it (`facts/interfaces.py`), or the type that it has."""
    count = sum(len(re.findall(r"\bAny\b", path.read_text())) for path in (SRC / "capture").rglob("*.py"))
    assert count <= ANY_IN_CAPTURE, f"{count} times Any in capture"


def test_names_say_their_subject() -> None:
    """Not that it was found or made, which says nothing of what it is."""
    word = re.compile(rf"\b_*({'|'.join(NO_NAMES)})\b", re.I)
    names = [
        f"{path.relative_to(SRC)}:{node.lineno} {name}"
        for path in FILES
        if word.search(text := path.read_text())
        for node in ast.walk(ast.parse(text))
        for name in (getattr(node, field, None) for field in ("id", "arg", "attr", "name"))
        if name and name.lstrip("_").lower() in NO_NAMES
    ]
    others = re.compile(r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/|//[^\n]*', re.S)
    names += [
        f"{path.relative_to(SRC)}: {match[0]}"
        for path in (*SRC.rglob("*.[ch]"), *SRC.rglob("*.js"))
        for match in word.finditer(others.sub("", path.read_text()))
    ]
    assert not names, names


def test_files_are_named_after_what_is_in_them() -> None:
    """Not by a participle alone: what is stored, kept or awaited is the question that a name answers."""
    participle = re.compile(r"[a-z]+ed|kept|taken|given|gone|left|lost|held|met|bent|put|set")
    names = [path.relative_to(SRC).as_posix() for path in FILES if participle.fullmatch(path.stem)]
    assert names == ["capture/sizes/unbacked.py"], "that is torch's word for symbols whose values data decide"


def described_arguments(text: str) -> list[str]:
    """The names that the section on arguments of a docstring describes."""
    lines = text.partition("Arguments:\n")[2].splitlines()
    lines = list(itertools.takewhile(lambda line: not line or line.startswith(" "), lines))
    heads = [match[1] for line in lines if (match := re.match(r"    ([\w*][\w, *]*):(?: |$)", line))]
    return [name.strip(" *") for head in heads for name in head.split(",")]


def own_names(node: ast.ClassDef | ast.FunctionDef) -> set[str]:
    """What a function takes; what a class or its objects have, and what its methods take."""
    inner = ast.walk(node) if isinstance(node, ast.ClassDef) else ast.walk(node.args)
    fields = {ast.arg: "arg", ast.Attribute: "attr", ast.Name: "id"}
    return {getattr(child, fields[type(child)]) for child in inner if type(child) in fields}


def test_docstrings_describe_arguments_that_there_are() -> None:
    gone = [
        f"{path.relative_to(SRC)}:{node.lineno} {node.name}: {name}"
        for path in FILES
        if "Arguments:" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.ClassDef, ast.FunctionDef))
        for name in described_arguments(ast.get_docstring(node) or "")
        if name not in own_names(node)
    ]
    assert not gone


# Who reads files otherwise than by `argand.files`, and why nothing can block or be without bound there.
OTHER_READERS = {
    "files.py": "is the place",
    "_core/state_reads.py": "torch's libraries, which are loaded",
    "breaks/catalogue.py": "argand's own text",
    "codegen/cpp/prelude/__init__.py": "argand's own text",
    "debug/doctor/child.py": "what its own child wrote into its own folder",
    "debug/doctor/dissection.py": "writes",
    "debug/doctor/health.py": "what its own child wrote into its own folder",
    "debug/doctor/localisation.py": "what its own child wrote into its own folder",
    "debug/doctor/records.py": "what its own child wrote into its own folder",
    "debug/minify/files.py": "/proc, and the reproduction that it just wrote",
    "debug/minify/sources.py": "a file that the user named in a setting",
    "outcomes/fingerprints.py": "sources of the program, which Python has read",
    "runtime/environment.py": "argand's own files",
    "runtime/processor.py": "/proc/cpuinfo",
    "debug/frame_records/record_reader.py": "a descriptor of files.open_file",
    "debug/trial/isolation.py": "/proc",
    "debug/trial/process.py": "what its own child wrote into its own folder",
    "debug/tensors.py": "loads the C library",
    "debug/repro.py": "a descriptor of files.open_file",
    "debug/runnable.py": "a descriptor of files.open_file",
    "report/html/collect.py": "a trace whose kind was looked at, in parts; its own folder",
    "report/html/pages.py": "argand's own text",
    "report/html/single_file.py": "the pages that it just wrote",
    "report/html/store.py": "the pages that it just wrote",
    "report/records.py": "a trace whose kind was looked at, in parts",
    "report/scanner.py": "a trace whose kind was looked at, in parts",
    "runtime/gpu/operators/blas.py": "/proc; loads a library that torch has loaded",
    "runtime/gpu/device/driver.py": "loads the driver's library",
    "runtime/gpu/kernels/libdevice.py": "loads the C library",
    "runtime/gpu/device/target.py": "loads the driver's library",
    "runtime/host.py": "loads the C library",
    "runtime/library.py": "/proc; loads what was looked at",
    "runtime/kernel_directories.py": "opens locks, which are looked at",
    "runtime/kernels/texts/__init__.py": "argand's own text",
    "runtime/remote.py": "/proc/cpuinfo",
    "runtime/toolchain.py": "/proc",
}
READERS = {"read_text", "read_bytes", "CDLL"}
READING = {"open", "load", "ZipFile", *READERS}


def reads(call: ast.Call) -> bool:
    """Whether a call opens or reads a file, other than by `argand.files`, and does not just write."""
    last = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if last not in READING:
        return False
    text = ast.unparse(call.func)
    if text.startswith("files."):
        return False
    name = text.rpartition(".")[2]
    if text == "os.open":
        return not any(flag in ast.unparse(call) for flag in ("O_WRONLY", "O_RDWR"))
    if text in ("open", "io.open", "torch.load", "zipfile.ZipFile", "pickle.load", "json.load"):
        mode = [ast.unparse(a) for a in (*call.args[1:2], *(k.value for k in call.keywords if k.arg == "mode"))]
        return not any(letter in mode[0] for letter in "wax") if mode and text == "open" else text != "zipfile.ZipFile"
    return name in READERS


def test_files_are_read_in_one_place() -> None:
    word = re.compile(rf"\b({'|'.join(READING)})\b")
    for path in FILES:
        name, text = str(path.relative_to(SRC)), path.read_text()
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)] if word.search(text) else []
        found = [call.lineno for call in calls if reads(call)]
        assert not found or name in OTHER_READERS, f"{name} reads files on lines {found}: use argand.files"
    assert all((SRC / name).is_file() for name in OTHER_READERS)


def test_the_cache_is_read_by_argand_files_only() -> None:
    for name in ("cache.py", "process.py"):
        tree = ast.parse((SRC / "runtime" / name).read_text())
        assert not [n.lineno for n in ast.walk(tree) if isinstance(n, ast.Call) and reads(n)]


def test_capture_reads_objects_of_the_program_by_one_door() -> None:
    """C code that is given an object of the program's reads it past every guard: only `Interpreter.native` may.

    A place that is found is wrong, unless a reason among `native_door.ALLOWED` holds for it: then it is added there.
    """
    allowed = {place for places in native_door.ALLOWED.values() for place in places}
    found = {
        f"{path.name} {function}: {expression}": line
        for path in native_door.modules()
        for function, expression, line in native_door.reads(path.read_text())
    }
    assert not set(found) - allowed, f"past the door, see tests/capture/native_door.py: {set(found) - allowed}"
    assert not allowed - set(found), f"no longer there: {allowed - set(found)}"


@pytest.mark.parametrize(
    "line",
    [
        "callable(args[0])",
        "iter(fn, value)",
        "re.sub('a', value, 'b')",
        "getattr(fn, '__name__', '')",
        "fn(*args)",
        "args[0] == 1",
        "args[0].run()",
        "f'{kwargs.get(1)}'",
        "[len(item) for item in args]",
        "str(value or fn)",
    ],
)
def test_a_new_way_past_the_door_is_found(line: str) -> None:
    head = (
        "import re\ndef handler(interp: Interpreter, fn: Any, args: list[Any], kwargs: dict[str, Any], value: Any):\n"
    )
    assert [place for _, place, _ in native_door.reads(f"{head}    {line}\n")]
    assert not list(
        native_door.reads(f"{head}    interp.native(len, args[0]); type(value); len(args); is_a(fn, type)\n")
    )
