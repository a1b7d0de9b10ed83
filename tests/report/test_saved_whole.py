"""What `run --out` saves of each kind of workload reads back whole, in the order of the file."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from chakra_files import call, work, write_traces
from hypothesis import given
from hypothesis import strategies as st

import commsim as cs
from commsim.errors import CommsimError
from commsim.report.explain import result_page
from commsim.report.kinds import kinds_of, pictures
from commsim.report.read_saved import read_saved
from commsim.report.run_files import compared, tables, write_files
from commsim.report.saved import read_items
from commsim.report.view import VIEWS, Shown, view_of
from commsim.scenario.item import Item, Row
from commsim.scenario.workload.registry import KINDS

STEP = {"training": {"model": "gpt2-124m", "global_batch_size": 8, "mesh": {"pp": 4}}}
CURVE = {"collective": "all_reduce", "sizes": ["1 KiB", "1 MiB"]}
CLAIM = {
    "claim": {
        "text": "With ZeRO-1 on 64 GPUs it is 31.4 GB.",
        "source": "Rajbhandari et al. 2020 (ZeRO), figure 1",
        "quantity": "zero_gigabytes",
        "printed": [31.4],
        "unit": "GB",
        "inputs": {"parameters": 7.5e9, "ranks": 64, "stage": 1},
    }
}
JOB = {"collective": "all_reduce", "size": "1 MiB"}
MIXED = {
    "name": "mixed",
    "topology": {"preset": "hgx-h100"},
    "workload": [STEP, CURVE, CLAIM, {"trace": {"path": "t"}}, {**CURVE, "collective": "all_gather"}],
}
JOBS = {
    "name": "jobs first",
    "topology": {"preset": "hgx-h100"},
    "library": "none",
    "workload": [{"jobs": [{**JOB, "ranks": "0 .. 3"}, {**JOB, "ranks": "2 .. 7"}]}, CURVE],
}
ORDER = ["trainings", "items", "claims", "traces", "items"]

_seconds = st.floats(1e-9, 1e3)
_maybe = st.none() | _seconds
_word = st.text("abc>.0", min_size=1, max_size=6)
_ROW = st.builds(
    Row,
    size_bytes=st.integers(1, 2**40),
    count=st.integers(1, 2**40),
    dtype=_word,
    redop=_word,
    root=st.integers(-1, 9),
    time_s=_seconds,
    algbw=_seconds,
    busbw=_seconds,
    algorithm=_word,
    protocol=_word,
    channels=st.integers(0, 64),
    bottleneck=_word,
    lower_bound_s=_maybe,
    low_s=_maybe,
    high_s=_maybe,
    launch_s=_seconds,
    kernel_s=_seconds,
    level=_word,
    p99_s=_maybe,
    runner_up=_word,
    runner_up_s=_maybe,
    candidates=st.lists(st.tuples(_word, _seconds), unique_by=lambda c: c[0]).map(tuple),
    busiest_link=_word,
    busiest_share=st.none() | st.floats(0, 1),
    fifo_s=_maybe,
    fair_s=_maybe,
    left_out=st.lists(st.tuples(_word, _seconds), unique_by=lambda c: c[0]).map(tuple),
)


def _same(one: Any, other: Any) -> None:
    """Equal, numbers but for rounding."""
    if is_dataclass(one):
        assert type(one) is type(other)
        for field in fields(one):
            _same(getattr(one, field.name), getattr(other, field.name))
    elif isinstance(one, (tuple, list)):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            _same(a, b)
    elif isinstance(one, float):
        assert other == pytest.approx(one, rel=1e-8)
    else:
        assert one == other


@given(_ROW)
def test_every_field_of_a_row_comes_back(row: Row) -> None:
    item = Item("x", "all_reduce", 8, (row,), parameters="shipped", use_bytes=row.size_bytes)
    (again,) = read_items("x", [json.loads(json.dumps(item.to_dict()))], None)
    _same(item, again)


def _write(folder: Path, scenario: dict[str, Any]) -> Shown:
    """The result of a scenario, whose files are written into ``out``."""
    nodes = [work(0, 2e-3), call(1, "all_reduce", 1 << 20, 0), work(2, 1e-3, 1)]
    write_traces(folder, dict.fromkeys(range(8), nodes))
    (folder / "s.yaml").write_text(json.dumps(scenario))
    shown = compared(cs.run(folder / "s.yaml"))
    write_files(shown, folder / "out")
    return shown


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Shown, Path]:
    folder = tmp_path_factory.mktemp("mixed")
    return _write(folder, MIXED), folder / "out"


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Shown, Path]:
    folder = tmp_path_factory.mktemp("jobs")
    return _write(folder, JOBS), folder / "out"


def test_answers_come_in_the_order_of_the_file(mixed: tuple[Shown, Path]) -> None:
    shown, _ = mixed
    assert [answer.kind for answer in shown.result.answers] == ORDER
    assert [item.kind for item in shown.result.scenario.workload] == ORDER
    printed = tables(shown)
    places = [printed.index(m) for m in ("gpt2-124m", "# all_reduce on", "  claim ", "# critical path", "# all_gather")]
    assert places == sorted(places)
    rows = [row.get("collective", row.get("model")) for row in shown.result.records()]
    assert rows == ["gpt2-124m", "all_reduce", "all_reduce", None, "all_gather", "all_gather"]


def test_a_page_has_the_order_of_the_file(mixed: tuple[Shown, Path]) -> None:
    page = result_page(mixed[0].result, [])
    assert page.question == "What does a training step cost?"
    titles = [section.title for section in page.sections]
    heads = ["Memory of one GPU, in GiB", "all_reduce: prediction", "Claims", "Critical path", "all_gather: prediction"]
    places = [titles.index(head) for head in heads]
    assert places == sorted(places)


def test_each_kind_reads_back(mixed: tuple[Shown, Path]) -> None:
    result, back = mixed[0].result, read_saved(mixed[1])
    assert [answer.kind for answer in back.answers] == ORDER
    step, first, claim, replayed, last = result.answers
    _same(json.loads(json.dumps(step.to_dict())), back.answers[0].values)
    assert isinstance(first, Item)
    assert first.rows[1].channels > 1
    _same(first, back.answers[1])
    _same(last, back.answers[4])
    _same(claim, back.answers[2])
    for name in ("seconds", "nodes", "ranks", "calls", "path", "bottleneck"):
        _same(getattr(replayed, name), getattr(back.answers[3], name))
    assert kinds_of(back) == ["bandwidth", "breakdown", "bound", "memory", "pipeline", "ranks"]
    assert len(pictures(back, "ranks")) == 1


def test_jobs_and_the_use_of_the_network_read_back(jobs: tuple[Shown, Path]) -> None:
    result, back = jobs[0].result, read_saved(jobs[1])
    _same(result.answers, back.answers)
    assert back.items[0].use is not None
    assert back.items[0].rows[0].fifo_s is not None


def test_files_of_earlier_versions_are_read(jobs: tuple[Shown, Path], tmp_path: Path) -> None:
    shutil.copytree(jobs[1], tmp_path / "out")
    file = tmp_path / "out" / "result.json"
    document = json.loads(file.read_text())
    for key in ("order", "traces"):
        del document[key]
    (item,) = document["items"]
    for key in ("network_use", "parameters"):
        del item[key]
    later = ("channels", "level", "p99_us", "launch_us", "kernel_us", "busiest_link", "busiest_share", "fifo_us")
    for row in item["rows"]:
        for key in later:
            del row[key]
    file.write_text(json.dumps(document))
    back = read_saved(tmp_path / "out")
    assert [answer.kind for answer in back.answers] == ["items", "jobs"]
    assert back.items[0].rows[0].time_s == pytest.approx(jobs[0].result.items[0].rows[0].time_s)
    assert back.links
    assert "links" in kinds_of(back)


def test_an_order_that_does_not_fit_is_a_fault_of_the_file(jobs: tuple[Shown, Path], tmp_path: Path) -> None:
    shutil.copytree(jobs[1], tmp_path / "out")
    file = tmp_path / "out" / "result.json"
    document = json.loads(file.read_text())
    for order in (["jobs", "items", "items"], ["claims"], 7):
        file.write_text(json.dumps(document | {"order": order}))
        with pytest.raises(CommsimError, match=r"out: found "):
            read_saved(tmp_path / "out")


def test_every_kind_of_workload_has_a_view() -> None:
    assert set(KINDS) == set(VIEWS)
    for kind in VIEWS:
        view = view_of(kind)
        assert view.question.endswith("?")
        assert all(len(picture.shows) > 10 for picture in view.kinds.values())


def test_what_an_earlier_run_left_is_removed_whatever_its_kinds_were(jobs: tuple[Shown, Path], tmp_path: Path) -> None:
    left = {"bandwidth.png", "bandwidth-2.svg", "pipeline.svg", "ranks-3.png", "training.csv", "trace_calls.csv"}
    for name in (*left, "mine.csv", "pipelines.svg"):
        (tmp_path / name).write_text("")
    write_files(jobs[0], tmp_path)
    ours = {"jobs.csv", "links.csv", "result.csv", "result.json", "scenario.yaml"}
    assert {p.name for p in tmp_path.iterdir()} == ours | {"mine.csv", "pipelines.svg"}
