"""Hooks of tensors, leaves, nodes and modules: what they see, in which order, what they may change."""

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook


def leaf(*size):
    return torch.randn(*size, requires_grad=True)


def hook1(log):
    x = leaf(4)
    y = x.sin()
    y.register_hook(lambda g: g * 2)
    y.sum().backward()
    return x.grad


def hook_order(log):
    x = leaf(4)
    x.register_hook(lambda g: log.append("a"))
    y = x * 2
    y.register_hook(lambda g: log.append("y"))
    x.register_hook(lambda g: log.append("b"))
    y.register_hook(lambda g: log.append("y2"))
    y.sum().backward()
    return x.grad


def hook_none(log):
    x = leaf(4)
    y = x * 2
    h = y.register_hook(lambda g: None)
    y.sum().backward()
    h.remove()
    (x * 2).sum().backward()
    return x.grad


def hook_bad(log):
    x = leaf(4)
    y = x * 2
    y.register_hook(lambda g: torch.ones(5))
    y.sum().backward()


def hook_bad_type(log):
    x = leaf(4)
    y = x * 2
    y.register_hook(lambda g: 5)
    y.sum().backward()


def hook_bad_dtype(log):
    x = leaf(4)
    y = x * 2
    y.register_hook(lambda g: g.double())
    y.sum().backward()
    return x.grad


def hook_leaf_bad(log):
    x = leaf(4)
    x.register_hook(lambda g: torch.ones(2))
    (x * 2).sum().backward()


def hook_twice_same(log):
    x = leaf(4)
    f = lambda g: g * 3
    x.register_hook(f)
    x.register_hook(f)
    (x * 2).sum().backward()
    return x.grad


def hook_on_inplace(log):
    x = leaf(4)
    y = x * 2
    y.register_hook(lambda g: log.append(("before", g.clone())))
    y.mul_(3)
    y.register_hook(lambda g: log.append(("after", g.clone())))
    y.sum().backward()
    return x.grad


def retain_then_hook(log):
    x = leaf(4)
    y = x * 2
    y.retain_grad()
    y.register_hook(lambda g: g * 5)
    y.sum().backward()
    return (x.grad, y.grad)


def hook_then_retain(log):
    x = leaf(4)
    y = x * 2
    y.register_hook(lambda g: g * 5)
    y.retain_grad()
    y.sum().backward()
    return (x.grad, y.grad)


def retain_leaf(log):
    x = leaf(4)
    x.retain_grad()
    (x * 2).sum().backward()
    return (x.grad, x.retains_grad)


def post_acc(log):
    x = leaf(4)

    def h(p):
        log.append(p.grad.clone())
        p.grad = None

    x.register_post_accumulate_grad_hook(h)
    (x * 2).sum().backward()
    return x.grad


def post_acc_ordering(log):
    x = leaf(4)
    x.register_post_accumulate_grad_hook(lambda p: log.append("post"))
    x.register_hook(lambda g: log.append("pre"))
    (x * 2).sum().backward()


def post_acc_nonleaf(log):
    x = leaf(4)
    y = x * 2
    y.register_post_accumulate_grad_hook(lambda p: None)


def post_acc_returns(log):
    x = leaf(4)
    x.register_post_accumulate_grad_hook(lambda p: p)
    (x * 2).sum().backward()
    return x.grad


def post_acc_inplace(log):
    x = leaf(4)

    def h(p):
        p.grad.mul_(10)

    x.register_post_accumulate_grad_hook(h)
    (x * 2).sum().backward()
    return x.grad


def post_acc_sgd(log):
    x = leaf(4)
    o = torch.optim.SGD([x], lr=0.1)

    def h(p):
        o.step()
        o.zero_grad()

    x.register_post_accumulate_grad_hook(h)
    (x * 2).sum().backward()
    (x * x).sum().backward()
    return (x, x.grad)


def node_hook_wrong_len(log):
    x = leaf(4)
    y = x.sin()
    y.grad_fn.register_hook(lambda gi, go: (gi[0], gi[0]))
    y.sum().backward()
    return x.grad


def node_hook_accumulate(log):
    x = leaf(4)
    y = x * 2
    a = y.grad_fn.next_functions[0][0]
    a.register_hook(lambda gi, go: log.append((gi, go[0].clone())))
    a.register_prehook(lambda go: (go[0] * 3,))
    y.sum().backward()
    return x.grad


def node_metadata(log):
    x = leaf(4)
    y = x.sin()
    y.grad_fn.metadata["a"] = 1
    y.sum().backward()
    return (x.grad, y.grad_fn.metadata["a"])


def mod_bw_hook(log):
    m = nn.Linear(4, 4)
    m.register_full_backward_hook(lambda m, gi, go: log.append((gi[0] is None, go[0].clone())))
    m(torch.randn(2, 4)).sum().backward()
    return m.weight.grad


def mod_bw_prehook(log):
    m = nn.Linear(4, 4)
    m.register_full_backward_pre_hook(lambda m, go: (go[0] * 2,))
    m(leaf(2, 4)).sum().backward()
    return m.weight.grad


def mod_bw_hook_change(log):
    m = nn.Linear(4, 4)
    x = leaf(2, 4)
    m.register_full_backward_hook(lambda m, gi, go: (gi[0] * 3,))
    m(x).sum().backward()
    return (m.weight.grad, x.grad)


def mod_global_bw(log):
    h = nn.modules.module.register_module_full_backward_hook(lambda m, gi, go: log.append(type(m).__name__))
    try:
        m = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        m(leaf(2, 4)).sum().backward()
    finally:
        h.remove()
    return m[0].weight.grad


def mod_old_bw_hook(log):
    m = nn.Linear(4, 4)
    m.register_backward_hook(lambda m, gi, go: log.append(len(gi)))
    m(leaf(2, 4)).sum().backward()
    return m.weight.grad


def multi_all(log):
    x, y, z = (leaf(4), leaf(4), leaf(4))
    a = x * 2
    b = y * 3
    register_multi_grad_hook((a, b, z), lambda gs: log.append([g is None for g in gs]))
    (a + b).sum().backward()
    return (x.grad, y.grad)


def multi_any(log):
    x, y = (leaf(4), leaf(4))
    register_multi_grad_hook((x, y), lambda g: log.append(g.clone()), mode="any")
    (x * y).sum().backward()
    return x.grad


def grad_mode_in_hook(log):
    x = leaf(4)
    x.register_hook(lambda g: log.append((torch.is_grad_enabled(), g.requires_grad)))
    (x * x).sum().backward()
    x.grad = None
    (x * x).sum().backward(create_graph=True)
    x.grad = None


def hook_closure_state(log):
    x = leaf(4)
    st = {"n": 0}

    def h(g):
        st["n"] += 1
        return g * st["n"]

    y = x * 1
    y.register_hook(h)
    z = y * 2
    z.register_hook(h)
    z.sum().backward()
    return (x.grad, st["n"])


def hook_removes_itself(log):
    x = leaf(4)
    hs = []

    def h(g):
        log.append("h")
        hs[0].remove()

    hs.append(x.register_hook(h))
    (x * 2).sum().backward()
    (x * 2).sum().backward()
    return x.grad


def hook_calls_backward(log):
    x, z = (leaf(4), leaf(4))

    def h(g):
        (z * z).sum().backward()
        return g

    y = x * 2
    y.register_hook(h)
    y.sum().backward()
    return (x.grad, z.grad)


def hook_raises(log):
    x, z = (leaf(4), leaf(4))

    def h(g):
        raise KeyError("h")

    y = x * 2
    y.register_hook(h)
    (y + z).sum().backward()


def queue_cb(log):
    x = leaf(4)

    def h(g):
        torch.autograd.Variable._execution_engine.queue_callback(lambda: log.append("end"))

    x.register_hook(h)
    (x * 2).sum().backward()
    log.append("after")
    return x.grad


def hook_prepend(log):
    m = nn.Linear(4, 4)
    m.register_full_backward_hook(lambda *a: log.append(1))
    m.register_full_backward_hook(lambda *a: log.append(2), prepend=True)
    m(leaf(2, 4)).sum().backward()
