"""What random training steps are made of: lines of a program whose `h` is a float64 tensor of 4 x 6 on its `device`."""

from __future__ import annotations

WORLD = """
import threading
import torch, argand
from contextlib import nullcontext
from torch import nn
from torch.nn import functional as F
from torch.autograd import grad
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

optimizers, handles, global_handles, retaining = [], [], [], []
state = {"round": 0, "grads": {}}
scaler = torch.amp.GradScaler(device, init_scale=8.0)

def note(name, *values):
    there = [p.grad is not None for p in model.parameters()]
    log.append((name, [None if v is None else v.detach().clone() for v in values], there))

def retain(tensor):
    tensor.retain_grad()
    retaining.append(tensor)

def noting(name):
    def hook(*values):
        flat = [v for value in values for v in (value if isinstance(value, tuple) else [value])]
        note(name, *[v for v in flat if v is None or isinstance(v, torch.Tensor)])
    return hook

def inner_backward(g):
    w = model.unused.weight
    (w.sum() * g.detach().sum()).backward()

def inner_grad(g):
    w = model.unused.bias
    return None if g is None else g * grad((w * 2).sum(), w)[0].sum()

def threaded(run):
    def caught():
        try:
            run()
        except (RuntimeError, ValueError) as error:
            note(type(error).__name__)
    thread = threading.Thread(target=caught)
    thread.start()
    thread.join()

def registers(tensor, g):
    handles.append(tensor.register_hook(noting("registered")))

def fail(*values):
    if state["round"] in (2, 3):
        raise ValueError(f"in round {state['round']}")

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g

class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor, scale):
        ctx.factor = factor
        ctx.save_for_backward(x, scale)
        return factor * x * scale
    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        note("scale", g)
        return ctx.factor * g * scale, None, (ctx.factor * g * x).sum(0)

class Halves(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x[:, :3].clone(), x[:, 3:].clone()
    @staticmethod
    def backward(ctx, a, b):
        return torch.cat([torch.zeros(4, 3, dtype=torch.float64, device=device) if one is None else one * 3 for one in (a, b)], 1)

class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, g):
        fail()
        return g

class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x + 1
    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * 2

class Written(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)
    @staticmethod
    def backward(ctx, g):
        return g * 2
"""

MODEL = [
    "class Net(nn.Module):",
    "    def __init__(self):",
    "        super().__init__()",
    "        self.a, self.b, self.unused = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(2, 2)",
    "        self.norm, self.batch, self.table = nn.LayerNorm(6), nn.BatchNorm1d(6), nn.Embedding(5, 6)",
    "        self.conv, self.scale = nn.Conv1d(1, 1, 3, padding=1), nn.Parameter(torch.ones(6))",
    "        self.row = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))",
    "        self.register_buffer('count', torch.zeros(()))",
    "        self.calls = 0",
    "    def inner(self, h):",
    "        return F.dropout(self.b(h).tanh(), 0.2, self.training) * self.scale",
    "    def forward(self, x, r):",
    "        h = x",
    "# forward",
]

LAYERS = [
    "h = self.a(h)",
    "h = self.b(h).tanh()",
    "h = self.a(h) + self.a(h * 2)",
    "h = self.norm(h)",
    "h = self.batch(h)",
    "h = F.gelu(h)",
    "h = F.dropout(h, 0.3, self.training)",
    "h = h + self.table(torch.tensor([1, 1, 0, r % 5], device=device))",
    "h = self.conv(h.unsqueeze(1)).squeeze(1)",
    "h = h * self.scale",
    "h = self.row(h)",
    "h = Double.apply(self.a(h))",
    "h = Scale.apply(h, 0.5, self.scale)",
    "h = torch.cat(Halves.apply(self.a(h)), 1)",
    "h = Halves.apply(self.a(h))[1].repeat(1, 2)",
    "h = Fails.apply(h)",
    "h = Once.apply(self.b(h))",
    "h = Written.apply(self.b(h) * 1)",
    "h = checkpoint(self.inner, h, use_reentrant=False)",
    "h = checkpoint(self.inner, h, use_reentrant=True)",
    "h = checkpoint(self.row, h, use_reentrant=False, preserve_rng_state=False)",
    "h = checkpoint_sequential(self.row, 2, h, use_reentrant=False)",
    "h = h * 1.5\nh[1:3].mul_(2.0)",
    "h = h * self.scale\nh[:, 0] = 1.0",
    "h = h.mul(1.5).sigmoid_()",
    "h = self.a(h).relu_()",
    "h = self.a(h).exp()\nh.add_(1)",
    "h = h + h.detach() * 0.5",
    "with torch.no_grad():\n    m = self.b(h).mean()\nh = h - m",
    "self.count += 1\nh = h * (1 + 0.1 * self.count)",
    "self.calls += 1\nh = h + self.calls",
    "h = h @ self.a.weight",
    "h = F.linear(h, self.a.weight.t(), self.b.bias)",
    "h = torch.where(h > 0, h, self.scale * h)",
    "u, v = (h * self.scale).chunk(2, 1)\nh = torch.cat([v, u.exp()], 1)",
    "h = h + self.a.weight.mean(0)",
    "h = self.a(h).unbind(0)\nh = torch.stack([h[1], h[0], h[3], h[3]])",
    "argand.graph_break()",
    "h = self.a(h)\nif h.sum() > 0:\n    h = h * 2",
    "h = h * (r + 1)",
    "with torch.autograd.graph.saved_tensors_hooks(lambda t: (t * 1,), lambda kept: kept[0]):\n    h = self.a(h).sin() * h",
    "with torch.autograd.graph.save_on_cpu():\n    h = self.a(h).tanh()",
    "note('forward', h)",
    "h = self.a(h)\nself.held = h",
    "h = h + torch.randn(6, dtype=torch.float64, device=device)",
    "h = (h.unsqueeze(2) * self.scale).logsumexp(2)",
    "q = self.a(h).view(4, 2, 3).transpose(0, 1)\nh = F.scaled_dot_product_attention(q, q, q).transpose(0, 1).reshape(4, 6)",
    "h = torch.einsum('ij,jk->ik', h, self.b.weight) + self.table.weight[1]",
    "h = checkpoint(lambda a, b: a * b.sigmoid(), self.a(h), self.b(h), use_reentrant=False)",
    "h = self.a(h)\nwith torch.enable_grad():\n    y = self.b(h.detach().requires_grad_())\nh = h + y",
    "h = h + torch.utils.checkpoint.checkpoint(self.norm, h, use_reentrant=False, determinism_check='none')",
    "for one in (self.a, self.b):\n    h = one(h).tanh()",
]

ON_RESULTS = [
    f"if h.requires_grad and h.grad_fn is not None:\n    {line}"
    for line in (
        "h.register_hook(noting('h'))",
        "h.register_hook(lambda g: g * 2)",
        "h.register_hook(lambda g: g.clamp(-0.01, 0.01))",
        "h.register_hook(fail)",
        "h.grad_fn.register_hook(noting('after h'))",
        "h.grad_fn.register_prehook(noting('before h'))",
        "h.grad_fn.register_prehook(lambda gs: tuple(g if g is None else g * 3 for g in gs))",
        "retain(h)",
        "h.register_hook(noting('gone')).remove()",
        "h = h * 1\n    h.register_hook(lambda g: g + h.detach())",
        "h.register_hook(inner_backward)",
        "h.register_hook(inner_grad)",
        "h.register_hook(lambda g, h=h: registers(h, g))",
        "h.register_hook(lambda g: state.__setitem__('seen', g.sum().item()))",
        "h.grad_fn.register_hook(lambda made, given: tuple(None if g is None else g * 0.5 for g in made))",
        "torch.autograd.graph.get_gradient_edge(h).node.register_prehook(noting('edge'))",
        "state['once'] = h.register_hook(lambda g: (state['once'].remove(), g * 3)[1])",
        "h.view(-1).register_hook(noting('unused view'))",
        "h = h.view(2, 12)\n    h.register_hook(noting('view'))\n    h = h.view(4, 6)",
    )
]

LASTING = [
    "model.a.weight.register_hook(noting('a.weight'))",
    "model.a.weight.register_hook(lambda g: g * 0.5)",
    "model.b.bias.register_hook(lambda g: g.mul_(0.5))",
    "model.scale.register_hook(fail)",
    "for p in ps: p.register_hook(noting('p'))",
    "for p in ps: p.register_post_accumulate_grad_hook(lambda p: note('post', p.grad))",
    "model.a.weight.register_post_accumulate_grad_hook(fail)",
    "model.b.weight.register_post_accumulate_grad_hook(lambda p: setattr(p, 'grad', None))",
    "eager = {p: torch.optim.SGD([p], 0.1, momentum=0.9) for p in ps}\n"
    "for p in ps: p.register_post_accumulate_grad_hook(lambda p: (eager[p].step(), eager[p].zero_grad()) and None)",
    "model.a.register_full_backward_hook(noting('module a'))",
    "model.b.register_full_backward_hook(lambda m, i, o: tuple(g if g is None else g * 2 for g in i))",
    "model.row.register_full_backward_pre_hook(lambda m, o: (o[0] * 0.5,))",
    "model.norm.register_full_backward_pre_hook(noting('norm'))",
    "model.register_full_backward_hook(noting('model'))",
    "model.a.register_full_backward_hook(fail)",
    "model.a.register_forward_hook(lambda m, i, o: o * 2)",
    "model.b.register_forward_pre_hook(noting('forward b'))",
    "model.a.register_forward_hook(lambda m, i, o: o.register_hook(noting('o')) and None if o.requires_grad else None)",
    "model.row.register_forward_hook(fail)",
    "torch.autograd.graph.register_multi_grad_hook(ps[:3], noting('multi'))",
    "torch.autograd.graph.register_multi_grad_hook(ps[:3], noting('any'), mode='any')",
    "global_handles.append(nn.modules.module.register_module_full_backward_hook(noting('global')))",
    "global_handles.append(nn.modules.module.register_module_forward_hook(noting('global forward')))",
    "for o in optimizers: o.register_step_pre_hook(lambda o, a, k: note('pre', *[p.grad for p in ps]))",
    "for o in optimizers: o.register_step_post_hook(noting('post step'))",
    "(model.a.weight * 1).grad_fn.next_functions[0][0].register_hook(noting('accumulated'))",
    "model.a.bias.requires_grad_(False)",
    "model.b.weight = model.a.weight",
    "once = model.a.weight.register_hook(lambda g: (once.remove(), g * 3)[1])",
    "model.a.weight.register_hook(lambda g: setattr(model.b.weight, 'grad', None))",
    "nn.utils.parametrizations.weight_norm(model.a)\nps = list(model.parameters())",
    "averaged = torch.optim.swa_utils.AveragedModel(model)",
    "model.a.register_full_backward_hook(lambda m, i, o: None).remove()",
    "model.row[0].weight.register_hook(lambda g: g + model.row[2].weight.sum().detach())",
    "model.a.weight.register_hook(inner_backward)",
    "model.b.weight.register_post_accumulate_grad_hook(lambda p: inner_grad(p.grad) is None and None)",
    "model.scale.register_hook(lambda g: registers(model.scale, g))",
    "model.a.weight.register_post_accumulate_grad_hook(lambda p: setattr(p, 'grad', p.grad.t().contiguous().t()))",
    "model.b.bias.register_post_accumulate_grad_hook(lambda p: setattr(model.scale, 'grad', p.grad))",
    "model.a.register_full_backward_hook(lambda m, i, o: inner_backward(o[0]) is None and None)",
    "model.row[0].weight.register_hook(lambda g: g.t().contiguous().t())",
    "for p in ps: p.grad = torch.zeros_like(p)",
    "model.a.weight.grad = torch.zeros(6, 6, dtype=torch.float64, device=device).t()",
    "model.a.weight.grad = model.b.weight.grad = torch.zeros(6, 6, dtype=torch.float64, device=device)",
]

PASSING = [
    "handles.append(model.a.weight.register_hook(noting('passing')))",
    "handles.append(model.b.register_full_backward_hook(noting('passing b')))",
    "handles.append(model.b.bias.register_post_accumulate_grad_hook(noting('passing post')))",
    "handles.append(model.a.register_forward_hook(lambda m, i, o: o + 1))",
    "handles.append(model.a.weight.register_hook(lambda g: g * (r + 1)))",
]

LOSSES = [
    "loss = F.cross_entropy(out, y)",
    "loss = F.mse_loss(out, x)",
    "loss = out.sin().sum() + model.scale.square().sum()",
    "loss = out.mean() * (r + 1)",
    "loss = sum(one.square().sum() for one in out.unbind(1))",
    "loss = (net(x * 2, r) - out).square().mean()",
    "loss = out.float().square().mean()",
    "loss = F.nll_loss(out.log_softmax(1), y, reduction='none').mean()",
    "loss = out.detach().mean()",
    "loss = out.square().mean() / 3\nnote('loss', loss)",
    "loss = F.kl_div(out.log_softmax(1), torch.full_like(out, 1 / 6), reduction='batchmean')",
]

BACKWARDS = [
    "loss.backward(retain_graph=True)\nloss.backward()",
    "loss.backward()\nloss.backward()",
    "loss.backward(gradient=torch.tensor(0.5, dtype=loss.dtype, device=device))",
    "torch.autograd.backward([loss, out.mean()])",
    "loss.backward(retain_graph=True)\nout.mean().backward()",
    "out.backward(torch.ones_like(out))",
    "loss.backward(inputs=[model.a.weight, model.scale])",
    "gs = grad(loss, ps, allow_unused=True)\nfor p, g in zip(ps, gs): p.grad = g",
    "gs = grad(loss, ps[:2])\nnote('gs', *gs)",
    "gs = grad(loss, [model.a.weight], create_graph=True, allow_unused=True)\n"
    "(loss + sum(g.square().sum() for g in gs if g is not None)).backward()",
    "(gx,) = grad(out.sum(), x, create_graph=True)\n((gx.norm(2, 1) - 1) ** 2).mean().backward()",
    "(gx,) = grad(out.sum(), x, create_graph=True)\n(loss + gx.square().mean()).backward()",
    "loss.backward(create_graph=True)\nloss = sum(p.grad.square().sum() for p in ps if p.grad is not None)\n"
    "for p in ps: p.grad = None\nloss.backward()",
    "loss.backward(create_graph=True)\nfor p in ps: p.grad = None if p.grad is None else p.grad.detach()",
    "scaler.scale(loss).backward()",
    "scaler.scale(loss).backward()\nfor o in optimizers: scaler.unscale_(o)",
    "loss.backward()\nnote('grads', *[p.grad for p in ps])",
    "(loss * 0.5).backward()\nif r % 2: net(x, r).sum().backward()",
    "h = torch.autograd.functional.vjp(lambda w: F.linear(x, w).sin().sum(), model.a.weight.detach())\nloss.backward()",
    "for one in out.sum(0): one.backward(retain_graph=True)",
    "with torch.no_grad():\n    loss.backward()",
    "loss.backward(retain_graph=True)\nps[0].grad = None\nloss.backward(inputs=[p for p in ps if p.requires_grad][:3])",
    "gs = grad(loss, [p for p in ps if p.requires_grad], allow_unused=True, materialize_grads=True)\nfor p, g in zip([p for p in ps if p.requires_grad], gs): p.grad = g if p.grad is None else p.grad + g",
    "loss.backward()\nfor p in ps: p.grad = None if p.grad is None else p.grad.clone()",
    "torch.autograd.backward(out, grad_tensors=out.detach().sign())",
    "torch.autograd.backward(torch.autograd.graph.get_gradient_edge(loss), torch.ones_like(loss))",
    "gs = grad(loss, [torch.autograd.graph.get_gradient_edge(out), model.scale], allow_unused=True)\nnote('gs', *gs)",
    "out.retain_grad() if out.requires_grad and out.grad_fn is not None else None\nloss.backward()\nnote('out', out.grad)",
    "with torch.autograd.graph.allow_mutation_on_saved_tensors():\n    other = net(x, r).exp()\n    other.square().mean().backward()\nloss.backward()",
    "threaded(loss.backward)",
    "loss.backward(retain_graph=True)\nmodel.scale.grad = None if model.scale.grad is None else model.scale.grad.float().double()\nloss.backward()",
    "loss.backward()\nnote('freed', grad(loss, model.a.weight, allow_unused=True)[0])",
    "loss.backward(inputs=[out, model.a.weight] if out.requires_grad and not out.is_leaf else None)",
    "gs = grad(loss, ps, allow_unused=True, create_graph=True)\nsum(g.square().sum() for g in gs if g is not None).backward()",
    "gs = grad([loss, out], [model.a.weight, model.scale], [None, torch.ones_like(out)], allow_unused=True)\nnote('gs', *gs)",
]

WRAPPED = [
    "net = DDP(compiled(model))",
    "net = compiled(DDP(model, find_unused_parameters=True))",
    "net = DDP(compiled(model), find_unused_parameters=True, gradient_as_bucket_view=True)",
    "net = compiled(lambda x, r: model(x, r))",
    "net = lambda x, r: model.b(compiled(model)(x, r))",
]

AROUND = [
    "try:",
    "with torch.autocast(device, torch.bfloat16):",
    "with torch.autograd.set_detect_anomaly(True):",
    "with torch.enable_grad():",
    "with torch.autograd.set_multithreading_enabled(False):",
]

BETWEEN = [
    "with torch.no_grad(): model.a.weight.add_(0.1)",
    "model.a.weight.data.mul_(0.9)",
    "model.a.weight.grad = None",
    "if model.a.weight.grad is not None: model.a.weight.grad.zero_()",
    "argand.graph_break()",
    "note('between', out)",
    "if loss > 1e3: loss = loss * 0.1",
    "model.a.weight.grad = torch.ones(6, 6, dtype=torch.float64, device=device)",
    "with torch.no_grad(): out.mul_(2)",
    "loss.register_hook(noting('of loss')) if loss.requires_grad else None",
    "was = model.training\nmodel.eval()\nwith torch.no_grad(): net(x, r)\nmodel.train(was)",
]

GRADIENTS = [
    "note('norm', clip_grad_norm_(ps, 0.5))",
    "clip_grad_norm_(model.parameters(), 0.1, norm_type=float('inf'))",
    "clip_grad_norm_(ps, 0.5, foreach=False)",
    "clip_grad_value_(ps, 0.01)",
    "for p in ps:\n    if p.grad is not None: p.grad.mul_(0.5)",
    "for p in ps:\n    if p.grad is not None: p.grad = p.grad * 0.5",
    "for p in ps:\n    if p.grad is not None: p.grad.data = p.grad.data + 0.01 * p.data",
    "with torch.no_grad():\n    for p in ps:\n        if p.grad is not None: p.sub_(p.grad, alpha=0.1)",
    "torch._foreach_mul_([p.grad for p in ps if p.grad is not None] or [torch.ones(1, device=device)], 0.5)",
]

OPTIMIZERS = [
    "torch.optim.SGD(ps, 0.1)",
    "torch.optim.SGD(ps, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01)",
    "torch.optim.SGD(model.a.parameters(), 0.1, momentum=0.9, foreach=True)",
    "torch.optim.Adam(ps, 0.01)",
    "torch.optim.Adam(ps, 0.01, fused=True)",
    "torch.optim.AdamW([{'params': ps[:2], 'lr': 0.1}, {'params': ps[2:]}], 0.01, amsgrad=True)",
    "torch.optim.RMSprop(ps, 0.01, centered=True)",
    "torch.optim.Adagrad(ps, 0.1)",
    "torch.optim.NAdam(model.b.parameters(), 0.01)",
    "torch.optim.RAdam(ps, 0.01)",
    "torch.optim.Adamax(ps, 0.01, foreach=True)",
    "torch.optim.Adadelta(ps)",
    "torch.optim.Rprop(ps)",
    "torch.optim.ASGD(ps)",
    "torch.optim.Adafactor(ps)",
    "torch.optim.Adam(ps, torch.tensor(0.01), foreach=False)",
    "torch.optim.AdamW(ps, torch.tensor(0.01, dtype=torch.float64), foreach=False, maximize=True)",
    "torch.optim.RMSprop(ps, 0.01, momentum=0.9, foreach=True, weight_decay=0.1)",
    "torch.optim.NAdam(ps, 0.01, decoupled_weight_decay=True, weight_decay=0.1, foreach=True)",
    "torch.optim.RAdam(ps, 0.01, betas=(0.5, 0.6), foreach=True)",
    "torch.optim.ASGD(ps, 0.1, t0=2, foreach=True)",
    "torch.optim.Rprop(ps, 0.01, etas=(0.3, 1.5), foreach=True, maximize=True)",
    "torch.optim.Adadelta(ps, foreach=True, weight_decay=0.1)",
    "torch.optim.Adagrad(ps, 0.1, lr_decay=0.1, initial_accumulator_value=0.5, foreach=True)",
    "torch.optim.SGD([{'params': [p]} for p in ps], 0.1, dampening=0.1, momentum=0.5)",
    "torch.optim.Muon([p for p in ps if p.dim() == 2], 0.02)",
]

AFTER = [
    "for o in optimizers: o.param_groups[0]['lr'] *= 0.9",
    "note('after', loss)",
    "state['last'] = loss",
    "with torch.no_grad(): model.scale.mul_(0.99)",
    "with torch.no_grad(): note('eval', net(x, r))",
    "model.load_state_dict(model.state_dict())",
    "torch.nn.utils.vector_to_parameters(torch.nn.utils.parameters_to_vector(ps) * 0.99, ps)",
    "if 'averaged' in globals(): averaged.update_parameters(model)",
    "if optimizers: note('state', *[v for s in optimizers[0].state.values() for v in s.values() if isinstance(v, torch.Tensor)][:2])",
]

ZERO = [
    "model.zero_grad()  # first",
    "model.zero_grad(set_to_none=False)  # first",
    "for o in optimizers: o.zero_grad()  # first",
    "for o in optimizers: o.zero_grad(set_to_none=False)",
    "for p in ps: p.grad = None",
    "for p in ps:  # first\n    if p.grad is not None: p.grad.detach_().zero_()",
]

CHANGES = [
    "if r == 3: model.eval()",
    "if r == 2: model.a.weight.requires_grad_(False)",
    "if r == 3: model.a.weight.register_hook(lambda g: g * 2)",
    "if r == 2: model.a.weight._backward_hooks and model.a.weight._backward_hooks.clear()",
    "if r == 3: model.a.register_full_backward_hook(noting('late'))",
    "if r == 2: model.a.weight.data = torch.ones(6, 6, dtype=torch.float64, device=device)",
    "if r == 2: model.a.weight = nn.Parameter(torch.ones(6, 6, dtype=torch.float64, device=device))",
    "if r == 3 and optimizers: optimizers[0].load_state_dict(optimizers[0].state_dict())",
]
