"""What a step is made of has one name: in the table, the columns, the pictures and the sentences."""

from __future__ import annotations

import re

import pytest

import commsim as cs
from commsim.planner.explain import Explanation
from commsim.report.explain import bound_words
from commsim.report.steps import figures_of, plot_breakdown, plot_pipeline
from commsim.report.training import training_table
from commsim.scenario.training_result import TrainingItem


@pytest.fixture(scope="module")
def item() -> TrainingItem:
    """A step with traffic on four axes."""
    training = {
        "model": "llama-2-7b", "global_batch_size": 32, "mesh": {"tp": 2, "pp": 2, "cp": 2, "dp": 2}, "zero_stage": 1
    }  # fmt: skip
    topology = {"preset": "hgx-h100-ndr400", "nodes": 2}
    return cs.run({"name": "s", "topology": topology, "workload": [{"training": training}]}).trainings[0]


@pytest.fixture(scope="module")
def named(item: TrainingItem) -> list[str]:
    """The causes that the table names."""
    (block,) = re.findall(r"# where the time goes \(mean stage\)\n((?:  .*\n)+)", training_table(item))
    return [line.split()[0] for line in block.splitlines()]


def test_causes(item: TrainingItem, named: list[str]) -> None:
    assert set(named) == {"compute", "tp", "cp", "dp", "pp", "bubble", "optimizer", "constant"}
    assert {f"{name}_s" for name in named} < set(item.to_dict())
    figure = plot_breakdown([("s", item.causes)], "t")
    assert [t.get_text() for t in figure.legends[0].get_texts()] == named
    assert figure.axes[0].get_xlabel() == "time of the mean stage"
    assert "of tp, cp, dp, pp what is exposed" in [text.get_text() for text in figure.axes[0].texts]
    sentence = bound_words(Explanation(0, "s", item.step_s, (), (), step=item))[0]
    assert all(re.search(rf"\b{name}\b", sentence) for name in named)


def test_boxes_of_the_pipeline(item: TrainingItem) -> None:
    words = next(line for line in training_table(item).splitlines() if line.startswith("# pipeline over"))
    drawn = {t.get_text() for t in plot_pipeline(figures_of(item.to_dict(), item.timeline)).legends[0].get_texts()}
    assert drawn == {"forward", "backward", "optimizer", "reduce", "gather", "send"}
    assert drawn - {"send"} < set(words.replace(",", "").split())
    assert drawn - {"forward", "backward"} < set(item.timeline.names)
