"""Every module of torch's own `module_db`, forward and backward, with backend "eager": equal, and in how many graphs.

    python bench/module_db.py [names ...] [--torch] [--list]

For each sample (float32, CPU; train and eval): two equal modules are made, one is compiled. `one` counts those captured
in one graph (fullgraph=True), `equal` those whose outputs, gradients of parameters and inputs, state and exceptions are
eager's. --torch measures torch.compile(backend="eager") beside it; --list names the samples that are not `one` or not
`equal`.
"""

from __future__ import annotations

import argparse
import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

Compile = Callable[..., Any]


@dataclass(slots=True)
class Sample:
    """One module to make and what to call it with.

    Fields:
        name: "nn.Linear[0] train".
        make: builds the module; equal ones under an equal seed.
        args, kwargs: of the call; tensors of floating point require gradients.
    """

    name: str
    make: Callable[[], torch.nn.Module]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    lazy: bool = False


@dataclass(slots=True)
class Outcome:
    """What one run of a sample gave.

    Fields:
        values: outputs, gradients and state, or the exception.
        graphs: how many graphs reached the backend.
    """

    values: Any
    graphs: int = 0
    why: str = ""


@dataclass(slots=True)
class Counts:
    """Totals of one system."""

    samples: int = 0
    one: int = 0
    equal: int = 0
    notes: list[str] = field(default_factory=list)


def samples(*names: str) -> Iterator[Sample]:
    """The samples of the database, of the modules called `names` only where any is given."""
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        if names and info.name not in names:
            continue
        if torch.float32 not in info.dtypes:
            continue
        for training in (True, False):
            torch.manual_seed(0)
            inputs = info.module_inputs_func(
                info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
            )
            for i, given in enumerate(inputs):
                if given.forward_input is None:
                    continue
                made = given.constructor_input
                word = "train" if training else "eval"
                yield Sample(
                    f"{info.name}[{i}{':' + given.desc if given.desc else ''}] {word}",
                    _maker(info.module_cls, made.args, made.kwargs, training),
                    tuple(given.forward_input.args),
                    dict(given.forward_input.kwargs),
                    bool(info.is_lazy),
                )


def _maker(cls: Any, args: Any, kwargs: Any, training: bool) -> Callable[[], torch.nn.Module]:
    def make() -> torch.nn.Module:
        torch.manual_seed(0)
        module: torch.nn.Module = cls(*copy.deepcopy(args), **copy.deepcopy(kwargs))
        return module.train(training)

    return make


def _fresh(value: Any) -> Any:
    """A copy with leaf tensors of its own."""

    def copied(leaf: Any) -> Any:
        return leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf

    return pytree.tree_map(copied, value)


def run(sample: Sample, wrap: Compile | None) -> Outcome:
    """Make the module, call it (through `wrap`), run backward, and gather what can be seen."""
    module = sample.make()
    args, kwargs = _fresh((sample.args, sample.kwargs))
    graphs: list[Any] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    try:
        called = module if wrap is None else wrap(module, backend=backend)
        torch.manual_seed(1)
        made = called(*args, **kwargs)
    except Exception as error:
        return Outcome(error, len(graphs), str(error).strip().split("\n")[0])
    leaves = [x for x in pytree.tree_leaves(made) if isinstance(x, torch.Tensor) and x.requires_grad]
    grads: dict[str, Any] = {}
    if leaves and not any(leaf.is_complex() for leaf in leaves):
        sum((leaf * leaf).sum() for leaf in leaves).backward()
        given = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        grads = {f"input {i}": x.grad for i, x in enumerate(given) if x.is_leaf}
        grads |= {name: p.grad for name, p in module.named_parameters()}
    state = {name: value for name, value in module.state_dict().items() if isinstance(value, torch.Tensor)}
    return Outcome((made, grads, state), len(graphs))


def difference(want: Any, got: Any) -> str | None:
    """None when two outcomes' values are the same, else where they differ."""
    if isinstance(want, Exception) or isinstance(got, Exception):
        if type(want) is type(got):
            return None
        return f"{type(got).__name__}, eager has {type(want).__name__}: {str(got)[:200]}"
    ours, ours_spec = pytree.tree_flatten(got)
    theirs, theirs_spec = pytree.tree_flatten(want)
    if ours_spec != theirs_spec:
        return "the structure differs"
    for a, b in zip(theirs, ours):
        if type(a) is not type(b):
            return f"a {type(b).__name__}, eager has {type(a).__name__}"
        if not isinstance(a, torch.Tensor):
            continue
        if a.dtype != b.dtype or a.shape != b.shape or a.stride() != b.stride() or a.requires_grad != b.requires_grad:
            return f"{b.dtype}{list(b.shape)}, eager has {a.dtype}{list(a.shape)}"
        if not torch.equal(a.nan_to_num(), b.nan_to_num()):
            return f"values differ by {float((a - b).abs().max()):.3g}"
    return None


def measure(sample: Sample, compile_: Compile, reset: Callable[[], None]) -> tuple[bool, str | None, str]:
    """(captured in one graph, difference to eager or None, why it is not one graph)."""
    want = run(sample, None)
    reset()
    whole = run(sample, lambda module, backend: compile_(module, backend=backend, fullgraph=True))
    one = whole.graphs == 1 and not isinstance(whole.values, Exception)
    if one:
        return True, difference(want.values, whole.values), ""
    reset()
    parts = run(sample, lambda module, backend: compile_(module, backend=backend))
    return False, difference(want.values, parts.values), whole.why


def count(names: list[str], compile_: Compile, reset: Callable[[], None]) -> Counts:
    """Measure the samples of these modules (all when the list is empty)."""
    total = Counts()
    for sample in samples(*names):
        one, differs, why = measure(sample, compile_, reset)
        total.samples += 1
        total.one += one
        total.equal += differs is None
        if not one or differs is not None:
            total.notes.append(f"{sample.name}: {'one graph' if one else 'graph breaks: ' + why}; {differs or 'equal'}")
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help='modules, as "nn.Linear"')
    parser.add_argument("--torch", action="store_true", help="measure torch.compile too")
    parser.add_argument("--list", action="store_true", help="name what is not in one graph or not equal")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    import argand

    systems: dict[str, tuple[Compile, Callable[[], None]]] = {"argand": (argand.compile, argand.reset)}
    if options.torch:
        from torch import _dynamo

        systems["torch.compile"] = (torch.compile, _dynamo.reset)
    print(f"{'':14s} samples  one  equal")
    for name, (compile_, reset) in systems.items():
        total = count(options.names, compile_, reset)
        print(f"{name:14s} {total.samples:7d} {total.one:4d} {total.equal:6d}")
        for note in total.notes if options.list else ():
            print(f"  {note}")


if __name__ == "__main__":
    main()
