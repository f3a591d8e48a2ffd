"""Calls of the engine, writes and views between forward and backward, what is refused."""

import torch
from torch.autograd import grad
from torch.autograd.graph import increment_version


def leaf(*size):
    return torch.randn(*size, requires_grad=True)


def accumulate(log):
    x = leaf(4)
    for i in range(3):
        (x * i).sin().sum().backward()
    return x.grad


def accumulate_preset(log):
    x = leaf(4)
    x.grad = torch.ones(4)
    g = x.grad
    (x * 2).sum().backward()
    return (x.grad is g, x.grad)


def accumulate_noncontig(log):
    x = torch.randn(4, 3).t().requires_grad_()
    (x * torch.randn(3, 4)).sum().backward()
    return (x.grad, x.grad.stride())


def grad_expand(log):
    x = leaf(4)
    x.sum().backward()
    return (x.grad, x.grad.stride())


def grad_expand_dim(log):
    x = leaf(3, 1)
    x.expand(3, 5).sum().backward()
    return x.grad.stride()


def identity_leaf(log):
    x = leaf(1)
    x.backward()
    return x.grad


def leaf_given(log):
    x = leaf(4)
    g = torch.ones(4)
    x.backward(g)
    return (x.grad, x.grad is g, x.grad.data_ptr() == g.data_ptr())


def given_aliases(log):
    x = leaf(4)
    g = torch.ones(4)
    (x + 0).backward(g)
    x.grad.mul_(2)
    return (x.grad, g)


def two_leaves_one_grad(log):
    x, y = (leaf(4), leaf(4))
    (x + y).sum().backward()
    x.grad.mul_(3)
    return (x.grad, y.grad)


def two_leaves_given(log):
    x, y = (leaf(4), leaf(4))
    g = torch.ones(4)
    (x + y).backward(g)
    x.grad.mul_(3)
    return (x.grad, y.grad, g)


def multi_backward_given(log):
    x, y = (leaf(4), leaf(4))
    torch.autograd.backward([x * y, x + y], [torch.ones(4), torch.randn(4)])
    return (x.grad, y.grad)


def multi_backward_none(log):
    x, y = (leaf(4), leaf(4))
    torch.autograd.backward([(x * y).sum(), x + y], [None, torch.randn(4)])
    return (x.grad, y.grad)


def multi_backward_same(log):
    x = leaf(4)
    z = x.sin()
    torch.autograd.backward([z, z], [torch.ones(4), torch.ones(4)])
    return x.grad


def multi_backward_nograd(log):
    x = leaf(4)
    torch.autograd.backward([x.sum(), torch.ones(1)])


def bad_grad_count(log):
    x = leaf(4)
    torch.autograd.backward([x.sum(), x.prod()], [torch.ones(())])


def bad_grad_dtype(log):
    x = leaf(4)
    (x * 2).backward(torch.ones(4, dtype=torch.int64))


def bad_grad_complex(log):
    x = leaf(4)
    (x * 2).backward(torch.ones(4, dtype=torch.complex64))


def grad_double_given(log):
    x = leaf(4)
    (x * 2).backward(torch.ones(4, dtype=torch.float64))
    return x.grad


def grad_bcast_given(log):
    x = leaf(4)
    (x * 2).sum().backward(torch.ones(1))
    return x.grad


def grad_basic(log):
    x, y = (leaf(4), leaf(4))
    return grad((x * y).sum(), [x, y])


def grad_unused(log):
    x, y = (leaf(4), leaf(4))
    return grad((x * 2).sum(), [x, y], allow_unused=True)


def grad_unused_err(log):
    x, y = (leaf(4), leaf(4))
    return grad((x * 2).sum(), [x, y])


def grad_materialize(log):
    x, y = (leaf(4), leaf(4))
    return grad((x * 2).sum(), [x, y], materialize_grads=True)


def grad_mat_err(log):
    x, y = (leaf(4), leaf(4))
    return grad((x * 2).sum(), [x, y], materialize_grads=True, allow_unused=False)


def grad_nonleaf(log):
    x = leaf(4)
    y = x.sin()
    z = y * y
    return (grad(z.sum(), [y]), x.grad)


def grad_nonleaf_both(log):
    x = leaf(4)
    y = x.sin()
    z = y * y
    return grad(z.sum(), [y, x])


def grad_create(log):
    x = leaf(4)
    (g,) = grad((x**3).sum(), [x], create_graph=True)
    (g2,) = grad(g.sum(), [x], create_graph=True)
    (g3,) = grad(g2.sum(), x)
    return (g, g2, g3)


def backward_create(log):
    x = leaf(4)
    (x**3).sum().backward(create_graph=True)
    g = x.grad
    x.grad = None
    g.sum().backward()
    r = x.grad
    return (g.detach(), r, g.requires_grad)


def hvp(log):
    x = leaf(5)
    v = torch.randn(5)
    (g,) = grad((x**4).sum(), x, create_graph=True)
    return grad((g * v).sum(), x)


def jacobian(log):
    x = leaf(3)
    y = x.exp() * x.sum()
    return [grad(y[i], x, retain_graph=True)[0] for i in range(3)]


def batched(log):
    x = leaf(3)
    y = x * x
    return grad([y], [x], [torch.eye(3)], is_grads_batched=True)


def keep_graph(log):
    x = leaf(4)
    l = x.sin().sum()
    l.backward(retain_graph=True)
    l.backward()
    return x.grad


def freed(log):
    x = leaf(4)
    l = x.sin().sum()
    l.backward()
    l.backward()


def freed_notsaved(log):
    x = leaf(4)
    l = (x + 1).sum()
    l.backward()
    l.backward()
    return x.grad


def freed_part(log):
    x = leaf(4)
    y = x.exp()
    a = y.sum()
    b = (y * 2).sum()
    a.backward()
    b.backward()
    return x.grad


def inplace_saved_err(log):
    x = leaf(4)
    y = x.exp()
    y.add_(1)
    y.sum().backward()


def inplace_leaf_err(log):
    x = leaf(4)
    x.add_(1)


def inplace_leaf_nograd(log):
    x = leaf(4)
    y = (x * x).sum()
    with torch.no_grad():
        x.add_(1)
    y.backward()


def inplace_ok(log):
    x = leaf(4)
    y = x * 2
    y.add_(1)
    y.sigmoid_()
    y.sum().backward()
    return x.grad


def inplace_view(log):
    x = leaf(4, 4)
    y = x * 1
    y[0].mul_(2)
    y[:, 1] = 0
    y.sum().backward()
    return x.grad


def inplace_view_chain(log):
    x = leaf(4, 4)
    y = x.clone()
    v = y.view(-1)[2:8]
    v.mul_(3)
    w = y.t()
    (w * v.sum()).sum().backward()
    return x.grad


def inplace_grad(log):
    x = leaf(4)
    (x * 2).sum().backward()
    x.grad.zero_()
    (x * 3).sum().backward()
    x.grad += 1
    return x.grad


def inplace_grad_kept(log):
    x = leaf(4)
    (x * 2).sum().backward()
    g = x.grad
    (x * 3).sum().backward()
    return (g is x.grad, g)


def nograd(log):
    x = leaf(5)
    y = x * 2
    with torch.no_grad():
        z = y * 3
    log.append(z.requires_grad)
    (y * z).sum().backward()
    return x.grad


def enablegrad(log):
    x = leaf(5)
    with torch.no_grad():
        with torch.enable_grad():
            y = x * 2
        y.sum().backward()
    return x.grad


def setgrad(log):
    x = leaf(5)
    with torch.set_grad_enabled(False):
        a = x * 2
    return a.requires_grad


def inference(log):
    x = leaf(5)
    with torch.inference_mode():
        a = x * 2
    log.append(a.is_inference())
    (x * a.clone()).sum().backward()
    return x.grad


def inference_err(log):
    x = leaf(5)
    with torch.inference_mode():
        a = torch.ones(5)
    (x * a).sum().backward()


def detach_(log):
    x = leaf(5)
    y = x * 2
    y.detach_()
    log.append(y.requires_grad)
    z = x * y
    z.sum().backward()
    return x.grad


def detach_inplace(log):
    x = leaf(5)
    y = x * 2
    d = y.detach()
    d.zero_()
    (y * x).sum().backward()
    return x.grad


def requires_mid(log):
    x = torch.randn(5)
    y = x * 2
    y.requires_grad_()
    (y * y).sum().backward()
    return (y.grad, x.grad)


def requires_off(log):
    x = leaf(5)
    x.requires_grad_(False)
    y = leaf(5)
    (x * y).sum().backward()
    return (x.grad, y.grad)


def requires_int(log):
    torch.ones(3, dtype=torch.long).requires_grad_()


def data_set(log):
    x = leaf(5)
    l = (x * x).sum()
    x.data = torch.ones(5)
    l.backward()
    return x.grad


def data_write(log):
    x = leaf(5)
    l = (x * x).sum()
    x.data.zero_()
    l.backward()
    return x.grad


def zero_to_none(log):
    x = leaf(4)
    o = torch.optim.SGD([x], lr=0.1)
    (x * 2).sum().backward()
    o.zero_grad(set_to_none=False)
    a = x.grad.clone()
    o.zero_grad()
    return (a, x.grad)


def unbind_inplace_err(log):
    x = leaf(3, 4)
    y = x * 1
    a, b, c = y.unbind()
    a.mul_(2)
    y.sum().backward()


def inputs_some(log):
    x, y = (leaf(4), leaf(4))
    (x * y).sum().backward(inputs=[x])
    return (x.grad, y.grad)


def inputs_dup(log):
    x = leaf(4)
    (x * 2).sum().backward(inputs=[x, x])
    return x.grad


def inputs_nonleaf(log):
    x = leaf(4)
    h = x.sin()
    (h * 2).sum().backward(inputs=[h, x])
    return (x.grad, h.grad)


def inputs_tuple(log):
    x, y = (leaf(4), leaf(4))
    (x * y).sum().backward(inputs=(x, y))
    return (x.grad, y.grad)


def grad_nonleaf_read(log):
    x = leaf(4)
    h = x * 2
    h.sum().backward()
    return h.grad


def set_grad(log):
    x = leaf(4)
    x.grad = torch.ones(4)
    x.grad = None
    del x.grad
    return x.grad


def set_grad_bad(log):
    x = leaf(4)
    x.grad = torch.ones(3)


def set_grad_bad_dtype(log):
    x = leaf(4)
    x.grad = torch.ones(4, dtype=torch.float64)


def set_grad_bad_type(log):
    x = leaf(4)
    x.grad = 3


def set_grad_self(log):
    x = leaf(4)
    x.grad = x


def deep(log):
    x = leaf(4)
    y = x
    for _ in range(200):
        y = y * 1.01 + 0.1
    y.sum().backward()
    return x.grad


def diamond(log):
    x = leaf(4)
    a = x.sin()
    b = a * 2
    c = a * 3
    (b * c + a).sum().backward()
    return x.grad


def allow_mutation(log):
    x = leaf(4)
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        y = x * 1
        z = y.sin()
        y.add_(5)
        z.sum().backward()
    return x.grad


def incr_version(log):
    x = leaf(4)
    y = x * 1
    z = y.exp()
    increment_version(y)
    z.sum().backward()
    return x.grad


def incr_version_err(log):
    x = leaf(4)
    y = x * 1
    z = y * y
    increment_version(y)
    z.sum().backward()
    return x.grad


def func_grad(log):
    x = leaf(4)
    torch.func.grad(lambda t: (t**3).sum())(x).sum().backward()
    return x.grad


def branch_on_grad(log):
    x = leaf(4)
    (x * 2).sum().backward()
    return x.grad * 3 if x.grad.sum() > 0 else x.grad


def requires_grad_results(log):
    x = leaf(4)
    y = x * 2
    z = y.detach()
    l = y.sum()
    l.backward()
    return (y.requires_grad, z.requires_grad, l.requires_grad, x.grad.requires_grad, y.is_leaf, x.is_leaf)


def deepcopy_nonleaf(log):
    import copy

    x = leaf(4)
    copy.deepcopy(x * 2)


def grad_of_view_leaf(log):
    x = leaf(4)
    v = x.view(2, 2)
    v.sum().backward()
    return x.grad


def detach_view_err(log):
    x = leaf(4)
    v = (x * 1).view(2, 2)
    v.detach_()


def grad_dtype(log):
    x = torch.randn(4, dtype=torch.bfloat16, requires_grad=True)
    x.grad_dtype = torch.float32
    (x * 2).sum().backward()
    return x.grad
