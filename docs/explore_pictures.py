"""The pictures of the page `guides/explore.md`: every tab of the explorer in headless Chromium, wide and narrow.

``python docs/explore_pictures.py`` writes them to docs/images/explore/.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "images" / "explore"
LOG = ROOT / "tests" / "data" / "logs" / "all_reduce_one_process.log"
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
COLOURS = 160

TABS = {
    "curve": "#nodes=4&rate=800+Gb%2Fs",
    "topology": "#tab=topology&nodes=8&leaf=4&over=2&faults=nic:0.3:0.5;switch:leaf1.rail2:failed",
    "schedule": "#tab=schedule&schedule=hierarchical",
    "step": "#tab=step&nodes=16",
    "plan": "#tab=plan&nodes=8",
    "log": "#tab=log&on=hgx-h100&nodes=1",
}
"""By picture, the state that it shows."""


def prepared(page: Page, tab: str) -> None:
    """Does what a person would before there is something to see."""
    if tab == "schedule":
        page.locator("#schedule-step").fill("3")
    if tab == "step":
        page.wait_for_selector("#around table", timeout=120_000)
    if tab == "plan":
        page.click("#plan-start")
        page.wait_for_selector("#plan-chart svg", timeout=120_000)
    if tab == "log":
        page.select_option("#log-against", "hgx-h100")
        page.set_input_files("#log-file", LOG)
        page.wait_for_selector("#log-results section", timeout=120_000)
    page.wait_for_timeout(300)


def save(page: Page, name: str) -> None:
    """The page as a PNG of few colours."""
    from PIL import Image

    picture = Image.open(io.BytesIO(page.screenshot(full_page=False)))
    picture.convert("RGB").quantize(COLOURS).save(FOLDER / f"{name}.png", optimize=True)


def main() -> None:
    """Draws every tab at 1,280 and 390 pixels."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        sys.exit("found no Chromium, which draws the pages")
    FOLDER.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "commsim", "explore", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process, sync_playwright() as play:
        assert process.stdout is not None
        address = process.stdout.readline().split()[2]
        browser = play.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        for width, height, ending in ((1280, 960, ""), (390, 844, "-narrow")):
            for tab, state in TABS.items():
                page = browser.new_page(viewport={"width": width, "height": height})
                page.goto(address + state)
                page.wait_for_selector("body[data-answered]", timeout=60_000)
                prepared(page, tab)
                save(page, tab + ending)
                page.close()
        browser.close()
        process.terminate()


if __name__ == "__main__":
    main()
