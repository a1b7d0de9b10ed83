"""A headless browser for tests of pages, where Chromium is installed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_QUIET = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]


@contextmanager
def opened() -> Iterator[Browser]:
    """The browser, until the block ends."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=_QUIET)
        yield browser
        browser.close()


def serious(page: Page) -> list[tuple[str, str]]:
    """What axe-core calls serious or critical on a page: the rule, and the first place.

    The page's context must be opened with `bypass_csp`: axe is a script of its own.
    """
    from axe_playwright_python.sync_playwright import Axe

    violations = Axe().run(page).response["violations"]
    return [
        (one["id"], one["nodes"][0]["html"][:300]) for one in violations if one["impact"] in ("serious", "critical")
    ]
