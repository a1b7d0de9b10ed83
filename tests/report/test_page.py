"""The HTML report: whole in itself, safe against its inputs, and alive in a browser."""

from __future__ import annotations

import json
import re

import pytest

from commsim.api import run
from commsim.report.explain import result_page
from commsim.report.page import Cell, Code, Facts, Page, Section, Text, cell, html, number, picture, table

HOSTILE = "<script>alert(1)</script>\"'&{{ 7*7 }}"


def small(name: str = "small") -> Page:
    shown = table(["size", "time (us)"], [(Cell("1 KiB", 1024.0), 9.5), (Cell("1 MiB", 2.0**20), 80.25), ("?", None)])
    parts = (Text(name), Code(name), Facts(((name, name),)), shown)
    return Page(name, "What?", (name,), (Section(name, parts),), warnings=(name,))


@pytest.fixture(scope="module")
def report() -> str:
    scenario = {
        "name": "AllReduce on two nodes",
        "topology": {"preset": "hgx-h100-ndr400", "nodes": 2},
        "workload": [{"collective": c, "sizes": "1 KiB .. 1 GiB x4"} for c in ("all_reduce", "all_gather")],
    }
    return html(result_page(run(scenario), []))


def test_texts_are_escaped_wherever_they_stand() -> None:
    text = html(small(HOSTILE))
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 10
    assert "alert(1)</script>" not in text
    assert "{{ 7*7 }}" in text


def without_scripts(report: str) -> str:
    """What a browser shows where scripts are off."""
    return re.sub(r"<script.*?</script>", "", report, flags=re.DOTALL)


def test_nothing_is_loaded(report: str) -> None:
    report = without_scripts(report)
    addresses = set(re.findall(r"""(?:src|href|action)\s*=\s*["']([^"'#][^"']*)""", report))
    assert addresses == set()
    assert set(re.findall(r"https?://[\w./-]+", report)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert "default-src 'none'" in report


def test_a_run_is_told_answer_first(report: str) -> None:
    body = report[report.index("<main>") :]
    assert (
        body.index("bus bandwidth at 1 GiB")
        < body.index("<svg")
        < body.index("<table")
        < body.index(">How sure this is</h2>")
    )
    assert report.count("<figure") == 2
    assert len(report) < 1.5e6


def test_charts_are_inlined_once_and_only_where_there_are_some(report: str) -> None:
    assert report.count("Apache ECharts 6") == 1
    assert "Apache ECharts" not in html(small())
    charts = re.findall(r'<script type="application/json">(.*?)</script>', report)
    titles = [json.loads(text)["title"] for text in charts]
    assert titles == ["AllReduce on two nodes"] * 2
    assert report.count("<noscript>") == len(charts)


def test_drawings_on_one_page_share_no_id(report: str) -> None:
    report = without_scripts(report)
    names = re.findall(r'\bid="([^"]+)"', report)
    assert len(names) == len(set(names))
    used = set(re.findall(r'href="#([^"]+)"', report)) | set(re.findall(r"url\(#([^)]+)\)", report))
    assert used <= set(names)


def test_the_same_result_is_the_same_page(report: str) -> None:
    from matplotlib.figure import Figure

    assert html(small()) == html(small())
    one, other = (picture(Figure(figsize=(1, 1)), "a").svg for _ in range(2))
    assert one == other


@pytest.mark.parametrize(("rows", "scrolls"), [(31, False), (61, True)])
def test_only_a_long_table_scrolls_and_says_so(rows: int, scrolls: bool) -> None:
    shown = table(["size", "to repeat"], [(i, "topology.nodes=2 " * 3) for i in range(rows)])
    text = html(Page("x", "What?", ("x",), (Section("x", (shown,)),)))
    assert ('class="table long"' in text) == (f"{rows} rows: the table scrolls." in text) == scrolls
    assert text.count('<td class="words">') == rows


def test_a_range_sorts_by_its_lower_end(report: str) -> None:
    (row,) = re.findall(r"<tr><td[^>]*>1 GiB</td>.*?</tr>", report, flags=re.DOTALL)[:1]
    assert re.search(r'<td class="number" data-key="0\.\d+">[\d,.]+ to [\d,.]+</td>', row)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.5, "0.500"),
        (1.2345, "1.234"),
        (123.456, "123.5"),
        (54321.0, "54,321"),
        (0.00022, "0.000220"),
        (1e-7, "1.00e-07"),
    ],
)
def test_numbers_read_well(value: float, text: str) -> None:
    assert number(value) == text


def test_cells_sort_by_their_value() -> None:
    assert cell(1234567) == Cell("1,234,567", 1234567.0)
    assert cell(None) == Cell("")
    assert cell(True) == Cell("yes")


def workload_page(item: dict[str, object], library: str = "nccl") -> str:
    topology = {"preset": "hgx-h100-ndr400", "nodes": 2}
    scenario = {"name": "small", "topology": topology, "library": {"name": library}, "workload": [item]}
    return html(result_page(run(scenario), []))


def test_a_training_step_is_told_on_its_page() -> None:
    step = {
        "model": "llama-2-7b", "seq_len": 4096, "global_batch_size": 16, "micro_batch_size": 1,
        "mesh": {"tp": 8, "pp": 1, "dp": 2}, "zero_stage": 1,
    }  # fmt: skip
    text = workload_page({"training": step})
    answer = text[: text.index("<h2")]
    assert "a step on 16 GPUs" in answer
    assert "tokens/s per GPU" in answer
    assert "of 78.6 GiB: it fits" in answer
    assert "Where the time goes" in text[text.index("<h2") :]
    assert "tensor parallelism, exposed" in text
    assert text.count("<figure") == 3  # causes, pipeline, memory
    assert "commsim validate training" in text


def test_jobs_are_told_on_their_page() -> None:
    jobs = [
        {"name": n, "ranks": r, "collective": "all_reduce", "size": "1 MiB", "algorithm": "ring"}
        for n, r in (("first", "0 .. 7"), ("second", "8 .. 15"))
    ]
    text = workload_page({"jobs": jobs}, "none")
    assert "How much do these jobs slow each other?" in text
    assert "first: all_reduce of 1 MiB on 8 ranks takes" in text
    assert "slowdown" in text


def test_claims_are_told_on_their_page() -> None:
    text = html(result_page(run("seeds/pipeline-bubble"), []))
    assert "5 of 5 claims hold." in text
    assert text.count("reproduced") == 5
    assert "Huang et al. 2019" in text
