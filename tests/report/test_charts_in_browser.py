"""Charts and drawings of pages in a browser: zoom, hover, crosshair, scales, keys, print, phones, without scripts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser import CHROMIUM, opened, serious

from commsim.report.chart import BAND, Axis, Chart, Mark, Panel, Series, Shade, Span
from commsim.report.page import Page, Section, html, picture, plot

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")]
SIZES = tuple(float(2**k) for k in range(10, 31, 2))
TIMES = tuple(2e-5 + size / 2e11 for size in SIZES)
RATES = tuple(size / time / 1e9 for size, time in zip(SIZES, TIMES, strict=True))
LIMIT = tuple(size / (time / 30) / 1e9 for size, time in zip(SIZES, TIMES, strict=True))


def curves() -> Chart:
    """Two panels, a band, a bound far above, marks."""
    colour = "#0072B2"
    low, high = (tuple(share * y for y in RATES) for share in (0.8, 1.3))
    rates = (
        Series("predicted", SIZES, RATES, colour, notes=("tree",) * len(SIZES), low=low, high=high),
        Series("limit", SIZES, LIMIT, "#8A8A8A", "dashed"),
    )
    times = Series("predicted", SIZES, TIMES, colour)
    marks = (Mark(SIZES[0], "tree"), Mark(SIZES[5], "ring"))
    return Chart(
        "curves <b>&",
        Axis("message size", "log", "bytes", switch=True),
        (
            Panel(Axis("bus bandwidth (GB/s)", switch=True), rates, marks, shades=(Shade(0, 10, "#EEEEEE", "poor"),)),
            Panel(Axis("time", "log", "s", switch=True), (times,)),
        ),
    )


def timeline() -> Chart:
    spans = tuple(Span(k % 2, k / 1000, (k + 1) / 1000, "forward", "#0072B2") for k in range(6))
    return Chart(
        "steps", Axis("time", unit="s"), rows=("stage 0", "stage 1"), spans=spans, key=(("forward", "#0072B2"),)
    )


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from commsim.report.topology_plot import plot_topology
    from commsim.topology.presets import load_preset

    drawing = picture(plot_topology(load_preset("hgx-h100-ndr400", nodes=2)), "The machine.")
    parts = (plot(curves(), "Curves."), plot(timeline(), "Steps."), drawing)
    path = tmp_path_factory.mktemp("charts") / "page.html"
    path.write_text(html(Page("t", "q", ("a",), (Section("s", parts),))), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with opened() as one:
        yield one


@pytest.fixture
def tab(browser: Browser, document: Path) -> Iterator[Tab]:
    """The page at 1280 pixels; the test fails where it logs an error or asks for anything."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.append(request.url) if request.url != document.as_uri() else None)
    page.goto(document.as_uri())
    yield page
    page.close()
    assert wrong == []


def texts(tab: Tab, chart: int = 0) -> list[str]:
    """All words in a chart's picture."""
    return tab.locator(".canvas").nth(chart).locator("svg text").all_text_contents()


def point(tab: Tab, right: float, down: float) -> tuple[float, float]:
    """A point of the first chart, by shares of its picture."""
    box = tab.locator(".canvas").first.bounding_box()
    assert box is not None
    return box["x"] + right * box["width"], box["y"] + down * box["height"]


def settle(tab: Tab) -> None:
    """Until the next frames are drawn."""
    tab.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 60))))")


def test_ticks_are_powers_of_two_and_the_bound_does_not_squeeze_the_curve(tab: Tab) -> None:
    said = texts(tab)
    assert {"1 KiB", "1 MiB", "1 GiB"} <= set(said)
    assert not [text for text in said if "." in text and text.endswith("B")]
    assert "2,000" not in said  # the bound goes up to 6000, the curve to 200
    assert {"tree", "ring"} <= set(said)  # marks


def test_hover_says_the_values_of_all_panels_and_the_crosshair_runs_through_them(tab: Tab) -> None:
    before = tab.locator(".canvas").first.locator("svg path").count()
    tab.mouse.move(*point(tab, 0.52, 0.35))
    settle(tab)
    said = tab.locator(".canvas").first.locator("xpath=.//div[contains(@style,'pointer-events')]").last.inner_text()
    at = next(i for i, size in enumerate(SIZES) if size == 2**20)
    assert "1 MiB" in said
    assert f"{RATES[at]:.4g} GB/s ({0.8 * RATES[at]:.4g} to {1.3 * RATES[at]:.4g})" in said
    assert "tree" in said
    assert f"{1e6 * TIMES[at]:.4g} us" in said
    assert tab.locator(".canvas").first.locator("svg path").count() >= before + 2  # a line in each panel


def test_the_wheel_zooms_with_ctrl_only_a_drag_moves_and_a_double_click_shows_all(tab: Tab) -> None:
    whole = texts(tab)
    tab.mouse.move(*point(tab, 0.3, 0.3))
    tab.mouse.wheel(0, -300)
    settle(tab)
    assert texts(tab) == whole
    tab.mouse.move(*point(tab, 0.3, 0.3))
    tab.keyboard.down("Control")
    for _ in range(6):
        tab.mouse.wheel(0, -300)
        settle(tab)
    tab.keyboard.up("Control")
    near = texts(tab)
    assert "1 GiB" not in near
    assert "512 KiB" in near  # ticks of what is seen
    tab.mouse.down()
    tab.mouse.move(*point(tab, 0.8, 0.3), steps=6)
    tab.mouse.up()
    settle(tab)
    moved = texts(tab)
    assert "1 KiB" in moved
    assert moved != near
    tab.mouse.dblclick(*point(tab, 0.5, 0.3))
    settle(tab)
    assert texts(tab)[:5] == whole[:5]


def test_buttons_zoom_by_the_keyboard(tab: Tab) -> None:
    whole = texts(tab)
    button = tab.locator("figure").first.get_by_role("button", name="+")
    button.focus()
    tab.keyboard.press("Enter")
    tab.keyboard.press("Enter")  # the focus stays where it was
    settle(tab)
    assert not {"1 KiB", "1 GiB"} & set(texts(tab))
    tab.locator("figure").first.get_by_role("button", name="All").click()
    settle(tab)
    assert texts(tab) == whole


def test_scales_switch(tab: Tab) -> None:
    assert "10" not in texts(tab)
    tab.get_by_role("button", name="bus bandwidth (GB/s): linear").click()
    settle(tab)
    assert {"0.1", "10"} <= set(texts(tab))
    tab.get_by_role("button", name="message size: logarithmic").click()
    settle(tab)
    assert {"256 MiB", "512 MiB", "768 MiB"} <= set(texts(tab))


def test_the_key_hides_curves_bands_and_spans(tab: Tab) -> None:
    def painted(colour: str, chart: int = 0) -> int:
        return tab.locator(".canvas").nth(chart).locator(f'svg path[fill="{colour}"][fill-opacity="0.17"]').count()

    assert painted("#0072B2") == 1
    band = tab.get_by_role("button", name=BAND)
    band.click()
    settle(tab)
    assert band.get_attribute("aria-pressed") == "false"
    assert painted("#0072B2") == 0
    lines = tab.locator(".canvas").first.locator("svg path[stroke-dasharray]")
    many = lines.count()
    tab.get_by_role("button", name="limit").click()
    settle(tab)
    assert lines.count() == many - 1
    spans = tab.locator(".canvas").nth(1).locator('svg path[fill="#0072B2"]')
    assert spans.count() == 6
    tab.get_by_role("button", name="forward").click()
    settle(tab)
    assert spans.count() == 0


def test_a_drawing_zooms(tab: Tab) -> None:
    drawing = tab.locator(".drawing svg")
    whole = drawing.get_attribute("viewBox")
    tab.locator(".zooms button").first.click()
    near = drawing.get_attribute("viewBox")
    assert near != whole
    tab.locator(".zooms button").nth(2).click()
    assert [float(x) for x in str(drawing.get_attribute("viewBox")).split()] == [float(x) for x in str(whole).split()]
    assert drawing.locator("title").count() > 20  # links say their names


def test_printed_charts_fit_the_paper(tab: Tab) -> None:
    tab.emulate_media(media="print")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    wide = tab.evaluate(
        "Math.max(...[...document.querySelectorAll('.canvas svg')].map(s => s.getBoundingClientRect().width))"
    )
    assert 300 < wide <= 660
    assert not tab.locator(".scales").first.is_visible()
    tab.emulate_media(media="screen")
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert tab.evaluate("document.querySelector('.canvas svg').getBoundingClientRect().width") > 900


def test_a_phone_shows_all_of_it(browser: Browser, document: Path) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.goto(document.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    right = page.evaluate(
        "Math.max(...[...document.querySelectorAll('button')].map(b => b.getBoundingClientRect().right))"
    )
    assert right <= 390
    assert {"1 KiB", "1 MiB", "1 GiB"} <= set(texts(page))
    page.close()


def test_without_scripts_there_are_still_pictures(browser: Browser, document: Path) -> None:
    context = browser.new_context(java_script_enabled=False, viewport={"width": 1000, "height": 900})
    page = context.new_page()
    page.goto(document.as_uri())
    assert page.locator(".still svg").count() == 2
    assert all(page.locator(".still svg").nth(i).is_visible() for i in range(2))
    context.close()


def test_nothing_keeps_people_out(browser: Browser, document: Path) -> None:
    context = browser.new_context(bypass_csp=True)
    page = context.new_page()
    page.goto(document.as_uri())
    assert serious(page) == []
    context.close()
