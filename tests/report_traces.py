"""Traces for the report's tests: written by hand in the format of TORCH_TRACE, or by argand itself."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

GRAPH = """class GraphModule(torch.nn.Module):
    def forward(self, L_x_: "f32[4, 16][16, 1]cpu"):
        l_x_ = L_x_

        # File: /home/me/model.py:7 in forward, code: y = torch.relu(x) + 1
        relu: "f32[4, 16][16, 1]cpu" = torch.relu(l_x_);  l_x_ = None
        add: "f32[4, 16][16, 1]cpu" = relu + 1;  relu = None

        # File: /home/me/model.py:8 in forward, code: return y.sum()
        sum_1: "f32[][]cpu" = add.sum();  add = None
        return (sum_1,)
"""
POST_GRAD = """class GraphModule(torch.nn.Module):
    def forward(self, arg0_1: "f32[4, 16][16, 1]cpu"):
        # File: /home/me/model.py:7 in forward, code: y = torch.relu(x) + 1
        relu: "f32[4, 16][16, 1]cpu" = torch.ops.aten.relu.default(arg0_1);  arg0_1 = None
        add: "f32[4, 16][16, 1]cpu" = torch.ops.aten.add.Tensor(relu, 1);  relu = None

        # File: /home/me/model.py:8 in forward, code: return y.sum()
        sum_1: "f32[][]cpu" = torch.ops.aten.sum.default(add);  add = None
        return (sum_1,)
"""
CODE = """import torch
cpp_fused_add_relu_sum_0 = async_compile.cpp_pybinding(['const float*', 'float*'], r'''
#include <prefix.h>
extern "C"  void  kernel(const float* in_ptr0, float* out_ptr0)
{
    auto tmp0 = in_ptr0[0];
    out_ptr0[0] = tmp0;
}
''')

def call(args):
    arg0_1, = args
    # Topologically Sorted Source Nodes: [relu, y, sum_1], Original ATen: [aten.relu, aten.add, aten.sum]
    # Source node to ATen node mapping:
    #   relu => relu
    #   y => add
    cpp_fused_add_relu_sum_0(arg0_1, buf0)
    return (buf0,)
"""
BREAK = """Graph break in user code at /home/me/model.py:9
Graph Break Reason: Data-dependent branching
  Explanation: Detected data-dependent branching.
  Hint: Use `torch.cond` to express it.

  Developer debug context: attempted to jump

User code traceback:
  File "/home/me/main.py", line 3, in <module>
    model(x)
  File "/home/me/model.py", line 9, in forward
    if y > 0:
       ^^^^^

Traceback (most recent call last):
  File "/site-packages/torch/_dynamo/x.py", line 1, in inner
    raise Unsupported()
"""


class TraceMaker:
    """Writes records as torch does.

    Arguments:
        path: the trace file.
        rank: put into every record.
    """

    def __init__(self, path: Path, rank: int | None = None) -> None:
        self.path = path
        self.rank = rank
        self.lines: list[str] = []
        self.strings: dict[str, int] = {}
        self.clock = 0.0

    def raw(self, line: str) -> None:
        self.lines.append(line)

    def put(self, kind: str, fields: Any = None, payload: str | None = None, id: Any = None, **more: Any) -> None:
        """Arguments: id: (frame, recompile[, attempt[, compiled autograd]])."""
        entry: dict[str, Any] = {kind: {} if fields is None else fields, **more}
        if self.rank is not None:
            entry["rank"] = self.rank
        if id is not None:
            entry |= {"frame_id": id[0], "frame_compile_id": id[1], "attempt": id[2] if len(id) > 2 else 0}
            if len(id) > 3:
                entry["compiled_autograd_id"] = id[3]
        if payload is not None:
            entry["has_payload"] = hashlib.md5(payload.encode()).hexdigest()
        self.clock += 0.001
        self.lines.append(f"V1121 10:00:{self.clock:09.6f} 77 torch/_dynamo/x.py:12] {json.dumps(entry)}")
        if payload is not None:
            self.lines += [f"\t{line}" for line in payload.split("\n")]

    def artifact(self, name: str, text: str, id: Any = None, encoding: str = "string") -> None:
        self.put("artifact", {"name": name, "encoding": encoding}, text, id)

    def frame(self, filename: str, line: int, name: str, loc: str = "") -> dict[str, Any]:
        if filename not in self.strings:
            self.strings[filename] = len(self.strings)
            self.put("str", [filename, self.strings[filename]])
        return {"filename": self.strings[filename], "line": line, "name": name, "loc": loc}

    def start(self, id: Any, *frames: tuple[str, int, str, str]) -> None:
        self.put("dynamo_start", {"stack": [self.frame(*frame) for frame in frames]}, id=id)

    def event(self, phase: str, name: str, when: float, id: str = "0/0") -> None:
        event = {"name": name, "ts": when, "ph": phase, "args": {"compile_id": id}, "pid": 0, "tid": 0}
        self.put("chromium_event", {}, json.dumps(event))

    def span(self, name: str, begin: float, end: float, id: str = "0/0") -> None:
        self.event("B", name, begin, id)
        self.event("E", name, end, id)

    def metrics(self, id: Any, **values: Any) -> None:
        told = {
            "compile_id": f"{id[0]}/{id[1]}",
            "co_name": "forward",
            "co_filename": "/home/me/model.py",
            "co_firstlineno": 6,
            "entire_frame_compile_time_s": 1.5,
            "graph_op_count": 3,
            "guard_count": 4,
            "restart_reasons": [],
        }
        self.put("compilation_metrics", told | values, id=id)

    def compile(self, id: Any, graph: str = GRAPH, start: bool = True, **metrics: Any) -> None:
        """One compile as torch records it, in order."""
        if start:
            self.start(id, ("/home/me/main.py", 3, "<module>", "model(x)"), ("/home/me/model.py", 6, "forward", ""))
        self.put("dynamo_output_graph", {"sizes": {"l_x_": [4, 16]}}, graph, id)
        self.put("aot_inference_graph", {}, POST_GRAD, id)
        self.artifact("inductor_post_grad_graph", POST_GRAD, id)
        self.put("inductor_output_code", {"filename": "/tmp/cache/ab/cabcd.py"}, CODE, id)
        self.artifact("fx_graph_cache_hit", '{"key": "k", "cache_state": "hit"}', id, "json")
        self.artifact("aotautograd_cache_bypass", '{"reason": "x"}', id, "json")
        self.put(
            "dynamo_cpp_guards_str",
            {},
            "TREE_GUARD_MANAGER:\n+- RootGuardManager\n| +- TENSOR_MATCH: check_tensor(L['x'])\n",
            id,
        )
        self.metrics(id, **metrics)

    def save(self) -> Path:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("\n".join(self.lines) + "\n")
        return self.path


def rich_trace(path: Path) -> Path:
    """A trace with every status, a graph break, recompiles, an attempt, compiled autograd and time spans."""
    made = TraceMaker(path)
    made.artifact("torch_version", '{"pytorch_version": "2.13.0"}', None, "json")
    made.event("B", "dynamo", 0)
    made.compile((0, 0))
    made.artifact("dynamo_graph_break_reason", BREAK, (1, 0))
    made.compile((1, 0, 1), restart_reasons=["a graph break"], co_name="broken")
    made.put("dynamo_output_graph", {}, "", (2, 0))
    made.metrics((2, 0), graph_op_count=0, co_name="nothing")
    made.start((3, 0), ("/home/me/main.py", 3, "<module>", "model(x)"), ("/home/me/other.py", 1, "bad", ""))
    made.metrics((3, 0), fail_type="Unsupported", fail_reason="cannot", co_name="bad")
    made.start((4, 0), ("/home/me/main.py", 4, "<module>", "lost(x)"), ("/home/me/other.py", 9, "lost", ""))
    made.artifact(
        "recompile_reasons", "[\"0/0: tensor 'x' size mismatch at index 0. expected 4, actual 5\"]", (0, 1), "json"
    )
    made.compile((0, 1), GRAPH.replace("[4, 16]", "[s0, 16]").replace("relu", "tanh"), graph_op_count=4)
    made.put("compiled_autograd_graph", {}, "def forward(self): pass", (None, None, 0, 0))
    made.compile((5, 0, 0, 0))
    made.event("B", "backend_compile", 1_000)
    made.span("codegen", 2_000, 4_000)
    made.event("E", "backend_compile", 5_000)
    made.span("backend_compile", 5_500, 5_900, "0/1")
    made.event("E", "dynamo", 9_000)
    return made.save()


def argand_trace(directory: Path) -> Path:
    """A trace that argand writes of two small functions: a graph break, a recompile, two fused kernels."""
    import torch

    import argand
    from argand import events
    from argand.report.writer import TraceSink

    sink = TraceSink(directory)
    unsubscribe = events.bus.subscribe(sink)
    try:

        @argand.compile
        def toy(a, b):
            x = a / (torch.abs(a) + 1)
            if b.sum() < 0:
                b = b * -1
            return torch.softmax(x * b, -1)

        toy(torch.randn(4, 10), torch.ones(4, 10))
        toy(torch.randn(4, 12), torch.ones(4, 12))
    finally:
        unsubscribe()
        sink.close()
        argand.reset()
    return directory


EVIL = '</script><script>window.hacked=1</script><img src=x onerror="window.hacked=1">\'"`'


def evil_trace(path: Path) -> Path:
    made = TraceMaker(path)
    made.start((0, 0), (EVIL, 3, EVIL, EVIL), ("/home/me/" + EVIL, 6, EVIL, EVIL))
    made.put(
        "dynamo_output_graph",
        {"sizes": {EVIL: [EVIL]}},
        f"def forward(x):\n    # File: {EVIL}:1 in f, code: {EVIL}\n    y = x({EVIL!r})\n{EVIL}",
        (0, 0),
    )
    made.artifact(EVIL, EVIL, (0, 0))
    made.artifact("../../../../tmp/escaped", "text", (0, 0))
    made.artifact("/etc/passwd", "text", (0, 0))
    made.artifact("..", "text", (0, 0), "json")
    made.artifact("C:\\windows\\con", "text", (0, 0))
    made.put("inductor_output_code", {"filename": "../../" + EVIL}, f"r'''\n\n\n\n\n{EVIL}'''", (0, 0))
    made.put("link", {"name": EVIL, "url": "javascript:alert(1)"}, id=(0, 0))
    made.put("link", {"name": EVIL, "url": f"https://x/{EVIL}"}, id=(0, 0))
    made.artifact("dynamo_graph_break_reason", BREAK.replace("Data", EVIL).replace("/home/me", EVIL), (0, 0))
    made.artifact("recompile_reasons", json.dumps([EVIL]), (0, 0), "json")
    made.artifact("dynamo_error", EVIL, (0, 0))
    made.span(EVIL, 0, 10, EVIL)
    made.put(EVIL, {"a": EVIL})
    made.metrics((0, 0), co_name=EVIL, co_filename=EVIL, fail_type=EVIL, fail_reason=EVIL, **{EVIL: EVIL})
    made.metrics((0, 1), co_name=EVIL, graph_op_count=EVIL, entire_frame_compile_time_s=EVIL, restart_reasons=EVIL)
    return made.save()
