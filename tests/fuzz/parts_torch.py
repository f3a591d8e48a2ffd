"""Ingredients of a world that are torch's and numpy's (see `parts.py`)."""

from __future__ import annotations

from parts import Part

# fmt: off
TORCH_PARTS = (
    Part(
        "modules",
        """
class Small~(nn.Module):
    gain = #
    def __init__(self, k=#):
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), float(k)))
        self.register_buffer('shift', torch.full((4,), 0.5))
        self.k = k
        self.names = ['a', 'b']
    def forward(self, x): return x * self.weight + self.shift + self.k * self.gain
class Stack~(nn.Module):
    def __init__(self, k=#):
        super().__init__()
        self.first = Small~(k)
        self.rest = nn.ModuleList([Small~(#), nn.ReLU()])
        self.by = nn.ModuleDict({'k': Small~(#)})
        self.drop = nn.Dropout(0.5)
    def forward(self, x):
        if self.training: x = x + 1
        for m in self.rest: x = m(x)
        return self.by['k'](self.first(x))
class Bare~(nn.Module):
    def forward(self, x): return x * 2
""",
        (
            "Small~()", "Small~(#)", "Stack~(#)", "Stack~().eval()", "nn.Sequential(Small~(#), nn.Tanh())", "Bare~()", "nn.ParameterList([nn.Parameter(torch.ones(4))])", "nn.LayerNorm(4)",
            "nn.BatchNorm1d(4).eval()", "nn.ParameterDict({'k': nn.Parameter(torch.ones(4))})", "nn.Dropout(0.5).eval()", "nn.LeakyReLU(0.5)",
        ),
        (
            "$o(x)", "$o(x)", "$o(x)", "$o(x) + $o(x)", "$o.weight", "$o.k", "$o.training", "$o.first.k", "$o.gain", "len($o)", "$o[0](x)", "[n for n, _ in $o.named_parameters()]",
            "sum(p.sum() for p in $o.parameters())", "$o.shift * 2", "len(list($o.children()))", "$o.state_dict().keys()", "$o.by['k'].k", "$o.rest[0](x)", "[m for m in $o.modules()][0].training",
            "$o.forward(x)", "$o.eps", "$o.negative_slope", "$o.p", "$o._get_name()", "hasattr($o, 'k')", "getattr($o, 'bias', None)", "'weight' in dict($o.named_parameters())",
            "$o.weight.requires_grad", "len($o._forward_hooks)", "$o['k'] * x", "$o.get_parameter('weight')", "$o._buffers['shift']", "$o.weight.shape", "$o.running_mean", "str($o)",
            "isinstance($o, nn.Sequential)", "[type(m).__name__ for m in $o]",
        ),
        (
            "put($o, 'k', #)", "put(Small~, 'gain', #)", "put(Small~, 'forward', lambda self, x: x * #)", "put($o, 'forward', lambda x: x * #)", "put($o, '_call_impl', lambda *a: a[0] * #)",
            "put($o, 'training', False)", "$o.eval()", "$o.train()", "put($o, 'weight', nn.Parameter(torch.full((4,), float(#))))", "$o.weight.data.fill_(#)",
            "put($o.weight, 'data', torch.full((4,), float(#)))", "put($o, 'shift', torch.full((4,), float(#)))", "hook($o, 'register_forward_hook', lambda m, i, o: o * #)",
            "hook($o, 'register_forward_pre_hook', lambda m, i: (i[0] + #,))", "put($o, 'first', Small~(#))", "put($o, 'first', nn.Tanh())", "put($o.first, 'k', #)", "item($o.rest, 0, Small~(#))",
            "item($o.by, 'k', Bare~())", "$o.requires_grad_(False)", "hook($o.first, 'register_forward_hook', lambda m, i, o: o * #)", "put($o, '__class__', Bare~)", "put($o, 'eps', 0.5)",
            "put($o, 'negative_slope', 0.25)", "$o.double()", "$o.float()", "$o.zero_grad()", "hook($o, 'register_full_backward_hook', lambda m, a, b: (a[0] * 2,))",
            "put(Small~, '__call__', lambda self, x: x * #)", "item($o, 0, Small~(#))", "put($o.shift, 'data', torch.full((4,), float(#)))", "$o.add_module('extra', nn.Tanh())",
            "put(Bare~, 'forward', lambda self, x: x + #)", "item(vars($o), 'forward', lambda x: x + #)", "cut($o, 'shift')",
            "hook(torch.nn.modules.module, 'register_module_forward_hook', lambda m, i, o: None)", "item($o._parameters, 'weight', None)", "put($o, '_forward_hooks', {})",
            "item($o._modules, 'first', nn.Tanh())", "put($o, 'names', ('a', #))", "put(Small~, '__getattr__', lambda s, n: #)", "$o.register_buffer('bias', torch.ones(4))", "put($o.drop, 'p', 0.)",
        ),
    ),
    Part(
        "autograd functions",
        """
class Twice~(torch.autograd.Function):
    factor = #
    @staticmethod
    def forward(ctx, x, k):
        ctx.k = k
        return x * k * Twice~.factor
    @staticmethod
    def backward(ctx, g): return g * ctx.k, None
""",
        (
            "Twice~", "torch.tensor([1., 2.])", "3",
        ),
        (
            "Twice~.apply(x, 2.)", "Twice~.factor", "Twice~.apply(x, Twice~.factor)", "Twice~.__name__",
        ),
        (
            "put(Twice~, 'factor', #)", "put(Twice~, 'forward', staticmethod(lambda ctx, x, k: put(ctx, 'k', #) or x * #))", "put(Twice~, 'backward', staticmethod(lambda ctx, g: (g * #, None)))",
            "put(Twice~, 'apply', lambda x, k: x * #)",
        ),
    ),
    Part(
        "tensors",
        """
class Sub~(torch.Tensor):
    mark = #
def noted~(value, **attrs):
    for name, v in attrs.items(): setattr(value, name, v)
    return value
""",
        (
            "torch.full((4,), float(#))", "noted~(torch.ones(4), note=#)", "torch.ones(4, requires_grad=True)", "nn.Parameter(torch.full((4,), 2.))", "torch.tensor(#)", "torch.arange(4)",
            "torch.ones(4, 4).t()", "torch.tensor([1 + 2j, 3j])", "torch.tensor([1 + 2j]).conj()", "torch.ones(2, 4)[:, ::2]", "torch.ones(4).as_subclass(Sub~)",
            "torch.tensor([True, False, True, True])", "torch.Size([2, 3])", "torch.float32", "torch.device('cpu')", "torch.ones(4, dtype=torch.float64)",
            "noted~(torch.ones(4, requires_grad=True), grad=torch.ones(4))", "(torch.ones(4, requires_grad=True) * 2)", "torch.Generator().manual_seed(3)", "[torch.ones(4), torch.zeros(4)]",
            "{'k': torch.ones(4)}", "torch.strided", "torch.finfo(torch.float32)", "torch.ones(4).to_sparse()", "torch.zeros(0)", "torch.contiguous_format", "torch.ones(1, 4).expand(3, 4)",
            "torch.iinfo(torch.int8)",
        ),
        (
            "x + $o", "x * $o", "$o.sum()", "$o.shape", "$o.dtype", "$o.requires_grad", "$o.is_inference()", "$o.is_conj()", "$o.is_neg()", "$o.is_contiguous()", "$o.stride()", "$o.grad",
            "$o.grad is None", "$o.is_leaf", "$o.note", "getattr($o, 'note', #)", "hasattr($o, 'note')", "isinstance($o, torch.FloatTensor)", "isinstance($o, nn.Parameter)",
            "isinstance($o, torch.Tensor)", "$o.mark", "type($o).__name__", "len($o)", "$o.dim()", "$o.size(0)", "$o.numel()", "$o[0]", "$o.device", "$o.type()", "$o.retains_grad",
            "$o.grad_fn is None", "$o._version", "$o.storage_offset()", "$o.layout", "torch.is_complex($o)", "torch.zeros(2, dtype=$o)", "x.to($o)", "$o.is_floating_point", "$o.max", "torch.ones($o)",
            "$o.type", "torch.zeros(2, device=$o).shape", "$o == torch.float32", "$o.is_sparse", "$o.element_size()", "$o.itemsize", "$o.initial_seed()", "$o.output_nr", "$o.ndim", "$o.tolist()",
            "$o.item()", "$o.T", "$o.real", "$o is $o", "$o['k'] + x", "$o[1] * x", "torch.equal($o, torch.ones(4))", "bool($o.sum() > 3)", "$o.mean()", "torch.is_tensor($o)", "$o.data",
            "$o.detach() * x", "$o.is_shared()", "$o.to(torch.float64)", "$o.__dict__", "$o._base is None", "$o.is_nonzero", "torch.result_type($o, 1.)", "torch.promote_types($o.dtype, torch.int8)",
            "$o.numpy(force=True)", "$o.eps", "str($o.dtype)", "torch.is_inference($o)", "x.sum() + $o.sum()", "$o._is_view()", "torch.is_grad_enabled() and $o.requires_grad",
            "$o.untyped_storage().nbytes()", "$o.data_ptr() == $o.data_ptr()", "$o.__class__ is torch.Tensor", "$o._backward_hooks is None", "$o.is_meta",
        ),
        (
            "put($o, 'note', #)", "$o.detach().fill_(2)", "$o.detach().add_(#)", "put($o, 'data', torch.full((4,), float(#)))", "put($o, 'data', torch.ones(4, 2)[:, 0])",
            "put($o, 'data', torch.ones(2))", "put($o, 'requires_grad', True)", "put($o, 'requires_grad', False)", "put($o, 'grad', torch.ones(4))", "put($o, 'grad', None)", "put(Sub~, 'mark', #)",
            "put($o, '__class__', Sub~)", "hook($o, 'register_hook', lambda g: g * #)", "$o.retain_grad()", "item($o, 0, torch.zeros(4))", "item($o, 'k', torch.full((4,), float(#)))",
            "put($o, 'data', torch.ones(4, dtype=torch.float64))", "$o.detach().t_()", "$o.detach().resize_(0)", "item($o, 0, torch.ones(4, requires_grad=True))", "$o.share_memory_()",
            "$o.manual_seed(4)", "put($o, 'data', torch.tensor([1 + 1j]).conj())", "with_inference(lambda: item($o, 0, torch.ones(4)))", "put($o, 'data', torch.ones(4).to_sparse())",
            "put(Sub~, 'sum', lambda s: #)", "put(Sub~, '__torch_function__', classmethod(lambda c, f, t, a=(), k=None: #))", "item($o, 'k', torch.arange(4))", "put($o, 'data', torch.ones(8)[4:])",
            "put($o, 'grad', torch.full((4,), 2.))",
        ),
    ),
    Part(
        "replaced tensors",
        'BOX~ = types.SimpleNamespace(t=torch.ones(4), u=torch.full((4,), float(#)))',
        (
            "BOX~",
        ),
        (
            "BOX~.t + x", "BOX~.t.dtype", "BOX~.t.is_inference()", "BOX~.t.is_conj()", "BOX~.t.is_contiguous()", "BOX~.t.requires_grad", "BOX~.t.grad is None", "BOX~.t.is_leaf", "BOX~.t.sum()",
            "BOX~.t.is_neg()", "BOX~.t.shape", "BOX~.t is BOX~.u", "BOX~.t._version", "BOX~.t.real * 2", "type(BOX~.t).__name__", "isinstance(BOX~.t, nn.Parameter)",
            "isinstance(BOX~.t, torch.FloatTensor)", "BOX~.t.storage_offset()", "BOX~.t.stride()", "BOX~.t.dim()", "BOX~.t.retains_grad", "BOX~.t._is_view()", "BOX~.t.is_sparse", "BOX~.t.grad",
            "BOX~.t.imag", "getattr(BOX~.t, 'note', #)", "BOX~.t.grad_fn is None", "BOX~.t.data_ptr() == BOX~.u.data_ptr()", "torch.is_inference(BOX~.t)", "torch.is_complex(BOX~.t)",
            "BOX~.t.output_nr",
        ),
        (
            "put(BOX~, 't', torch.full((4,), float(#)))", "put(BOX~, 't', torch.ones(4, dtype=torch.float64))", "put(BOX~, 't', torch.arange(4))", "put(BOX~, 't', torch.ones(4, 2)[:, 0])",
            "put(BOX~, 't', torch.ones(8)[4:])", "put(BOX~, 't', torch.ones(4, requires_grad=True))", "put(BOX~, 't', torch.ones(4, requires_grad=True) * 2)",
            "put(BOX~, 't', nn.Parameter(torch.ones(4)))", "put(BOX~, 't', torch.tensor([1 + 2j, 2, 3, 4]).conj())", "put(BOX~, 't', torch.tensor([1 + 2j, 2, 3, 4]))",
            "put(BOX~, 't', torch.tensor([1 + 2j, 2, 3, 4]).conj().imag)", "put(BOX~, 't', inferred(lambda: torch.full((4,), 3.)))", "put(BOX~, 't', torch.ones(1).expand(4))",
            "put(BOX~, 't', torch.ones(2, 4))", "put(BOX~, 't', torch.ones(1))", "put(BOX~, 't', torch.tensor(2.))", "put(BOX~, 't', torch.zeros(4, dtype=torch.bool))",
            "put(BOX~, 't', torch.ones(4).to(torch.bfloat16))", "put(BOX~, 't', BOX~.u)", "put(BOX~, 't', BOX~.u.view(4))", "put(BOX~, 't', BOX~.u[:])", "put(BOX~, 't', #)",
            "put(BOX~, 't', numpy.ones(4))", "put(BOX~, 't', torch.ones(4).add_(1))", "put(BOX~, 't', torch.ones(4).unbind()[0])", "put(BOX~, 't', torch.ones(4).to_sparse())",
            "put(BOX~, 't', torch.empty(4, device='meta'))", "put(BOX~, 't', torch.ones(4, requires_grad=True).detach())", "put(BOX~.t, 'note', #)", "put(BOX~.t, 'grad', torch.ones(4))",
            "put(BOX~.t, 'requires_grad', True)", "BOX~.t.detach().add_(1)",
        ),
    ),
    Part(
        "numpy",
        """
class Arr~(numpy.ndarray):
    note = #
""",
        (
            "numpy.float64(#)", "numpy.int64(3)", "numpy.float32(#)", "numpy.bool_(True)", "numpy.array([#, #])", "numpy.arange(4.)", "numpy.array(3)", "numpy.ones((2, 2)).T", "numpy.dtype('float32')",
            "numpy.array(['a', '$s'])", "numpy.array([(1, 2.)], dtype=[('a', 'i4'), ('b', 'f8')])", "numpy.ones(3).view(Arr~)", "numpy.ma.array([1., 2.], mask=[0, 1])", "numpy.random.RandomState(3)",
            "numpy.datetime64('2020-01-01')", "numpy.float64", "numpy.array([None, #], dtype=object)", "[numpy.float64(#), numpy.int32(2)]",
        ),
        (
            "$o + 1", "$o * 2.", "$o[0]", "$o.sum()", "$o.dtype", "$o.shape", "float($o)", "int($o)", "$o.item()", "$o.tolist()", "len($o)", "torch.tensor($o)", "torch.from_numpy($o) * 2",
            "x * $o.sum()", "$o.flags.writeable", "$o.strides", "$o.mean()", "numpy.sin($o)", "$o.note", "numpy.asarray($o)", "str($o)", 'f"{$o}"', "'%.2f' % $o", "round($o)", "bool($o)", "$o == 3",
            "$o < 2", "numpy.sum($o)", "$o['a']", "$o.real", "$o.ndim", "$o.T", "$o.flags.c_contiguous", "isinstance($o, float)", "$o.name", "numpy.result_type($o, numpy.int8)",
            "x + torch.as_tensor($o)", "x * float($o)", "hash($o)", "sorted($o)", "max($o)", "list($o)", "$o.max()", "$o.mask", "math.sqrt($o)", "range(int($o))", "[1, 2, 3, 4][$o]", "$o.copy()",
            "x * $o", "sum($o)", "operator.index($o)",
        ),
        (
            "item($o, 0, #)", "do(lambda: $o.fill(2), lambda: $o.fill(1))", "put($o, 'shape', (2, 1))", "put($o, 'note', #)", "put($o.flags, 'writeable', False)", "item($o, 1, #)",
            "put(Arr~, 'note', #)", "put($o, 'dtype', 'int64')", "item($o, 0, '$s')", "item($o['a'], 0, 9)", "item($o.mask, 0, True)", "put(Arr~, 'sum', lambda s: #)", "item($o, 0, numpy.float64(#))",
            "item($o, 0, numpy.float32(#))", "$o.sort()", "put($o, 'strides', (8, 8))", "item($o, 0, None)",
        ),
    ),
)
# fmt: on
"""Ingredients of torch and numpy. No change makes a tensor larger in place: torch ends the process where its memory is shared (`share_memory_`)."""
