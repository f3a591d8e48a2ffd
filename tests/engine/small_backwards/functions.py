"""Functions of the program's own with a backward: what they keep, give and refuse."""

import torch
from torch.autograd import Function, grad


def leaf(*size):
    return torch.randn(*size, requires_grad=True)


class Exp(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y


class Attr(Function):
    @staticmethod
    def forward(ctx, x, k, t, n):
        ctx.k = k
        ctx.shape = x.shape
        ctx.t = t
        ctx.n = n
        return x * k

    @staticmethod
    def backward(ctx, g):
        return (g * ctx.k * ctx.t.sum(), None, None, None)


class Multi(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return (a * b, a + b, a.argmax())

    @staticmethod
    def backward(ctx, g1, g2, g3):
        a, b = ctx.saved_tensors
        return (g1 * b + g2, g1 * a + g2)


class NoMat(Function):
    @staticmethod
    def forward(ctx, a):
        ctx.set_materialize_grads(False)
        return (a * 2, a * 3)

    @staticmethod
    def backward(ctx, g1, g2):
        return (g1 * 2 if g2 is None else g1 * 2 + g2 * 3) if g1 is not None else g2 * 3


class NonDiff(Function):
    @staticmethod
    def forward(ctx, a):
        b = a * 2
        c = a.round()
        ctx.mark_non_differentiable(c)
        return (b, c)

    @staticmethod
    def backward(ctx, g, gc):
        return g * 2 + gc


class Dirty(Function):
    @staticmethod
    def forward(ctx, a):
        a.mul_(2)
        ctx.mark_dirty(a)
        return a

    @staticmethod
    def backward(ctx, g):
        return g * 2


class WrongCount(Function):
    @staticmethod
    def forward(ctx, a, b):
        return a * b

    @staticmethod
    def backward(ctx, g):
        return g


class TooMany(Function):
    @staticmethod
    def forward(ctx, a):
        return a * 2

    @staticmethod
    def backward(ctx, g):
        return (g, None, None)


class WrongShape(Function):
    @staticmethod
    def forward(ctx, a):
        return a * 2

    @staticmethod
    def backward(ctx, g):
        return torch.ones(7)


class Bcast(Function):
    @staticmethod
    def forward(ctx, a):
        return a * 2

    @staticmethod
    def backward(ctx, g):
        return torch.ones(3, 4)


class Raises(Function):
    @staticmethod
    def forward(ctx, a):
        return a * 2

    @staticmethod
    def backward(ctx, g):
        raise ValueError("no way")


class Once(Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return a * 2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * 2


class Setup(Function):
    @staticmethod
    def forward(a, b):
        return a * b

    @staticmethod
    def setup_context(ctx, inputs, output):
        a, b = inputs
        ctx.save_for_backward(a, b)
        ctx.o = output.shape

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return (g * b, g * a)


class Needs(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return (g * b if ctx.needs_input_grad[0] else None, g * a if ctx.needs_input_grad[1] else None)


class View(Function):
    @staticmethod
    def forward(ctx, a):
        return a.view(2, 2)

    @staticmethod
    def backward(ctx, g):
        return g.reshape(4)


class Ident(Function):
    @staticmethod
    def forward(ctx, a):
        return a

    @staticmethod
    def backward(ctx, g):
        return g * 5


class Nested(Function):
    @staticmethod
    def forward(ctx, a):
        with torch.enable_grad():
            x = a.detach().requires_grad_()
            y = x.sin() * x
        ctx.x, ctx.y = (x, y)
        return y.detach()

    @staticmethod
    def backward(ctx, g):
        with torch.enable_grad():
            ctx.y.backward(g)
        return ctx.x.grad


class Stateful(Function):
    calls = 0

    @staticmethod
    def forward(ctx, a):
        return a * 1

    @staticmethod
    def backward(ctx, g):
        Stateful.calls += 1
        return g * Stateful.calls


class Save2(Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a, a, None)
        return a * 2

    @staticmethod
    def backward(ctx, g):
        a, b, c = ctx.saved_tensors
        return g * a * b if c is None else g


class SaveInter(Function):
    @staticmethod
    def forward(ctx, a):
        t = a.sin()
        ctx.t = t
        ctx.save_for_backward(a)
        return t * a

    @staticmethod
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        return g * (ctx.t + a)


class NoneGrad(Function):
    @staticmethod
    def forward(ctx, a, b):
        return a + b

    @staticmethod
    def backward(ctx, g):
        return (None, g)


class IntIn(Function):
    @staticmethod
    def forward(ctx, a, i):
        ctx.save_for_backward(i)
        return a[i]

    @staticmethod
    def backward(ctx, g):
        (i,) = ctx.saved_tensors
        o = torch.zeros(5)
        o[i] = g
        return (o, None)


class Kw(Function):
    @staticmethod
    def forward(ctx, a, d):
        ctx.d = d
        return a * d["k"]

    @staticmethod
    def backward(ctx, g):
        return (g * ctx.d["k"], None)


def fn(log):
    x = leaf(5)
    Exp.apply(x).sum().backward()
    return x.grad


def fn_double(log):
    x = leaf(5)
    (g,) = grad(Exp.apply(x).sum(), x, create_graph=True)
    g.sum().backward()
    return x.grad


def fn_attr(log):
    x = leaf(5)
    Attr.apply(x, 3, torch.ones(2), "n").sum().backward()
    return x.grad


def fn_multi(log):
    a, b = (leaf(4), leaf(4))
    p, q, i = Multi.apply(a, b)
    log.append((i.requires_grad,))
    p.sum().backward()
    return (a.grad, b.grad)


def fn_nomat(log):
    a = leaf(4)
    p, q = NoMat.apply(a)
    q.sum().backward()
    return a.grad


def fn_nondiff(log):
    a = leaf(4)
    p, q = NonDiff.apply(a)
    log.append((q.requires_grad, p.requires_grad))
    p.sum().backward()
    return a.grad


def fn_dirty(log):
    x = leaf(4)
    y = x * 1
    z = Dirty.apply(y)
    log.append(z is y)
    (y * y).sum().backward()
    return x.grad


def fn_dirty_leaf(log):
    x = leaf(4)
    Dirty.apply(x)


def fn_wrong_count(log):
    a, b = (leaf(4), leaf(4))
    WrongCount.apply(a, b).sum().backward()


def fn_too_many_none(log):
    a = leaf(4)
    TooMany.apply(a).sum().backward()
    return a.grad


def fn_wrong_shape(log):
    a = leaf(4)
    WrongShape.apply(a).sum().backward()


def fn_reduced_grad(log):
    a = leaf(4)
    Bcast.apply(a).sum().backward()
    return a.grad


def fn_raises(log):
    a, b = (leaf(4), leaf(4))
    (Raises.apply(a) + b).sum().backward()


def fn_raises_caught(log):
    a, b = (leaf(4), leaf(4))
    try:
        (Raises.apply(a) + b).sum().backward()
    except ValueError as e:
        log.append(str(e))
    (b * 2).sum().backward()
    return a.grad


def fn_once(log):
    a = leaf(4)
    Once.apply(a).sum().backward()
    return a.grad


def fn_once_double(log):
    a = leaf(4)
    (g,) = grad(Once.apply(a.sin()).sum(), a, create_graph=True)
    g.sum().backward()


def fn_setup(log):
    a, b = (leaf(4), leaf(4))
    Setup.apply(a, b).sum().backward()
    return (a.grad, b.grad)


def fn_needs(log):
    a, b = (leaf(4), torch.randn(4))
    Needs.apply(a, b).sum().backward()
    return (a.grad, b.grad)


def fn_needs_inputs(log):
    a, b = (leaf(4), leaf(4))
    Needs.apply(a, b).sum().backward(inputs=[b])
    return (a.grad, b.grad)


def fn_view(log):
    a = leaf(4)
    v = View.apply(a * 1)
    v.sum().backward()
    return a.grad


def fn_view_inplace(log):
    a = leaf(4)
    v = View.apply(a * 1)
    v.mul_(2)
    v.sum().backward()
    return a.grad


def fn_ident(log):
    a = leaf(4)
    r = Ident.apply(a)
    log.append((r is a, r.is_leaf))
    r.sum().backward()
    return a.grad


def fn_reentrant(log):
    a = leaf(4)
    Nested.apply(a * 2).sum().backward()
    return a.grad


def fn_counter(log):
    Stateful.calls = 0
    a = leaf(4)
    Stateful.apply(Stateful.apply(a)).sum().backward()
    return (a.grad, Stateful.calls)


def fn_saved_dup_none(log):
    a = leaf(4)
    Save2.apply(a).sum().backward()
    return a.grad


def fn_attr_tensor(log):
    a = leaf(4)
    SaveInter.apply(a).sum().backward()
    return a.grad


def fn_saved_modified(log):
    a = leaf(4)
    b = a * 1
    y = Setup.apply(b, b)
    b.add_(1)
    y.sum().backward()


def fn_none_grad(log):
    a, b = (leaf(4), leaf(4))
    NoneGrad.apply(a.sin(), b.sin()).sum().backward()
    return (a.grad, b.grad)


def fn_int(log):
    a = leaf(5)
    IntIn.apply(a, torch.tensor([1, 3])).sum().backward()
    return a.grad


def fn_dynamic_class(log):

    class D(Function):
        @staticmethod
        def forward(ctx, a):
            return a * 2

        @staticmethod
        def backward(ctx, g):
            return g * 4

    a = leaf(4)
    D.apply(a).sum().backward()
    return a.grad


def fn_dict(log):
    a = leaf(4)
    Kw.apply(a, {"k": 3}).sum().backward()
    return a.grad


def vmap_fn(log):
    x = leaf(3, 4)
    torch.vmap(lambda r: r.sin().sum())(x).sum().backward()
    return x.grad
