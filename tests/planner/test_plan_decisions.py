"""Bands and ties of a plan, what frameworks offer, and single changes of a layout."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from commsim.cli import app
from commsim.errors import InfeasibleError, ScenarioError
from commsim.planner.around import neighbours
from commsim.planner.clusters import machines
from commsim.planner.near import layout_of, near
from commsim.planner.offers import beyond, offers
from commsim.planner.plan import Configuration, PlanAnswer, rank, ranked_choices, shortlist
from commsim.planner.published import best_published, kind_of
from commsim.planner.question import PlanSpec, read_plan
from commsim.planner.ties import above_published, favours, spread, tflops_per_gpu, tied
from commsim.report.plan_tables import headline, rows, table
from commsim.training.pipeline_schedules import SCHEDULES
from commsim.training.uncertainty import StepSpread, step_spread

PLAN = """\
name: small plan
plan:
  model: llama3.1-8b
  clusters: [{topology: {preset: hgx-h100-ndr400, nodes: 2}}]
  global_batch_size: 64
  seq_len: 4096
  best: 4
"""


def question(folder: Path, *overrides: str) -> tuple[PlanSpec, PlanAnswer, list[Configuration]]:
    """The question, its answer in closed form, and the choices."""
    path = folder / "plan.yaml"
    path.write_text(PLAN)
    asked, document = read_plan(path, overrides)
    clusters, answer = machines(asked.plan, document, folder), PlanAnswer()
    rank(asked.plan, clusters, answer)
    ranked_choices(asked.plan, shortlist(asked.plan, clusters, answer), answer)
    return asked.plan, answer, answer.choices


@given(st.floats(0.01, 1e5), st.floats(0.2, 5.0))
def test_a_band_holds_its_time_and_ties_have_no_side(seconds: float, ratio: float) -> None:
    own = StepSpread(0.87, 1.18, 1.12, 10, 2, 5)
    low, high = own.band_s(seconds)
    assert low < seconds < high
    assert own.tied(ratio) == own.tied(1 / ratio)
    assert own.tied(1.0)


@pytest.mark.parametrize("simulated", [True, False])
def test_the_shipped_spread_is_of_many_sources(simulated: bool) -> None:
    own = step_spread(simulated)
    assert 0.7 < own.low < 1 < own.high < 1.4
    assert 1.02 < own.margin < own.high / own.low  # what sources have in common is not in a difference
    assert own.sources >= 20


def test_rows_of_a_plan_have_bands_and_ties_with_the_best(tmp_path: Path) -> None:
    _, answer, choices = question(tmp_path)
    listed, own = rows(answer), spread(choices[0])
    for row, choice in zip(listed, choices, strict=True):
        assert (row["step_low_s"], row["step_high_s"]) == own.band_s(choice.seconds)
        slower = choice.seconds / choice.ranked.tokens / (choices[0].seconds / choices[0].ranked.tokens)
        assert row["tie"] == (choice is not choices[0] and slower <= own.margin)
    shown = table(answer)
    assert "tie" in shown
    assert max(map(len, shown.splitlines())) <= 120
    assert "8 in 10 published steps" in headline(answer.best)[1]


def test_a_leaner_choice_with_fewer_axes_says_so(tmp_path: Path) -> None:
    _, _, (best, *_) = question(tmp_path)
    step = replace(best.step, tp=2, pp=2, dp=4, virtual_stages=1, schedule="1f1b")
    plain = replace(step, tp=1, dp=8)
    before, after = (replace(best, step=s) for s in (step, plain))
    assert favours(after, before) == ["no tp"]
    assert favours(before, after) == []


def test_of_another_gpu_only_bands_apart_are_no_tie(tmp_path: Path) -> None:
    _, _, (best, *_) = question(tmp_path)
    other = replace(best, step=replace(best.step, accelerator=replace(best.step.accelerator, name="another")))
    own = spread(best)
    between = 0.5 * (own.margin + own.high / own.low)
    assert not tied(replace(best, seconds=best.seconds * between), best)
    assert tied(replace(other, seconds=best.seconds * between), best)


def test_the_best_published_step_is_the_most_of_its_kind(tmp_path: Path) -> None:
    _, _, (best, *_) = question(tmp_path)
    published, ratio = above_published(best)
    assert published is not None
    assert published == best_published(best.step)
    assert (published.accelerator, published.model_kind, published.products) == kind_of(best.step)
    assert ratio == pytest.approx(tflops_per_gpu(best) / published.tflops_per_gpu)
    twice = replace(best, seconds=best.seconds / (2 / ratio))
    assert "100 % above everything published, outside the band" in "\n".join(headline(twice))
    unknown = replace(best, step=replace(best.step, accelerator=replace(best.step.accelerator, name="another")))
    assert above_published(unknown) == (None, 1.0)


# -- frameworks --------------------------------------------------------


@pytest.mark.parametrize("name", sorted(offers()))
def test_an_offer_has_schedules_of_ours_and_its_source(name: str) -> None:
    offer = offers()[name]
    assert set(offer.schedules) <= set(SCHEDULES)
    assert set(offer.recompute) <= {"none", "selective", "full"}
    assert set(offer.zero_stages) <= {0, 1, 2, 3}
    assert all(source.startswith("https://") for source in offer.sources)


@pytest.mark.parametrize("name", sorted(offers()))
def test_only_what_the_framework_has_is_searched(name: str, tmp_path: Path) -> None:
    spec, _, _ = question(tmp_path, f"plan.framework={name}")
    path = tmp_path / "plan.yaml"
    asked, document = read_plan(path, [f"plan.framework={name}"])
    (machine,) = machines(asked.plan, document, tmp_path)
    offer = offers()[name]
    assert set(machine.space.axes["schedule"]) == set(offer.schedules)
    assert set(machine.space.axes["zero_stage"]) == set(offer.zero_stages)
    assert set(machine.space.axes["recompute"]) == set(offer.recompute)
    assert spec.memory == offer.memory


def test_what_the_question_names_is_searched_and_said(tmp_path: Path) -> None:
    spec, answer, _ = question(tmp_path, "plan.search={schedule: zb_h1, pp: 2}")
    assert answer.best.step.schedule == "zb_h1"
    (sentence,) = beyond(spec.framework, spec.named_axes)
    assert "has no schedule zb_h1, only 1f1b, interleaved_1f1b (https://" in sentence
    assert not beyond("ddp", spec.named_axes)


# -- from a layout on --------------------------------------------------------


def test_single_changes_differ_in_one_axis_and_run_to_their_times(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN)
    asked, document = read_plan(path)
    (machine,) = machines(asked.plan, document, tmp_path)
    found = near(asked.plan, machine, layout_of("tp=4,pp=2,mb=1,recompute=full,v=1,schedule=1f1b"))
    start = found.start
    assert (start.step.tp, start.step.pp, start.step.recompute) == (4, 2, "full")
    seconds = [c.configuration.seconds for c in found.changes]
    assert seconds == sorted(seconds)
    free = {"schedule"}  # chunks ask for the interleaved one
    for change in found.changes:
        mine, theirs = change.configuration.ranked.places, start.ranked.places
        unlike = {axis for axis in mine if mine[axis] != theirs[axis]}
        assert change.axis in unlike
        assert unlike <= {change.axis} | free
        assert change.configuration.memory.fits
        assert change.before != change.value
    assert found.changes[0].axis == "recompute"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tp=8,foo=2", "found 'foo=2', expected one of tp, pp"),
        ("recompute=some", "found 'recompute=some', expected a value of recompute: input should be"),
        ("tp=-1,zero=9", "found 'tp=-1'"),
        (" ", "found nothing, expected a layout"),
    ],
)
def test_words_that_are_no_axis_are_named(text: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        layout_of(text)


def test_a_scenarios_layout_is_its_mesh() -> None:
    layout = layout_of("training/llama-3-70b-512-h100")
    assert (layout["tp"], layout["pp"], layout["recompute"]) == (8, 4, "none")


@pytest.mark.parametrize(
    ("layout", "said"),
    [("tp=7", "the layout cannot run on"), ("tp=1,pp=1,cp=1,zero=0,mb=1,recompute=none", "the layout does not fit;")],
)
def test_a_layout_that_cannot_be_says_why(layout: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN)
    result = CliRunner().invoke(app, ["plan", str(path), "--near", layout])
    assert isinstance(result.exception, InfeasibleError)
    assert said in str(result.exception)


def test_the_command_prints_the_changes_and_json(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN)
    words = ["plan", str(path), "--near", "tp=4,pp=2,mb=1,recompute=full", "plan.best=2"]
    shown = CliRunner().invoke(app, words, catch_exceptions=False).stdout
    assert "single changes gain more than" in shown
    document = json.loads(CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False).stdout)
    assert len(document["changes"]) == 2
    assert {change["tie"] for change in document["changes"]} <= {True, False}


def test_neighbours_of_chunks_change_the_schedule_with_them(tmp_path: Path) -> None:
    spec, _, (best, *_) = question(
        tmp_path, "plan.search={pp: 2, virtual_stages: [1, 2], schedule: [1f1b, interleaved_1f1b]}"
    )
    axes = {n.axis for n in neighbours(spec, best)}
    assert "virtual_stages" in axes


def test_where_nothing_fits_the_number_of_nodes_that_does_is_named(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN.replace("llama3.1-8b", "llama-3.1-405b").replace("nodes: 2", "nodes: 1"))
    result = CliRunner().invoke(app, ["plan", str(path), "--no-files"])
    assert isinstance(result.exception, InfeasibleError)
    text = str(result.exception)
    assert text.startswith("does not fit: all ")
    assert "it would fit " in text


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("dp=7", r"found dp=7, but 16 GPUs by tp\*pp\*cp leave dp=1, 2, 4, 8, 16; expected such a dp"),
        ("tp=4,pp=2,cp=1,dp=16", r"found dp=16, but 16 GPUs by tp\*pp\*cp leave dp=2; expected such a dp"),
        ("dp=0", "found 'dp=0', expected a whole number above zero"),
        ("dp=two", "found 'dp=two', expected a whole number above zero"),
    ],
)
def test_a_dp_that_the_machine_does_not_leave_is_refused(layout: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN)
    result = CliRunner().invoke(app, ["plan", str(path), "--near", layout])
    assert isinstance(result.exception, ScenarioError)
    assert re.search(said, str(result.exception)), result.exception


@pytest.mark.parametrize("dp", [1, 2, 4])
def test_a_layouts_dp_is_that_of_the_answer(dp: int, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN)
    asked, document = read_plan(path, ["plan.best=1"])
    (machine,) = machines(asked.plan, document, tmp_path)
    assert near(asked.plan, machine, layout_of(f"dp={dp},mb=1,recompute=full")).start.step.dp == dp


def test_a_layout_that_the_framework_does_not_have_is_said(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN)
    words = ["plan", str(path), "--near", "tp=4,pp=2,mb=1,schedule=zb_h1", "plan.best=1", "plan.framework=fsdp2"]
    shown = CliRunner().invoke(app, words)
    assert "has no schedule zb_h1, only" in shown.stderr
