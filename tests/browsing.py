"""The explorer as it is started, and a browser beside it; skipped where there is no Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from explorer import Explorer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


@pytest.fixture(scope="module")
def explorer() -> Iterator[Explorer]:
    """One for all tests of a file."""
    made = Explorer()
    yield made
    made.end()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Headless Chromium of this machine."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium on this machine: the pages of the explorer are not tried")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        yield made
        made.close()


Opened = Callable[..., "Page"]


@pytest.fixture
def opened(explorer: Explorer, browser: Browser) -> Iterator[Opened]:
    """Opens the page at a state; afterwards nothing may be on its console, and no request have left this machine."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    said: list[str] = []
    asked: list[str] = []
    context.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    context.on("weberror", lambda fault: said.append(str(fault.error)))
    context.on("request", lambda request: asked.append(request.url))

    def go(fragment: str = "") -> Page:
        page = context.new_page()
        page.goto(explorer.address + fragment)
        page.wait_for_selector("body[data-answered]", timeout=60_000)
        return page

    yield go
    context.close()
    assert not said
    home = explorer.address.split("/")[2]
    assert all(url.split("/")[2] == home for url in asked if not url.startswith(("data:", "about:"))), asked
