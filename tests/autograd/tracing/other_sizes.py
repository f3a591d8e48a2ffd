"""Programs for many sizes against traces at the sizes themselves, and against eager.

    python tests/autograd/tracing/other_sizes.py [--every N] [--gradients] [NAME ...]
    python tests/autograd/tracing/other_sizes.py --models [--gradients] [NAME ...]

Every sample of torch's op_db (or every small model of `bench/models.py`) is captured with sizes that vary. At sizes that
were not traced, but meet the graph's guards and the program's conditions: what capture says of each operation's
sizes is what eager makes; the program's numbers, sizes and strides are those of a trace at these sizes (where other
operations run there, this is counted). Exit status 1 if anything differs.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests" / "autograd"), str(ROOT / "tests")]

from opdb_aot import load_op_db, samples  # noqa: E402

import argand  # noqa: E402
import forks  # noqa: E402
import sweeps  # noqa: E402
from argand.autograd.tracing.dynamic import Assignment, Tracing, parts_of  # noqa: E402
from argand.autograd.tracing.dynamic_joint import _JointTracing  # noqa: E402
from argand.errors import AutogradError  # noqa: E402
from argand.graph.nodes.program import AtenProgram, TensorSpec  # noqa: E402
from argand.graph.sizes.expr import Expr, evaluate  # noqa: E402
from argand.graph.sizes.relations import hold  # noqa: E402
from argand.graph.sizes.symbolic import SymbolicTensor  # noqa: E402
from argand.graph.sizes.symbols import is_dynamic  # noqa: E402
from argand.passes import run_passes  # noqa: E402

FIGURES = ("graphs", "static", "exact sizes", "sizes", "guarded", "other operations", "crashed", "raised")
SIZES = 5  # per graph
_TRIES = 200
_LARGEST = 1 << 22  # elements of a tensor that eager is run with


class Comparing:
    """A backend that compares, and runs the graph itself."""

    def __init__(self, found: Counter[str], name: str, gradients: bool = False, eager: bool = True) -> None:
        self.found = found
        self.name = name
        self.gradients = gradients
        self.eager = eager

    def __call__(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        if not is_dynamic(gm):
            self.found["static"] += 1
            return gm.forward
        self.found["graphs"] += 1
        joint = self.gradients and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)
        tracing = (_JointTracing if joint else Tracing)(gm, inputs, run_passes)
        try:
            program = tracing.run()
        except AutogradError:
            self.found["exact sizes"] += 1
            program = None
        for row in _rows(tracing):
            if not _guards_hold(tracing, row) or (program is not None and not _conditions_hold(tracing, program, row)):
                self.found["guarded"] += 1
                continue
            self.found["sizes"] += 1
            for text in self._differences(gm, tracing, program, row):
                shown = {sym.name: value for sym, value in row.items()}
                self.found[f"{self.name} at {shown}: {text}"] += 1
        return gm.forward

    def _differences(
        self, gm: fx.GraphModule, tracing: Tracing, program: AtenProgram | None, row: Assignment
    ) -> Iterator[str]:
        values, layouts = tracing._arguments(row)
        ran = _run_eagerly(gm, tracing, values, layouts, row) if self.eager else None
        if isinstance(ran, str):
            yield ran
            return
        if program is None:
            return
        try:
            concrete, *_ = tracing._prepared(row)
        except AutogradError as error:
            if ran is not None:  # what eager refuses too, a guard or an error of the call finds
                yield f"cannot be traced: {error}"
            return
        told = _compared(program, concrete, _numbers(tracing, program, row))
        if told is not None and told.startswith("operation"):
            self.found["other operations"] += 1
        elif told is not None:
            yield told


def _numbers(tracing: Tracing, program: AtenProgram, row: Assignment) -> dict[str, Any]:
    """The value of each symbol of a program, by name."""
    env: dict[str, Any] = {sym.name: tracing.table.evaluate(sym, row) for sym in tracing.table.symbols}
    for scalar in program.scalars:
        if scalar.sym.name not in env:
            base, factor = parts_of(scalar.sym)
            env[scalar.sym.name] = env[base] // factor
    return env


def _guards_hold(tracing: Tracing, row: Assignment) -> bool:
    return all(tracing.table.holds(relation, row) is not False for relation in tracing.table.relations)


def _conditions_hold(tracing: Tracing, program: AtenProgram, row: Assignment) -> bool:
    return bool(hold(program.conditions, _numbers(tracing, program, row)))


def _rows(tracing: Tracing) -> Iterator[Assignment]:
    """Sizes that were not traced, at most `SIZES` that the guards let through and as many that they do not."""
    chooser = random.Random(7)
    hints = tracing.table.hints
    seen = [list(hints.values()), *[list(dict(key).values()) for key in tracing.traces]]
    passed = refused = 0
    for turn in range(_TRIES):
        values: dict[Any, Any] = {}
        step = (1, 1, 2, 1, 4, 8)[turn % 6]
        for sym in tracing.inputs:
            hint = hints[sym]
            if tracing.table.kinds[sym] != "int":
                values[sym] = hint * chooser.choice((1.0, 0.5, 2.25))
            elif sym in tracing.unused:
                values[sym] = hint
            elif turn % 3 == 2:
                values[sym] = max(2, int(hint) + step * chooser.randint(-3, 3))
            else:
                values[sym] = chooser.choice(
                    (2, 3, int(hint), 2 * int(hint), chooser.randint(2, 2 * abs(int(hint)) + 9))
                )
        if turn % 5 == 4:  # sizes that are one size
            whole = [sym for sym in values if tracing.table.kinds[sym] == "int" and sym not in tracing.unused]
            values.update(dict.fromkeys(whole, values[whole[0]]) if whole else {})
        row = tracing._row(hints, values)
        if row is None or list(row.values()) in seen:
            continue
        seen.append(list(row.values()))
        good = _guards_hold(tracing, row)
        passed, refused = passed + good, refused + (not good)
        if (passed if good else refused) <= SIZES:
            yield row
        if passed >= SIZES:
            return


# ---------------------------------------------------------------------- what eager makes


class _Sizes(fx.Interpreter):
    """Runs a graph, and compares what each operation makes with what capture said."""

    def __init__(self, gm: fx.GraphModule, tracing: Tracing, row: Assignment) -> None:
        super().__init__(gm)
        self.tracing, self.row = tracing, row
        table = tracing.table
        self.relied_on = all(table.holds(each, row) is not False for each in table.fitter.conditions)
        self.told: str | None = None

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        sizes = n.meta.get("sizes")
        if not self.relied_on or self.told is not None or sizes is None or None in sizes:
            return result  # guarded where the program asks
        if isinstance(result, torch.Tensor):
            said = tuple([self.tracing._number(size, self.row) for size in sizes])
            if said != tuple(result.shape):
                self.told = f"{n.name} ({n.target}) has sizes {tuple(result.shape)}, capture says {said}, {sizes}"
        return result


def _run_eagerly(
    gm: fx.GraphModule, tracing: Tracing, values: list[Any], layouts: dict[int, TensorSpec], row: Assignment
) -> Any:
    """What the graph gives at these sizes; a text where its sizes are others than capture says; None: it raises."""
    given = [_real(value, layouts.get(index)) for index, value in enumerate(values)]
    if any(value is None and isinstance(values[index], torch.Tensor) for index, value in enumerate(given)):
        return None
    interpreter = _Sizes(gm, tracing, row)
    try:
        with torch.no_grad():
            result = interpreter.run(*given)
    except Exception:
        return None
    return interpreter.told or (result,)


def _real(value: Any, layout: TensorSpec | None) -> Any:
    if not isinstance(value, torch.Tensor) or layout is None:
        return value
    count = 1
    for size in layout.size:
        count *= size
    if count > _LARGEST:
        return None
    tensor = torch.empty_strided(layout.size, layout.stride, dtype=layout.dtype)
    return tensor.uniform_(0.1, 0.9) if layout.dtype.is_floating_point else tensor.fill_(1)


# ---------------------------------------------------------------------- two programs


def _compared(general: AtenProgram, concrete: AtenProgram, env: dict[str, Any]) -> str | None:
    """How the program for many sizes, at some, differs from the trace at these."""
    scalars = {spec.name for spec in general.inputs if spec.kind == "scalar"}
    ones = [n for n in general.graph.nodes if not (n.op == "placeholder" and n.name in scalars)]
    others = list(concrete.graph.nodes)
    if [n.target for n in ones if n.op == "call_function"] != [n.target for n in others if n.op == "call_function"]:
        return "operations differ"
    place = {node: index for nodes in (ones, others) for index, node in enumerate(nodes)}
    for one, other in zip(ones, others):
        have, want = _arguments(one, env, place), _arguments(other, env, place)
        if have != want and "slice" not in str(one.target):  # whose bounds a program for many sizes has as positions
            return f"{one.name} ({one.target}) takes {want}, the program says {have}"
        have, want = _at(one.meta.get("val"), env, place), _at(other.meta.get("val"), env, place)
        if have != want:
            return f"{one.name} ({one.target}) is {want}, the program says {have}"
    have, want = _at(_results(general), env, place), _at(_results(concrete), env, place)
    return None if have == want else f"results are {want}, the program says {have}"


def _arguments(node: fx.Node, env: dict[str, Any], place: dict[fx.Node, int]) -> Any:
    """By name, those that have their default left out."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return _at((node.args, node.kwargs), env, place)
    arguments = node.target._schema.arguments
    given = _at({**dict(zip([a.name for a in arguments], node.args)), **node.kwargs}, env, place)
    return {a.name: given[a.name] for a in arguments if a.name in given and given[a.name] != a.default_value}


def _results(program: AtenProgram) -> Any:
    return [(o.kind, o.index, o.value, o.view and (o.view.size, o.view.stride, o.view.offset)) for o in program.outputs]


def _at(tree: Any, env: dict[str, Any], place: dict[fx.Node, int]) -> Any:
    if isinstance(tree, Expr):
        return evaluate(tree, env)
    if isinstance(tree, SymbolicTensor | torch.Tensor):
        tensor = tree.shape, tree.stride() if isinstance(tree, torch.Tensor) else tree.strides, tree.storage_offset()
        return (*_at([list(part) if isinstance(part, tuple) else part for part in tensor], env, place), str(tree.dtype))
    if isinstance(tree, fx.Node):
        return ("node", place[tree])
    if isinstance(tree, tuple | list):
        return [_at(item, env, place) for item in tree]
    if isinstance(tree, dict):
        return {name: _at(value, env, place) for name, value in tree.items()}
    return "nan" if tree != tree else tree


# ---------------------------------------------------------------------- programs


def _of_op(op: Any, every: int, gradients: bool) -> Counter[str]:
    found: Counter[str] = Counter()
    torch.manual_seed(1)
    for number, (call, leaves) in enumerate(samples(op, torch.float32)):
        if number % every or not any(leaf.dim() and max(leaf.shape) > 1 for leaf in leaves):
            continue
        argand.reset()
        given = [leaf.detach().requires_grad_(gradients and leaf.dtype.is_floating_point) for leaf in leaves]
        backend = Comparing(found, op.name, gradients)
        try:
            with torch.set_grad_enabled(gradients):
                argand.compile(call, dynamic=True, backend=backend)(*given)
        except Exception:
            found["raised"] += 1
    return found


def _of_model(build: Callable[..., Any], name: str, gradients: bool) -> Counter[str]:
    found: Counter[str] = Counter()
    model, inputs = build(True)
    model.train(gradients)
    argand.reset()
    with torch.set_grad_enabled(gradients):
        argand.compile(model, dynamic=True, backend=Comparing(found, name, gradients, eager=not gradients))(**inputs)
    return found


def compare(names: Sequence[str], every: int, gradients: bool, ops: int = 1) -> Counter[str]:
    """Every `every`-th sample of each `ops`-th op, or of those named."""
    total: Counter[str] = Counter()
    for op in load_op_db()[::ops]:
        if (not names or op.name in names) and op.supports_dtype(torch.float32, "cpu"):
            total.update(forks.counted(lambda op=op: _of_op(op, every, gradients)))
    return total


def compare_models(names: Sequence[str], gradients: bool) -> Counter[str]:
    """The models of the demo."""
    sys.path.append(str(ROOT / "bench"))
    import models

    total: Counter[str] = Counter()
    for name, build in models.MODELS.items():
        if not names or name in names:
            total.update(forks.counted(lambda build=build, name=name: _of_model(build, name, gradients)))
    return total


def main() -> int:
    parser = sweeps.parser(__doc__)
    parser.add_argument("--models", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.models:
        found = compare_models(options.names, options.gradients)
    else:
        found = compare(options.names, options.every, options.gradients)
    return sweeps.told(found, FIGURES)


if __name__ == "__main__":
    sys.exit(main())
