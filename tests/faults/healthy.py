"""Scripts that are right compiled, though no digit of some of their results means anything: the doctor must say so.

python tests/faults/healthy.py [NAME ...]   asks the doctor about each (all of them: some minutes)
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\ntorch.manual_seed(0)\n"


def _train(model: str, inputs: str = "torch.randn(4, 8)", loss: str = "out.square().mean()") -> str:
    return (
        f"model = {model}\ncompiled = torch.compile(model)\nout = compiled({inputs})\nloss = {loss}\nloss.backward()\n"
        "print(loss.item())\n"
    )


# Gradients that are zero but for rounding.
GRADIENTS = {
    "bias before InstanceNorm": _train("nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4), nn.ReLU())", "torch.randn(2, 3, 8, 8)"),
    "bias before BatchNorm": _train("nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())", "torch.randn(2, 3, 8, 8)"),
    "bias before GroupNorm": _train("nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(4, 4), nn.GELU())", "torch.randn(2, 3, 8, 8)"),
    "scalar before LayerNorm": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1))
        self.fc, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)
    def forward(self, x):
        return self.norm(self.fc(x) + self.shift)
""" + _train("Net()"),
    "sum of a LayerNorm": _train("nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))", loss="out.sum()"),
    "mean of a BatchNorm": _train("nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))", loss="out.mean()"),
    "shift of a softmax": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1))
        self.fc = nn.Linear(8, 5)
    def forward(self, x):
        return (self.fc(x) + self.shift).softmax(-1)
""" + _train("Net()"),
    "key bias of attention": _train("nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)", "torch.randn(2, 5, 8)"),
    "MLP-Mixer": """
class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2, self.n3 = nn.LayerNorm(8), nn.LayerNorm(8), nn.LayerNorm(8)
        self.tokens = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6))
        self.channels = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.head = nn.Linear(8, 3)
    def forward(self, x):
        x = x + self.tokens(self.n1(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channels(self.n2(x))
        return self.head(self.n3(x).mean(1))
""" + _train("Mixer()", "torch.randn(2, 6, 8)", "F.cross_entropy(out, torch.tensor([0, 2]))"),
    "dead ReLU": """
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
with torch.no_grad():
    model[0].bias.fill_(-50.0)
""" + _train("model"),
    "tiny loss": _train("nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))", loss="(out * 1e-12).square().sum()"),
    "saturated sigmoid": _train("nn.Sequential(nn.Linear(8, 8), nn.Sigmoid())", "torch.randn(4, 8) * 200", "(1 - out).clamp_min(1e-30).log().mean()"),
    "log of one minus": _train("nn.Sequential(nn.Linear(8, 8), nn.Sigmoid())", "torch.randn(4, 8) * 40", "(1 - out).mean()"),
    "cosine of the same": _train("nn.Linear(8, 8)", loss="(1 - F.cosine_similarity(out, out.detach() * 2)).sum()"),
    "near zero": _train("nn.Linear(8, 8)", loss="(out - out.detach() + (out.detach().exp().log() - out)).sum()"),
    "standard deviation of equals": """
@torch.compile
def spread(x):
    y = torch.exp(x) / torch.exp(x)
    return (y - y.mean()).abs().sum(), (x.sin() ** 2 + x.cos() ** 2 - 1).sum()
print(spread(torch.randn(64)))
""",
    "large cancellation": """
@torch.compile
def cancels(x):
    big = x * 1e7
    return (big + 1).sum() - big.sum(), ((big + x) - big).mean(), big.sum() * 0.125
print(cancels(torch.randn(1000))[1] * 0)
""",
    "Adam after noise": """
model = nn.Sequential(nn.Conv1d(3, 4, 3), nn.InstanceNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(24, 2))
compiled = torch.compile(model)
optimizer = torch.optim.Adam(model.parameters(), 0.01)
x = torch.randn(4, 3, 8)
for step in range(3):
    optimizer.zero_grad()
    loss = compiled(x).square().mean()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), model[0].bias[0].item())
""",
    "dropout": _train("nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.BatchNorm1d(8))"),
    "gradients of grad": """
model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
compiled = torch.compile(model)
print(len(torch.autograd.grad(compiled(torch.randn(4, 8)).sum(), list(model.parameters()))))
""",
    "near ties": """
@torch.compile
def chosen(x):
    return (x.softmax(-1) * 0 + (x - x.exp().log()) * 1e-30).argmax(-1)
chosen(torch.randn(4, 50))
""",
    "half precision": """
model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)).bfloat16()
compiled = torch.compile(model)
compiled(torch.randn(4, 8).bfloat16()).sum().backward()
""",
}  # fmt: skip

# What is printed, and the order of things, that no two runs have in common.
CHANCES = {
    "times": "import time\n@torch.compile\ndef f(x):\n    return x.sin() + 1\nstart = time.time()\nf(torch.ones(3))\n"
    "print('took', time.time() - start, time.ctime(), time.perf_counter())\n",
    "addresses": "class Thing:\n    pass\n@torch.compile\ndef f(x):\n    return x.cos() + 1\nf(torch.ones(3))\n"
    "print(Thing(), id(Thing()), hash(Thing()), f, object())\n",
    "sets": "class Layer:\n    def __init__(self, scale):\n        self.scale = scale\n"
    "@torch.compile(dynamic=False)\ndef f(x, layer):\n    return x * layer.scale\n"
    "for layer in {Layer(1.0), Layer(2.0), Layer(3.0)}:\n    print(f(torch.ones(3), layer))\n",
    "threads": "import threading\n@torch.compile\ndef f(x):\n    return (x.sin() * 2).sum()\n"
    "threads = [threading.Thread(target=lambda n=n: f(torch.full((4,), n / 3))) for n in range(6)]\n"
    "[t.start() for t in threads], [t.join() for t in threads]\n",
    "pool": "from concurrent.futures import ThreadPoolExecutor\n@torch.compile\ndef f(x):\n    return x.exp() - 1\n"
    "with ThreadPoolExecutor(3) as pool:\n"
    "    print(sum(float(v.sum()) for v in pool.map(f, [torch.full((3,), n / 7) for n in range(8)])))\n",
    "random without a seed": "import os\ntorch.manual_seed(int.from_bytes(os.urandom(4), 'little'))\n"
    "@torch.compile\ndef f(x):\n    return x * 2\nprint(f(torch.randn(3)))\n",
    "stops by the clock": "import time\n@torch.compile\ndef f(x):\n    return x * 2\nend, n = time.time() + 0.02, 0\n"
    "while time.time() < end:\n    f(torch.ones(3))\n    n += 1\nprint(n)\n",
    "learns until it is good": "w = torch.ones(3, requires_grad=True)\n@torch.compile\ndef f(w):\n"
    "    return (w * w).sum().sqrt()\nbest = float('inf')\nfor step in range(20):\n    loss = f(w)\n"
    "    if loss.item() > best:\n        break\n    best = loss.item()\n    loss.backward()\n    with torch.no_grad():\n"
    "        w -= 0.3 * w.grad\n        w.grad = None\n    print(step, best)\n",
    "process id": "import os, tempfile\n@torch.compile\ndef f(x):\n    return x.sin()\nf(torch.ones(2))\n"
    "print(os.getpid(), tempfile.mkdtemp(), torch.initial_seed())\n",
}


def joined(programs: dict[str, str]) -> str:
    """All of them as one script, each in a function of its own."""
    parts = [HEAD]
    for number, text in enumerate(programs.values()):
        body = "".join(f"    {line}\n" for line in text.splitlines())
        parts.append(f"def script_{number}():\n{body}\nscript_{number}()\n")
    return "\n".join(parts)


def main() -> int:
    from argand.debug.doctor.child import Allowed, Script, one_thread
    from argand.debug.doctor.procedure import Doctor

    threads = one_thread()
    accused = 0
    for name, text in {**GRADIENTS, **CHANCES}.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        place = Path(tempfile.mkdtemp(prefix="argand_healthy_"))
        path = place / "script.py"
        path.write_text(HEAD + text)
        verdict = Doctor(Script(str(path)), place, Allowed(60.0, threads=threads), lambda _: None).examine()
        accused += verdict.faulty
        print(f"{name}: {verdict.text}", flush=True)
    print(f"{accused} accused")
    return accused


if __name__ == "__main__":
    raise SystemExit(main())
