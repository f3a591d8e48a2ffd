"""The files of one run of the minifier: launcher, repro, environment, progress."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, fields
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from argand import files
from argand.config import SECRETS, config
from argand.debug.minify.checks import BackendCheck
from argand.debug.minify.code import NotCode, graph_of, literal, module_code
from argand.debug.minify.sources import Definitions, setup_lines
from argand.debug.minify.surgery import Program
from argand.debug.minify.symbols import restore
from argand.debug.trial.fingerprint import Fingerprint
from argand.debug.trial.surroundings import Surroundings
from argand.errors import ArgandError
from argand.graph.nodes.meta import attribute
from argand.quick_dataclasses import dataclass
from argand.runtime import processor, toolchain
from argand.runtime.gpu.device.target import triton_version
from argand.version import __version__

_VARIABLES = ("ARGAND_", "TORCH", "OMP_", "MKL_", "KMP_", "GOMP_", "CUDA_", "PYTORCH_", "CXX", "LD_PRELOAD")
_SECRET_VARIABLES = "ARGAND_REMOTE_CACHE"


def new_directory() -> Path:
    """A fresh directory for one run, in `config.base_dir`."""
    root = Path(str(config.base_dir) or ".").resolve() / "argand_minifier"
    stamp = time.strftime("%Y_%m_%d_%H_%M_%S")
    for number in range(10_000):
        directory = root / f"run_{stamp}_{number:04d}-pid_{os.getpid()}"
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            continue
        return directory
    raise FileExistsError(root)


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes the files of a run.

    Arguments:
        directory: where.
        check: what fails on the program.
        wanted: how it fails.
    """

    directory: Path
    check: BackendCheck
    wanted: Fingerprint

    def launcher(self, program: Program) -> Path:
        """`minifier_launcher.py`: the whole program; running it makes it small."""
        main = ["minify_main(Repro(), args, check, __file__, wanted=Fingerprint(", *self._wanted_lines(), "))"]
        head = f"Minifies a graph that fails: {self.wanted}\n\nWrites repro.py beside this file; goes on where it was."
        return self._write("minifier_launcher.py", program, head, main, data="launcher_inputs.pt")

    def repro(self, program: Program, *, random: bool = False) -> Path:
        """`repro.py`: fails by itself in the same way.

        Arguments:
            random: it fails on random inputs of these layouts too, so their values are not saved.
        """
        head = f"Fails: {self.wanted}\n\nMade by argand's minifier; `python repro.py` fails in the same way."
        return self._write(
            "repro.py", program, head, ["run_repro(Repro(), args, check)"], data="inputs.pt", random=random
        )

    def environment(self) -> Path:
        """`environment.txt`: versions, hardware, settings, variables."""
        path = self.directory / "environment.txt"
        lines = [*hardware_lines(), "", "settings (argand.config):"]
        for name, default, _help in config.describe():
            value = attribute(config, name)
            shown = "(set)" if name in SECRETS and value else repr(value)
            lines.append(f"  {name} = {shown}" + ("" if value == default else "  (changed)"))
        lines += ["", "environment variables:"]
        lines += [f"  {key}={value}" for key, value in sorted(os.environ.items()) if _is_shown(key)]
        lines += ["", f"command: {' '.join(sys.argv)}", f"directory: {Path.cwd()}"]
        path.write_text("\n".join(lines) + "\n", encoding="utf8")
        return path

    def progress(self, tried: dict[str, bool], nodes: int, finished: bool) -> None:
        """`progress.json`: what an interrupted search need not try again."""
        data = {"wanted": asdict(self.wanted), "nodes": nodes, "finished": finished, "tried": tried}
        replace(self.directory / "progress.json", files.sealed_json(data))

    def _wanted_lines(self) -> list[str]:
        return [f"    {f.name}={_text(getattr(self.wanted, f.name))}," for f in fields(self.wanted)]

    def _write(
        self, name: str, program: Program, head: str, main: list[str], *, data: str, random: bool = False
    ) -> Path:
        path = self.directory / name
        replace(path, self._text(program, head, main, data, random))
        return path

    def _text(self, program: Program, head: str, main: list[str], data: str, random: bool) -> str:
        definitions = Definitions()
        setup = setup_lines(definitions)
        try:
            backend = definitions.name_of(self.check.backend)
        except NotCode as error:
            backend, setup = "None", [*setup, f"# The backend must be put in here by hand: {error.cause}"]
        code, state = module_code(program.gm)
        modules = [line for line in _modules_named(code) if line not in definitions.lines]
        lines = [f'"""{_quoted(head)}"""', "", "from __future__ import annotations", ""]
        lines += [*("# " + line if line else "#" for line in hardware_lines())]
        imports = dict.fromkeys([*modules, *(line for line in definitions.lines if line.startswith("import "))])
        lines += ["", *(["import sys", ""] if definitions.paths else [])]
        lines += [f"sys.path.insert(0, {folder!r})" for folder in definitions.paths]
        lines += ["import torch", *(line for line in imports if line != "import torch")]
        lines += ["from argand.debug.minify import Fingerprint"] if "minify_main" in main[0] else []
        lines += ["from argand.debug.minify.checks import BackendCheck, Surroundings"]
        wanted = "minify_main" if "minify_main" in main[0] else "run_repro"
        lines += [f"from argand.debug.repro import load, rand_strided, {wanted}", "", ""]
        lines += [line for line in definitions.lines if not line.startswith("import ")]
        lines += [*setup, ""]
        if state:
            saved = data.replace("inputs", "state")
            save(self.directory / saved, state)
            lines += [f"state = load(__file__, {saved!r})", ""]
        lines += ["", code, "", "", *self._input_lines(program.inputs, data, random), ""]
        lines += [f"check = {self._check_text(backend)}", "", 'if __name__ == "__main__":']
        return "\n".join([*lines, *("    " + line for line in main), ""])

    def _input_lines(self, inputs: Sequence[Any], data: str, random: bool) -> list[str]:
        described = [_input_text(value) for value in inputs]
        if random or not any(isinstance(value, torch.Tensor) for value in inputs):
            seed = ["torch.manual_seed(0)"] if random else []
            return [*seed, "args = [", *(f"    {text}," for text in described), "]"]
        save(self.directory / data, list(inputs))
        about = [f"# {text}" for text in described]
        return [f"# The values matter: they are saved in {data}.", *about, f"args = load(__file__, {data!r})"]

    def _check_text(self, backend: str) -> str:
        parts = [backend]
        for field in fields(BackendCheck)[1:]:
            value = getattr(self.check, field.name)
            if field.name == "surroundings":
                inner = [f"{f.name}={_text(getattr(value, f.name))}" for f in fields(Surroundings)]
                parts.append(f"surroundings=Surroundings({', '.join(inner)})")
            elif value and (field.name, value) != ("calls", 1):
                parts.append(f"{field.name}={_text(value)}")
            elif field.name == "run":
                parts.append("run=False")
        return f"BackendCheck({', '.join(parts)})"


def _text(value: Any) -> str:
    try:
        return literal(value)
    except NotCode:
        return repr(value)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"""', "'''")


def _modules_named(code: str) -> list[str]:
    """Import statements for modules that the graph's text names."""
    statements: dict[str, None] = {}
    for path in re.findall(r"(?<![\w.\"'#/])((?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*)\(", code):
        parts = path.split(".")
        if parts[0] in ("self", "torch") or parts[0] not in sys.modules:
            continue
        while parts and ".".join(parts) not in sys.modules:
            parts.pop()
        statements[f"import {'.'.join(parts)}"] = None
    return list(statements)


def _input_text(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return _text(value)
    shape, stride = _text(tuple(value.shape)), _text(tuple(value.stride()))
    grad = ", requires_grad=True" if value.requires_grad else ""
    return f"rand_strided({shape}, {stride}, {value.dtype}, {str(value.device)!r}{grad})"


def load_module(path: Path) -> ModuleType:
    """A written file as a module (its `__main__` part does not run)."""
    module = ModuleType(f"argand_repro_{abs(hash(str(path)))}")
    module.__file__ = str(path)
    code = compile(files.read_script(path), str(path), "exec")
    sys.modules[module.__name__] = module
    exec(code, module.__dict__)
    return module


def program_of(module: torch.nn.Module, args: Sequence[Any]) -> Program:
    """The graph that a written module is, with its inputs."""
    gm, inputs = graph_of(module), list(args)
    restore(gm, inputs)
    return Program(gm, inputs)


def save(path: Path, data: Any) -> None:
    """Save tensors so that `load` reads them back without running code, and knows whether they are damaged."""
    if isinstance(data, list):
        data = [
            value.detach().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value
            for value in data
        ]
    with files.replacing(path) as temporary:
        torch.save(data, temporary)
        files.seal(temporary)


def replace(path: Path, text: str) -> None:
    """Write a file at once, so that an interruption leaves the old one."""
    with files.replacing(path) as temporary:
        temporary.write_text(text, encoding="utf8")


@lru_cache(maxsize=1)
def hardware_lines() -> tuple[str, ...]:
    """Versions and hardware, a line each."""
    cpu = processor.facts().get("model name") or platform.processor() or platform.machine()
    lines = [
        f"argand version: {__version__}",
        f"torch version: {torch.__version__}",
        f"torch git version: {torch.version.git_version}",
        f"torch cuda version: {torch.version.cuda}",
        f"Python version: {platform.python_version()}",
        f"system: {platform.platform()}",
        f"C++ compiler: {_compiler()}",
        f"CPU: {cpu}, {os.cpu_count()} logical cores, torch uses {torch.get_num_threads()} threads",
        f"CPU capability of torch: {torch.backends.cpu.get_cpu_capability()}",
    ]
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        lines += [f"GPU: {name}: {names.count(name)}" for name in dict.fromkeys(names)]
        lines += [f"triton version: {triton_version()}"]
    return tuple(lines)


def _compiler() -> str:
    try:
        return toolchain.describe()
    except ArgandError as error:
        return f"none ({error.cause})"


def copy_to_base(repro: Path) -> None:
    """`repro.py` is also put where the user asked results to go (`config.base_dir`)."""
    if str(config.base_dir):
        target = Path(str(config.base_dir)).resolve() / "repro.py"
        text = repro.read_text(encoding="utf8")
        target.write_text(text.replace("load(__file__, ", f"load({str(repro)!r}, "), encoding="utf8")
        shutil.copymode(repro, target)


def _is_shown(variable: str) -> bool:
    """Whether `environment.txt` tells of an environment variable."""
    return variable.startswith(_VARIABLES) and not variable.startswith(_SECRET_VARIABLES)
