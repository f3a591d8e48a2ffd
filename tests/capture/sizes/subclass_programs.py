"""Programs with tensor subclasses, `__torch_function__` and duck arrays, for test_subclasses.py.

Each is a function and makers of its arguments; LOG is what the classes' own code has heard.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

LOG: list[Any] = []
CASES: dict[str, tuple[Callable[..., Any], tuple[Callable[[], Any], ...]]] = {}


def case(*makers: Any) -> Any:
    """Register a program: a function of what the makers make."""

    def register(fn: Any) -> Any:
        CASES[fn.__name__] = (fn, makers)
        return fn

    return register


def made(cls, *s: Any) -> Any:
    torch.manual_seed(0)
    return torch.randn(*(s or (3,))).as_subclass(cls)


def labelled(t: Any, **k: Any) -> Any:
    for a, b in k.items():
        setattr(t, a, b)
    return t


class Sub(torch.Tensor):
    def twice(self) -> Any:
        return self * 2

    @property
    def p(self) -> Any:
        return self.shape[0]


class Log(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        LOG.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


class Meta(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(out, Meta):
            for a in args:
                if isinstance(a, Meta) and hasattr(a, "label"):
                    out.label = a.label
                    break
        return out


class Dis(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


class With(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            r = func(*args, **(kwargs or {}))
        if type(r) is torch.Tensor:
            return r.as_subclass(cls)
        return r


class Sub2(Sub):
    pass


class Wrap:
    def __init__(self, t: Any) -> None:
        self.t = t

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = [a.t if isinstance(a, Wrap) else a for a in args]
        return cls(func(*args, **(kwargs or {})))


class Init(torch.Tensor):
    @staticmethod
    def __new__(cls, x: Any, meta: Any = None, *a: Any, **k: Any) -> Any:
        return super().__new__(cls, x, *a, **k)

    def __init__(self, x: Any, meta: Any = None) -> None:
        self.meta = meta


class New(torch.Tensor):
    def __new__(cls, x: Any, m: Any) -> Any:
        r = torch.Tensor._make_subclass(cls, x)
        r.m = m
        return r


class AsNew(torch.Tensor):
    def __new__(cls, x: Any, m: Any = 0) -> Any:
        r = x.as_subclass(cls)
        r.m = m
        return r


class Dunder(torch.Tensor):
    def __add__(self, o: Any) -> Any:
        return super().__add__(o) * 2

    def __getitem__(self, i: Any) -> Any:
        return ("item", super().__getitem__(i))

    def __len__(self) -> Any:
        return 42

    def __call__(self, k: Any) -> Any:
        return self * k

    def sum(self, *a: Any) -> Any:
        return super().sum(*a) + 1


class Tagged:
    """No tensor: holds one, and a tag that results keep."""

    def __init__(self, held: Any, tag: Any) -> None:
        self.held = held
        self.tag = tag

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tags = [arg.tag for arg in args if type(arg) is Tagged]
        held = [arg.held if type(arg) is Tagged else arg for arg in args]
        return Tagged(func(*held, **(kwargs or {})), tags[0])


ANSWERS: dict[Any, Any] = {}


def answers(function: Any) -> Any:
    def register(fn: Any) -> Any:
        ANSWERS[function] = fn
        return fn

    return register


class Diagonal:
    """A multiple of the identity matrix, for which a few functions are known."""

    def __init__(self, size: int, factor: float) -> None:
        self.size = size
        self.factor = factor

    def dense(self) -> Any:
        return torch.eye(self.size) * self.factor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = ANSWERS.get(func)
        if known is None or any(not issubclass(kind, torch.Tensor | Diagonal) for kind in types):
            return NotImplemented
        return known(*args, **(kwargs or {}))


@answers(torch.trace)
def trace_of(a: Any) -> Any:
    return a.factor * a.size


@answers(torch.add)
def sum_of(a: Any, b: Any) -> Any:
    if type(a) is type(b) is Diagonal:
        return Diagonal(a.size, a.factor + b.factor)
    return torch.add(*[value.dense() if type(value) is Diagonal else value for value in (a, b)])


class A(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        LOG.append("A")
        if any(t is B for t in types):
            return NotImplemented
        return super().__torch_function__(func, types, args, kwargs or {})


class B(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        LOG.append("B")
        a = [x.as_subclass(torch.Tensor) if isinstance(x, torch.Tensor) else x for x in args]
        return func(*a, **(kwargs or {})).as_subclass(B)


class Raise(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.add:
            raise ValueError("no add")
        return super().__torch_function__(func, types, args, kwargs or {})


class Holder(torch.Tensor):
    """Computes on a tensor that it holds, and wraps the result."""

    def __new__(cls, inner: Any) -> Any:
        return torch.Tensor._make_subclass(cls, inner)

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def un(t: Any) -> Any:
            return t.__dict__["inner"] if isinstance(t, Holder) else t

        with torch._C.DisableTorchFunctionSubclass():
            r = func(*[un(a) for a in args], **{k: un(v) for k, v in (kwargs or {}).items()})
        return Holder(r) if isinstance(r, torch.Tensor) else r


class Mode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        LOG.append(("mode", func.__name__, [t.__name__ for t in types]))
        return func(*args, **(kwargs or {}))


def S() -> Any:
    return made(Sub)


def T() -> Any:
    return torch.arange(3.0)


G = made(Sub)


@case(S)
def add(x: Any) -> Any:
    return x + 1


@case(S)
def meth(x: Any) -> Any:
    return x.twice(), x.p, type(x), isinstance(x, Sub), type(x)(x.sin())


@case(S, lambda: torch.ones(3))
def mixed(x: Any, y: Any) -> Any:
    return y + x, torch.add(y, x), 1 - x, x @ y, x.sum(), x.max(0), torch.stack([x, y]), x.unbind()


@case(S)
def inplace(x: Any) -> Any:
    y = x.add_(1)
    z = x
    x += 1
    return y, y is z, x is z


@case(S)
def ident(x: Any) -> Any:
    return x, x.view(3), x.contiguous() is x, x.clone(), x[0], x[1:]


@case(S)
def unsub(x: Any) -> Any:
    y = x.as_subclass(torch.Tensor)
    y.add_(1)
    return y, x * 1, y is x


@case(lambda: torch.ones(3))
def dosub(x: Any) -> Any:
    y = x.as_subclass(Sub)
    return y, y.twice(), y + x


@case(lambda: made(Log))
def log(x: Any) -> Any:
    y = torch.relu(x) + x.shape[0]
    return y.sum(), torch.nn.functional.linear(y, y)


@case(lambda: labelled(made(Meta), label="a"))
def meta(x: Any) -> Any:
    y = (x * 2).exp()
    return y, y.label, x.label


@case(lambda: made(Meta))
def nometa(x: Any) -> Any:
    y = (x * 2).exp()
    return y, hasattr(y, "label"), getattr(x, "label", "none")


@case(lambda: made(Dis), lambda: torch.ones(3))
def dis(x: Any, y: Any) -> Any:
    return x + 1, x + y, x.add_(1)


@case(lambda: made(With))
def with_(x: Any) -> Any:
    return x + 1, x.add_(2), x.shape


@case(S, lambda: made(Sub2))
def prec(x: Any, y: Any) -> Any:
    return x + y, y + x, torch.cat([x, y])


@case(lambda: Wrap(torch.ones(3)))
def duck(w: Any) -> Any:
    return torch.add(w, 1).t, torch.sum(w).t


@case(S)
def setlab(x: Any) -> Any:
    x.label = "b"
    y = x + 1
    y.k = [x]
    return y, x.label


@case(lambda: torch.nn.Parameter(made(Sub)))
def param(p: Any) -> Any:
    return (p * 2).sum(), isinstance(p, torch.nn.Parameter)


@case(lambda: labelled(torch.ones(3), label="q"))
def plainlab(x: Any) -> Any:
    return x + 1, x.label


@case(S)
def dtf(x: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        y = x + 1
    return y, x * 2


@case(S)
def setitem(x: Any) -> Any:
    x[0] = 5.0
    return x, x[0]


@case(S)
def loop(x: Any) -> Any:
    return [a * 2 for a in x], len(x)


@case(T)
def ctor(x: Any) -> Any:
    y = Sub(x)
    return y + 1, y, x


@case(T)
def ctor_init(x: Any) -> Any:
    y = Init(x, "m")
    return y, y.meta, y * 2


@case(T)
def ctor_new(x: Any) -> Any:
    y = New(x, "m")
    return y, y.m, y * 2


@case(T)
def ctor_asnew(x: Any) -> Any:
    y = AsNew(x, "m")
    z = AsNew(y + 1, 5)
    return y, y.m, y * 2, z


@case(lambda: made(Dunder))
def dunder(x: Any) -> Any:
    return x + 1, x[0], len(x), x(3), x.sum(), 1 + x, x * 2


@case(lambda: Tagged(torch.tensor([1.0, 2.0]), {"a": 1}))
def tagged(m: Any) -> Any:
    r = torch.add(m, torch.ones(2))
    return r.held, r.tag, torch.sum(m).held


@case(lambda: Diagonal(3, 2.0))
def diagonal(d: Any) -> Any:
    return torch.trace(d), torch.add(d, torch.ones(3, 3)), torch.add(d, d).factor


@case(lambda: made(A), lambda: made(B))
def twofn(a: Any, b: Any) -> Any:
    return a + b, b + a, a * 2, b * 2


@case(lambda: made(Raise))
def raises(x: Any) -> Any:
    y = x * 2
    try:
        x + 1
    except ValueError as e:
        return y, str(e)


@case(lambda: Holder(torch.ones(3)))
def holder(h: Any) -> Any:
    return (h + 1).inner, h * h


@case(S)
def props(x: Any) -> Any:
    return (
        x.device,
        x.dtype,
        x.T,
        x.shape,
        x.numel(),
        x.is_leaf,
        x.requires_grad,
        x.detach(),
        x.data,
        x.grad,
        x.dim(),
        x.size(0),
        x.is_contiguous(),
        x.stride(),
        x.ndim,
        x.__class__,
        type(x).__name__,
    )


@case(S)
def unbound(x: Any) -> Any:
    return torch.Tensor.add(x, 1), torch.Tensor.__add__(x, 1), torch.Tensor.sum(x), torch.relu_(x)


@case(lambda: [made(Sub), {"a": made(Sub2)}])
def nested(l: Any) -> Any:
    return torch.cat([l[0], l[1]["a"]]), l[0] + l[1]["a"]


@case(lambda: labelled(made(Sub), mask=torch.ones(3)))
def attr_tensor(x: Any) -> Any:
    return x * x.mask, x.mask


@case(S, lambda: torch.zeros(3))
def outarg(x: Any, o: Any) -> Any:
    r = torch.add(x, 1, out=o)
    return r, o


@case(T)
def glob(x: Any) -> Any:
    return x + G, G


@case(S)
def where(x: Any) -> Any:
    return (
        torch.where(x > 0, x, 0.0),
        torch.einsum("i,i->", x, x),
        x.to(torch.float64),
        x.split(1),
        x.chunk(3),
        torch.topk(x, 2),
        x.sort(),
    )


@case(lambda: made(Log))
def mode(x: Any) -> Any:
    with Mode():
        y = x + 1
    return y


@case(S)
def rg(x: Any) -> Any:
    y = (x * 2).requires_grad_()
    return y, y.requires_grad


@case(S)
def item(x: Any) -> Any:
    return x * x[0].item()


@case(S)
def mask(x: Any) -> Any:
    return x[x > 0]


@case(S)
def setdata(x: Any) -> Any:
    x.foo = x
    return x + 1


@case(S)
def delattr_(x: Any) -> Any:
    y = x + 1
    y.a = 1
    del y.a
    return y, hasattr(y, "a")


@case(S)
def dct(x: Any) -> Any:
    y = x + 1
    y.k = 2
    return y, dict(y.__dict__), vars(y)


@case(S)
def cond(x: Any) -> Any:
    y = x * 2
    return y if isinstance(y, Sub) else None, isinstance(y, torch.Tensor), issubclass(type(y), Sub), torch.is_tensor(y)


@case(S)
def swap(x: Any) -> Any:
    def inner(t: Any) -> Any:
        return t.sin().as_subclass(Sub2)

    return torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)


@case(lambda: made(Sub, 2, 3))
def vmap(x: Any) -> Any:
    return torch.func.vmap(lambda r: r * 2)(x)


@case(S)
def nograd(x: Any) -> Any:
    with torch.no_grad():
        x.mul_(2)
    return x


@case(S)
def resz(x: Any) -> Any:
    y = x + 1
    y.unsqueeze_(0)
    y.t_()
    return y, y.shape


@case(S)
def weak(x: Any) -> Any:
    r = weakref.ref(x)
    y = x + 1
    return r() is x, y


@case(S)
def new_(x: Any) -> Any:
    return x.new_zeros(3), x.new_tensor([1.0]), torch.zeros_like(x), torch.empty_like(x).fill_(0)


@case(S)
def comp(x: Any) -> Any:
    return sum([x, x, x]), max(x.shape), functools.reduce(torch.add, [x, x])
