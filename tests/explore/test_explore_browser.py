"""The page in a browser: every control and every tab, and what they show beside what the command line prints."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from commsim.cli import app
from commsim.explorer.answers import answer
from commsim.explorer.state import State
from commsim.scenario.predictors import Cache

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.slow
TABS = ("curve", "topology", "schedule", "step", "plan", "log")
LOG = Path(__file__).parents[1] / "data/logs/all_reduce_one_process.log"
CACHE = Cache()
Opened = Callable[..., "Page"]


def settled(page: Page, act: Callable[[], object]) -> None:
    """Acts, and waits until what follows is shown."""
    before = page.evaluate("document.body.dataset.answered || '0'")
    act()
    done = "n => +document.body.dataset.answered > +n && !document.querySelector('.asking')"
    page.wait_for_function(done, arg=before, timeout=60_000)


def state_of(page: Page) -> dict[str, str]:
    """What the address says."""
    return dict(State.of_query(page.evaluate("location.hash.slice(1)")).values)


def printed(page: Page, folder: Path) -> str:
    """What `commsim run` prints of the page's question, copied as YAML."""
    path = folder / "question.yaml"
    path.write_text(copied(page, "yaml"))
    return str(CliRunner().invoke(app, ["run", str(path), "--no-files"]).stdout)


def copied(page: Page, form: str) -> str:
    """What a button of the head copies."""
    page.evaluate("delete document.getElementById('panel').dataset.copied")
    page.click(f"[data-form={form}]")
    page.wait_for_selector("#panel[data-copied]")
    text: str = page.evaluate("navigator.clipboard.readText()")
    return text


@pytest.mark.parametrize("tab", TABS)
def test_a_tab_opens(opened: Opened, tab: str) -> None:
    page = opened("" if tab == "curve" else f"#tab={tab}")
    assert page.get_attribute(f"#tab-{tab}", "aria-selected") == "true"
    assert page.is_hidden("#error")
    assert page.locator("#body h2").first.is_visible()


def _move(control: Locator) -> None:
    """Moves a control to another value."""
    kind = control.evaluate("e => e.tagName + ':' + (e.type || '')")
    if kind == "INPUT:range":
        control.press("ArrowRight" if control.evaluate("e => +e.value < +e.max") else "ArrowLeft")
    elif kind == "INPUT:checkbox":
        control.click()
    elif kind == "SELECT:select-one":
        options = control.evaluate("e => [e.value, ...[...e.options].map(o => o.value)]")
        control.select_option(next(value for value in options[1:] if value != options[0]))
    else:
        changed = {"control-sizes": "1 KiB .. 1 MiB x4", "control-placement": "leaf"}
        control.fill(changed.get(str(control.get_attribute("id")), "3"))
        control.press("Enter")


@pytest.mark.parametrize("tab", ["curve", "topology", "schedule", "step"])
def test_every_control_moves_and_is_answered(opened: Opened, tab: str) -> None:
    start = "#nodes=2&sizes=1+KiB+..+1+MiB+x32&model=llama3-8b&tp=4&pp=2&gb=32"
    page = opened(start + f"&tab={tab}")
    form = page.locator("#controls")
    moved = 0
    controls = form.locator(".control input, .control select")
    for i in range(controls.count()):
        control = controls.nth(i)
        if not control.is_visible():
            continue
        settled(page, lambda control=control: _move(control))  # type: ignore[misc]
        said = page.evaluate("location.hash")
        assert said != start
        values = state_of(page)
        expected = json.loads(answer(tab, values, Path(), CACHE, lambda *_: None))
        assert (page.text_content("#error") or "") == (expected.get("error") or expected.get("misfit") or "")
        moved += 1
        settled(page, page.go_back)
    assert moved >= (1 if tab == "schedule" else 15)


def test_the_curve_is_what_run_prints(opened: Opened, tmp_path: Path) -> None:
    page = opened("#nodes=2&rate=200+Gb%2Fs&over=2&leaf=1")
    text = printed(page, tmp_path)
    assert page.text_content("pre") == text
    rows = [line.split() for line in text.splitlines() if line.startswith(" ")]
    cells = page.evaluate("[...document.querySelectorAll('tbody tr')].map(r => [...r.cells].map(c => c.textContent))")
    for row, line in zip(cells, rows, strict=True):
        assert set(row[1:7]) - {"-"} <= set(line)


def test_the_step_is_what_run_prints(opened: Opened, tmp_path: Path) -> None:
    page = opened("#tab=step&nodes=4&gb=32")
    assert page.locator("details pre").text_content() == printed(page, tmp_path)


def test_a_slider_of_the_rate_moves_curve_and_step(opened: Opened) -> None:
    page = opened("#nodes=2&sizes=1+GiB")
    slider = page.locator("#control-rate")
    settled(page, lambda: slider.fill("4"))
    slow = page.text_content(".sentences p")
    settled(page, lambda: slider.fill("6"))
    quick = page.text_content(".sentences p")
    assert slow != quick
    assert state_of(page)["rate"] == "800 Gb/s"
    settled(page, lambda: page.click("#tab-step"))
    assert state_of(page) == {"tab": "step", "nodes": "2", "sizes": "1 GiB", "rate": "800 Gb/s"}


def test_back_forward_and_reload(opened: Opened) -> None:
    page = opened()
    settled(page, lambda: page.select_option("#control-collective", "all_gather"))
    settled(page, lambda: page.click("#tab-topology"))
    settled(page, page.go_back)
    assert page.get_attribute("#tab-curve", "aria-selected") == "true"
    assert "all_gather" in (page.text_content(".sentences p") or "")
    settled(page, page.go_back)
    assert page.input_value("#control-collective") == "all_reduce"
    settled(page, page.go_forward)
    page.reload()
    page.wait_for_selector("body[data-answered]")
    assert page.input_value("#control-collective") == "all_gather"


def test_what_is_copied_asks_the_same(opened: Opened, tmp_path: Path) -> None:
    page = opened("#nodes=2&sizes=1+MiB&faults=nic:0.3:0.5")
    shown = page.text_content("pre")
    assert printed(page, tmp_path) == shown
    command = copied(page, "command")
    import shlex

    line = CliRunner().invoke(app, [*shlex.split(command)[1:], "--no-files"])
    rows = [row for row in line.stdout.splitlines() if row.startswith(" ")]
    assert rows == [row for row in (shown or "").splitlines() if row.startswith(" ")]
    assert "cs.run(" in copied(page, "python")


def test_an_error_has_the_words_of_the_command_line(opened: Opened) -> None:
    page = opened("#nodes=2")
    settled(page, lambda: _fill(page, "#control-sizes", "8 B .. 4 B"))
    assert "expected its first size not above its last" in (page.text_content("#error") or "")
    assert page.locator("#curve-chart svg").first.is_visible()  # the last answer stays
    settled(page, lambda: _fill(page, "#control-sizes", "1 MiB"))
    assert page.is_hidden("#error")


def _fill(page: Page, selector: str, text: str) -> None:
    page.fill(selector, text)
    page.press(selector, "Enter")


def test_a_click_on_the_drawing_is_a_fault(opened: Opened) -> None:
    page = opened("#tab=topology&nodes=2")
    for expected in ("nic:0.3:0.5", "nic:0.3:failed", ""):
        settled(page, lambda: page.locator("[data-place='nic:0.3']").first.dispatch_event("click"))
        assert state_of(page).get("faults", "") == expected
    settled(page, lambda: page.locator("rect[data-node='1']").click())
    assert "Inside node 1" in (page.text_content("#body") or "")
    page.fill("#faults input", "1.2")
    settled(page, lambda: page.click("#faults button:has-text('Add')"))
    assert state_of(page)["faults"] == "nic:1.2:0.5"
    assert page.locator("text=NIC 2 of node 1: at 50 %").count() == 1
    settled(page, lambda: page.click("#faults button:has-text('mend')"))
    assert not state_of(page).get("faults")


def test_a_fault_without_its_place_and_no_nodes_are_not_taken(opened: Opened) -> None:
    page = opened("#nodes=2&sizes=1+MiB")
    page.fill("#faults input", "9.9")
    page.click("#faults button:has-text('Add')")
    page.wait_for_selector("#faults .wrong:not([hidden])")
    assert "node 9 is not one of the 2 nodes" in (page.text_content("#faults .wrong") or "")
    _fill(page, "[aria-label='Nodes, exactly']", "")
    assert page.input_value("[aria-label='Nodes, exactly']") == "2"
    assert state_of(page) == {"nodes": "2", "sizes": "1 MiB"}


def test_a_long_answer_is_announced_and_can_be_cancelled(opened: Opened) -> None:
    page = opened("#nodes=2&sizes=1+MiB")
    page.route("**/ask", lambda route: None)  # an answer that does not come
    page.select_option("#control-collective", "all_gather")
    page.wait_for_selector("#computing-stop")
    assert "computing" in (page.text_content("#computing") or "")
    settled(page, lambda: page.click("#computing-stop"))
    page.unroute("**/ask")
    assert "cancelled" in (page.text_content("#error") or "")
    settled(page, lambda: page.select_option("#control-collective", "all_reduce"))
    assert page.is_hidden("#error")


def test_chunks_travel_step_by_step(opened: Opened) -> None:
    page = opened("#tab=schedule&schedule=ring")
    words = page.locator("#body output")
    assert words.text_content() == "after step 0 of 14"
    page.click("[aria-label='One step on']")
    assert words.text_content() == "after step 1 of 14"
    page.select_option("[aria-label=Speed]", "3")
    page.click("#schedule-play")
    page.wait_for_function(
        "() => document.querySelector('#body output').textContent.startsWith('after step 3')", timeout=30_000
    )
    page.click("#schedule-play")
    assert page.text_content("#schedule-play") == "Play"
    page.locator("#schedule-step").fill("14")
    assert "64 of 64 chunks are where they must end" in (page.text_content("#body") or "")
    settled(page, lambda: page.select_option("#schedule-algorithm", "nvls"))
    assert state_of(page)["schedule"] == "nvls"


def test_an_address_with_an_algorithm_of_another_collective_leaves_the_choice(opened: Opened) -> None:
    page = opened("#tab=schedule&collective=all_gather&schedule=tree&ranks=12")
    assert "tree" in (page.text_content("#error") or "")
    assert page.locator("#schedule-algorithm option").count() > 2
    settled(page, lambda: page.select_option("#schedule-algorithm", "ring"))
    assert not page.is_visible("#error")
    heights = page.evaluate("[...document.querySelectorAll('.holds th')].map(h => h.offsetHeight)")
    assert len(set(heights)) == 1  # "rank 10" takes one line too


def test_the_plan_runs_is_cancelled_and_shows_a_step(opened: Opened) -> None:
    page = opened("#tab=plan&nodes=1&model=llama3-8b&gb=64")
    page.click("#plan-start")
    page.wait_for_selector("#plan-stop:enabled")
    page.click("#plan-stop")
    page.wait_for_selector("text=cancelled")
    page.click("#plan-start")
    page.wait_for_selector("#plan-chart svg", timeout=120_000)
    first = page.evaluate("[...document.querySelector('tbody tr').cells].map(c => c.textContent)")
    settled(page, lambda: page.click("tbody tr:first-child button"))
    assert state_of(page)["tab"] == "step"
    seconds = float(re.search(r"([\d.]+) s a step", page.text_content(".sentences") or "").group(1))  # type: ignore[union-attr]
    assert seconds == pytest.approx(float(first[2]), rel=1e-3)


def test_a_log_is_judged_and_lies_over_the_curve(opened: Opened) -> None:
    page = opened("#tab=log")
    page.select_option("#log-against", "hgx-h100")
    page.set_input_files("#log-file", LOG)
    page.wait_for_selector("#log-results section", timeout=60_000)
    line = CliRunner().invoke(app, ["compare", str(LOG), "--on", "hgx-h100"]).stdout
    assert (page.text_content("#log-results .sentences p") or "-") in line
    settled(page, lambda: page.click("#tab-curve"))
    assert "measured" in (page.text_content("#curve-chart") or "")
    assert "8 ranks against 32" in (page.text_content("#warnings") or "")
    settled(page, lambda: page.click("#warnings button"))
    assert state_of(page)["on"] == "hgx-h100"
    assert "another machine" not in (page.text_content("#warnings") or "")


def test_a_file_can_be_dropped_on_any_tab(opened: Opened) -> None:
    page = opened()
    data: Any = page.evaluate_handle(
        "text => { const d = new DataTransfer(); d.items.add(new File([text], 'x.log')); return d; }", "no log"
    )
    page.dispatch_event("body", "drop", {"dataTransfer": data})
    page.wait_for_function("() => !document.getElementById('error').hidden", timeout=60_000)
    assert page.get_attribute("#tab-log", "aria-selected") == "true"
    assert "x.log" in (page.text_content("#error") or "")


def test_the_keyboard_is_enough(opened: Opened) -> None:
    page = opened("#nodes=2&sizes=1+MiB")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "tab-curve"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    settled(page, lambda: page.keyboard.press("ArrowRight"))
    assert page.evaluate("document.activeElement.id") == "tab-topology"
    for _ in range(5):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('form')?.id") == "controls"


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("tab", TABS)
def test_nothing_is_wider_than_the_screen_and_axe_finds_nothing_serious(opened: Opened, tab: str, width: int) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = opened(f"#tab={tab}&nodes=2&sizes=1+MiB&model=llama3-8b&gb=32&faults=nic:0.3:0.5")
    page.set_viewport_size({"width": width, "height": 900})
    page.wait_for_timeout(200)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    if width < 800:
        page.click("summary")
    found = Axe().run(page).response["violations"]
    serious = [
        (v["id"], [n["html"][:150] for n in v["nodes"]][:3]) for v in found if v["impact"] in ("serious", "critical")
    ]
    assert not serious


def test_the_inside_of_a_node_turns_and_fits_a_narrow_screen(opened: Opened) -> None:
    page = opened("#tab=topology&nodes=2")
    wide = page.locator('svg[aria-label="Inside node 0"]').bounding_box()
    page.set_viewport_size({"width": 390, "height": 900})
    page.wait_for_timeout(200)
    narrow = page.locator('svg[aria-label="Inside node 0"]').bounding_box()
    assert wide is not None
    assert narrow is not None
    assert wide["width"] > wide["height"]
    assert narrow["height"] > narrow["width"]
    assert narrow["x"] + narrow["width"] <= 390
    settled(page, page.locator("rect[data-place='nic:0.3']").last.click)
    assert state_of(page)["faults"] == "nic:0.3:0.5"
