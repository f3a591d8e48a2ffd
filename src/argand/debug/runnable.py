"""`fx_graph_runnable.py`: a compiled graph as a program of its own, to run, edit and run again.

The text is made from the ATen graph as the native backend got it; `rand_strided`, `load_constants` and `run` are what
it imports.
"""

from __future__ import annotations

import platform
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

import argand
from argand import files
from argand.config import config
from argand.graph.nodes.printing import graph_source
from argand.graph.nodes.program import AtenProgram, InputSpec
from argand.graph.sizes.expr import Expr, as_int
from argand.graph.sizes.symbolic import SymbolicTensor
from argand.runtime.host import rand_strided as rand_strided
from argand.runtime.ops import argand_ops
from argand.version import __version__

_INLINE = 16
"""Constants of at most so many elements are written into the text."""

_TORCH_SPACES = {"argand", "aten", "prims", "prim", "quantized", "torchvision"}

DATA_FILE = "fx_graph_constants.pt"


def readable_text(program: AtenProgram, title: str) -> str:
    """The graph as a class, for reading: `fx_graph_readable.py`."""
    return f"# {title}\n\n{_module(program)[0]}\n"


def runnable_text(program: AtenProgram, title: str, saved: Sequence[str] = ()) -> str:
    """The graph as a program: makes inputs of the right size, stride, dtype and device, compiles, runs, compares.

    Arguments:
        title: what the graph is, for the comment at the top.
        saved: names of constants that lie in `fx_graph_constants.pt` beside the text; other large ones are random.
    """
    module, names = _module(program)
    missing = [name for name in names if name not in program.constants]
    lines = [
        f"# {title}",
        f"# argand {__version__}, torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}",
        "# Run it as it is, or edit it and run it again: python fx_graph_runnable.py",
        "",
        "import math",
        "import operator",
        "",
        "import torch",
        "from torch import inf, nan",
        "",
        "from argand.debug.runnable import load_constants, rand_strided, run",
        "",
        *_setup(program),
        *[f"# {name} is an object of the program that has no source text: {names[name]!r}" for name in missing],
        *_constants(program, saved),
        "",
        module,
        "",
        "",
        *_example_inputs(program),
        "",
        "",
        'if __name__ == "__main__":',
        '    run(Repro(), example_inputs(), backend="native")',
        "",
    ]
    return "\n".join(lines)


def constants_to_save(program: AtenProgram, limit: int) -> dict[str, torch.Tensor]:
    """The graph's constants that are too large for the text, as far as `limit` bytes reach."""
    saved: dict[str, torch.Tensor] = {}
    for name, tensor in program.constants.items():
        size = tensor.numel() * tensor.element_size()
        if not _is_inline(tensor) and size <= limit:
            saved[name] = tensor.detach()
            limit -= size
    return saved


def _module(program: AtenProgram) -> tuple[str, dict[str, Any]]:
    source, names = graph_source(program.graph, "forward", spelled_out=True)
    head, _, body = source.partition("(")
    parameters = "self" if body.startswith(")") else "self, "
    text = "class Repro(torch.nn.Module):\n" + textwrap.indent(f"{head}({parameters}{body}", "    ").rstrip()
    known = ("torch", "operator", "math", "inf", "nan")
    return text, {name: value for name, value in names.items() if name not in known}


def _setup(program: AtenProgram) -> list[str]:
    """What makes operators known that are not torch's own: `config.repro_setup`, or a remark."""
    spaces = {str(node.target).split(".")[0] for node in program.graph.nodes if node.op == "call_function"}
    foreign = sorted(spaces - _TORCH_SPACES - {"<built-in function getitem>"})
    foreign = [space for space in foreign if hasattr(torch.ops, space) and not space.startswith("<")]
    if config.repro_setup:
        return [*config.repro_setup.splitlines(), ""]
    if not foreign:
        return []
    return [f"# Import what registers torch.ops.{', torch.ops.'.join(foreign)} here (config.repro_setup).", ""]


def _is_inline(tensor: torch.Tensor) -> bool:
    plain = tensor.layout is torch.strided and not tensor.dtype.is_complex and tensor.is_contiguous()
    return plain and 0 < tensor.numel() <= _INLINE


def _constants(program: AtenProgram, saved: Sequence[str]) -> list[str]:
    """Module-level names of the graph's literal tensors."""
    lines = [f'constants = load_constants(__file__, "{DATA_FILE}")'] if saved else []
    for name, tensor in program.constants.items():
        if name in saved:
            lines.append(f'{name} = constants["{name}"]')
        elif _is_inline(tensor):
            values = str(tensor.tolist())
            lines.append(f'{name} = torch.tensor({values}, dtype={tensor.dtype}, device="{tensor.device}")')
        else:
            size, stride = tuple(tensor.shape), tensor.stride()
            lines.append(f'{name} = rand_strided({size}, {stride}, {tensor.dtype}, "{tensor.device}")  # not kept')
    return lines


def _example_inputs(program: AtenProgram) -> list[str]:
    lines = ["def example_inputs():", '    """Random inputs; integers are zero, as they may be indices."""']
    hints = {scalar.sym.name: scalar for scalar in program.scalars}
    for name, scalar in hints.items():
        lines.append(f"    {name} = {float(scalar.hint) if scalar.is_float else int(scalar.hint)}")
    lines.append("    return [")
    for node, spec in zip(program.placeholders, program.inputs):
        lines.append(f"        {_input(node, spec, hints)},  # {spec.name}: {spec.kind}")
    return [*lines, "    ]"]


def _input(node: fx.Node, spec: InputSpec, hints: Mapping[str, Any]) -> str:
    if spec.kind == "scalar" or spec.name in hints:
        return spec.name
    tensor = spec.spec
    size: Sequence[Any] = tensor.size
    stride: Sequence[Any] = tensor.stride
    value = node.meta.get("val")
    if isinstance(value, SymbolicTensor):  # the sizes of `spec` are those of one trace
        size, stride = value.shape, value.strides
    return f'rand_strided({_dims(size)}, {_dims(stride)}, {tensor.dtype}, "{tensor.device}")'


def _dims(dims: Sequence[Any]) -> str:
    texts = [str(dim) if isinstance(dim, Expr) and as_int(dim) is None else str(int(dim)) for dim in dims]
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"


# ---------------------------------------------------------------------- what the text imports


def load_constants(script: str, name: str) -> dict[str, torch.Tensor]:
    """The constants that lie beside a script."""
    path = Path(script).resolve().parent / name
    with open(files.open_file(path, 1 << 40, own=False), "rb") as stream:
        constants: dict[str, torch.Tensor] = torch.load(stream, weights_only=True)
    return constants


def run(module: torch.nn.Module, args: Sequence[Any], backend: str = "native") -> tuple[Any, ...]:
    """Run `module` compiled and eagerly on the same inputs; print and return the compiled results."""
    argand_ops()  # registers them
    torch.manual_seed(0)
    with torch.no_grad():
        wanted = module(*args)
        torch.manual_seed(0)
        results: tuple[Any, ...] = argand.compile(module, backend=backend, fullgraph=True)(*args)
    print(f"backend {backend!r}, {len(results)} results")
    for position, (want, got) in enumerate(zip(wanted, results)):
        print(f"  {position}: {_described(got)}{_difference(want, got)}")
    return results


def _described(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return f"{value.dtype} {tuple(value.shape)} stride {value.stride()} on {value.device}"


def _difference(want: Any, got: Any) -> str:
    if not isinstance(want, torch.Tensor) or not isinstance(got, torch.Tensor) or not want.numel():
        return ""
    if torch.equal(want, got):
        return ", equal to eager"
    if want.shape != got.shape or want.dtype is not got.dtype:
        return f", eager: {_described(want)}"
    kind = torch.complex128 if want.dtype.is_complex else torch.float64
    error = (want.to(kind) - got.to(kind)).abs().nan_to_num()
    return f", largest difference from eager {error.max().item():.3g}"
