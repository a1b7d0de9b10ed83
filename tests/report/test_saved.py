"""Saved results hold what pictures need, and give it back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import commsim as cs
from commsim.cli import app
from commsim.errors import CommsimError
from commsim.report.kinds import KINDS, kinds_of, pictures
from commsim.report.plots import figure_bytes
from commsim.report.read_saved import read_saved, saved_of
from commsim.report.saved import Saved

ROOT = Path(__file__).resolve().parents[2]

RAW = {
    "name": "raw",
    "topology": {"preset": "hgx-h100"},
    "library": "none",
    "workload": [{"collective": "all_gather", "algorithm": "auto", "sizes": "64 KiB .. 1 MiB x4"}],
}
STEP = {
    "name": "stages",
    "topology": {"preset": "hgx-h100", "gpus_per_node": 4},
    "workload": [{"training": {"model": "gpt2-1558m", "global_batch_size": 16, "mesh": {"pp": 4}}}],
}
SWEEP = {
    "name": "nodes",
    "topology": {"preset": "hgx-h100-ndr400"},
    "workload": [{"collective": "all_reduce", "sizes": ["64 KiB", "64 MiB"]}],
    "sweep": {"topology.nodes": [1, 2]},
}


def _invoke(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("saved")
    for name, scenario in (("raw", RAW), ("step", STEP), ("sweep", SWEEP)):
        (place / f"{name}.yaml").write_text(json.dumps(scenario))
        words = ["sweep", "-j", "1"] if name == "sweep" else ["run"]
        done = _invoke(words[0], str(place / f"{name}.yaml"), *words[1:], "--out", str(place / name))
        assert done.exit_code == 0, done.output
    return place


def test_a_collective_comes_back_as_it_was(folders: Path) -> None:
    here, back = saved_of(cs.run(RAW)), read_saved(folders / "raw")
    (one,), (other,) = here.items, back.items
    np.testing.assert_allclose(one.curve().time_s, other.curve().time_s, rtol=1e-12)
    np.testing.assert_allclose(one.curve().busbw(), other.curve().busbw(), rtol=1e-12)
    for row, again in zip(one.rows, other.rows, strict=True):
        assert [n for n, _ in row.candidates] == [n for n, _ in again.candidates]
        assert dict(again.candidates) == pytest.approx(dict(row.candidates))
    assert back.links[0].use_bytes == here.links[0].use_bytes == 2**20
    assert _shares(back) == pytest.approx(_shares(here), rel=1e-8)
    assert back.provenance.split()[-1] == _hash(folders / "raw")


def _shares(saved: Saved) -> dict[str, float]:
    use = saved.links[0].use
    assert use is not None
    return {link.link: link.busy_share for link in use.links}


def _hash(folder: Path) -> str:
    return str(json.loads((folder / "result.json").read_text())["scenario_hash"])


def test_a_step_comes_back_as_it_was(folders: Path) -> None:
    (one,), (other,) = saved_of(cs.run(STEP)).steps, read_saved(folders / "step").steps
    assert other.causes == pytest.approx({name: one.causes.get(name, 0.0) for name in other.causes})
    assert sum(other.causes.values()) == pytest.approx(one.step_s)
    assert other.capacity == pytest.approx(one.capacity)
    for parts, again in zip(one.memory, other.memory, strict=True):
        assert again == pytest.approx(parts)
    assert one.timeline is not None
    assert other.timeline is not None
    np.testing.assert_allclose(one.timeline.end_s, other.timeline.end_s, rtol=1e-8)
    assert list(one.timeline.name) == list(other.timeline.name)
    np.testing.assert_array_equal(one.timeline.endpoint, other.timeline.endpoint)


def test_measured_curves_come_back_with_their_predictions(tmp_path: Path) -> None:
    curve = ROOT / "validation" / "measured" / "h100x8_together_all_reduce_ring.csv"
    scenario = {
        "name": "compared", "topology": {"preset": "hgx-h100"}, "compare": [str(curve)],
        "workload": [{"collective": "all_reduce"}],
    }  # fmt: skip
    (tmp_path / "c.yaml").write_text(json.dumps(scenario))
    assert _invoke("run", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "out")).exit_code == 0
    (here,), (back,) = cs.run(tmp_path / "c.yaml").items, read_saved(tmp_path / "out").items
    np.testing.assert_allclose(back.measured[0].time_s, here.measured[0].time_s, rtol=1e-12)
    np.testing.assert_allclose(back.at_measured[0].time_s, here.at_measured[0].time_s, rtol=1e-12)
    drawn = tmp_path / "a.png"
    assert _invoke("plot", str(tmp_path / "out"), "--kind", "accuracy", "-o", str(drawn)).exit_code == 0
    assert drawn.read_bytes() == figure_bytes(cs.plot(cs.run(tmp_path / "c.yaml"), "accuracy"), "png")
    labels = [t.get_text() for t in cs.plot(cs.run(tmp_path / "c.yaml")).legends[0].get_texts()]
    assert any(label.startswith("measured: ") for label in labels)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("raw", ["bandwidth", "crossover", "links", "bound"]),
        ("step", ["breakdown", "memory", "pipeline"]),
        ("sweep", ["bandwidth", "crossover", "scaling", "nodes", "knees"]),
    ],
)
def test_every_kind_that_a_result_can_show_is_drawn(folders: Path, name: str, kinds: list[str]) -> None:
    saved = read_saved(folders / name)
    assert kinds_of(saved) == kinds
    for kind in kinds:
        for _, figure in pictures(saved, kind):
            assert figure_bytes(figure, "png").startswith(b"\x89PNG")


def test_axes_say_their_units(folders: Path) -> None:
    units = {"bandwidth": "GB/s", "breakdown": " ms", "memory": "GiB", "pipeline": " ms", "knees": "GB/s"}
    seen = set()
    for name in ("raw", "step", "sweep"):
        saved = read_saved(folders / name)
        for kind in set(kinds_of(saved)) & set(units):
            ((_, figure), *_) = pictures(saved, kind)
            figure.canvas.draw()
            ticks = [t.get_text() for axes in figure.axes for t in axes.get_xticklabels()]
            said = " ".join([*ticks, *(f"{axes.get_xlabel()} {axes.get_ylabel()}" for axes in figure.axes)])
            assert units[kind] in said, (kind, said)
            seen.add(kind)
    assert seen == set(units)


def test_the_command_writes_both_forms_or_the_one_asked_for(folders: Path, tmp_path: Path) -> None:
    done = _invoke("plot", str(folders / "step"), "--kind", "memory", "-k", "breakdown", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert {p.name for p in tmp_path.iterdir()} == {f"{k}.{f}" for k in ("memory", "breakdown") for f in ("png", "svg")}
    one = tmp_path / "one.svg"
    assert _invoke("plot", str(folders / "step"), "--kind", "memory", "--out", str(one)).exit_code == 0
    assert one.read_bytes() == (tmp_path / "memory.svg").read_bytes()
    both = _invoke("plot", str(folders / "step"), "--kind", "all", "--out", str(one))
    assert "3 pictures for one file" in str(both.exception)


@pytest.mark.parametrize("words", [["--kind", "memory"], ["--kind", "picture"]])
def test_without_a_fitting_kind_those_that_fit_are_listed(folders: Path, words: list[str]) -> None:
    done = _invoke("plot", str(folders / "raw"), *words)
    assert isinstance(done.exception, CommsimError)
    said = str(done.exception)
    assert words[1] in said
    for kind in ("bandwidth", "crossover", "links"):
        assert f"\n  {kind}" in said
    assert "\n  memory" not in said


def test_a_map_of_a_scenario_is_the_choice_of_its_runs(tmp_path: Path) -> None:
    from commsim.report.kinds import _winners

    path = tmp_path / "map.yaml"
    path.write_text(json.dumps({k: v for k, v in SWEEP.items() if k != "sweep"}))
    saved = read_saved(path)
    assert saved.sort == "scenario"
    assert saved.scenario is not None
    (work,) = saved.scenario.collectives
    found = {(w.size_bytes, w.ranks): w.name for w in _winners(saved, work, (1, 2))}
    for nodes in (1, 2):
        for row in cs.run(path, f"topology.nodes={nodes}").items[0].rows:
            assert found[row.size_bytes, 8 * nodes] == f"{row.algorithm}/{row.protocol}"
    done = _invoke("plot", str(path), "--kind", "crossover", "--nodes", "1,2", "--out", str(tmp_path / "map.png"))
    assert done.exit_code == 0, done.output


def test_plot_of_the_api_draws_the_same(folders: Path) -> None:
    figure = cs.plot(cs.run(STEP), "breakdown")
    assert "mean stage" in figure.axes[0].get_xlabel()
    with pytest.raises(CommsimError, match="expected one of those that this run can show"):
        cs.plot(cs.run(STEP), "links")


_DAMAGE: dict[str, Callable[[str], str]] = {
    "not JSON": lambda text: text[: len(text) // 2],
    "a list": lambda text: "[1, 2]",
    "rows without times": lambda text: text.replace('"time_us"', '"time"'),
    "a word for a number": lambda text: text.replace('"n_ranks": 8', '"n_ranks": "eight"'),
    "no items": lambda text: text.replace('"items"', '"things"'),
    "rows that are no list": lambda text: text.replace('"rows": [', '"rows": 7, "r": ['),
    "deep": lambda text: "[" * 100_000,
}


@pytest.mark.parametrize("name", list(_DAMAGE))
def test_damaged_results_are_faults_of_the_file(folders: Path, tmp_path: Path, name: str) -> None:
    text = (folders / "raw" / "result.json").read_text()
    damaged = tmp_path / "result.json"
    damaged.write_text(_DAMAGE[name](text))
    assert damaged.read_text() != text
    with pytest.raises(CommsimError, match=r"result\.json: "):
        read_saved(damaged)


def test_folders_without_a_result_say_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(CommsimError, match=r"no result\.json, plan\.json or journal\.jsonl"):
        read_saved(tmp_path)
    with pytest.raises(CommsimError, match="no such file"):
        read_saved(tmp_path / "nothing")


def test_every_kind_says_what_it_shows() -> None:
    assert all(len(kind.shows) > 10 for kind in KINDS.values())
    assert kinds_of(Saved("nothing", "run", Path())) == []
