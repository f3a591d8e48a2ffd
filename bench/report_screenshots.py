"""Screenshots of a report for the documentation: compiles a small model with argand, builds the report, opens it.

    python bench/report_screenshots.py [--out docs/images]

Needs Playwright and a Chromium on the path.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PROGRAM = '''"""A transformer block with a graph break and a recompile."""
import torch
from torch import nn

import argand


class Block(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def attend(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = torch.softmax(q @ k.transpose(-1, -2) / 8, -1)
        return x + self.out(scores @ v)

    def forward(self, x):
        x = self.attend(x)
        if x.abs().max() > 100:
            x = x.clamp(-100, 100)
        return x + self.mlp(x)


def loss(model, x, target):
    return ((model(x) - target) ** 2).mean()


model = Block()
step = argand.compile(loss)
for rows in (8, 8, 12):
    x = torch.randn(4, rows, 64)
    step(model, x, torch.zeros_like(x)).backward()
scale = argand.compile(lambda x, factor: torch.sigmoid(x * factor) + x)
for factor in (2, 3):
    scale(torch.randn(1000), factor)
'''


def find(page: Any, base: str) -> str:
    """The provenance page with the most kernel lines that are linked."""
    best, most = "", 0
    page.goto(f"{base}index.html")
    links = page.eval_on_selector_all("a.button.accent", "links => links.map(l => l.href)")
    for link in links:
        page.goto(link)
        linked = page.locator(".lines[data-pane=kernel] .p").count()
        if linked > most:
            best, most = link, linked
    return best


def shoot(report: Path, out: Path, chromium: str) -> None:
    """Write the images."""
    from playwright.sync_api import sync_playwright

    base = f"{report.as_uri()}/"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])

        def page_of(scheme: str, height: int = 860) -> Any:
            return browser.new_page(viewport={"width": 1360, "height": height}, color_scheme=scheme)

        page = page_of("light", 1180)
        page.goto(f"{base}index.html")
        page.screenshot(path=out / "report-overview.png")
        page = page_of("light", 900)
        page.goto(f"{base}breaks.html")
        page.screenshot(path=out / "report-breaks.png")
        page = page_of("dark")
        page.goto(find(page, base))
        page.focus(".lines[data-pane=user] .p >> nth=1")
        page.wait_for_timeout(300)
        page.screenshot(path=out / "report-provenance.png")
        page = page_of("light", 760)
        page.goto(f"{base}time.html")
        page.hover("#flame .span >> nth=2")
        page.screenshot(path=out / "report-time.png")
        page = page_of("dark", 640)
        page.goto(f"{base}index.html")
        page.keyboard.press("/")
        page.keyboard.type("softmax")
        page.wait_for_selector("dialog.search li")
        page.screenshot(path=out / "report-search.png")
        page = page_of("light", 900)
        page.goto(f"{base}index.html")
        links = page.eval_on_selector_all(
            ".compile:has(.t-re)", "boxes => boxes.map(box => box.querySelector('a.button').href)"
        )
        page.goto(links[min(1, len(links) - 1)])
        page.click("text=/^Compare/ >> nth=0")
        page.wait_for_selector(".diff, .none")
        page.screenshot(path=out / "report-compare.png")
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent.parent / "docs" / "images")
    arguments = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("no Chromium on the path (apt-get install chromium)")
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        script = work / "demo" / "train.py"
        script.parent.mkdir()
        script.write_text(PROGRAM)
        env = {**os.environ, "OMP_NUM_THREADS": "1", "ARGAND_TRACE": str(work / "trace")}
        subprocess.run([sys.executable, script], check=True, env=env)
        from argand.report.html import build

        index = build(work / "trace", work / "report").index
        shoot(index.parent, arguments.out.resolve(), chromium)
    for image in sorted(arguments.out.glob("report-*.png")):
        print(image, image.stat().st_size)


if __name__ == "__main__":
    main()
