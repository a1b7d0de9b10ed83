"""Every kind of HTML report in a browser: quick, quiet, whole in itself; screenshots stay in out/screenshots."""

from __future__ import annotations

import html as markup
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from browser import CHROMIUM, opened, serious
from typer.testing import CliRunner

from commsim.cli import app

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")]
QUIET = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--enable-logging=stderr"),
]
HEIGHT = 2600
PHONE = 390

PROBE = """<script>
addEventListener("load", function () {
  var said = {wide: document.documentElement.scrollWidth, ms: performance.now()};
  said.resources = performance.getEntriesByType("resource").length;
  var table = document.querySelector("table"), button = table.querySelector("thead button");
  var first = function (row) { return row.cells[0].dataset.key || row.cells[0].textContent; };
  button.click(); said.up = Array.from(table.tBodies[0].rows).map(first);
  button.click(); said.down = Array.from(table.tBodies[0].rows).map(first);
  document.body.setAttribute("data-said", JSON.stringify(said));
});
</script></body>"""
FRAME = """<body style="margin:0"><iframe style="border:0" width={width} height={height} srcdoc="{page}"></iframe>
<script>
addEventListener("load", function () {{
  document.body.setAttribute("data-said", document.querySelector("iframe").contentDocument.documentElement.scrollWidth);
}});
</script></body>"""


def _command(*words: object) -> None:
    result = CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)
    assert result.exit_code == 0, result.output


def _run(folder: Path, checkout: Path) -> Path:
    scenario = folder / "two.yaml"
    scenario.write_text(
        "name: AllReduce and AllGather on two nodes\ntopology: {preset: hgx-h100-ndr400, nodes: 2}\n"
        "workload:\n  - {collective: all_reduce, sizes: 1 KiB .. 1 GiB x4}\n"
        "  - {collective: all_gather, sizes: 1 KiB .. 1 GiB x4}\n"
    )
    _command("run", scenario, "--html", "--out", folder)
    return folder / "report.html"


def _training(folder: Path, checkout: Path) -> Path:
    _command("run", "training/llama-3-70b-512-h100", "--html", "--out", folder)
    return folder / "report.html"


def _sweep(folder: Path, checkout: Path) -> Path:
    _command("sweep", "sweep/nodes-and-oversubscription", "--html", "--workers", 1, "--out", folder)
    return folder / "report.html"


def _plan(folder: Path, checkout: Path) -> Path:
    axes = ("tp=[4, 8]", "pp=[4, 8]", "virtual_stages=[1]", "micro_batch_size=[1]", "recompute=[none]")
    words = [f"plan.search.{a}" for a in axes]
    _command("plan", "plan/gpt3-175b-1024-a100", *words, "plan.best=3", "--html", "--out", folder)
    return folder / "report.html"


def _compare(folder: Path, checkout: Path) -> Path:
    log = checkout / "tests" / "data" / "logs" / "all_reduce_one_process.log"
    _command("compare", checkout / "scenarios" / "allreduce-8-h100.yaml", log, "--no-plot", "--html", folder / "c.html")
    return folder / "c.html"


def _collectives(folder: Path, checkout: Path) -> Path:
    """A folder of five curves, fitted to nothing: the fit on all of them takes minutes."""
    measured = checkout / "validation" / "measured"
    slugs = [f"h100x8_{name}" for name in ("together_all_reduce_ring", "together_all_reduce_nvls", "xxrjun_all_gather")]
    lines = (measured / "INDEX_single_node.csv").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.split(",")[0] in (*slugs, "slug")]
    (folder / "INDEX_few.csv").write_text("\n".join(kept) + "\n", encoding="utf-8")
    for slug in slugs:
        shutil.copy(measured / f"{slug}.csv", folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("study.validate.training_folder", lambda: folder / "none")
        _command("validate", "collectives", "--data", folder, "--workers", 1, "--html", folder / "v.html")
    return folder / "v.html"


def _steps(folder: Path, checkout: Path) -> Path:
    """The rows of four sources."""
    lines = (checkout / "validation" / "training" / "steps.csv").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines[1:] if line.startswith(("nemo2407", "mlperf", "titan", "sc21"))]
    (folder / "steps.csv").write_text("\n".join([lines[0], *kept]) + "\n", encoding="utf-8")
    _command("validate", "training", "--steps", folder / "steps.csv", "--html", folder / "t.html")
    return folder / "t.html"


PAGES: dict[str, Callable[[Path, Path], Path]] = {
    "run": _run,
    "training": _training,
    "sweep": _sweep,
    "plan": _plan,
    "compare": _compare,
    "validate-collectives": _collectives,
    "validate-training": _steps,
}


@pytest.fixture(scope="module", params=PAGES)
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, checkout: Path) -> tuple[str, str]:
    """The name of a kind of page, and one of the kind."""
    path = PAGES[request.param](tmp_path_factory.mktemp(request.param), checkout)
    return request.param, path.read_text(encoding="utf-8")


def _browse(text: str, folder: Path, picture: Path, width: int) -> tuple[str, str]:
    """Draws a page; what its probe said, and what the browser logged."""
    assert CHROMIUM is not None
    page = folder / "page.html"
    page.write_text(text, encoding="utf-8")
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.unlink(missing_ok=True)
    command = [CHROMIUM, *QUIET, f"--user-data-dir={folder / 'profile'}", f"--window-size={width},{HEIGHT}"]
    command += [f"--screenshot={picture}", "--dump-dom", page.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    said = re.search(r'data-said="([^"]*)"', shown.stdout)
    assert said is not None
    assert picture.stat().st_size > 10_000
    return markup.unescape(said[1]), shown.stderr


def test_it_sorts_and_loads_nothing(report: tuple[str, str], tmp_path: Path, checkout: Path) -> None:
    name, text = report
    assert len(text.encode()) <= 1.5e6
    picture = checkout / "out" / "screenshots" / f"{name}.png"
    said, log = _browse(text.replace("</body>", PROBE), tmp_path, picture, 1200)
    found = json.loads(said)
    assert found["resources"] == 0
    assert "CONSOLE" not in log
    assert found["wide"] <= 1200
    assert sorted(found["up"]) == sorted(found["down"])
    if len(set(found["up"])) > 1:
        assert found["up"] != found["down"]
        assert found["up"][0] == found["down"][-1] or found["up"].count(found["up"][0]) > 1


@pytest.mark.benchmark_bar
def test_it_opens_within_a_second(report: tuple[str, str], tmp_path: Path) -> None:
    _, text = report
    page, pictures = text.replace("</body>", PROBE), (tmp_path / f"{k}.png" for k in range(3))
    times = [json.loads(_browse(page, tmp_path, picture, 1200)[0])["ms"] for picture in pictures]
    assert sorted(times)[1] < 1000


def test_a_phone_shows_no_page_wider_than_itself(report: tuple[str, str], tmp_path: Path, checkout: Path) -> None:
    """In a frame, since the windows of a headless browser are at least 500 pixels wide."""
    name, text = report
    frame = FRAME.format(width=PHONE, height=HEIGHT, page=markup.escape(text, quote=True))
    picture = checkout / "out" / "screenshots" / f"{name}-phone.png"
    said, _ = _browse(frame, tmp_path, picture, 500)
    assert int(said) <= PHONE


def test_nothing_keeps_people_out(report: tuple[str, str], tmp_path: Path) -> None:
    _, text = report
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    with opened() as browser:
        for width in (1280, PHONE):
            page = browser.new_context(bypass_csp=True, viewport={"width": width, "height": 900}).new_page()
            page.goto((tmp_path / "page.html").as_uri())
            assert serious(page) == []
