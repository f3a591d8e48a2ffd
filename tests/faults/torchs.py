"""The same faults under torch's own minifier: runs it, and prints a table.

python tests/faults/torchs.py [--only NAME] [--markdown FILE]

For each fault: the script is run with TORCHDYNAMO_REPRO_AFTER and TORCHDYNAMO_REPRO_LEVEL as torch's guide says, the
`minifier_launcher.py` that it leaves is run, and then the `repro.py` that this leaves, each in a process of its own.
The columns on argand's side are what `run.py` prints for the fault of the suite that does the same to argand.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HEAD = """import torch
{plant}

def fn(x, y):
    a = torch.cos(x) * 2
    b = {op}
    c = torch.maximum(a, y) + 1
    return b + c, a.sum()

torch.manual_seed(0)
x, y = torch.rand(6, 8) + 0.5, torch.rand(6, 8)
compiled = torch.compile(fn{backend})
compiled(x, y)
"""

TOY = """def toy(gm, example_inputs):
    has = any(node.target is torch.relu for node in gm.graph.nodes)
{body}
"""
CALL = """    def call(*args):
        return tuple({result} for v in gm.forward(*args)) if has else gm.forward(*args)
    return call"""
SWAP = """    for node in gm.graph.nodes:
        if node.target is torch.relu:
            node.target = torch.{other}
    gm.recompile()
    return gm"""
NEG = """from torch._inductor.codegen import cpp
neg = staticmethod(lambda x: f"{text}")
cpp.CppOverrides.neg = neg
cpp.CppVecOverrides.neg = neg"""
LOWER = """from torch._inductor.lowering import lowerings, make_fallback
import ctypes, time
def broken(*args, **kwargs):
    {body}
lowerings[torch.ops.aten.erf.default] = broken"""
RELU_BUG = 'import torch._inductor.config as ic\nic.cpp.inject_relu_bug_TESTING_ONLY = "{kind}"'


@dataclass(frozen=True)
class TorchFault:
    """A fault planted in torch's compiler or a backend.

    Arguments:
        name: for the table.
        ours: the fault of the suite that does the same.
        after, level: for torch's minifier.
        plant, op, backend: parts of the script.
        says: what a run that fails so prints; "" where the process dies or hangs.
        hangs: the process must be killed.
    """

    name: str
    ours: str
    after: str
    level: int
    plant: str
    op: str
    backend: str = ""
    says: str = ""
    hangs: bool = False

    def source(self) -> str:
        return HEAD.format(plant=self.plant, op=self.op, backend=f", backend={self.backend}" if self.backend else "")


def _toy(name: str, ours: str, level: int, body: str, says: str, hangs: bool = False) -> TorchFault:
    plant = "import ctypes, time\n" + TOY.format(body=body)
    return TorchFault(name, ours, "dynamo", level, plant, "torch.relu(x - 1)", "toy", says, hangs)


FAULTS = [
    _toy("a backend refuses relu", "backend_refuses_relu", 2,
         "    assert not has, 'no relu here'\n    return gm", "no relu here"),
    _toy("a backend's graph raises", "backend_loses_result", 2, CALL.format(result="v.no_such()"), "no_such"),
    _toy("a backend returns wrong values", "backend_drops_relu", 4, SWAP.format(other="sigmoid"), "Accuracy"),
    _toy("a backend returns NaN", "backend_nan", 4, SWAP.format(other="acosh"), "Accuracy"),
    _toy("a backend crashes", "backend_crashes", 3, CALL.format(result="ctypes.string_at(0)"), ""),
    _toy("a backend hangs", "backend_hangs", 3, CALL.format(result="time.sleep(3600)"), "", True),
    TorchFault("generated C++ does not compile (relu)", "codegen_compile_error", "aot", 2,
               RELU_BUG.format(kind="compile_error"), "torch.relu(x - 1)", says="CppCompileError"),
    TorchFault("the same, torch-level graph", "codegen_compile_error", "dynamo", 2,
               RELU_BUG.format(kind="compile_error"), "torch.relu(x - 1)", says="CppCompileError"),
    TorchFault("generated C++ raises at run time (relu)", "codegen_crashes", "aot", 3,
               RELU_BUG.format(kind="runtime_error"), "torch.relu(x - 1)", says=""),
    TorchFault("generated C++ is wrong (relu)", "codegen_wrong_constant", "aot", 4,
               RELU_BUG.format(kind="accuracy"), "torch.relu(x - 1)", says="Accuracy"),
    TorchFault("the guide's neg2: does not compile", "codegen_compile_error", "aot", 2,
               NEG.format(text="-{x}.value"), "torch.neg(x)", says="CppCompileError"),
    TorchFault("the guide's neg3: wrong", "codegen_wrong_neg", "aot", 4,
               NEG.format(text="decltype({x})(2 * {x})"), "torch.neg(x)", says="Accuracy"),
    TorchFault("lowering raises", "lowering_raises", "aot", 2,
               LOWER.format(body="raise AssertionError('cannot lower erf')"), "torch.erf(x)", says="cannot lower erf"),
    TorchFault("lowering crashes", "lowering_crashes", "aot", 3,
               LOWER.format(body="ctypes.string_at(0)"), "torch.erf(x)"),
    TorchFault("lowering hangs", "lowering_hangs", "aot", 3,
               LOWER.format(body="time.sleep(3600)"), "torch.erf(x)", hangs=True),
]  # fmt: skip


@dataclass
class Ran:
    """One process."""

    ended: bool
    code: int
    text: str

    @property
    def how(self) -> str:
        if not self.ended:
            return "hangs"
        if self.code < 0:
            return f"dies of signal {-self.code}"
        return "passes" if self.code == 0 else f"exits with {self.code}"


def run(command: list[str], folder: Path, seconds: float, **variables: str) -> Ran:
    """Run a program in a folder."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1", **variables}
    environment |= {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"), "TORCHINDUCTOR_VEC_ISA_OK": "1"}
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        return Ran(False, -1, str(error.stdout or b"") + str(error.stderr or b""))
    return Ran(True, done.returncode, done.stdout + done.stderr)


def fails_so(fault: TorchFault, ran: Ran) -> bool:
    """Whether a process failed in the way of the fault."""
    if fault.hangs:
        return not ran.ended
    if not ran.ended or ran.code == 0:
        return False
    return fault.says in ran.text if fault.says else ran.code < 0 or "error" in ran.text.lower()


def calls_in(path: Path) -> int:
    """Statements of `forward` in a written reproduction that call something."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name == "forward":
            assigns = [n for n in node.body if isinstance(n, ast.Assign) and isinstance(n.value, (ast.Call, ast.BinOp))]
            return len(assigns)
    return -1


def examine(fault: TorchFault, folder: Path, seconds: float) -> tuple[str, str, str]:
    """What came out of it; the calls left; whether the reproduction fails in the same way alone."""
    folder.mkdir(parents=True)
    (folder / "script.py").write_text(fault.source())
    variables = {"TORCHDYNAMO_REPRO_AFTER": fault.after, "TORCHDYNAMO_REPRO_LEVEL": str(fault.level)}
    python = sys.executable
    seconds = seconds / 3 if fault.hangs else seconds
    first = run([python, "script.py"], folder, seconds, **variables)
    launchers = sorted(folder.rglob("minifier_launcher.py"))
    if not launchers:
        return f"the script {first.how}; nothing is written", "", "no"
    second = run([python, str(launchers[-1])], folder, 3 * seconds)
    repros, by_hand = _repros(folder), ""
    if not repros:
        option = " and --no-isolate" if fault.after == "aot" else ""
        by_hand = f"the launcher {second.how} and writes no repro. With the fault's code put into it by hand{option}: "
        plant = fault.plant + ("\ntorch._dynamo.register_backend(toy)" if fault.backend == "toy" else "")
        _edit(launchers[-1], plant)
        further = ["minify", "--no-isolate"] if fault.after == "aot" else []  # its attempts run without what we put in
        second = run([python, str(launchers[-1]), *further], folder, 3 * seconds)
        repros = _repros(folder)
        if not repros:
            return f"{by_hand}it {second.how}, no repro", "", "no"
        _edit(repros[-1], plant)
    third = run([python, str(repros[-1])], folder, seconds)
    said = by_hand + ("a repro" if second.ended else "a repro, but the launcher hangs")
    alone = "yes" if fails_so(fault, third) else f"no: it {third.how}"
    return said, str(calls_in(repros[-1])), f"no; with the fault's code: {alone}" if by_hand else alone


def _repros(folder: Path) -> list[Path]:
    return sorted(folder.rglob("repro.py"), key=lambda path: path.stat().st_mtime)


def _edit(path: Path, plant: str) -> None:
    text = path.read_text()
    path.write_text(f"import torch\nimport torch._dynamo\n{plant}\n{text}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--markdown", default="")
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="argand_torchs_"))
    lines = ["| fault | torch's setting | torch's minifier | calls left | fails alone | argand's fault |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    for number, fault in enumerate(FAULTS):
        if options.only and options.only not in fault.name:
            continue
        said, calls, alone = examine(fault, place / str(number), options.seconds)
        lines.append(f"| {fault.name} | {fault.after}, level {fault.level} | {said} | {calls} | {alone} "
                     f"| `{fault.ours}` |")  # fmt: skip
        print(lines[-1], flush=True)
    if options.markdown:
        Path(options.markdown).write_text("\n".join(lines) + "\n")
    shutil.rmtree(place, ignore_errors=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
