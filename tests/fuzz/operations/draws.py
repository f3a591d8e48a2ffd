"""Random programs that draw random numbers, against eager: numbers, what is made of them, and the generators' states.

Draws into views, into `out=` of other dtypes and layouts, like tensors in many layouts, from generators of the
program's own, between seeds, in `vmap` of every randomness, dropouts and distributions, with gradients. Backends that
promise eager's numbers are tried, "native" with `fallback_random`.

    python tests/fuzz/operations/draws.py --count 200 --backends aot_eager,native
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import torch

import argand

sys.path.insert(0, str(Path(__file__).parents[1]))

import seeds
import snapshots
from varying import loaded

# fmt: off
DRAWN = (
    "torch.rand_like({v})", "torch.randn_like({v}, dtype=torch.float64)", "torch.randint_like({v}, 0, 9)", "torch.rand(3, k)", "torch.randn({v}.shape)", "torch.randperm(k + 3)", "torch.randint(0, k + 5, (k,))", "torch.bernoulli({v}.sigmoid())", "{v}.bernoulli(0.3)",
    "F.dropout({v}, 0.3)", "F.feature_dropout({v}[None], 0.4)", "F.alpha_dropout({v}, 0.3)", "F.dropout2d({v}[None], 0.4)", "F.rrelu({v}, training=True)", "F.gumbel_softmax({v}, hard=True)", "torch.multinomial({v}.softmax(-1), 2)", "torch.multinomial({v}.softmax(-1), 5, replacement=True)",
    "torch.normal(0.0, 1.0, (2, 3))", "torch.normal({v}, 1.0)", "torch.normal(0.0, {v}.abs())", "torch.poisson({v}.abs())", "torch._standard_gamma({v}.abs() + 0.1)", "torch.binomial(torch.full_like({v}, 5).detach(), {v}.sigmoid().detach())", "torch.randn(2, dtype=torch.complex64)", "torch.rand(3, dtype=torch.bfloat16)",
    "torch.randn(17)", "torch.randn(15, dtype=torch.float64)", "torch.rand(2, generator=g)", "torch.bernoulli({v}.sigmoid(), generator=g)", "torch.normal({v}, 1.0, generator=g)", "torch.nn.init.trunc_normal_(torch.empty(3, 3))", "torch.nn.init.orthogonal_(torch.empty(3, 3))", "torch.get_rng_state()[:9]", "torch.initial_seed()",
    "torch.distributions.Normal({v}, 1.0).rsample()", "torch.distributions.Categorical(logits={v}).sample((2,))", "torch.distributions.Beta({v}.abs() + 0.1, 1.0).rsample()", "torch.distributions.Laplace({v}, 1.0).rsample()", "torch.rand(2) if torch.rand(()) > 0.5 else torch.randn(2)",
    "torch.vmap(lambda t: torch.rand_like(t), randomness='different')({v})", "torch.vmap(lambda t: F.dropout(t, 0.5), randomness={r})({v})", "torch.vmap(lambda t: torch.randn(3) + t.sum(), randomness={r}, chunk_size=2)({v})", "torch.vmap(lambda t: t.clone().bernoulli_(0.5), randomness={r})({v})", "torch.func.jacfwd(lambda t: t * torch.rand(()), randomness={r})({v}[0])",
)
VIEWS = ("{v}.clone()", "{v}.clone()[::2]", "{v}.clone()[:, 1:]", "{v}.clone().t()", "{v}.clone()[:, 0]", "{v}.clone().t()[::2]", "torch.zeros({v}.shape)", "torch.zeros({v}.shape, dtype=torch.float64).t()", "{v}.detach()", "torch.empty_like({v}.t())", "torch.zeros(20, 8)[:, ::2]")
FILLS = (
    "{m}.uniform_(-1, 2)", "{m}.normal_(1, 2)", "{m}.bernoulli_(0.3)", "{m}.bernoulli_({m}.sigmoid())", "{m}.exponential_()", "{m}.cauchy_()", "{m}.log_normal_()", "{m}.geometric_(0.4)", "{m}.random_(5)", "{m}.normal_(generator=g)", "torch.rand({m}.shape, out={m})", "torch.randn({m}.shape, out={m})",
    "torch.normal({m}.float(), 1.0, out={m})", "torch.bernoulli({m}.float().sigmoid(), out={m})", "torch.nn.init.kaiming_uniform_({m}.detach())", "{m}.copy_(torch.randn_like({m}))", "F.dropout({m}, 0.5, True, True)",
)
STATES = ("torch.manual_seed(k)", "g.manual_seed(4)", "state = torch.get_rng_state(); torch.rand(3); torch.set_rng_state(state)", "with torch.random.fork_rng(devices=[]): out.append(torch.randn(3))", "argand.graph_break()", "g = torch.Generator().manual_seed(k)")
# fmt: on
SHAPES = ((4, 4), (3, 4), (4, 17), (5, 16), (6, 5), (8, 4))


def program(seed: int) -> str:
    rng = random.Random(seed)
    text = ["def f(x, y, g, k):", "    import argand", "    out = []"]
    for at in range(rng.randint(3, 8)):
        way, chosen = rng.random(), {"v": rng.choice("xy"), "r": rng.choice(("'same'", "'different'", "'error'"))}
        if way < 0.55:
            lines = [f"out.append({rng.choice(DRAWN)})".format(**chosen)]
        elif way < 0.85:
            lines = [f"m{at} = {rng.choice(VIEWS)}".format(**chosen), rng.choice(FILLS).format(m=f"m{at}")]
            lines += [f"out.append(m{at})"]
        else:
            lines = [rng.choice(STATES)]
        text += ["    try:", *(f"        {line}" for line in lines)]
        text += ["    except (RuntimeError, ValueError, IndexError, TypeError) as error:", "        out.append(type(error).__name__)"]  # fmt: skip
    return "\n".join([*text, "    return out"]) + "\n"


def seen(fn: Any, seed: int, gradients: bool) -> Any:
    rng, values = random.Random(seed), torch.Generator().manual_seed(seed)
    x, y = (torch.randn(rng.choice(SHAPES), generator=values).requires_grad_(gradients) for _ in range(2))
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    results = fn(x, y, generator, rng.choice((2, 3, 4)))
    told = [(r.detach().clone(), r.stride(), r.requires_grad) if isinstance(r, torch.Tensor) else r for r in results]
    loss = [r.double().abs().sum() for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    if loss:
        torch.stack(loss).sum().backward()
    states = [torch.get_rng_state(), generator.get_state()]
    return [told, [t.detach().clone() for t in (x, y)], [t.grad for t in (x, y)], states]


def difference(text: str, seed: int, backend: str) -> str | None:
    """How the compiled program differs in calls with other sizes."""
    eager, gradients = loaded(text), seed % 2 == 0
    with argand.config.patch(fallback_random=True), seeds.calls():
        fn = argand.compile(loaded(text), backend=backend, dynamic=(None, True, None)[seed % 3])
        for call in range(3):
            drawn = 1000 * seed + call
            how = snapshots.differing(*[seen(one, drawn, gradients) for one in (eager, fn)])
            if how is not None:
                return f"call {call}{how[:700]}"
    return None


def main() -> int:
    return seeds.run_programs(seeds.parser(__doc__, 200, "aot_eager").parse_args(), program, difference)


if __name__ == "__main__":
    sys.exit(main())
