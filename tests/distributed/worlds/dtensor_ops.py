"""torch's op_db on DTensors of drawn placements, by eager and by argand: results, layouts, gradients, errors.

    python -m tests.distributed.worlds.dtensor_ops [--every 1] [--samples 3] [--ranks 2] [--backend aot_eager] [names ...]

Each operation has processes of its own: one whose ranks wait for one another for ever is told with where each of them stood.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.utils import _pytree

import argand

sys.path.insert(0, str(Path(__file__).parents[2]))
from autograd.opdb_aot import UNDEFINED, fresh, load_op_db, samples  # noqa: E402
from distributed.ranks import codes_of, write_to  # noqa: E402

LONGEST = 60.0  # seconds of an operation
UNKNOWN = UNDEFINED | {
    "rand_like",
    "randn_like",
    "randint_like",
    "randint",
    "randn",
    "bernoulli",
    "multinomial",
    "normal",
}


def placements_of(chance: random.Random, tensor: torch.Tensor, dims: int) -> list[Placement]:
    """Where a tensor's parts are, along each of the mesh's dims."""
    choices: list[Placement] = [Replicate(), *(Shard(dim) for dim in range(tensor.dim()) if tensor.shape[dim])]
    return [chance.choice([*choices, Partial()] if tensor.is_floating_point() else choices) for _ in range(dims)]


def distributed(tensor: torch.Tensor, mesh: DeviceMesh, placements: list[Placement], grads: bool) -> torch.Tensor:
    """A leaf with the value of a tensor that all ranks have alike."""
    value = fresh(tensor.detach())
    if any(isinstance(p, Partial) for p in placements):
        whole = [Replicate() if isinstance(p, Partial) else p for p in placements]
        local = distribute_tensor(value, mesh, whole).to_local()
        value = DTensor.from_local(local, mesh, placements, run_check=False, shape=value.shape, stride=value.stride())
        value = value.detach()
    else:
        value = distribute_tensor(value, mesh, placements)
    return value.requires_grad_(grads and value.is_floating_point())


def told(value: Any) -> Any:
    """What is compared of a result."""
    if not isinstance(value, torch.Tensor):
        return value
    local = value._local_tensor if isinstance(value, DTensor) else value
    layout = (tuple(value.shape), value.stride(), str(value.placements)) if isinstance(value, DTensor) else ()
    return type(value).__name__, value.requires_grad, layout, local.dtype, local.detach().clone()


def whole(grad: Any) -> Any:
    """What is compared of a gradient, whose parts may be elsewhere than eager's."""
    return told(grad.full_tensor() if isinstance(grad, DTensor) else grad)


def outcome(call: Callable[..., Any], leaves: list[Any]) -> Any:
    """Results and gradients, or the error."""
    try:
        results = _pytree.tree_leaves(call(*leaves))
        tensors = [r for r in results if isinstance(r, DTensor) and r.requires_grad]
        answers = [told(r) for r in results]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    if not tensors or not wanted:
        return answers
    try:
        seeds = [torch.ones_like(r) for r in tensors]
        grads = torch.autograd.grad(tensors, wanted, seeds, allow_unused=True)
        return [*answers, *map(whole, grads)]
    except Exception as error:
        return [*answers, f"{type(error).__name__}: {error}"]


def same(ours: Any, eager: Any) -> bool:
    """Whether ours is eager's, or eager has no gradient where its rules lack one."""
    if isinstance(eager, torch.Tensor):
        return ours.shape == eager.shape and torch.allclose(ours, eager, rtol=1e-4, atol=1e-4, equal_nan=True)
    if isinstance(eager, list) and eager and isinstance(eager[-1], str):
        return all(map(same, ours, eager[:-1]))
    if isinstance(eager, (list, tuple)):
        return len(ours) == len(eager) and all(map(same, ours, eager))
    if isinstance(eager, str) and isinstance(ours, str):
        return ours.split(":")[0] == eager.split(":")[0]
    return bool(ours == eager) or (ours != ours and eager != eager)


def shown(ours: Any, eager: Any) -> str:
    """The first part that differs."""
    if isinstance(ours, list) and isinstance(eager, list) and len(ours) == len(eager):
        at = next(number for number, (a, b) in enumerate(zip(ours, eager)) if not same(a, b))
        return f"at {at} of {len(eager)}: {str(ours[at])[:600]}\n   eager: {str(eager[at])[:600]}"
    return f"{str(ours)[:600]}\n   eager: {str(eager)[:600]}"


def _compared(call: Callable[..., Any], leaves: list[Any], grads: bool, backend: str, at: Callable[[str], None]) -> str:
    """What differs for one sample; "" for nothing."""
    copies = [[leaf.detach().clone().requires_grad_(leaf.requires_grad) for leaf in leaves] for _ in range(3)]
    at("eager")
    torch.manual_seed(0)
    eager = outcome(call, copies[0])
    dist.barrier()
    argand.reset()
    compiled, difference = argand.compile(call, backend=backend), ""
    for number in (1, 2):
        at(f"argand {number}")
        torch.manual_seed(0)
        ours = outcome(compiled, copies[number])
        if not difference and (type(ours) is not type(eager) or not same(ours, eager)):
            difference = f"call {number}: {shown(ours, eager)}"
        dist.barrier()
    return difference or ("raises" if isinstance(eager, str) else "")


def _cases(
    op: Any, rank: int, options: argparse.Namespace, at: Callable[[str], None]
) -> tuple[list[str], Counter[str]]:
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,) if size < 4 else (2, size // 2))
    chance, problems, counts = random.Random(op.name), [], Counter[str]()
    torch.manual_seed(0)
    given = list(samples(op, torch.float32))
    for number, (call, leaves) in enumerate(chance.sample(given, min(options.samples, len(given)))):
        chosen = [placements_of(chance, leaf, mesh.ndim) for leaf in leaves]
        grads = op.supports_autograd and chance.random() < 0.6
        at(f"{number} inputs")
        try:
            inputs = [distributed(leaf, mesh, p, grads) for leaf, p in zip(leaves, chosen)]
        except Exception:
            counts["no such inputs"] += 1
            continue
        difference = _compared(call, inputs, grads, options.backend, lambda phase, n=number: at(f"{n} {phase}"))
        flags = [None] * size
        dist.all_gather_object(flags, difference)
        counts["raises" if flags[0] == "raises" else "compared"] += 1
        if any(flag not in ("", "raises") for flag in flags):
            placed = [(tuple(leaf.shape), p) for leaf, p in zip(leaves, chosen)]
            problems.append(f"{op.name} {op.variant_test_name} sample {number} grads={grads} {placed}\n   {difference}")
    return problems, counts


def _rank(op: Any, rank: int, folder: str, options: argparse.Namespace) -> None:
    write_to(Path(f"{folder}/{rank}.txt"))
    code = 1
    try:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        limit = datetime.timedelta(seconds=20)
        dist.init_process_group("gloo", f"file://{folder}/store", limit, options.ranks, rank)
        at = lambda phase: Path(f"{folder}/{rank}.at").write_text(phase)  # noqa: E731
        problems, counts = _cases(op, rank, options, at)
        Path(f"{folder}/{rank}.json").write_text(json.dumps([problems, counts]))
        dist.barrier()
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)


def compare(op: Any, options: argparse.Namespace) -> tuple[list[str], Counter[str]]:
    """What differs for an operation, told by rank 0."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(options.ranks):
            child = os.fork()
            if child == 0:
                torch.set_num_threads(1)
                _rank(op, rank, folder, options)
            ranks.append(child)
        codes = codes_of(ranks, LONGEST)
        if any(codes):
            stood = [Path(f"{folder}/{r}.at") for r in range(options.ranks)]
            where = [p.read_text() if p.exists() else "" for p in stood]
            texts = [Path(f"{folder}/{r}.txt").read_text()[-1500:] for r in range(options.ranks)]
            return [f"{op.name} {op.variant_test_name} ENDED {codes} at {where}\n" + "\n--\n".join(texts)], Counter()
        problems, counts = json.loads(Path(f"{folder}/0.json").read_text())
        return problems, Counter(counts)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--backend", default="aot_eager")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    ops = [op for op in load_op_db() if torch.float32 in op.dtypes and op.name not in UNKNOWN]
    ops = [op for op in ops if op.name in options.names] if options.names else ops[options.first :: options.every]
    total, wrong = Counter[str](), 0
    for op in ops:
        problems, counts = compare(op, options)
        total += counts
        wrong += len(problems)
        for problem in problems:
            print(problem, flush=True)
    print(f"{len(ops)} operations, {dict(total)}, {wrong} differ")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
