"""A folder of models on a GPU: inference and training steps compiled by argand, equal to eager's.

    python tests/gpu/zoo.py FOLDER [NAME ...] [--no-training] [--jobs N] [--json OUT]

FOLDER has a `zoo.py` with `ZOO[name]() -> (model, inputs)`, `INPUTS[name]() -> fresh inputs`. Each model runs in a
process of its own: results on the first and on fresh inputs, then gradients of the mean square of the first result,
over three steps, without TF32 and with eager's random numbers. A model that cannot be made is skipped. Without a GPU
the same runs on the CPU (for this script itself). Exit status 1 if any differs.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

LIMIT = 240.0  # seconds of a model


def leaves(value: Any) -> list[Any]:
    import torch
    from torch.utils import _pytree as pytree

    found = pytree.tree_leaves(dict(value) if hasattr(value, "keys") else value)
    return [leaf.detach() for leaf in found if isinstance(leaf, torch.Tensor)]


def moved(value: Any, device: str) -> Any:
    import torch
    from torch.utils import _pytree as pytree

    return pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf, value)


def differs(want: list[Any], got: list[Any], exact: list[Any]) -> str:
    """What differs by more than rounding: further from eager's results than these are from `exact`'s."""
    import torch

    if len(want) != len(got):
        return f"{len(got)} tensors instead of {len(want)}"
    for number, (one, two) in enumerate(zip(want, got)):
        if one.shape != two.shape or one.dtype != two.dtype or one.device != two.device:
            return (
                f"tensor {number} is {two.dtype}{list(two.shape)} on {two.device}, eager's {one.dtype}{list(one.shape)}"
            )
        if not one.is_floating_point():
            if not torch.equal(one, two):
                return f"tensor {number}: {int((one != two).sum())} of {one.numel()} values"
            continue
        scale = float(one.double().abs().nan_to_num(posinf=0.0).max()) if one.numel() else 0.0
        allowed = 1e-4 * max(scale, 1e-4)
        if len(exact) == len(want) and exact[number].shape == one.shape:
            allowed += 8 * float((one.double() - exact[number].double()).abs().nan_to_num().max()) if one.numel() else 0
        if not torch.allclose(one.double(), two.double(), rtol=1e-4, atol=allowed, equal_nan=True):
            found = float((one.double() - two.double()).abs().nan_to_num().max())
            return f"tensor {number}: by up to {found:.3g}, largest value {scale:.3g}"
    return ""


def gradients(model: Any, call: Any, inputs: Any) -> list[Any]:
    import torch

    model.zero_grad(set_to_none=True)
    torch.manual_seed(0)
    first = next(leaf for leaf in leaves_with_graph(call(**inputs)) if leaf.is_floating_point() and leaf.requires_grad)
    first.to(torch.promote_types(first.dtype, torch.float32)).pow(2).mean().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None and p.grad.abs().max() > 0]


def leaves_with_graph(value: Any) -> list[Any]:
    import torch
    from torch.utils import _pytree as pytree

    return [
        x for x in pytree.tree_leaves(dict(value) if hasattr(value, "keys") else value) if isinstance(x, torch.Tensor)
    ]


def widened(inputs: Any) -> Any:
    import torch
    from torch.utils import _pytree as pytree

    return pytree.tree_map(lambda x: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x, inputs)


def rounding(model: Any, function: Any, wider: Any) -> list[Any]:
    """Results that differ from eager's by what rounding does to them.

    In float64, where the model runs in it and draws no random numbers (in float64 it would draw others); else of
    parameters that are one rounding away.
    """
    import torch

    before = drawn()
    torch.set_default_dtype(torch.float64)  # of what the model makes itself
    try:
        found: list[Any] = wider()
        if all(torch.equal(one, two) for one, two in zip(before, drawn())):
            return found
    except Exception:  # it has float32 numbers in its code
        pass
    finally:
        torch.set_default_dtype(torch.float32)
        model.float()
    kept = [parameter.detach().clone() for parameter in model.parameters()]
    signs = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            sign = torch.randint(2, parameter.shape, generator=signs).to(parameter.device) * 2 - 1
            parameter.mul_(1 + sign * 2.0**-23)
    torch.manual_seed(0)
    found = function()
    with torch.no_grad():
        for parameter, old in zip(model.parameters(), kept):
            parameter.copy_(old)
    return found


def drawn() -> list[Any]:
    """The states of the generators."""
    import torch

    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if torch.cuda.is_available() else [])]


def check(zoo: Any, name: str, training: bool) -> dict[str, Any]:
    """One model."""
    import torch

    import argand
    from argand import events

    device = "cuda" if torch.cuda.is_available() else "cpu"
    told: dict[str, Any] = {"name": name, "fallbacks": []}
    events.bus.subscribe(lambda event: told["fallbacks"].append(event.text()[:200]), ("fallback",))
    torch.backends.cudnn.allow_tf32 = False  # which kernel rounds to TF32 depends on layouts
    argand.config.fallback_random = True  # eager's random numbers
    try:
        model, inputs = zoo.ZOO[name]()
    except Exception as error:  # this version of its library makes it otherwise
        told["skipped"] = f"{type(error).__name__}: {error}"[:200]
        return told
    torch.manual_seed(7)
    both = [moved(inputs, device), moved(zoo.INPUTS[name](), device)]
    model = model.to(device)
    begin = time.perf_counter()
    compiled = argand.compile(model)
    with torch.no_grad():
        for number, given in enumerate(both):
            torch.manual_seed(0)
            want = leaves(model(**given))
            exact = rounding(model, lambda: leaves(model(**given)), lambda: leaves(model.double()(**widened(given))))
            torch.manual_seed(0)
            got = leaves(compiled(**given))
            told["seconds"] = told.get("seconds", time.perf_counter() - begin)
            if found := differs(want, got, exact):
                told["inference"] = f"inputs {number}: {found}"
                break
    if not training:
        return told
    argand.reset()
    model, _ = zoo.ZOO[name]()
    model = model.to(device)
    try:
        want = gradients(model, model, both[0])
    except Exception as error:
        told["no training"] = f"{type(error).__name__}: {error}"[:200]
        return told
    exact = rounding(
        model,
        lambda: gradients(model, model, both[0]),
        lambda: gradients(model.double(), model, widened(both[0])),
    )
    compiled = argand.compile(model)
    for step in range(3):
        if found := differs(want, gradients(model, compiled, both[0]), exact):
            told["training"] = f"step {step}: {found}"
            break
    return told


def worker(folder: str, name: str, training: bool) -> None:
    sys.path.insert(0, folder)
    warnings.filterwarnings("ignore")
    import transformers
    import zoo

    transformers.logging.set_verbosity_error()
    try:
        told = check(zoo, name, training)
    except Exception as error:
        told = {"name": name, "error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]}
    print("RESULT " + json.dumps(told), flush=True)


def run(folder: str, name: str, training: bool) -> dict[str, Any]:
    command = [sys.executable, os.path.abspath(__file__), folder, name, "--worker"] + ["--no-training"] * (not training)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return {"name": name, "error": f"no end within {LIMIT:.0f} s"}
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return dict(json.loads(line.removeprefix("RESULT ")))
    return {"name": name, "error": " | ".join((done.stderr or done.stdout).strip().splitlines()[-3:])[-400:]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--no-training", action="store_true")
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--json")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args()
    if options.worker:
        worker(options.folder, options.names[0], not options.no_training)
        return 0
    if not (Path(options.folder) / "zoo.py").exists():
        print(f"{options.folder} has no zoo.py: skipped")
        return 0
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    names = options.names
    if not names:
        listing = "import sys; sys.path.insert(0, sys.argv[1]); import zoo; print(*zoo.ZOO)"
        names = subprocess.run(
            [sys.executable, "-c", listing, options.folder], capture_output=True, text=True, check=True
        ).stdout.split()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        told = list(pool.map(lambda name: run(options.folder, name, not options.no_training), names))
    wrong = [one for one in told if {"inference", "training", "error"} & set(one)]
    for one in wrong:
        print(one["name"], {key: value for key, value in one.items() if key in ("inference", "training", "error")})
    for one in told:
        if "skipped" in one:
            print(one["name"], "skipped: it cannot be made:", one["skipped"])
        if one.get("fallbacks"):
            print(one["name"], "fell back:", " ; ".join(dict.fromkeys(one["fallbacks"])))
    made = [one for one in told if "skipped" not in one]
    trained = sum("no training" not in one and "error" not in one for one in made)
    print(
        f"{len(made) - len(wrong)} of {len(made)} models equal eager ({0 if options.no_training else trained} trained)"
        + f", {len(told) - len(made)} skipped" * (len(made) < len(told))
    )
    if options.json:
        Path(options.json).write_text(json.dumps(told, indent=1))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
