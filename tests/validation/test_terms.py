"""A term is worth what it gains where it had no part."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from commsim.cli import app
from commsim.errors import ScenarioError
from commsim.fitting.fields import walk
from commsim.nccl.parameters import Parameters, load_parameters
from study.case import Case
from study.cases import load_cases
from study.log import read_logs
from study.terms import FOLDERS, TERMS, Gain, document, harmful, over_systems, without

DRAIN = next(term for term in TERMS if term.name == "drain")
KEPT = next(term for term in TERMS if term.name == "keep_rate")


def _gain(system: str, points: float, ranks: int = 8, fabric: str = "one node") -> Gain:
    case = Case("x", Path("x.csv"), "all_gather", ranks, 1, ranks, system, "yes", {}, None, "one_process", {})
    return Gain(DRAIN, case, fabric, points, {"mid": points})


def test_systems_weigh_alike_however_many_logs_they_have() -> None:
    assert over_systems([_gain("a", 1.0), _gain("a", 3.0), _gain("b", -1.0)]) == [2.0, -1.0]


def test_the_machine_that_suggested_a_term_does_not_speak_for_it() -> None:
    read = DRAIN.read_off[0][0]
    figures = document([_gain(read, 50.0), _gain("a", -2.0), _gain("b", -1.0)])["terms"]["drain"]
    assert figures["fresh"] == {"systems": 2, "better": 0, "gain": -1.5}
    assert figures["read_off"] == {"systems": 1, "better": 1, "gain": 50.0}
    assert figures["by_system"] == {"a": -2.0, "b": -1.0}


def test_other_shapes_of_that_machine_do() -> None:
    shape = replace(DRAIN, read_off=(("m", 8),))
    made = [replace(_gain("m", 1.0, ranks), term=shape) for ranks in (2, 4, 8)]
    assert [gain.fresh for gain in made] == [True, True, False]


@pytest.mark.parametrize(
    ("points", "harms"),
    [([-1.0, -1.0, 0.5], True), ([-9.0, 1.0, 1.0], False), ([1.0, 1.0], False), ([-0.1, 0.05, -0.1], False), ([], 0)],
)
def test_a_term_does_harm_where_the_mean_falls_and_most_systems_lose(points: list[float], harms: bool) -> None:
    figures = document([_gain(f"s{i}", p) for i, p in enumerate(points)])
    assert bool(harmful(figures)) == harms


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term.name)
def test_every_term_is_off_at_values_that_some_parameters_do_not_have(term: object) -> None:
    every = [(g, n) for g in ("ampere", "hopper") for n in ("infiniband", "slingshot", "efa_v1", "tcpx", "efa")]

    def change(parameters: Parameters) -> Parameters | None:
        seen = {path: value for path, value, _ in walk(parameters)}
        return without(parameters, term, seen)  # type: ignore[arg-type]

    assert any(change(load_parameters(*of)) is not None for of in every)


def test_a_term_that_a_prediction_has_not_read_changes_nothing() -> None:
    assert without(load_parameters("hopper", "infiniband"), KEPT, {"base.LL": 5e-6}) is None
    assert without(load_parameters("ampere", "infiniband"), KEPT, {}) is None  # which has none


def test_a_board_of_two_gpus_is_worse_without_what_a_loop_keeps(checkout: Path, tmp_path: Path) -> None:
    """Two and four GB200, none of which suggested the term, over 16 MiB."""
    out = tmp_path / "terms.json"
    words = ["validate", "terms", "--only", "silicon_gb200_x2_all_gather_half_*,silicon_gb200_x2_reduce_*_half_*"]
    done = CliRunner().invoke(app, [*words, "--workers", "1", "--json", str(out), "--check"])
    assert done.exit_code in (0, 1), done.output
    kept = json.loads(out.read_text())["terms"]["keep_rate"]
    assert kept["fresh"]["better"] == kept["fresh"]["systems"] == 1
    assert kept["by_band"]["large"]["gain"] > 10


def test_logs_that_no_pattern_matches_are_told(checkout: Path) -> None:
    with pytest.raises(ScenarioError, match=r"no log of .* matches nothing_\*"):
        read_logs([checkout / "validation" / "silicon"], ["nothing_*"])


@pytest.mark.slow
def test_no_term_does_harm_to_machines_that_no_fit_has_seen(checkout: Path) -> None:
    folders = [str(checkout / "validation" / name) for name in ("outside", "silicon")]
    done = CliRunner().invoke(app, ["validate", "terms", *folders, "--check"])
    assert done.exit_code == 0, done.output


def test_no_term_did_harm_when_the_page_was_written(checkout: Path) -> None:
    figures = json.loads((checkout / "validation" / "terms.json").read_text())
    assert set(figures["terms"]) == {term.name for term in TERMS}
    assert harmful(figures) == []


def test_what_a_term_was_read_off_is_a_system_or_a_folder_of_the_projects_logs(checkout: Path) -> None:
    """A name that is none would let the machine that suggested a term speak for it."""
    folders = [checkout / "validation" / name for name in FOLDERS]
    known = {case.system for case in load_cases(folders)} | set(FOLDERS)
    assert {name for term in TERMS for name, _ in term.read_off} <= known
