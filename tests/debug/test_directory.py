"""The debug directory: layout, switches, programs that run as they are, and what happens when it cannot be written."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import runpy
import textwrap
import threading
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import argand
import warm
from argand.debug import directory
from argand.debug.directory import INSTALLED, writing
from argand.debug.logs import LOGS
from helpers import assert_same

FILES = {
    "debug.log",
    "fx_graph_readable.py",
    "fx_graph_runnable.py",
    "fx_graph_transformed.py",
    "ir_post_fusion.txt",
    "ir_pre_fusion.txt",
    "output_code.py",
}


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    LOGS.reset()
    yield
    argand.config.reset()
    INSTALLED.refresh()
    LOGS.reset()


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="argand.debug")


def foo1(x1, x2):
    a = torch.neg(x1)
    b = torch.maximum(x2, a)
    y = torch.cat([b], dim=0)
    return y


def foo_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(256, (1, 8), dtype=torch.uint8), torch.randint(256, (8390, 8), dtype=torch.uint8)


def compile_foo() -> None:
    x1, x2 = foo_inputs()
    assert_same(foo1(x1, x2), argand.compile(foo1)(x1, x2), exact=True)


def run_folder(root: Path) -> Path:
    [run] = root.glob("run_*")
    return run


def graphs(root: Path) -> list[Path]:
    """The folders of the compiled graphs under `root`, in the order in which they were compiled."""
    found = [path for path in (run_folder(root) / "native").iterdir() if path.is_dir()]
    return sorted(found, key=lambda path: int(path.name.rsplit("_", 1)[1]))


# ---------------------------------------------------------------------- layout


def test_test_model_of_the_document(tmp_path: Path) -> None:
    """`env ARGAND_COMPILE_DEBUG=1 python repro.py`, then every step of the document's walk through the folders."""
    (tmp_path / "repro.py").write_text(
        textwrap.dedent("""
        import torch
        import argand

        @argand.compile()
        def test_model(x):
            model = torch.nn.Sequential(
                torch.nn.Linear(10, 10),
                torch.nn.LayerNorm(10),
                torch.nn.ReLU(),
            )
            return model(x)


        y = test_model(torch.ones(10, 10))
        """)
    )
    env = {**os.environ, "TORCH_COMPILE_DEBUG": "1"}
    command = ["repro.py"]
    done = warm.run(command, cwd=tmp_path, env=env, check=True, imported="compiler")
    [run] = (tmp_path / "argand_compile_debug").iterdir()
    assert re.fullmatch(r"run_\d{4}_\d\d_\d\d_\d\d_\d\d_\d\d_\d{6}-pid_\d+", run.name)
    assert {path.name for path in run.iterdir()} == {"capture", "native"}
    names = {path.name for path in (run / "native").iterdir()}
    assert names == {"aot_model___0_debug.log", "model__0_forward_0"}
    folder = run / "native" / "model__0_forward_0"
    assert {path.name for path in folder.iterdir()} == FILES
    assert f"model__0_forward_0 debug trace: {folder}" in done.stderr
    assert "===== " not in done.stderr  # the files hold the texts, not the terminal
    assert "Forward graph" not in done.stdout
    assert "aot_forward_graph" in (run / "native" / "aot_model___0_debug.log").read_text()
    for name in ("fx_graph_runnable.py", "output_code.py"):  # in a clean process, as they are
        ran = warm.run([folder / name], cwd="/", imported="compiler")
        assert ran.returncode == 0, ran.stderr
        assert ("largest difference from eager" in ran.stdout) == (name == "fx_graph_runnable.py")
        assert ("ms a call" in ran.stdout) == (name == "output_code.py")


def test_layout(tmp_path: Path, quiet: None) -> None:
    with argand.config.patch({"trace.enabled": True, "debug_dir_root": str(tmp_path)}):
        compile_foo()
        x = torch.randn(4, 4, requires_grad=True)
        argand.compile(lambda x: (torch.sin(x) * x).sum())(x).backward()
        assert INSTALLED.path is not None and INSTALLED.path.parent == tmp_path
    names = [path.name for path in graphs(tmp_path)]
    assert [re.sub(r"\d+", "N", name) for name in names] == ["model__N_inference_N", "model__N_forward_N", "model__N_backward_N"]  # fmt: skip
    models = [name.split("_")[2] for name in names]
    assert models[0] != models[1] == models[2], "forward and backward of one graph share its number"
    for folder in graphs(tmp_path):
        assert {path.name for path in folder.iterdir()} == FILES
    capture = run_folder(tmp_path) / "capture"
    first = capture / "0_0"
    wanted = {"graph.txt", "graph_sizes.txt", "graph_code.py", "bytecode.txt", "guards.txt"}
    assert {path.name for path in first.iterdir()} == wanted
    assert "GUARDS:" in (first / "guards.txt").read_text() and "opcode" in (first / "graph.txt").read_text()
    assert "Step 1: argand start tracing foo1" in (capture / "debug.log").read_text()
    compile((first / "graph_code.py").read_text(), "graph_code.py", "exec")


def test_graph_breaks_and_attempts_have_their_folder(tmp_path: Path, quiet: None) -> None:
    def f(x):
        y = x + 1
        if y.sum() > 0:
            return y * 2
        return y

    with writing(tmp_path):
        argand.compile(f, backend="eager")(torch.ones(3))
    folders = {path.name for path in (run_folder(tmp_path) / "capture").iterdir() if path.is_dir()}
    assert "0_0_1" in folders and "1_0" in folders
    assert "data-dependent branch" in (run_folder(tmp_path) / "capture" / "0_0_1" / "graph_breaks.txt").read_text()


def test_off_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    compile_foo()
    assert not list(tmp_path.iterdir())


def test_default_place_and_base_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: None) -> None:
    monkeypatch.chdir(tmp_path)
    with argand.config.patch({"trace.enabled": True}):
        argand.compile(lambda x: x + 1)(torch.ones(3))
    assert (tmp_path / "argand_compile_debug").is_dir()
    argand.reset()
    with argand.config.patch({"trace.enabled": True, "base_dir": str(tmp_path / "elsewhere")}):
        argand.compile(lambda x: x + 2)(torch.ones(3))
    assert (tmp_path / "elsewhere" / "argand_compile_debug").is_dir()


SWITCHES = {
    "debug_log": {"debug.log"},
    "fx_graph": {"fx_graph_readable.py", "fx_graph_runnable.py"},
    "fx_graph_transformed": {"fx_graph_transformed.py"},
    "ir_pre_fusion": {"ir_pre_fusion.txt"},
    "ir_post_fusion": {"ir_post_fusion.txt"},
    "output_code": {"output_code.py"},
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_every_file_can_be_switched_off(switch: str, tmp_path: Path, quiet: None) -> None:
    with argand.config.patch({f"trace.{switch}": False}), writing(tmp_path):
        argand.compile(lambda x: x + 1)(torch.ones(3))
    [folder] = graphs(tmp_path)
    assert {path.name for path in folder.iterdir()} == FILES - SWITCHES[switch]


def test_what_is_off_by_default_can_be_switched_on(tmp_path: Path, quiet: None) -> None:
    changes = {"trace.graph_diagram": True, "trace.compile_profile": True, "trace.info_log": True, "trace.capture": False}  # fmt: skip
    with argand.config.patch(changes), writing(tmp_path):
        argand.compile(lambda x, w: torch.softmax(x @ w, -1) + 1)(torch.randn(4, 4), torch.randn(4, 4))
    [folder] = graphs(tmp_path)
    more = {"graph_diagram.svg", "compile_profile.txt", "compile_profile.json", "info.log"}
    assert {path.name for path in folder.iterdir()} == FILES | more
    capture = [path.name for path in (run_folder(tmp_path) / "capture").iterdir()]
    assert sorted(capture) == ["debug.log", "info.log"]
    stages = json.loads((folder / "compile_profile.json").read_text())["stages"]
    assert [stage["stage"] for stage in stages if stage["depth"] == 1][:2] == ["passes", "lower"]
    assert stages[0]["stage"] == "compile_graph" and stages[0]["seconds"] >= sum(s["seconds"] for s in stages if s["depth"] == 1) * 0.99  # fmt: skip
    assert "Step 3" in (folder / "info.log").read_text() and " took " not in (folder / "info.log").read_text()


def test_diagram_is_an_svg_of_the_fused_graph(tmp_path: Path, quiet: None) -> None:
    def f(x, w):
        h = torch.softmax(x @ w, -1)
        return h + 1, h @ w

    with argand.config.patch({"trace.graph_diagram": True}), writing(tmp_path):
        argand.compile(f)(torch.randn(4, 4), torch.randn(4, 4))
    root = ET.parse(graphs(tmp_path)[0] / "graph_diagram.svg").getroot()
    names = {"svg": "http://www.w3.org/2000/svg"}
    kinds = [node.get("class") for node in root.iterfind(".//svg:g", names) if node.get("class")]
    assert kinds.count("node kernel") >= 1 and kinds.count("node call") == 2 and kinds.count("node value") == 4
    assert len(root.findall(".//svg:path[@class='edge']", names)) >= 6
    text = " ".join(root.itertext())
    assert "torch.mm" in text and "cpp_fused_" in text and "h = torch.softmax(x @ w, -1)" in text
    boxes = [
        [float(box.get(key)) for key in ("x", "y", "width", "height")] for box in root.iterfind(".//svg:rect", names)
    ]
    for i, (x, y, width, height) in enumerate(boxes):
        assert 0 <= x and x + width <= float(root.get("width")) and y + height <= float(root.get("height"))
        for x2, y2, width2, height2 in boxes[:i]:
            apart = x2 + width2 <= x or x + width <= x2 or y2 + height2 <= y or y + height <= y2
            assert apart, "two boxes overlap"


def test_kernel_that_writes_over_its_input_needs_it(tmp_path: Path, quiet: None) -> None:
    """Found by looking at a picture: what a kernel overwrote was no dependency of it, in the picture and in the dump."""

    def f(x, w):
        return torch.relu(torch.linalg.matrix_exp(x)) @ w

    with argand.config.patch({"trace.graph_diagram": True}), writing(tmp_path), torch.no_grad():
        argand.compile(f)(torch.randn(4, 4), torch.randn(4, 4))
    folder = graphs(tmp_path)[0]
    post = (folder / "ir_post_fusion.txt").read_text()
    name, old = re.search(r"(cpp_fused_relu\w*): ", post)[1], re.search(r"overwrites = (\w+)", post)[1]
    assert f"{name}.unmet_dependencies = [MemoryDep('{old}', " in post
    assert f"{old}.users = [NodeUser(node={name}, can_inplace=True)]" in post
    assert f"{name}({old}) -> " in (folder / "debug.log").read_text()
    assert f"<title>{old}: float32[4, 4]</title>" in (folder / "graph_diagram.svg").read_text()


# ---------------------------------------------------------------------- contents


def test_node_dumps_say_what_the_documents_show(tmp_path: Path, quiet: None) -> None:
    with writing(tmp_path):
        compile_foo()
    [folder] = graphs(tmp_path)
    text = (folder / "ir_pre_fusion.txt").read_text()
    for line in (
        "buf0: SchedulerNode(ComputedBuffer)",
        "buf0.writes = [MemoryDep('buf0', 8*z0 + z1, {z0: 8390, z1: 8})]",
        "buf0.unmet_dependencies = []",
        "buf0.met_dependencies =",
        "        MemoryDep('arg0_1', z1, {z1: 8})]",
        "buf0.users = [NodeUser(node=OUTPUT, can_inplace=False)]",
        "buf0.group.device = cpu",
        "buf0.group.iteration = ((8390, 8), ())",
        "buf0.sizes = ([8390, 8], [])",
        "class buf0_loop_body:",
        "    var_ranges = {z0: 8390, z1: 8}",
        "    index0 = 8*z0 + z1",
        "    def body(self, ops):",
        "        neg = ops.neg(load_1)",
        "        maximum = ops.maximum(load, neg)",
        "        store = ops.store('buf0', get_index_2, maximum, None)",
        "        return store",
    ):
        assert line in text.splitlines(), line
    post = (folder / "ir_post_fusion.txt").read_text()
    name = re.match(r"(\w+): SchedulerNode\(op0\)", post)[1]
    for line in (
        f"{name}.writes = [MemoryDep('buf0', 8*y0 + y1, {{y0: 8390, y1: 8}})]",
        f"{name}.unmet_dependencies = []",
        f"{name}.met_dependencies =",
        "buf0.users = [NodeUser(node=OUTPUT, can_inplace=False)]",
        f"{name}.group.device = cpu",
        f"{name}.group.iteration = ((8390, 8), ())",
        f"{name}.sizes = ([8390, 8], [])",
        f"class {name}_stage0:",
    ):
        assert line in post.splitlines(), line


def test_a_reduction_of_the_document(tmp_path: Path, quiet: None) -> None:
    """`x + y` then a sum over a size that varies: unmet and met dependencies, group and sizes with a symbol."""
    with writing(tmp_path), torch.no_grad():
        argand.compile(lambda x, y: (torch.exp(x).cumsum(0) + y).sum(), dynamic=True)(torch.randn(50), torch.randn(50))
    text = (graphs(tmp_path)[0] / "ir_pre_fusion.txt").read_text()
    last = text[text.rindex(": SchedulerNode(ComputedBuffer)") :]
    assert "s0" in last and "ops.reduction(torch.float32, torch.float32, 'sum'" in last
    assert "MemoryDep('buf" in last.split(".met_dependencies")[0] and "MemoryDep('arg" in last


def test_fused_kernels_list_every_stage(tmp_path: Path, quiet: None) -> None:
    with writing(tmp_path), torch.no_grad():
        argand.compile(lambda x: torch.nn.functional.layer_norm(x, (16,)) * 2)(torch.randn(8, 16))
    text = (graphs(tmp_path)[0] / "ir_post_fusion.txt").read_text()
    assert re.search(r"group\.iteration = \(\(\(8,\), \(16,\)\), ", text), text
    assert text.count("    def body(self, ops):") >= 2 and "FusedSchedulerNode(" in text


def test_every_statement_of_a_kernel_names_its_node_and_line(tmp_path: Path, quiet: None) -> None:
    with writing(tmp_path):
        compile_foo()
    text = (graphs(tmp_path)[0] / "output_code.py").read_text()
    kernel = text[text.index('extern "C"') :]
    kernel = kernel[: kernel.index("\n'''")]
    said = ""
    for line in map(str.strip, kernel.splitlines()):
        if line.startswith("//"):
            said = line
        elif re.match(r"auto tmp\d+ = (?!load)", line):
            assert "<- " in said and __file__ in said, line
    assert "// neg = torch.ops.aten.neg.default(arg0_1)" in kernel and "a = torch.neg(x1)" in kernel


def run_file(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    argand.reset()
    with argand.config.patch({"trace.enabled": False}):
        runpy.run_path(str(path), run_name="__main__")
    return capsys.readouterr().out


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 5)
        self.table = torch.arange(30.0).reshape(5, 6)

    def forward(self, x, index):
        h = torch.relu(self.linear(x[index]))
        return (h @ self.table + torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])).t().softmax(-1), index + 1


def net_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(7, 6), torch.tensor([0, 3, 2, 2])


RUNNABLE = {
    "inference": lambda: argand.compile(Net().requires_grad_(False))(*net_inputs()),
    "training": lambda: argand.compile(Net())(*net_inputs())[0].sum().backward(),
    "dynamic": lambda: argand.compile(lambda x: (x * x.shape[0]).sum(0), dynamic=True)(torch.randn(9, 4)),
    "dynamic_training": lambda: argand.compile(lambda x: (x.sin() / x.shape[0]).sum(), dynamic=True)(torch.randn(9, 4, requires_grad=True)).backward(),
    "mutation": lambda: argand.compile(lambda x: x.add_(1).relu_())(torch.randn(4)),
    "strides": lambda: argand.compile(lambda x: x.t() * 2)(torch.randn(4, 6)[:, ::2]),
    "half": lambda: argand.compile(lambda x: x.to(torch.bfloat16) @ torch.ones(4, 3, dtype=torch.bfloat16))(torch.randn(2, 4)),
    "bool_and_numbers": lambda: argand.compile(lambda x, m, k: torch.where(m, x, k) + float("inf"))(torch.randn(4), torch.tensor([True, False, True, True]), 3.5),
    "two_sizes": lambda: argand.compile(lambda x, t: t[x] + torch.arange(x.shape[1]).unsqueeze(1), dynamic=True)(torch.zeros(3, 5, dtype=torch.long), torch.randn(9, 4)),
    "random_training": lambda: argand.compile(lambda x: torch.nn.functional.dropout(x, 0.5).sum())(torch.randn(4, requires_grad=True)).backward(),
    "random": lambda: argand.compile(lambda x: torch.nn.functional.dropout(x, 0.5) + torch.rand(4))(torch.randn(4)),
}  # fmt: skip


@pytest.mark.parametrize("case", RUNNABLE)
def test_programs_run_as_they_are(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], quiet: None) -> None:
    with writing(tmp_path):
        RUNNABLE[case]()
    folders = graphs(tmp_path)
    assert len(folders) == (2 if "training" in case else 1)
    for folder in folders:
        out = run_file(folder / "fx_graph_runnable.py", capsys)
        assert out.startswith("backend 'native'") and "eager" in out, out
        if "random" in case:
            continue
        for error in re.findall(r"largest difference from eager (\S+)", out):
            assert float(error) < 1e-2, out
        assert "eager: " not in out, "another layout than eager's"
        assert "ms a call" in run_file(folder / "output_code.py", capsys)
        compile((folder / "fx_graph_readable.py").read_text(), "readable", "exec")


def test_random_programs_run_in_a_clean_process(tmp_path: Path, quiet: None) -> None:
    """Regression: they call argand's own operators, which nothing had registered there."""
    with writing(tmp_path):
        argand.compile(lambda x: torch.nn.functional.dropout(x, 0.5))(torch.randn(4))
    [folder] = graphs(tmp_path)
    for name in ("fx_graph_runnable.py", "output_code.py"):
        done = warm.run([folder / name], imported="compiler")
        assert done.returncode == 0, done.stderr


def test_programs_can_be_edited_and_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str], quiet: None) -> None:
    with writing(tmp_path):
        compile_foo()
    [folder] = graphs(tmp_path)
    path = folder / "fx_graph_runnable.py"
    text = path.read_text()
    changed = text.replace("torch.ops.aten.maximum.default(arg1_1, neg)", "torch.ops.aten.add.Tensor(arg1_1, neg)")
    assert changed != text
    path.write_text(changed.replace("(8390, 8), (8, 1), torch.uint8", "(17, 8), (8, 1), torch.float32"))
    assert "torch.float32 (17, 8)" in run_file(path, capsys)
    path = folder / "output_code.py"
    text = path.read_text()
    assert "tmp0" in text
    path.write_text(text.replace("maximum(tmp0, tmp2)", "tmp0 + tmp2"))
    namespace = runpy.run_path(str(path))
    x = [torch.full((1, 8), 255, dtype=torch.uint8), torch.full((8390, 8), 3, dtype=torch.uint8)]
    [result] = namespace["call"](x)
    assert result.unique().tolist() == [4]


def test_operators_of_the_program_need_its_setup(tmp_path: Path, quiet: None) -> None:
    library = torch.library.Library("argand_directory_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    library.impl("twice", lambda x: torch.empty_like(x), "Meta")
    for setup, wanted in (("", "# Import what registers torch.ops.argand_directory_test here"), ("import my_ops", "import my_ops")):  # fmt: skip
        argand.reset()
        root = tmp_path / (setup or "none")
        with argand.config.patch(repro_setup=setup), writing(root), torch.no_grad():
            argand.compile(lambda x: torch.ops.argand_directory_test.twice(x) + 1)(torch.ones(3))
        assert wanted in (graphs(root)[0] / "fx_graph_runnable.py").read_text()


def test_large_constants_are_kept_beside_the_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], quiet: None
) -> None:
    from argand.debug import runnable
    from argand.graph.nodes.program import AtenProgram, InputSpec, TensorSpec

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    table = graph.get_attr("table")
    table.name = "table"
    graph.output((graph.call_function(torch.ops.aten.mul.Tensor, (x, table)),))
    spec = TensorSpec((40,), (1,), 0, torch.float32, torch.device("cpu"))
    constant = torch.arange(40.0)
    program = AtenProgram(graph, [InputSpec("x", "arg", 0, spec)], [], [], {"table": constant}, None)
    assert list(runnable.constants_to_save(program, 1000)) == ["table"]
    assert not runnable.constants_to_save(program, 100)
    torch.save({"table": constant}, tmp_path / runnable.DATA_FILE)
    for saved in (("table",), ()):
        path = tmp_path / "fx_graph_runnable.py"
        path.write_text(runnable.runnable_text(program, "a graph", saved))
        assert "equal to eager" in run_file(path, capsys)
        assert ("load_constants" in path.read_text().split("table =")[0].split("import")[-1]) or not saved
        namespace = runpy.run_path(str(path))
        assert torch.equal(namespace["table"], constant) == bool(saved)


# ---------------------------------------------------------------------- trouble


def test_unwritable_place_is_one_warning(tmp_path: Path, quiet: None) -> None:
    (tmp_path / "file").write_text("")
    with (
        argand.config.patch({"trace.enabled": True, "debug_dir_root": str(tmp_path / "file" / "below")}),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        compile_foo()
        argand.compile(lambda x: x + 1)(torch.ones(3))
    assert len([w for w in caught if "debug directory" in str(w.message)]) == 1


def test_a_text_that_cannot_be_made_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: None
) -> None:
    from argand.debug import runnable

    monkeypatch.setattr(runnable, "runnable_text", lambda *args: 1 / 0)
    with writing(tmp_path), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compile_foo()
        argand.compile(lambda x: x + 1)(torch.ones(3))
    assert len([w for w in caught if "ZeroDivisionError" in str(w.message)]) == 1
    for folder in graphs(tmp_path):
        assert {path.name for path in folder.iterdir()} == FILES - {"fx_graph_runnable.py"}


def test_full_disk_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: None) -> None:
    original = Path.write_bytes
    written = []

    def write_bytes(path: Path, data: bytes) -> int:
        written.append(path)
        if len(written) > 6:
            original(path, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(path, data)

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    with writing(tmp_path), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compile_foo()
        argand.compile(lambda x: x + 1)(torch.ones(3))
    assert len([w for w in caught if "No space left" in str(w.message)]) == 1
    assert not [path for path in tmp_path.rglob(".*")], "half a file was left"


def test_files_appear_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a" / "file.txt"
    stop = threading.Event()
    seen: set[int] = set()

    def read() -> None:
        while not stop.is_set():
            if path.exists():
                seen.add(len(path.read_text()))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(50):
        directory.write(path, "x" * 200_000)
    stop.set()
    reader.join()
    assert seen <= {200_000} and [p.name for p in path.parent.iterdir()] == ["file.txt"]


def test_threads_have_folders_of_their_own(tmp_path: Path, quiet: None) -> None:
    def work(number: int) -> None:
        with torch.no_grad():
            argand.compile(lambda x: (x + number).relu(), dynamic=False)(torch.ones(number + 2, 3))

    with writing(tmp_path):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    folders = graphs(tmp_path)
    assert len(folders) == 3
    for folder in folders:
        assert {path.name for path in folder.iterdir()} == FILES
        texts = [(folder / name).read_text() for name in sorted(FILES)]
        sizes = [set(re.findall(r"(?:rand_strided\(\(|f32\[)(\d+), 3[\])]", text)) for text in texts]
        assert len(set().union(*sizes)) == 1, "files of two graphs were mixed"


def test_processes_have_folders_of_their_own(tmp_path: Path) -> None:
    code = "import os, torch, argand; argand.compile(lambda x: x + 1)(torch.ones(3)); print(os.getpid())"
    log = tmp_path / "log.txt"
    env = {**os.environ, "ARGAND_COMPILE_DEBUG": "1", "ARGAND_COMPILE_DEBUG_DIR": str(tmp_path / "runs")}
    env |= {"ARGAND_LOGS": "output_code,bytecode", "ARGAND_LOGS_OUT": str(log)}
    with ThreadPoolExecutor() as threads:
        ended = list(threads.map(lambda _: warm.run(["-c", code], env=env, check=True, imported="compiler"), range(2)))
    processes = {int(each.stdout) for each in ended}
    runs = list((tmp_path / "runs").iterdir())
    assert {int(run.name.rsplit("_", 1)[1]) for run in runs} == processes
    lines = log.read_text().splitlines()  # of both, whole
    assert all(re.match(r"[VIW]\d{4} [\d:.]+ \d+ \S+:\d+\]", line) for line in lines)
    assert {int(line.split()[2]) for line in lines} == processes


def test_a_forked_process_writes_into_its_own_folder(tmp_path: Path) -> None:
    sink = directory.DebugDirectory(tmp_path)
    mine = sink.run_folder()
    sink.pid -= 1  # as in the child of a fork
    assert sink.run_folder() != mine and sink.run_folder().name.endswith(f"pid_{os.getpid()}")


def test_a_failed_compile_keeps_what_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: None) -> None:
    from argand.codegen.cpp import overrides
    from argand.errors import BackendCompilerFailed

    monkeypatch.setattr(overrides, "neg", lambda x: f"no_such_function({x})")
    with argand.config.patch({"cpp.simdlen": 0}), writing(tmp_path):
        with pytest.raises(BackendCompilerFailed):
            argand.compile(foo1)(*foo_inputs())
        argand.reset()
        monkeypatch.undo()
        argand.compile(lambda x: x + 1)(torch.ones(3))
    first, second = graphs(tmp_path)
    assert "no_such_function" in (first / "output_code.py").read_text()
    assert "done compiling" not in (first / "debug.log").read_text()
    assert "done compiling" in (second / "debug.log").read_text()
