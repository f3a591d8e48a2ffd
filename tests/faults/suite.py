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
        plant: name of the plant, where that is not `name`; "" plants nothing (the program brings its own).
    """

    name: str
    stage: str
    kind: str
    program: str
    nodes: int = 3
    plant: str | None = None
    quick: bool = False

    def source(self, here: str) -> str:
        """The script."""
        plant = self.name if self.plant is None else self.plant
        install = f"plants.install({plant!r})" if plant else ""
        return HEAD.format(here=here, install=install) + PROGRAMS[self.program].replace(
            "BACKEND", f"plants.{self.name}"
        )


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


def _changed(change: str) -> str:
    PROGRAMS[f"attribute:{change}"] = PROGRAMS["attribute"].replace("CHANGE", change)
    return f"attribute:{change}"


PROGRAMS["bert:silu"] = PROGRAMS["bert"].replace("ACTIVATION", "silu")
PROGRAMS["bert:gelu"] = PROGRAMS["bert"].replace("ACTIVATION", "gelu")
WRONG, RAISES, CRASH, HANG = "wrong value", "exception", "crash", "hang"

FAULTS = [
    # capture
    Fault("capture_swaps_sub", "capture", WRONG, _small("sub", "torch.sub(x, y)"), quick=True),
    Fault("capture_drops_keyword", "capture", "wrong shape", "returned"),
    Fault("capture_wrong_dtype", "capture", "wrong dtype", _small("float", "x.float()")),
    Fault("capture_wrong_stride", "capture", "wrong stride", _small("contiguous", "x.t().contiguous().t() * 1")),
    Fault("capture_raises", "capture", RAISES, _small("cumsum", "torch.cumsum(x, 0)")),
    Fault("capture_crashes", "capture", CRASH, _small("cumsum2", "torch.cumsum(x, 0)"), 0),
    Fault("capture_hangs", "capture", HANG, _small("cumsum3", "torch.cumsum(x, 0)"), 0),
    Fault("capture_forgets_write", "capture", WRONG, "counter"),
    Fault("capture_nan", "capture", "NaN", _small("sqrt", "torch.sqrt(x)")),
    # guards
    Fault("guards_without_values", "guards", WRONG, _changed("model.scale = 3.0"), quick=True),
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
    Fault("lowering_swaps_floor", "lowering", WRONG, _small("floor", "torch.floor(x * 4)"), quick=True),
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
]
