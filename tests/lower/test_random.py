"""Random small programs of views, pointwise ops and reductions against eager."""

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lowering_helpers import check

import sweeps

SHAPES = [(4,), (2, 3), (3, 1, 4), (2, 3, 4), (1,), (), (2, 0, 3), (2, 2, 3, 2)]


def unary(x, choice):
    return [
        lambda: x * 2,
        lambda: x.sin(),
        lambda: -x,
        lambda: x.relu(),
        lambda: (x > 0).to(x.dtype),
        lambda: torch.where(x > 0.5, x, 1.0),
        lambda: x.to(torch.int64).to(torch.float32),
        lambda: x.clamp(-1, 1),
        lambda: x.abs() + 1,
    ][choice % 9]()


def view(x, choice, pick):
    dims = x.dim()
    d = pick % dims if dims else 0
    e = (pick // 3) % dims if dims else 0
    options = [
        lambda: x.reshape(-1),
        lambda: x.unsqueeze(pick % (dims + 1)),
        lambda: x.squeeze(),
        lambda: x.transpose(d, e) if dims else x,
        lambda: x.flip(d) if dims else x,
        lambda: x.narrow(d, 0, (x.shape[d] + 1) // 2) if dims else x,
        lambda: x[..., ::2] if dims else x,
        lambda: x.select(d, x.shape[d] - 1) if dims and x.shape[d] else x,
        lambda: x.expand(2, *x.shape),
        lambda: x.contiguous(),
        lambda: x.reshape(x.shape[::-1]),
        lambda: torch.cat([x, x * 3], d) if dims else x,
        lambda: torch.nn.functional.pad(x, (1, 1)) if dims else x,
        lambda: x.unfold(d, 1, 1) if dims and x.shape[d] else x,
        lambda: x.movedim(d, e).flatten(min(d, e)) if dims else x,
        lambda: x.diagonal(0, 0, 1) if dims > 1 else x,
    ]
    return options[choice % len(options)]()


def reduction(x, choice, pick):
    dims = x.dim()
    d = pick % dims if dims else 0
    options = [
        lambda: x.sum(d) if dims else x.sum(),
        lambda: x.mean(d, keepdim=True) if dims and x.shape[d] else x.sum(),
        lambda: x.amax(d) if dims and x.shape[d] else x,
        lambda: x.softmax(d) if dims else x.softmax(0),
        lambda: x.var(d, correction=0) if dims and x.shape[d] else x,
        lambda: x.argmax(d).to(x.dtype) if dims and x.shape[d] else x,
    ]
    return options[choice % len(options)]()


def program(steps):
    def run(a, b):
        values = [a, b]
        for kind, choice, pick in steps:
            x = values[pick % len(values)]
            if kind == 0:
                made = unary(x, choice)
            elif kind == 1:
                made = view(x, choice, pick // 4)
            elif kind == 2:
                made = reduction(x, choice, pick // 4)
            else:
                y = values[(pick // 5) % len(values)]
                try:
                    torch.broadcast_shapes(x.shape, y.shape)
                except RuntimeError:
                    continue
                made = [torch.add, torch.mul, torch.maximum][choice % 3](x, y)
            if made.numel() < 4000:
                values.append(made)
        return tuple(value * 1 for value in values[-3:])

    return run


steps = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(0, 500)), min_size=1, max_size=10)


@settings(max_examples=sweeps.part(120, 4), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps, st.sampled_from(SHAPES), st.sampled_from(SHAPES), st.integers(0, 3), st.booleans())
def test_random_programs(chosen, shape, other, layout, passes):
    torch.manual_seed(0)
    x, y = torch.randn(shape), torch.randn(other)
    if layout == 1 and len(shape) > 1:
        x = x.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == 2 and shape:
        x = torch.randn(*shape, 2)[..., 1]
    if layout == 3 and len(shape) == 4:
        x = x.to(memory_format=torch.channels_last)
    check(program(chosen), x, y, passes=passes)
