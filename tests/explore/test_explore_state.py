"""The state of the page: a URL, a scenario and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commsim.document.types import Document
from commsim.errors import ScenarioError
from commsim.explorer.state import Question, State
from commsim.files import data_root
from commsim.scenario.load import check_document, load_scenarios, said_by
from commsim.scenario.schema import Scenario

FOLDER = data_root() / "scenarios"
SCENARIOS = [p for p in sorted(FOLDER.rglob("*.yaml")) if p.parent.name not in ("plan", "serve", "sweep")]


def _checked(plain: dict[str, Any]) -> Scenario:
    scenario, faults = check_document(Document("", plain), Path())
    assert scenario is not None, faults
    return scenario


def _asks_one_thing(scenario: Scenario) -> bool:
    return len(scenario.workload) == 1 and scenario.workload[0].kind in ("items", "trainings")


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_shipped_scenario_comes_back_through_a_url(path: Path) -> None:
    first = load_scenarios(path)[0]
    if not _asks_one_thing(first):
        with pytest.raises(ScenarioError, match="not of one collective or one training step"):
            State.of_document(said_by(first))
        return
    state = State.of_query(State.of_document(said_by(first)).query())
    question: Question = "training" if first.workload[0].kind == "trainings" else "collective"
    again = _checked(state.document(question))
    beside = {"name": first.name, "report": first.report, "compare": first.compare}
    assert again.model_copy(update=beside) == first


@pytest.mark.parametrize(
    ("words", "where", "value"),
    [
        ({"rate": "800 Gb/s"}, ("topology", "nic_bandwidth"), "800 Gb/s"),
        ({"over": "1.5"}, ("topology", "oversubscription"), 1.5),
        ({"placement": "leaf"}, ("placement", "by"), "leaf"),
        ({"placement": "3, 0"}, ("placement", "nodes"), [3, 0]),
        ({"ncclalgo": "Ring"}, ("library", "env", "NCCL_ALGO"), "Ring"),
        ({"sizes": "1 MiB, 8 MiB"}, ("workload", 0, "sizes"), ["1 MiB", "8 MiB"]),
        ({"faults": "nic:0.3:0.5"}, ("topology", "faults", 0), {"nic": [0, 3], "bandwidth_factor": 0.5}),
        ({"faults": "link:a~b:failed"}, ("topology", "faults", 0), {"link": ["a", "b"], "failed": True}),
    ],
)
def test_a_key_stands_for_its_place_in_a_scenario(words: dict[str, str], where: tuple[Any, ...], value: object) -> None:
    plain: Any = State.of(words).document("collective")
    for key in where:
        plain = plain[key]
    assert plain == value


def test_what_has_no_key_is_kept_whole() -> None:
    plain = {
        "topology": {"preset": "hgx-h100", "fabric": {"in_network_reduction": True}},
        "library": {"name": "nccl", "launch_mode": "one_process"},
        "workload": [{"collective": "all_gather", "sizes": "1 MiB", "redop": "sum"}],
    }
    made = State.of_document(plain).document("collective")
    assert {key: made[key] for key in plain} == plain


def test_only_what_differs_from_the_first_page_is_in_the_address() -> None:
    assert State.of({"nodes": "4", "rate": "800 Gb/s", "gpus": ""}).query() == "rate=800+Gb%2Fs"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"nodez": "4"}, "unknown key 'nodez'"),
        ({"nodes": 4}, "expected words by key"),
        (["nodes"], "expected words by key"),
        ({"more": "x" * 30_000}, "more than 20,000 characters"),
    ],
)
def test_what_is_no_state_is_refused(values: object, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        State.of(values)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"faults": "nic0"}, "expected one such as nic:0.3:0.5"),
        ({"more": "{"}, "more: found no JSON"),
        ({"more": "[1]"}, "expected the rest of a scenario"),
    ],
)
def test_words_that_cannot_be_read_are_refused(words: dict[str, str], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        State.of(words).document("collective")
