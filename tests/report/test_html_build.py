"""The report as files: what is in them, what a broken or hostile trace does to them."""

from __future__ import annotations

import base64
import contextlib
import functools
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest

import warm
from argand.errors import ConfigError
from argand.report.html import Limits, build
from argand.report.html.file_names import artifact_file, folder_of, safe_name
from report_traces import GRAPH, TraceMaker, argand_trace, evil_trace, rich_trace
from trace_programs import read, run_text


class Page(HTMLParser):
    """Elements, links and text of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(path.read_text())
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def links(self) -> list[str]:
        return [a["href"] or "" for tag, a in self.elements if tag == "a" and "href" in a]


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rich")
    return build(rich_trace(folder / "trace.log"), folder / "out").index.parent


def test_artifacts_are_named_as_tlparse_names_them(rich: Path) -> None:
    names = {p.relative_to(rich).as_posix() for p in rich.rglob("*") if p.is_file()}
    assert "-_0_0_0/dynamo_output_graph_1.txt" in names
    assert "-_0_0_0/aot_inference_graph_2.txt" in names
    assert "-_0_0_0/inductor_post_grad_graph_3.txt" in names
    assert "-_0_0_0/inductor_output_code_cabcd_4.html" in names
    assert "-_0_0_0/fx_graph_cache_hit_5.json" in names
    assert "-_0_0_0/compilation_metrics_8.html" in names
    assert (rich / "-_0_0_0/dynamo_output_graph_1.txt").read_text() == GRAPH.rstrip("\n") + "\n"


@pytest.mark.skipif(
    shutil.which("tlparse", path=str(Path(sys.executable).parent)) is None, reason="tlparse is not installed"
)
def test_same_files_as_tlparse(tmp_path: Path) -> None:
    """Everything that tlparse writes for a compile has the same path here."""
    trace = rich_trace(tmp_path / "trace.log")
    tlparse = Path(sys.executable).parent / "tlparse"
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    subprocess.run([tlparse, trace, "-o", theirs, "--no-browser", "--overwrite"], check=True, capture_output=True)
    build(trace, ours)
    found = {p.relative_to(theirs).as_posix() for p in theirs.glob("*_*/*") if p.is_file()}
    assert len(found) > 30
    assert {name for name in found if not (ours / name).is_file()} == set()


def test_every_link_leads_somewhere(rich: Path) -> None:
    checked = 0
    for path in rich.rglob("*.html"):
        for link in Page(path).links():
            if link.startswith(("https://", "#")):
                continue
            target = (path.parent / link.partition("#")[0]).resolve()
            assert target.is_file(), f"{path.relative_to(rich)} links to {link}"
            checked += 1
    assert checked > 200


def test_statuses_are_coloured(rich: Path) -> None:
    elements = Page(rich / "index.html").elements
    chips = {
        (a.get("href") or "", (a.get("class") or "").split()[-1])
        for tag, a in elements
        if tag == "a" and (a.get("class") or "").startswith("id ")
    }
    for id, status in (("0/0", "ok"), ("1/0", "break"), ("2/0", "empty"), ("3/0", "error"), ("4/0", "missing")):
        anchor = f"#%5B{id}%5D"
        assert (anchor, f"s-{status}") in chips or id == "2/0", (id, chips)
    ids = [a.get("id") for tag, a in elements if tag == "details"]
    assert ids[:2] != [] and {"[0/0]", "[0/1]", "[1/0]", "[!0/-/-]", "[!0/5/0]"} <= set(ids)
    summary = (rich / "index.html").read_text()
    assert '<span class="id s-empty">[2/0]</span>' in summary


def test_ir_dumps_are_in_order_and_marked(rich: Path) -> None:
    text = (rich / "index.html").read_text()
    part = text[text.index('id="[0/0]"') : text.index('id="[1/0]"')]
    files = re.findall(r'class="file"[^>]*>([^<]+)<', part)
    numbers = [int(re.findall(r"_(\d+)\.\w+$", name)[0]) for name in files]
    assert numbers == sorted(numbers) and len(numbers) == 8
    assert "✅" in part and "❓" in part
    assert "[1/0_1]" in text


def test_stack_trie_branches_where_stacks_part(rich: Path) -> None:
    page = (rich / "index.html").read_text()
    tree = page[page.index('role="tree"') : page.index('id="ir-dumps"')]
    assert tree.count('role="treeitem"') == 5
    assert tree.count('aria-expanded="true"') == 2
    assert "main.py</span>:3" in tree and "main.py</span>:4" in tree


def test_breaks_and_recompiles_say_where_and_what_to_do(rich: Path) -> None:
    text = Page(rich / "breaks.html").text
    for part in ("Data-dependent branching", "model.py :9 in forward", "if y > 0:", "Use `torch.cond`", "dynamic=True"):
        assert part in text, part
    assert "tensor 'x' size mismatch at index 0. expected 4, actual 5" in text
    assert "Unsupported: cannot" in text and "raise Unsupported()" not in text


def test_compile_pages_show_metrics(rich: Path) -> None:
    text = Page(rich / "-_0_0_0/compilation_metrics_8.html").text
    for part in ("Entire frame", "1.50 s", "Guards", "Operations", "/home/me/model.py:6"):
        assert part in text, part
    assert (rich / "-_4_0_0/compile.html").is_file()


def test_comparison_of_two_compiles(rich: Path) -> None:
    text = Page(rich / "-_0_1_0/compare_with_0_0_0.html").text
    for part in ("[0/0] → [0/1]", "size mismatch at index 0", "torch.relu", "torch.tanh", "graph_op_count"):
        assert part in text, part


def test_chromium_events_are_one_json_array(rich: Path) -> None:
    events = json.loads((rich / "chromium_events.json").read_text())
    assert [e["name"] for e in events] == [
        "dynamo",
        "backend_compile",
        "codegen",
        "codegen",
        *["backend_compile"] * 3,
        "dynamo",
    ]


def test_search_index_is_a_script(rich: Path) -> None:
    text = (rich / "search-index.js").read_text()
    data = json.loads(text.removeprefix("window.argandSearchIndex=").rstrip().removesuffix(";"))
    assert "tanh" in data["words"] and not data["truncated"]
    assert ["graph break", "Data-dependent branching"] == [d[:2] for d in data["docs"] if d[0] == "graph break"][0]
    for doc in data["docs"]:
        assert (rich / doc[3].partition("#")[0]).is_file(), doc


def test_argand_trace_has_four_linked_panes(tmp_path: Path) -> None:
    built = build(argand_trace(tmp_path / "trace"), tmp_path / "out")
    assert built.problems == 0
    pages = sorted((tmp_path / "out").glob("*/provenance.html"))
    assert len(pages) >= 2
    for path in pages:
        elements = Page(path).elements
        panes = [a["data-pane"] for tag, a in elements if "data-pane" in a]
        assert panes == ["user", "fx", "loop", "kernel"]
        nodes: dict[str, set[str]] = {}
        pane = ""
        for _tag, attributes in elements:
            pane = attributes.get("data-pane") or pane
            if attributes.get("data-n"):
                nodes.setdefault(pane, set()).update((attributes["data-n"] or "").split())
        # Every node with a source line became loop statements and kernel statements, and the other way round.
        assert nodes["user"] == nodes["fx"] == nodes["loop"] == nodes["kernel"]
    text = Page(tmp_path / "out/breaks.html").text
    assert "data-dependent branch" in text and "torch.where" in text and "if b.sum() < 0:" in text
    assert "mark_dynamic" in text


LIBRARY_PROGRAM = """
import torch, argand
net = torch.nn.Linear(8, 4)
@argand.compile
def step(x):
    h = net(x)
    z = torch.cat([h, x], 1)
    return z * 2, z.t()
step(torch.randn(16, 8))
"""


def test_library_calls_and_copies_are_linked(tmp_path: Path) -> None:
    """Calls of ATen's own kernels, kernels that only copy, and the line that called a module of torch's."""
    (tmp_path / "program.py").write_text(LIBRARY_PROGRAM)
    env = {**os.environ, "ARGAND_TRACE": str(tmp_path / "trace")}
    warm.run([tmp_path / "program.py"], check=True, env=env, imported="compiler")
    build(tmp_path / "trace", tmp_path / "out")
    (code,) = (tmp_path / "out").glob("*/inductor_output_code_*.txt")
    text = code.read_text()
    call = re.search(r"    # (addmm = .*)\n    linear_out\(", text)
    assert call and "linear.py" in call[1] and call[1].endswith("program.py:6 in step: h = net(x)")
    assert "cpp_fused_loop" not in text and re.search(r"// cat = .*program.py:7 in step", text)
    (page,) = (tmp_path / "out").glob("*/provenance.html")
    shown = page.read_text()
    lines = re.findall(r'data-n="([^"]*)">([^<]*)</div>', shown)
    mine = next(nodes for nodes, line in lines if line.endswith("h = net(x)"))
    torchs = next(nodes for nodes, line in lines if "F.linear(" in line and not line.lstrip().startswith("#"))
    called = next(nodes for nodes, line in lines if line.strip().startswith("linear_out("))
    assert set(called.split()) <= set(mine.split()) == set(torchs.split())
    assert any("cpp_fused" in line and "extern" not in line and nodes for nodes, line in lines)


TORCH_PROGRAM = """
import torch

@torch.compile
def f(a, b):
    x = torch.softmax(a / (torch.abs(a) + 1), -1)
    if b.sum() < 0:
        b = b * -1
    return x * b

f(torch.randn(8, 10), torch.ones(8, 10))
f(torch.randn(8, 12), torch.ones(8, 12))
torch.compile(lambda x: x.sin().sum(), backend="aot_eager")(torch.randn(3, requires_grad=True)).backward()
"""


@pytest.fixture(scope="module")
def inductor_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What torch.compile records today. Its compiler takes many times as long as all that is asked of the trace."""
    folder = tmp_path_factory.mktemp("inductor")
    traced, compiled = str(folder / "t"), str(folder / "c")
    run_text("torch", TORCH_PROGRAM, folder, TORCH_TRACE=traced, TORCHINDUCTOR_CACHE_DIR=compiled)
    return folder / "t"


@pytest.mark.slow
def test_real_trace_is_read(inductor_trace: Path) -> None:
    kinds = {record.kind for record in read(inductor_trace)}
    names = {record.name for record in read(inductor_trace) if record.kind == "artifact"}
    assert {"inductor_output_code", "bwd_compilation_metrics"} <= kinds
    assert {"inductor_post_grad_graph", "fx_graph_cache_miss"} <= names


@pytest.mark.slow
def test_real_trace_of_torch_compile(inductor_trace: Path, tmp_path: Path) -> None:
    """Everything is read, named as tlparse names it, and linked."""
    built = build(inductor_trace, tmp_path / "out")
    [run] = built.runs
    assert built.problems == 0
    if importlib.metadata.version("torch") >= "2.12":  # traces do not say so before
        assert run.facts.get("torch")
    assert {str(key) for key in run.compiles} >= {"[0/0]", "[0/1]", "[1/0]"}
    [broken] = run.breaks.values()
    assert (
        (broken.reason.line, broken.count) == (7, 2)
        and broken.reason.source == "if b.sum() < 0:"
        and broken.reason.remedies
    )
    assert any("size mismatch" in d.reason.cause and "dynamic" in d.reason.remedies[0] for d in run.recompiles.values())
    pane: dict[str, set[str]] = {}
    current = ""
    for _tag, attributes in Page(tmp_path / "out/-_0_0_0/provenance.html").elements:
        current = attributes.get("data-pane") or current
        pane.setdefault(current, set()).update((attributes.get("data-n") or "").split())
    assert pane["user"] and pane["user"] <= pane["fx"] and pane["kernel"] <= pane["fx"] and len(pane["kernel"]) > 3
    tlparse = Path(sys.executable).parent / "tlparse"
    if tlparse.exists():
        command = [tlparse, *sorted(inductor_trace.iterdir()), "-o", tmp_path / "theirs", "--no-browser", "--overwrite"]
        subprocess.run(command, check=True, capture_output=True)
        theirs = {p.relative_to(tmp_path / "theirs").as_posix() for p in (tmp_path / "theirs").glob("*_*_*/*")}
        ours = {p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").glob("*_*_*/*")}
        assert {name for name in theirs - ours if not name.endswith("_readable.html")} == set()


# ---------------------------------------------------------------------- hostile and broken traces


def test_a_hostile_trace_makes_no_elements(tmp_path: Path) -> None:
    build(evil_trace(tmp_path / "trace.log"), tmp_path / "a" / "b" / "out")
    pages = list((tmp_path / "a/b/out").rglob("*.html"))
    assert len(pages) > 8
    for path in pages:
        page = Page(path)
        for tag, attributes in page.elements:
            assert tag != "img" and not any(name.startswith("on") for name in attributes), (path, tag, attributes)
            if tag == "script":
                assert (
                    attributes.get("src", "").endswith("assets/report.js")
                    or attributes.get("type") == "application/json"
                )
            if tag == "a":
                assert not (attributes.get("href") or "").lower().startswith("javascript:")
        policies = [a["content"] or "" for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
        assert len(policies) == 1 and "default-src 'none'" in policies[0] and "unsafe" not in policies[0]
    outside = [p for p in tmp_path.rglob("*") if p.is_file() and not p.is_relative_to(tmp_path / "a/b/out")]
    assert outside == [tmp_path / "trace.log"]


def test_names_are_safe() -> None:
    for name in ("../x", "/etc/passwd", "..", "", ".hidden", "a/b\\c", "x" * 500, "\0", "é\n"):
        made = safe_name(name)
        assert re.fullmatch(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]{0,119}", made), (name, made)
    assert folder_of(None) == "-_-_-_-"
    from argand.report.records import Record, TraceId

    record = Record(0, "artifact", {"name": "../../x", "encoding": "json"}, TraceId(0, 0), (), None, "", 0, "", 0)
    assert artifact_file(record, 3)[1] == "_.._x_3.json"


def test_what_cannot_be_read_is_counted_on_the_page(tmp_path: Path) -> None:
    made = TraceMaker(tmp_path / "trace.log")
    made.compile((0, 0))
    made.raw("this is no record")
    made.raw('V1121 10:00:00.000000 77 torch/x.py:12] {"artifact": {"name": "cut')
    made.put("chromium_event", {}, "no json")
    made.raw(
        'V1121 10:00:00.000000 77 torch/x.py:12] {"dynamo_output_graph": {}, "frame_id": 1, "frame_compile_id": 0, "attempt": 0, "has_payload": "00000000000000000000000000000000"}'
    )
    made.raw("\twrong hash")
    path = made.save()
    path.write_bytes(path.read_bytes()[:-4])
    built = build(path, tmp_path / "out")
    assert built.problems >= 3
    text = Page(tmp_path / "out/index.html").text
    assert f"{built.problems} parts of the trace could not be read" in text
    assert "[0/0]" in text and "[1/0]" in text


def test_cut_anywhere_a_trace_still_gives_a_report(tmp_path: Path) -> None:
    whole = rich_trace(tmp_path / "trace.log").read_bytes()
    for at in range(0, len(whole), len(whole) // 12):
        path = tmp_path / f"cut{at}.log"
        path.write_bytes(whole[:at])
        assert build(path, tmp_path / "out").index.is_file()


def test_stacks_that_part_at_every_level(tmp_path: Path) -> None:
    made = TraceMaker(tmp_path / "trace.log")
    for depth in range(1, 150):
        chain = [("/a.py", n, "f", "") for n in range(depth)]
        for last in (1000 + depth, 2000 + depth):
            made.start((last, 0), *chain, ("/a.py", last, "g", ""))
    build(made.save(), tmp_path / "out")
    assert "compiles deeper down" in Page(tmp_path / "out/index.html").text


def test_many_compiles_have_pages_of_their_own(tmp_path: Path) -> None:
    """The overview of thousands of compiles stays small; every link to a compile leads to the page that lists it."""
    made = TraceMaker(tmp_path / "trace.log")
    for frame in range(7):
        made.put("dynamo_output_graph", {}, GRAPH, (frame, 0))
    built = build(made.save(), tmp_path / "out", limits=Limits(compiles=3))
    out = tmp_path / "out"
    for number, name in enumerate(("index.html", "compiles-2.html", "compiles-3.html")):
        text = (out / name).read_text()
        assert [f'id="[{frame}/0]"' in text for frame in range(7)] == [frame // 3 == number for frame in range(7)]
        assert all(other in text for other in ("compiles-2.html", "compiles-3.html") if other != name)
    assert not (out / "compiles-4.html").exists()
    assert "compiles-3.html#%5B6/0%5D" in (out / "-_6_0_0/compile.html").read_text()
    assert built.problems == 0


def test_large_payloads_are_files_or_plain_text(tmp_path: Path) -> None:
    made = TraceMaker(tmp_path / "trace.log")
    made.put("dynamo_output_graph", {}, GRAPH + "# " + "x" * 3000, (0, 0))
    made.put("aot_inference_graph", {}, GRAPH + "# " + "y" * 30_000, (0, 0))
    build(made.save(), tmp_path / "out", limits=Limits(highlight_bytes=1000, view_bytes=10_000))
    first = (tmp_path / "out/-_0_0_0/dynamo_output_graph_0.txt.html").read_text()
    assert "shown without highlighting" in first and 'class="k' not in first
    assert not (tmp_path / "out/-_0_0_0/aot_inference_graph_1.txt.html").exists()
    assert "aot_inference_graph_1.txt" in Page(tmp_path / "out/index.html").text


def test_memory_does_not_grow_with_payloads(tmp_path: Path) -> None:
    """A 60 MB trace is read with far less memory than that."""
    made = TraceMaker(tmp_path / "trace.log")
    payload = "\n".join(f"# {'z' * 90} {n}" for n in range(10_000))
    for frame in range(60):
        made.artifact("graph_code_big", payload, (frame, 0))
    path = made.save()
    del made
    assert path.stat().st_size > 50e6
    code = (
        "import resource, sys; from pathlib import Path; from argand.report.html import build, Limits\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"build(Path({str(path)!r}), Path({str(tmp_path / 'out')!r}), limits=Limits(view_bytes=100_000))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 60_000, done.stdout  # kB


# ---------------------------------------------------------------------- single file, ranks, command


def unpacked(path: Path) -> dict[str, bytes]:
    found = re.findall(r'<script type="application/octet-stream" id="file:([^"]+)">([^<]*)</script>', path.read_text())
    return {name: zlib.decompress(base64.b64decode(data)) for name, data in found}


def test_single_file_holds_every_page(tmp_path: Path, rich: Path) -> None:
    built = build(rich_trace(tmp_path / "trace.log"), tmp_path / "report.html", single_file=True)
    assert built.index == tmp_path / "report.html"
    files = unpacked(built.index)
    expected = {p.relative_to(rich).as_posix() for p in rich.rglob("*") if p.is_file() and not p.name.startswith(".")}
    assert set(files) == {
        n.replace("search-index.js", "search-index.json") for n in expected if not n.startswith("assets/")
    }
    assert files["-_0_0_0/dynamo_output_graph_1.txt"].decode().rstrip() == GRAPH.rstrip()
    json.loads(files["search-index.json"])
    text = built.index.read_text()
    assert 'src="' not in text and 'rel="stylesheet"' not in text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.html", "trace.log"]


def test_single_file_says_what_it_left_out(tmp_path: Path) -> None:
    made = TraceMaker(tmp_path / "trace.log")
    made.artifact("small", "text", (0, 0))
    made.artifact("huge", "x" * 5000, (0, 0))
    built = build(made.save(), tmp_path / "r.html", single_file=True, limits=Limits(embed_bytes=1000, view_bytes=2000))
    assert built.left_out == ["-_0_0_0/huge_1.txt"]
    assert b"too large" in unpacked(built.index)["-_0_0_0/huge_1.txt"]


def test_ranks_page_says_what_differs(tmp_path: Path) -> None:
    for rank in range(3):
        made = TraceMaker(tmp_path / f"t/dedicated_log_torch_trace_rank_{rank}_abc.log", rank)
        made.compile((0, 0), GRAPH.replace("torch.relu", "torch.tanh") if rank == 2 else GRAPH, guard_count=4)
        if rank != 1:
            made.compile((1, 0), guard_count=4 + rank)
        made.save()
    built = build(tmp_path / "t", tmp_path / "out")
    assert [run.label for run in built.runs] == ["rank 0", "rank 1", "rank 2"]
    text = Page(tmp_path / "out/index.html").text
    assert "3 ranks" in text and "2 of 2 compiles differ" in text
    assert "torch.tanh" in text and "torch.relu" in text and "missing" in text and "guards" in text
    assert (tmp_path / "out/rank_1/-_0_0_0/dynamo_output_graph_0.txt").is_file()
    for link in Page(tmp_path / "out/rank_1/index.html").links():
        if not link.startswith(("#", "https://")):
            assert (tmp_path / "out/rank_1" / link.partition("#")[0]).resolve().is_file(), link


def test_ranks_page_names_cache_results_in_words(tmp_path: Path) -> None:
    for rank, outcome in enumerate(("hit", "miss")):
        made = TraceMaker(tmp_path / f"t/dedicated_log_torch_trace_rank_{rank}_abc.log", rank)
        made.start((0, 0), ("/home/me/main.py", 3, "<module>", "model(x)"))
        made.artifact(f"fx_graph_cache_{outcome}", "{}", (0, 0), "json")
        made.metrics((0, 0))
        made.save()
    build(tmp_path / "t", tmp_path / "out")
    cells = re.findall(r"<td[^>]*>(hit|miss)</td>", (tmp_path / "out/index.html").read_text())
    assert cells == ["hit", "miss"]


def test_equal_ranks_do_not_differ(tmp_path: Path) -> None:
    for rank in range(2):
        made = TraceMaker(tmp_path / f"t/dedicated_log_torch_trace_rank_{rank}_abc.log", rank)
        made.compile((0, 0))
        made.save()
    build(tmp_path / "t", tmp_path / "out")
    assert "All ranks compiled the same." in Page(tmp_path / "out/index.html").text


def test_many_ranks_are_shown_in_groups(tmp_path: Path) -> None:
    """Pages for those that compiled alike once; the number of a rank's device is no difference."""
    for rank in range(12):
        made = TraceMaker(tmp_path / f"t/dedicated_log_torch_trace_rank_{rank}_abc.log", rank)
        graph = GRAPH.replace("cpu", f"cuda:{rank}")
        made.compile((0, 0), graph.replace("torch.relu", "torch.tanh") if rank == 7 else graph, guard_count=4)
        if rank != 5:
            made.compile((1, 0), guard_count=4)
        if rank == 11:
            made.lines.append("broken")
        made.save()
    built = build(tmp_path / "t", tmp_path / "out", limits=Limits(ranks=4))
    assert [run.label for run in built.runs] == ["rank 0", "rank 5", "rank 7"] and built.problems == 1
    assert sorted(p.name for p in (tmp_path / "out").glob("rank_*")) == ["rank_0", "rank_5", "rank_7"]
    text = Page(tmp_path / "out/index.html").text
    assert "12 ranks in 3 groups" in text and "0–4, 6, 8–11" in text and "2 of 2 compiles differ" in text
    assert text.index("What differs") < text.index("Ranks that compiled alike")
    odd = re.findall(r'<td class="odd">', (tmp_path / "out/index.html").read_text())
    assert odd  # the one of twelve, not the many
    built = build(tmp_path / "t", tmp_path / "fewer", limits=Limits(ranks=4, groups=1))
    assert len(built.runs) == 1 and "2 groups more, of 2 ranks" in Page(tmp_path / "fewer/index.html").text


def run_command(*arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "argand.cli", "report", *arguments], capture_output=True, text=True, check=False, **more
    )


def test_command(tmp_path: Path) -> None:
    trace = rich_trace(tmp_path / "trace.log")
    done = run_command(str(trace), "-o", str(tmp_path / "out"))
    assert done.returncode == 0 and "8 compiles" in done.stdout, done
    done = run_command(str(trace), "-o", str(tmp_path / "r.html"), "--single-file")
    assert done.returncode == 0 and (tmp_path / "r.html").is_file()
    done = run_command(str(tmp_path / "nothing"), "-o", str(tmp_path / "x"))
    assert done.returncode == 1 and "no structured trace" in done.stderr and "Traceback" not in done.stderr
    done = run_command(str(trace), "-o", str(tmp_path))
    assert done.returncode == 1 and "choose another folder" in done.stderr and trace.is_file()


def test_served_until_interrupted(tmp_path: Path) -> None:
    import signal
    import urllib.request

    for option in ("--serve", "--follow"):
        trace = rich_trace(tmp_path / "trace.log")
        command = [sys.executable, "-m", "argand.cli", "report", str(trace), option, "-o", str(tmp_path / "out")]
        env = {**os.environ, "PYTHONUNBUFFERED": "1"}
        listens = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs do not
        with (
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, preexec_fn=listens
            ) as process,
            contextlib.ExitStack() as stack,
        ):
            stack.callback(process.kill)
            assert process.stdout is not None
            address = ""
            for line in process.stdout:
                if "serving on " in line:
                    address = line.split()[2]
                    break
            with urllib.request.urlopen(address, timeout=120) as answer:
                page = answer.read().decode()
            assert "Stack trie" in page and ("argand-live" in page) == (option == "--follow")
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 0, process.stderr.read() if process.stderr else ""
    done = run_command(str(trace), "--serve", "--single-file")
    assert done.returncode == 2 and "--single-file" in done.stderr


def test_an_older_report_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    trace = rich_trace(tmp_path / "trace.log")
    out = tmp_path / "out"
    build(trace, out)
    (out / "stale.html").write_text("old")
    build(trace, out)
    assert not (out / "stale.html").exists()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError):
        build(trace, mine)
    assert (mine / "thesis.txt").read_text() == "years of work"
    with pytest.raises(ConfigError):
        build(trace, mine, single_file=True)


def test_report_without_compiles(tmp_path: Path) -> None:
    path = tmp_path / "empty.log"
    path.write_text("")
    build(path, tmp_path / "out")
    assert "The trace holds no compile." in Page(tmp_path / "out/index.html").text


def test_file_that_is_no_trace_is_told(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text("print(1)\n")
    done = run_command(str(path), "-o", str(tmp_path / "out"))
    assert done.returncode == 0 and "malformed glog prefix: 1" in done.stderr
    assert f"no record in {path}" in done.stderr


def test_time_of_backwards_counts(tmp_path: Path) -> None:
    """Found in a report of a training step: backwards took half of the time and were in no sum."""
    made = TraceMaker(tmp_path / "trace.log")
    made.compile((0, 0), entire_frame_compile_time_s=2.0)
    made.put("bwd_compilation_metrics", {"entire_frame_compile_time_s": 1.0, "inductor_compile_time_s": 0.5}, id=(0, 0))
    made.compile((1, 0), entire_frame_compile_time_s=4.0)  # as torch records a backward
    made.put("bwd_compilation_metrics", {"inductor_compile_time_s": 0.5}, id=(1, 0))
    made.put("bwd_compilation_metrics", {"duration_us": "nonsense", "inductor_compile_time_s": True}, id=(1, 0))
    (run,) = build(made.save(), tmp_path / "out").runs
    assert [compile.seconds for compile in run.compiles.values()] == [3.0, 4.5] and run.seconds == 7.5
