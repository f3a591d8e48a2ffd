"""The planted faults: what is planted, in which program, and what the doctor must find."""

from __future__ import annotations

from dataclasses import dataclass

HEAD = """import sys
sys.path.insert(0, {here!r})
import plants
{install}
import torch

"""


@dataclass(frozen=True)
class Fault:
    """One planted fault.

    Arguments:
        name: of the plant, and of the fault where only one program has it.
        stage: that must be named.
        kind: that must be named.
        program: key of PROGRAMS.
        nodes: calls that the smallest reproduction may have.
        says: what the verdict's text must say.
        plant: name of the plant, where that is not `name`; "" plants nothing (the program brings its own).
    """

    name: str
    stage: str
    kind: str
    program: str
    nodes: int = 3
    plant: str | None = None
    quick: bool = False
    says: tuple[str, ...] = ()

    def source(self, here: str) -> str:
        """The script."""
        plant = self.name if self.plant is None else self.plant
        install = f"plants.install({plant!r})" if plant else ""
        program = PROGRAMS[self.program].replace("BACKEND", f"plants.{self.name}")
        return HEAD.format(here=here, install=install) + program


PROGRAMS = {
    # a few lines of everything around the op that goes wrong
    "small": """
def fn(x, y):
    a = torch.relu(x) * 2
    b = OP
    c = torch.maximum(a, y) + 1
    return b + c, a.sum()

compiled = torch.compile(fn)
x = torch.rand(6, 8) + 0.5
print(compiled(x, torch.rand(6, 8))[0].shape)
""",
    "difference": """
def fn(x):
    return torch.sub(x, 2) + 1

torch.compile(fn)(torch.rand(6))
""",
    "scaled": """
class Scaled(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * self.scale

model = Scaled()
model.scale = 2.0
compiled = torch.compile(model)
compiled(torch.randn(4))
model.scale = 3.0
compiled(torch.randn(4))
""",
    "returned": """
def fn(x, y):
    a = torch.relu(x) * 2
    b = x.sum(1, keepdim=True)
    return b, a + y

compiled = torch.compile(fn)
compiled(torch.rand(6, 8), torch.rand(6, 8))
""",
    "train": """
model = torch.nn.Sequential(torch.nn.Linear(8, 8), ACT, torch.nn.Linear(8, 4))
compiled = torch.compile(model)
x = torch.randn(5, 8)
loss = compiled(x).square().mean()
loss.backward()
""",
    "attribute": """
class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.scale = 2.0
        self.parts = [1.0, 2.0]
        self.act = torch.relu

    def forward(self, x):
        y = self.act(self.fc(x))
        for part in self.parts:
            y = y + part
        return y * self.scale

model = Scaled()
compiled = torch.compile(model)
x = torch.randn(3, 4)
with torch.no_grad():
    compiled(x)
    CHANGE
    compiled(x)
""",
    "counter": """
class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.count = 0
        self.last = None

    def forward(self, x):
        y = torch.sin(x) + 1
        self.count = self.count + 1
        self.last = y
        return y * 2

model = Counting()
compiled = torch.compile(model)
compiled(torch.randn(4))
compiled(torch.randn(4))
print("count", model.count, model.last is None)
""",
    "mutate": """
def fn(x, y):
    z = torch.cos(x) + y
    x.add_(z)
    return z * 2

compiled = torch.compile(fn)
x = torch.ones(4)
compiled(x, torch.ones(4))
""",
    "stored": """
def fn(x, y):
    z = torch.cos(x) + y
    x.copy_(torch.mm(z, y))
    return z * 2

compiled = torch.compile(fn)
x = torch.ones(4, 4)
compiled(x, torch.ones(4, 4))
""",
    "transposed": """
def fn(x, y):
    a = torch.relu(x) * 2
    return (a + y).t()

compiled = torch.compile(fn)
compiled(torch.rand(6, 8), torch.rand(6, 8))
""",
    "two": """
def first(x):
    y = torch.sin(x)
    return y + 1

def second(x):
    y = torch.cos(x)
    return y + 1

a, b = torch.compile(first), torch.compile(second)
x = torch.randn(8)
a(x)
b(x)
""",
    "many": """
def fn(x):
    y = torch.sin(x) + 1
    return y * 2

compiled = torch.compile(fn)
for step in range(8):
    compiled(torch.randn(64))
""",
    "user": """
model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(3)])

def fn(x):
    y = torch.ones(4, 8)
    z = x + y
    a = torch.relu(z - 1)
    return model(a)

compiled = torch.compile(fn, backend=BACKEND)
compiled(torch.randn(4, 8))
""",
    # what the program changes, and what it can see
    "append": """
log = []

def fn(x):
    y = torch.sin(x)
    log.append(2)
    return y + 1

compiled = torch.compile(fn)
compiled(torch.randn(4))
compiled(torch.randn(4))
print(len(log))
""",
    "break": """
def fn(x, y):
    a = torch.sin(x)
    b = torch.cos(y) + 1
    print("here")
    return a - b * 2

compiled = torch.compile(fn)
compiled(torch.randn(4), torch.randn(4))
""",
    "default": """
def fn(x):
    y = torch.relu(x)
    return y * 2 + torch.ones(3)

compiled = torch.compile(fn)
compiled(torch.zeros(3))
torch.set_default_dtype(torch.float64)
compiled(torch.zeros(3, dtype=torch.float32))
""",
    "aliases": """
def fn(x, y):
    z = torch.sin(x)
    if x is y:
        return z * 3
    return z + y

compiled = torch.compile(fn)
a, b = torch.ones(3), torch.ones(3)
compiled(a, b)
compiled(a, a)
""",
    "keys": """
options = {"scale": 2.0}

def fn(x):
    y = torch.relu(x)
    if "bias" in options:
        y = y + options["bias"]
    return y * options["scale"]

compiled = torch.compile(fn)
x = torch.randn(5)
compiled(x)
options["bias"] = 1.0
compiled(x)
""",
    "types": """
class Plus:
    def apply(self, x):
        return x + 1

class Minus(Plus):
    def apply(self, x):
        return x - 1

def fn(x, step):
    y = torch.relu(x)
    return step.apply(y)

compiled = torch.compile(fn)
x = torch.randn(5)
compiled(x, Plus())
compiled(x, Minus())
""",
    # gradients
    "embedded": """
before = torch.nn.Linear(8, 8)
fn = torch.compile(lambda h: torch.sigmoid(h) * 2)
fn(before(torch.randn(5, 8))).square().mean().backward()
""",
    "negated": """
def fn(x, y):
    a = torch.relu(x) * 2
    b = torch.neg(x - y)
    return a + b

compiled = torch.compile(fn)
compiled(torch.rand(600, 1000), torch.rand(600, 1000))
""",
    "product": """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Parameter(torch.randn(6, 6))
        self.b = torch.nn.Parameter(torch.randn(6))

    def forward(self, x):
        y = torch.tanh(x @ self.a)
        z = y * torch.sigmoid(self.b)
        return (z + x).sum(1)

model = Net()
compiled = torch.compile(model)
compiled(torch.randn(4, 6)).square().mean().backward()
""",
    # many calls
    "calls": """
def fn(x):
    y = torch.OP(x) + 1
    return y * 2

compiled = torch.compile(fn)
for step in range(10):
    compiled(torch.randn(6, 8))
""",
    "rows": """
def fn(x, y):
    a = torch.relu(x) * 2
    b = OP
    return b + 1, a.amax()

compiled = torch.compile(fn)
compiled(torch.rand(37, 101) - 0.5, torch.rand(37, 101))
""",
    "large": """
def fn(x, y):
    a = torch.relu(x) * 2
    b = torch.exp(x - y)
    return a + b

compiled = torch.compile(fn)
compiled(torch.rand(600, 1000), torch.rand(600, 1000))
""",
    "products": """
def fn(x, y):
    a = torch.relu(x @ y)
    b = torch.sin(y @ x)
    c = a @ b
    return c + torch.cos(a) + b

compiled = torch.compile(fn)
compiled(torch.randn(8, 8), torch.randn(8, 8))
""",
    "chain": """
def fn(x, y):
    t = x @ y
    u = torch.sin(t)
    return u @ t + 1

compiled = torch.compile(fn)
compiled(torch.randn(8, 8), torch.randn(8, 8))
""",
    "sizes": """
def fn(x):
    y = torch.sin(x) * 2
    return y + 1

compiled = torch.compile(fn)
for size in (6, 7, 9, 11):
    compiled(torch.randn(size, 8))
""",
    "numbers": """
def first(x):
    y = torch.sin(x)
    return y * 1.5

def second(x):
    y = torch.sin(x)
    return y * 2.5

a, b = torch.compile(first), torch.compile(second)
x = torch.randn(8)
a(x)
b(x)
""",
    "written": """
model = torch.nn.Linear(8, 8)

def fn(x):
    a = torch.relu(x - 1)
    return model(a)

compiled = torch.compile(fn, backend=BACKEND)
for step in range(4):
    compiled(torch.randn(4, 8))
""",
    "trained": """
model = torch.nn.Linear(8, 8)

def fn(x):
    a = torch.relu(x - 1)
    return model(a)

compiled = torch.compile(fn, backend=BACKEND)
compiled(torch.randn(4, 8)).sum().backward()
""",
    "bert": """
from transformers import BertConfig, BertModel
config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=64,
                    hidden_act="ACTIVATION", max_position_embeddings=32)
torch.manual_seed(0)
model = BertModel(config).eval()
compiled = torch.compile(model)
with torch.no_grad():
    out = compiled(torch.arange(8).reshape(1, 8))
""",
    "gpt2": """
from transformers import GPT2Config, GPT2LMHeadModel
config = GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=64, n_positions=32, activation_function="gelu_new",
                    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
torch.manual_seed(0)
model = GPT2LMHeadModel(config)
compiled = torch.compile(model)
ids = torch.arange(8).reshape(1, 8)
loss = compiled(input_ids=ids, labels=ids, use_cache=False).loss
loss.backward()
""",
    "llama": """
from transformers import LlamaConfig, LlamaModel
config = LlamaConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
                     intermediate_size=64, vocab_size=64, max_position_embeddings=32)
torch.manual_seed(0)
model = LlamaModel(config).eval()
compiled = torch.compile(model)
with torch.no_grad():
    out = compiled(torch.arange(8).reshape(1, 8), use_cache=False)
""",
}


def _small(name: str, op: str) -> str:
    PROGRAMS[f"small:{name}"] = PROGRAMS["small"].replace("OP", op)
    return f"small:{name}"


def _train(name: str, act: str) -> str:
    PROGRAMS[f"train:{name}"] = PROGRAMS["train"].replace("ACT", act)
    return f"train:{name}"


def _with(program: str, op: str) -> str:
    PROGRAMS[f"{program}:{op}"] = PROGRAMS[program].replace("OP", op)
    return f"{program}:{op}"


def _changed(change: str) -> str:
    PROGRAMS[f"attribute:{change}"] = PROGRAMS["attribute"].replace("CHANGE", change)
    return f"attribute:{change}"


PROGRAMS["bert:silu"] = PROGRAMS["bert"].replace("ACTIVATION", "silu")
PROGRAMS["bert:gelu"] = PROGRAMS["bert"].replace("ACTIVATION", "gelu")
FLAKY = ("It is flaky",)
WRONG, RAISES, CRASH, HANG = "wrong value", "exception", "crash", "hang"

FAULTS = [
    # capture
    Fault("capture_swaps_sub", "capture", WRONG, "difference", quick=True),
    Fault("capture_drops_keyword", "capture", "wrong shape", "returned"),
    Fault("capture_wrong_dtype", "capture", "wrong dtype", _small("float", "x.float()")),
    Fault("capture_wrong_stride", "capture", "wrong stride", _small("contiguous", "x.t().contiguous().t() * 1")),
    Fault("capture_raises", "capture", RAISES, _small("cumsum", "torch.cumsum(x, 0)")),
    Fault("capture_crashes", "capture", CRASH, _small("cumsum2", "torch.cumsum(x, 0)"), 0),
    Fault("capture_hangs", "capture", HANG, _small("cumsum3", "torch.cumsum(x, 0)"), 0),
    Fault("capture_forgets_write", "capture", WRONG, "counter"),
    Fault("capture_nan", "capture", "NaN", _small("sqrt", "torch.sqrt(x)")),
    # guards
    Fault("guards_without_values", "guards", WRONG, "scaled", quick=True),
    Fault("guards_without_lengths", "guards", WRONG, _changed("model.parts.append(3.0)")),
    Fault("guards_without_tensors", "guards", RAISES, _changed("x = x.double(); model.double()")),
    Fault("guards_without_ids", "guards", WRONG, _changed("model.act = torch.tanh")),
    # autograd
    Fault("autograd_swaps_trig", "autograd", WRONG, _small("cos", "torch.cos(x)")),
    Fault("autograd_wrong_gradient", "autograd", WRONG, _train("tanh", "torch.nn.Tanh()")),
    Fault("autograd_raises", "autograd", RAISES, _small("cumsum4", "torch.cumsum(x, 0)")),
    Fault("autograd_wrong_mutation", "autograd", WRONG, "mutate"),
    Fault("autograd_wrong_stride", "autograd", "wrong stride", "transposed"),
    # passes
    Fault("passes_wrong_silu", "passes", WRONG, _small("silu", "torch.nn.functional.silu(x)")),
    Fault("passes_raise", "passes", RAISES, _small("erf", "torch.erf(x)")),
    Fault("passes_simplify_wrong", "passes", WRONG, _small("ceil", "torch.ceil(x)")),
    Fault("passes_cse_wrong", "passes", WRONG, _small("expm1", "torch.expm1(x)")),
    Fault("passes_fold_nan", "passes", "wrong value", _small("log1p", "torch.log1p(x)")),
    Fault("passes_hang", "passes", HANG, _small("erf2", "torch.erf(x)")),
    Fault("bert_wrong_silu", "passes", WRONG, "bert:silu", plant="passes_wrong_silu"),
    # lowering
    Fault("lowering_swaps_floor", "lowering", WRONG, _small("floor", "torch.floor(x * 4)")),
    Fault("lowering_raises", "lowering", RAISES, _small("erf3", "torch.erf(x)")),
    Fault("lowering_nan", "lowering", "NaN", _small("exp", "torch.exp(x - 3)")),
    Fault("lowering_crashes", "lowering", CRASH, _small("erf4", "torch.erf(x)")),
    Fault("lowering_hangs", "lowering", HANG, _small("erf5", "torch.erf(x)")),
    Fault("lowering_wrong_reduction", "lowering", WRONG, _small("amax", "x.amax(1, keepdim=True)")),
    # fusion
    Fault("fusion_wrong_order", "fusion", WRONG, _small("mm", "torch.mm(x, torch.cos(y).t()).sum()")),
    Fault("fusion_wrong_constant", "fusion", WRONG, _small("softmax", "torch.softmax(x * 2.0 + 0.25, 1)")),
    Fault("fusion_raises", "fusion", RAISES, _small("softmax2", "torch.softmax(x, 1)")),
    Fault("fusion_hangs", "fusion", HANG, _small("softmax3", "torch.softmax(x, 1)")),
    # C++ code generation
    Fault("codegen_wrong_neg", "codegen", WRONG, _small("neg", "torch.neg(x)")),
    Fault("codegen_compile_error", "codegen", "C++ compile error", _small("neg2", "torch.neg(x)")),
    Fault("codegen_nan", "codegen", "NaN", _small("sqrt2", "torch.sqrt(x)")),
    Fault("codegen_crashes", "codegen", CRASH, _small("tanh", "torch.tanh(x)"), quick=True),
    Fault("codegen_hangs", "codegen", HANG, _small("tanh2", "torch.tanh(x)")),
    Fault("codegen_raises", "codegen", RAISES, _small("tanh3", "torch.tanh(x)")),
    Fault("codegen_wrong_constant", "codegen", WRONG, _small("max", "torch.maximum(x, y)")),
    Fault("gpt2_wrong_tanh_crash", "codegen", CRASH, "gpt2", plant="codegen_crashes"),
    # the vector path
    Fault("vector_wrong_minimum", "vector", WRONG, _small("minimum", "torch.minimum(x, y)")),
    Fault("vector_wrong_exp", "vector", WRONG, _small("exp2", "torch.exp(x)")),
    Fault("vector_compile_error", "vector", "C++ compile error", _small("sin", "torch.sin(x)")),
    Fault("llama_wrong_exp", "vector", WRONG, "llama", plant="vector_wrong_exp"),
    # host code
    Fault("host_raises", "host", RAISES, _small("host1", "x * y")),
    Fault("host_crashes", "host", CRASH, _small("host2", "x * y")),
    Fault("host_hangs", "host", HANG, _small("host3", "x * y")),
    Fault("host_wrong_value", "host", WRONG, _small("host4", "x * y"), quick=True),
    Fault("host_wrong_stride", "host", "wrong stride", _small("host5", "x * y")),
    Fault("host_leaks", "host", "leak", "many"),
    # caches
    Fault("cache_key_too_short", "cache", WRONG, "two", 4),
    Fault("cache_wrong_library", "cache", WRONG, "two"),
    Fault("cache_raises", "cache", RAISES, _small("erf6", "torch.erf(x)")),
    # backends of users
    Fault("backend_drops_relu", "backend", WRONG, "user", plant=""),
    Fault("backend_refuses_relu", "backend", RAISES, "user", plant="", quick=True),
    Fault("backend_crashes", "backend", CRASH, "user", plant=""),
    Fault("backend_hangs", "backend", HANG, "user", plant=""),
    Fault("backend_nan", "backend", "NaN", "user", plant=""),
    Fault("backend_wrong_dtype", "backend", "wrong dtype", "user", plant=""),
    # deeper: state, memory, ends of loops, gradients (plants_deep)
    Fault("capture_loses_append", "capture", WRONG, "append"),
    Fault("capture_wrong_resume", "capture", WRONG, "break", 4),
    Fault("capture_wrong_number", "capture", WRONG, _small("half", "torch.sin(x) * 2.5")),
    Fault("guards_without_state", "guards", "wrong dtype", "default", 4),
    Fault("guards_without_aliases", "guards", WRONG, "aliases", 4),
    Fault("guards_without_keys", "guards", WRONG, "keys", 4),
    Fault("guards_without_types", "guards", WRONG, "types", 4),
    Fault("autograd_saves_wrong", "autograd", WRONG, "product"),
    Fault("autograd_doubles_gradients", "autograd", WRONG, _train("gelu", "torch.nn.GELU()")),
    Fault("autograd_loses_gradient", "autograd", WRONG, _train("gelu", "torch.nn.GELU()")),
    Fault("autograd_no_write_back", "autograd", WRONG, "stored"),
    Fault("autograd_wrong_promotion", "autograd", WRONG, _small("div", "(x * 100) / (y + 1)")),
    Fault("autograd_backward_crashes", "autograd", CRASH, "product"),
    Fault("autograd_backward_hangs", "autograd", HANG, "product"),
    Fault("passes_masked_nan", "passes", "NaN", _small("mask", "x.masked_fill(y > 0.5, float('-inf')).exp()")),
    Fault("passes_wrong_joint", "passes", WRONG, _train("tanh", "torch.nn.Tanh()")),
    Fault("passes_wrong_meta", "passes", "C++ compile error", _small("log2", "torch.log2(x)")),
    Fault("passes_no_memory", "passes", "out of memory", _small("erf7", "torch.erf(x)")),
    Fault("lowering_wrong_stride", "lowering", WRONG, _small("strided", "x.as_strided((6, 8), (1, 5))")),
    Fault("lowering_flips_nothing", "lowering", WRONG, _small("flip", "torch.flip(x, (1,))")),
    Fault("lowering_truncates", "lowering", WRONG, _small("trunc", "torch.div(-x, y, rounding_mode='floor')")),
    Fault("lowering_recurses", "lowering", RAISES, _small("erf8", "torch.erf(x)")),
    Fault("fusion_drops_store", "fusion", WRONG, "chain"),
    Fault("fusion_wrong_alias", "fusion", WRONG, "chain"),
    Fault("codegen_wrong_start", "codegen", WRONG, _with("rows", "torch.amax(-y - 1, 1, keepdim=True)")),
    Fault("codegen_deadlocks", "codegen", HANG, "large"),
    Fault("codegen_writes_outside", "codegen", CRASH, _small("tanh4", "torch.tanh(x)")),
    Fault("codegen_divides_by_zero", "codegen", CRASH, _small("tanh5", "torch.tanh(x)")),
    Fault("codegen_second_call", "codegen", WRONG, _with("calls", "cos")),
    Fault("codegen_leaks", "codegen", "leak", _with("calls", "sin")),
    Fault("codegen_wrong_size", "codegen", WRONG, "sizes"),
    Fault("gpt2_wrong_backward", "passes", WRONG, "gpt2", plant="passes_wrong_backward"),
    Fault("vector_wrong_tail", "vector", WRONG, _with("rows", "torch.sin(x)")),
    Fault("vector_reads_beyond", "vector", WRONG, _with("rows", "x.sum(1, keepdim=True)")),
    Fault("host_overlaps", "host", WRONG, "products", 6),
    Fault("host_swaps_arguments", "host", WRONG, _small("subtract", "(x - y) * x")),
    Fault("host_returns_one_buffer", "host", WRONG, _with("calls", "exp")),
    Fault("host_exits", "host", CRASH, _small("host6", "x * y")),
    Fault("host_stops", "host", RAISES, _small("host7", "x * y")),
    Fault("cache_ignores_numbers", "cache", WRONG, "numbers", 4),
    Fault("cache_broken_library", "cache", RAISES, _small("host8", "x * y")),
    Fault("backend_loses_result", "backend", RAISES, "user", plant=""),
    Fault("backend_writes_to_inputs", "backend", WRONG, "written", plant=""),
    Fault("backend_returns_nothing", "backend", RAISES, "user", plant=""),
    Fault("backend_wrong_later", "backend", WRONG, "written", plant=""),
    Fault("backend_exits", "backend", CRASH, "user", plant=""),
    Fault("backend_no_gradient", "backend", "wrong requires_grad", "trained", plant=""),
    # by chance, in threads, for some gradients (plants_chance)
    Fault("lowering_wrong_backward", "lowering", WRONG, _train("sigmoid", "torch.nn.Sigmoid()"), quick=True),
    Fault("lowering_loses_small_gradients", "lowering", WRONG, "embedded"),
    Fault("codegen_wrong_in_threads", "codegen", WRONG, "negated", says=("several threads",)),
    Fault("codegen_sometimes_wrong", "codegen", WRONG, _small("neg3", "torch.neg(x)"), says=(*FLAKY, "runs go wrong")),
    Fault("capture_sometimes_wrong", "capture", WRONG, _small("sub2", "torch.sub(x, y)"), says=FLAKY),
    Fault("codegen_races", "codegen", WRONG, "negated", says=(*FLAKY, "several threads")),
]
