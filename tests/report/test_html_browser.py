"""The report in a real browser: what a person clicks, types and sees, from file:// and from a server."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from argand.report.html import Limits, build
from report_traces import EVIL, GRAPH, TraceMaker, argand_trace, evil_trace, rich_trace

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
if os.environ.get("ARGAND_TEST_CHROMIUM"):
    CHROMIUM = os.environ["ARGAND_TEST_CHROMIUM"]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (apt-get install chromium)")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that fails its test when the report's script raises or the browser blocks something."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000}, color_scheme="light")
    made = context.new_page()
    wrong: list[str] = []
    made.on("pageerror", lambda error: wrong.append(str(error)))
    made.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    made.set_default_timeout(8000)
    yield made
    context.close()
    assert wrong == []


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rich")
    return build(rich_trace(folder / "trace.log"), folder / "out").index


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("single")
    built = build(argand_trace(folder / "trace"), folder / "report.html", single_file=True)
    shutil.rmtree(folder / "trace")
    return built.index


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ours")
    return build(argand_trace(folder / "trace"), folder / "out").index


def visible(page: Any, selector: str) -> int:
    return sum(1 for item in page.query_selector_all(selector) if item.is_visible())


def open_first_found(page: Any, words: str) -> None:
    """Search with the keyboard alone, and follow the first result."""
    page.keyboard.press("/")
    page.keyboard.type(words)
    page.wait_for_selector("dialog.search li")
    page.keyboard.press("Enter")


def test_trie_folds_by_mouse(page: Any, rich: Path) -> None:
    page.goto(rich.as_uri())
    assert visible(page, '[role="treeitem"]') == 5
    page.click('[role="tree"] .fold >> nth=0')
    assert visible(page, '[role="treeitem"]') == 3
    page.click("text=Collapse all")
    assert visible(page, '[role="treeitem"]') == 2
    page.click("text=Expand all")
    assert visible(page, '[role="treeitem"]') == 5


def test_trie_walks_by_keyboard(page: Any, rich: Path) -> None:
    page.goto(rich.as_uri())
    page.focus('[role="treeitem"] >> nth=0')
    focused = "document.activeElement.querySelector('.row').innerText.split('\\n')[0]"
    page.keyboard.press("ArrowDown")
    assert "model.py:6" in page.evaluate(focused)
    page.keyboard.press("ArrowLeft")
    assert "main.py:3" in page.evaluate(focused)
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "false"
    page.keyboard.press("ArrowDown")
    assert "main.py:4" in page.evaluate(focused)
    page.keyboard.press("Home")
    page.keyboard.press("*")
    assert visible(page, '[role="treeitem"]') == 5
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    for _ in range(200):  # wait_for_function would need 'unsafe-eval', which reports forbid
        if page.evaluate("document.activeElement.closest('details.compile')?.id") == "[0/0]":
            break
        page.wait_for_timeout(50)
    else:
        pytest.fail("the compile's heading got no focus")
    assert page.evaluate("document.querySelectorAll('[role=tree] [tabindex=\"0\"]').length") == 1


def test_deep_links_open_and_aim(page: Any, rich: Path) -> None:
    page.goto(rich.as_uri() + "#[3/0]")
    page.click("text=Close all")
    page.goto(rich.as_uri() + "#%5B1/0%5D")
    page.wait_for_selector("details.compile.aim[open]")
    assert page.get_attribute("details.compile.aim", "id") == "[1/0]"
    page.goto((rich.parent / "-_0_0_0/dynamo_output_graph_1.txt.html").as_uri() + "#L7")
    line = page.query_selector(".l.aim")
    assert "relu + 1" in line.text_content()
    assert page.evaluate("getComputedStyle(document.querySelector('.l.aim')).backgroundColor") != "rgba(0, 0, 0, 0)"
    page.click("#L3", position={"x": 20, "y": 6})
    assert page.url.endswith("#L3") and page.query_selector(".l.aim").get_attribute("id") == "L3"


def test_deep_links_find_compiles_on_other_pages(page: Any, tmp_path: Path) -> None:
    made = TraceMaker(tmp_path / "trace.log")
    for frame in range(5):
        made.put("dynamo_output_graph", {}, GRAPH, (frame, 0))
    trace = made.save()
    index = build(trace, tmp_path / "out", limits=Limits(compiles=2)).index
    page.goto(f"{index.as_uri()}?k=v#[4/0]")
    page.wait_for_url("**/compiles-3.html?k=v#[4/0]")
    assert page.locator(".aim summary .id").inner_text() == "[4/0]"
    page.click("nav.pages a >> nth=1")
    page.wait_for_url("**/compiles-2.html?k=v")
    assert page.locator("details.compile").count() == 2
    alone = build(trace, tmp_path / "one.html", single_file=True, limits=Limits(compiles=2)).index
    page.goto(f"{alone.as_uri()}#!index.html#[4/0]")
    page.wait_for_selector(".aim summary .id:has-text('[4/0]')")


def test_query_parameters_travel(page: Any, rich: Path) -> None:
    page.goto(rich.as_uri() + "?user=me&x=a%20b")
    page.click("text=-_0_0_0/dynamo_output_graph_1.txt")
    page.wait_for_selector("#code")
    assert "user=me" in page.url and "x=a+b" in page.url
    page.click("a[rel=next]")
    page.wait_for_url("**/aot_inference_graph_2.txt.html?user=me*")
    page.click("nav >> text=Overview")
    page.wait_for_url("**/index.html?user=me*")
    assert page.get_attribute("a[href*='perfetto']", "href") == "https://ui.perfetto.dev/"  # to no other site


def test_highlighting_and_dark_mode(page: Any, rich: Path) -> None:
    page.goto((rich.parent / "-_0_0_0/dynamo_output_graph_1.txt.html").as_uri())
    keyword = "getComputedStyle(document.querySelector('pre.code .k')).color"
    background = "getComputedStyle(document.body).backgroundColor"
    light = (page.evaluate(keyword), page.evaluate(background))
    page.click("button.theme")
    dark = (page.evaluate(keyword), page.evaluate(background))
    assert light[0] != dark[0] and light[1] != dark[1]
    page.goto(rich.as_uri())
    assert page.evaluate(background) == dark[1]  # remembered
    page.click("button.theme")
    assert page.evaluate(background) == light[1]
    page.evaluate("localStorage.clear()")
    page.emulate_media(color_scheme="dark")
    page.reload()
    assert page.evaluate(background) == dark[1]  # as the system says


def test_code_inside_code_is_highlighted(page: Any, rich: Path) -> None:
    page.goto((rich.parent / "-_0_0_0/inductor_output_code_cabcd_4.html").as_uri())
    assert page.locator("pre.code .cp").first.inner_text().startswith("#")
    assert page.locator("pre.code .kt", has_text="void").count() == 1


def test_highlighting_keeps_the_text(page: Any, tmp_path: Path) -> None:
    """Whatever the text, every line shows what the file holds, in its own element, in every language."""
    quotes = "'''"
    texts = {
        "dynamo_output_graph": GRAPH + f"x = {quotes}\n" * 9 + 's = \'open\nt = r"\\"\n@d\n0x1f 1e-5 <b>&amp;</b>\n\n',
        "inductor_output_code": f'a = {quotes}\n#define X \\\n 1\n/* <i>\n\n\n*/ void f(); "\n{quotes}\nb = {quotes}\n\n\n\n\nend',
        "dynamo_cpp_guards_str": "TREE_GUARD_MANAGER:\n+- RootGuardManager\n| +- TYPE: a['<b>']  # why\n",
        "kernel_code": '#include <x>\n  #if 1 // c\n\'a\' "b\\"" /* never closed\n &lt;',
        "fx_graph_cache_miss": '{"a": [1, -2.5e3, true, "<b>\\""],\n "open',
    }
    made = TraceMaker(tmp_path / "trace.log")
    for name, text in texts.items():
        made.put("artifact", {"name": name, "encoding": "string"}, text, (0, 0))
    built = build(made.save(), tmp_path / "out")
    shown = sorted(built.index.parent.glob("-_0_0_0/*.html"))
    shown = [path for path in shown if "pre class" in path.read_text()]
    assert len(shown) == len(texts)
    for path in shown:
        page.goto(path.as_uri())
        name = next(name for name in texts if name in path.name)
        text = texts[name]
        lines = page.locator("#code .l").evaluate_all("lines => lines.map(line => line.textContent)")
        assert "".join(lines).rstrip("\n") == text.rstrip("\n") and lines == [f"{part}\n" for part in text.split("\n")]
        assert page.locator("#code span span").count() > 0, name
        assert page.locator("#code b, #code i").count() == 0


def test_search_by_keyboard(page: Any, rich: Path) -> None:
    page.goto((rich.parent / "time.html").as_uri())
    page.keyboard.press("/")
    page.keyboard.type("data-dependent")
    page.wait_for_selector('dialog.search li[aria-selected="true"]')
    assert page.inner_text("dialog.search li >> nth=0").startswith("graph break")
    page.keyboard.press("Enter")
    page.wait_for_url("**/breaks.html#breaks-0")
    assert page.query_selector("#breaks-0").is_visible()


def test_search_finds_what_is_inside_artifacts(page: Any, rich: Path) -> None:
    page.goto(rich.as_uri())
    page.click("button.search-open")
    page.keyboard.type("artifact tanh")
    page.wait_for_selector("dialog.search li")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.wait_for_selector(".l.hit.now")
    assert "tanh" in page.inner_text(".l.hit.now")
    page.keyboard.press("/")
    page.keyboard.type("no such thing at all")
    page.wait_for_selector("dialog.search p:has-text('No results')")
    page.keyboard.press("Escape")
    assert not page.query_selector("dialog.search").is_visible()


def test_filter_artifacts(page: Any, rich: Path) -> None:
    page.goto(rich.as_uri())
    page.fill("input[data-filter]", "bypass")
    assert page.locator(".artifacts li:visible").count() == 4
    page.fill("input[data-filter]", "")
    assert page.locator(".artifacts li:visible").count() > 30


def test_flame_graph_zooms_and_walks(page: Any, rich: Path) -> None:
    page.goto((rich.parent / "time.html").as_uri())
    names = "[...document.querySelectorAll('#flame .span text')].map(t => t.textContent)"
    assert "dynamo [0/0]" in page.evaluate(names)
    assert page.get_attribute("#flame", "data-view") == "0-9000"
    page.click("#flame [data-span] rect >> nth=1")
    assert page.get_attribute("#flame", "data-view") == "1000-5000"
    assert "backend_compile" in page.inner_text("#flame-says")
    page.keyboard.press("ArrowDown")
    assert "codegen" in page.inner_text("#flame-says") and "2.0 ms" in page.inner_text("#flame-says")
    page.keyboard.press("Enter")
    assert page.get_attribute("#flame", "data-view") == "2000-4000"
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    assert page.get_attribute("#flame", "data-view") == "0-9000"
    page.fill("#flame-find", "codegen")
    assert page.locator("#flame .span:not(.off)").count() == 1
    page.fill("#flame-find", "")
    page.select_option("#flame-id", "0/1")
    assert page.get_attribute("#flame", "data-view") == "5500-5900"
    page.click("#flame-reset")
    assert page.get_attribute("#flame", "data-view") == "0-9000"


def lit(page: Any) -> dict[str, list[str]]:
    return page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('.lines')].map(b => [b.dataset.pane, [...b.querySelectorAll('.lit')].map(l => l.textContent)]))"
    )


def test_provenance_lights_up_all_four(page: Any, ours: Path) -> None:
    path = sorted(ours.parent.glob("*/provenance.html"))[0]
    page.goto(path.as_uri())
    page.hover(".lines[data-pane=fx] .p:has-text('abs')")
    found = lit(page)
    assert any("torch.abs(a)" in line for line in found["user"]), found
    assert len(found["fx"]) == 1
    assert any("ops.abs(" in line for line in found["loop"])
    assert any("abs(tmp" in line for line in found["kernel"])
    page.hover(".lines[data-pane=user] .p:has-text('torch.abs')")
    assert len(lit(page)["fx"]) >= 3
    page.hover(".lines[data-pane=kernel] .p:has-text('= abs(tmp')")
    assert any("abs" in line for line in lit(page)["fx"])
    page.mouse.move(5, 5)
    assert not any(lit(page).values())


def test_provenance_by_keyboard(page: Any, ours: Path) -> None:
    page.goto(sorted(ours.parent.glob("*/provenance.html"))[0].as_uri())
    page.focus(".lines[data-pane=user] .p >> nth=0")
    assert all(lit(page).values())
    for pane in ("fx", "loop", "kernel"):
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.parentElement.dataset.pane") == pane
    page.keyboard.press("Enter")
    assert page.query_selector(".panes.pinned")
    before = lit(page)
    page.hover(".lines[data-pane=fx] .p >> nth=-1")
    assert lit(page) == before
    page.keyboard.press("Escape")
    assert not page.query_selector(".panes.pinned")


def test_hostile_trace_runs_nothing(page: Any, tmp_path: Path) -> None:
    index = build(evil_trace(tmp_path / "trace.log"), tmp_path / "out").index
    for path in [index, *sorted(tmp_path.glob("out/**/*.html"))]:
        page.goto(path.as_uri())
        assert page.evaluate("window.hacked") is None
        assert page.locator("main img").count() == 0
    page.goto(index.as_uri())
    page.keyboard.press("/")
    page.keyboard.type("script")
    page.wait_for_selector("dialog.search li")
    assert page.evaluate("window.hacked") is None and page.locator("dialog img").count() == 0
    assert EVIL.split(">")[0] in page.inner_text("dialog.search")
    packed = build(tmp_path / "trace.log", tmp_path / "one.html", single_file=True).index
    page.goto(packed.as_uri())
    page.click("text=Details >> nth=0")
    page.wait_for_selector("h1 .mono")
    assert page.evaluate("window.hacked") is None and page.locator("main img").count() == 0


def test_policy_blocks_injected_script(browser: Any, rich: Path) -> None:
    """Even if an element got in, the browser would not run it."""
    page = browser.new_page()
    page.goto(rich.as_uri())
    page.evaluate(
        "const s = document.createElement('script'); s.textContent = 'window.hacked = 1'; document.body.append(s)"
    )
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hacked = 1\">')")
    page.wait_for_timeout(100)
    assert page.evaluate("window.hacked") is None
    page.close()


def test_single_file_works_alone(page: Any, single: Path) -> None:
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(single.as_uri())
    assert visible(page, '[role="treeitem"]') >= 3
    page.click("text=Provenance >> nth=0")
    page.wait_for_selector("#provenance")
    assert "#!" in page.url
    page.hover(".lines[data-pane=fx] .p >> nth=0")
    assert all(lit(page).values())
    page.go_back()
    page.wait_for_selector('[role="tree"]')
    page.click("nav >> text=Time")
    page.wait_for_selector("#flame svg")
    open_first_found(page, "kernel_code")
    page.wait_for_selector("pre.code .l")
    page.click("text=Plain text")
    page.wait_for_selector("pre.code:has-text('extern')")
    address = page.url
    page.goto("about:blank")
    page.goto(address)  # a deep link into a single file
    page.wait_for_selector("pre.code:has-text('extern')")
    assert [url for url in requests if not url.startswith(("file:", "blob:", "about:"))] == []


def test_ranks(page: Any, tmp_path: Path) -> None:
    for rank in range(2):
        made = TraceMaker(tmp_path / f"t/dedicated_log_torch_trace_rank_{rank}_abc.log", rank)
        made.compile((0, 0), GRAPH.replace("torch.relu", "torch.tanh") if rank else GRAPH)
        made.save()
    index = build(tmp_path / "t", tmp_path / "out").index
    page.goto(index.as_uri())
    assert "1 of 1 compiles differ" in page.inner_text(".hero")
    assert "torch.tanh" in page.inner_text(".diff .changed .b")
    page.click("th >> text=rank 1")
    page.wait_for_selector('[role="tree"]')
    open_first_found(page, "tanh")
    page.wait_for_selector(".l.hit")
    page.click("nav >> text=Ranks")
    page.wait_for_selector("text=2 ranks")


def test_every_control_has_a_name(page: Any, rich: Path, ours: Path) -> None:
    """What a screen reader says of each control is not empty, and nothing needs a mouse."""
    pages = [
        rich,
        rich.parent / "time.html",
        rich.parent / "breaks.html",
        sorted(ours.parent.glob("*/provenance.html"))[0],
    ]
    for path in pages:
        page.goto(path.as_uri())
        nameless = page.evaluate(
            """[...document.querySelectorAll('a[href], button, input, select, [role=tree], [role=listbox], [role=application]')]
            .filter(e => !(e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.textContent.trim()
                || e.closest('label')?.textContent.trim() || e.title)).map(e => e.outerHTML.slice(0, 100))"""
        )
        assert nameless == []
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"


def test_live_report_follows_the_trace(page: Any, tmp_path: Path) -> None:
    from argand.report.html.serve import Follower, News, Server, serving

    (tmp_path / "trace").mkdir()
    news = News()
    follower = Follower(tmp_path / "trace", tmp_path / "out", Limits(), news, every=0.1)
    (tmp_path / "out").mkdir()
    try:
        with serving(Server(tmp_path / "out", 0, news), follower.run) as server:
            news.wait(0, 120)
            page.goto(server.address)
            page.wait_for_selector("text=The trace holds no compile.")
            made = TraceMaker(tmp_path / "trace/dedicated_log_torch_trace_x.log")
            made.compile((0, 0))
            made.save()
            page.wait_for_selector("details.compile[id='[0/0]']", timeout=120_000)
            page.click("text=Collapse all")
            page.click("text=Close all")
            made.compile((1, 0), co_name="second")
            made.save()
            page.wait_for_selector("details.compile[id='[1/0]']", timeout=120_000)
            assert page.get_attribute("details.compile[id='[0/0]']", "open") is None  # as it was left
            assert page.locator(".live:not(.off)").count() == 1
            page.click("text=Open all")
            page.click("text=-_1_0_0/dynamo_output_graph_8.txt")
            page.wait_for_selector("pre.code .k")
            time.sleep(0.3)
    finally:
        follower.stopped.set()
