"""What a cost may be asked of: presets, files, scenarios, parts of machines; and what is refused."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import commsim as cs
from commsim.errors import CommsimError
from commsim.scenario.cost_source import shared_table
from commsim.topology.presets import load_preset

PRESET, SIZE = "hgx-h100-ndr400", 3_000_000
SLOWER = {"nic_bandwidth": "200 Gb/s"}


def of_run(collective: str = "all_reduce", **keys: Any) -> float:
    """Seconds of a run at `SIZE`."""
    item = {"collective": collective, "sizes": f"{SIZE} B"}
    topology = {"preset": PRESET, "nodes": 2}
    scenario = {"name": "run", "topology": topology, "workload": [item]} | keys
    return float(cs.run(scenario).to_frame()["time_us"][0]) / 1e6


def near(seconds: float | list[float]) -> Any:
    """Within what a table may be off."""
    return pytest.approx(seconds, rel=0.005)


def test_every_way_to_name_a_machine_has_the_same_cost(tmp_path: Path, checkout: Path) -> None:
    written = {"name": "s", "topology": {"preset": PRESET, "nodes": 2}, "workload": [{"collective": "broadcast"}]}
    scenario = tmp_path / "s.yaml"
    scenario.write_text(
        f"name: s\ntopology: {{preset: {PRESET}, nodes: 2}}\nworkload: [{{collective: broadcast, sizes: 8 B}}]\n"
    )
    asked: list[Any] = [
        PRESET,
        {"preset": PRESET},
        {"preset": PRESET, "nodes": 2},
        written,
        scenario,
        str(scenario),
        checkout / "topologies" / f"{PRESET}.yaml",
        load_preset(PRESET, nodes=2),
        cs.run(scenario).scenario,
    ]
    costs = {cs.cost("all_reduce", SIZE, 16, machine) for machine in asked}
    assert len(costs) == 1
    assert costs.pop() == near(of_run())


def test_a_machine_gets_the_nodes_that_its_ranks_need() -> None:
    def facts(ranks: Any) -> dict[str, Any]:
        return cs.cost_table("all_reduce", ranks, PRESET).facts

    of = [facts(ranks) for ranks in (None, 2, 8, 9, 24, [17, 3], "0 .. 15")]
    assert [(each["nodes"], each["n_ranks"]) for each in of] == [
        (1, 8),
        (1, 2),
        (1, 8),
        (2, 9),
        (3, 24),
        (3, 2),
        (2, 16),
    ]
    assert [each["ranks"] for each in of[-2:]] == [[17, 3], None]


def test_listed_ranks_cost_what_a_placement_of_them_costs() -> None:
    rail = cs.cost("all_gather", SIZE, [0, 8], PRESET)
    assert rail == near(of_run("all_gather", placement={"nodes": [0, 1], "gpus": [0]}))
    half = cs.cost("all_gather", SIZE, [0, 1, 2, 3], PRESET)
    assert half == near(of_run("all_gather", placement={"nodes": [0], "gpus": "0 .. 3"}))
    assert half < rail
    assert cs.cost("all_gather", SIZE, np.array([0, 8]), PRESET) == rail


def test_the_library_the_mode_and_the_type_are_those_of_a_scenario() -> None:
    env = {"env": {"NCCL_ALGO": "Tree"}, "version": "2.19.3"}
    assert cs.cost("all_reduce", SIZE, 16, PRESET, library=env) == near(of_run(library=env))
    assert cs.cost("all_reduce", SIZE, 16, PRESET, mode="single") == near(of_run(mode="single"))
    assert cs.cost("all_reduce", SIZE, 8, "hgx-h100", library="none") == near(
        of_run(topology={"preset": "hgx-h100"}, library="none")
    )
    item = {"collective": "all_reduce", "sizes": f"{SIZE} B", "redop": "prod"}
    assert cs.cost("all_reduce", SIZE, 8, PRESET, redop="prod") == near(
        of_run(topology={"preset": PRESET}, workload=[item])
    )
    assert cs.cost("all_reduce", SIZE, 8, PRESET, redop="prod") != cs.cost("all_reduce", SIZE, 8, PRESET)


def test_kernels_of_a_framework_have_a_cost_of_whole_packs() -> None:
    machine = {"preset": "hgx-h100", "gpus_per_node": 4}
    library = {"name": "custom_all_reduce", "framework": "vllm"}
    costs = [cs.cost("all_reduce", size, None, machine, library=library) for size in (1 << 20, 3_145_776, 4)]
    item = {"collective": "all_reduce", "sizes": ["16 B", "1 MiB", "3145776 B"]}
    run = cs.run({"name": "k", "topology": machine, "library": library, "workload": [item]}).to_frame()["time_us"] / 1e6
    assert costs == near([run[1], run[2], run[0]])


def test_knobs_of_a_machine_count() -> None:
    half = cs.cost("all_gather", SIZE, 16, {"preset": PRESET, **SLOWER})
    topology = {"preset": PRESET, "nodes": 2, **SLOWER}
    assert half == near(of_run("all_gather", topology=topology))
    slow, quick = (cs.cost("all_gather", "1 GiB", 16, {"preset": PRESET, **knob}) for knob in (SLOWER, {}))
    assert slow > 1.5 * quick


def test_a_scenario_keeps_its_placement() -> None:
    scenario = {"topology": {"preset": PRESET, "nodes": 4}, "placement": {"nodes": [3, 1]}}
    assert cs.cost("all_reduce", SIZE, None, scenario) == near(of_run(**scenario))  # type: ignore[arg-type]


def kernels(**item: Any) -> dict[str, Any]:
    """The keys of a scenario of a framework's kernels with one item of an all_reduce."""
    library = {"name": "custom_all_reduce", "framework": "vllm", "version": "0.24.0"}
    item = {"collective": "all_reduce", "sizes": "1 MiB"} | item
    return {"name": "k", "topology": {"preset": "hgx-h100"}, "library": library, "workload": [item]}


def test_what_the_item_of_a_scenario_states_is_the_default(checkout: Path) -> None:
    half, whole = kernels(dtype="bfloat16"), kernels(dtype="float32")
    runs = [float(cs.run(each).to_frame()["time_us"][0]) / 1e6 for each in (half, whole)]
    assert runs[0] < 0.8 * runs[1]
    with pytest.warns(UserWarning, match="vllm falls back to NCCL"):
        costs = [cs.cost("all_reduce", "1 MiB", None, each) for each in (half, whole)]
    assert costs == pytest.approx(runs, rel=1e-12)
    with pytest.warns(UserWarning, match="vllm falls back to NCCL"):
        given = cs.cost("all_reduce", "1 MiB", None, half, dtype="float32")
    assert given == pytest.approx(runs[1], rel=1e-12)
    shipped = [cs.cost("all_reduce", "1 MiB", None, on) for on in ("custom-all-reduce", cs.run(half).scenario)]
    assert shipped == pytest.approx([runs[0]] * 2, rel=1e-12)
    assert cs.cost_table("all_reduce", None, half).facts["dtype"] == "bfloat16"


def test_what_an_item_fixes_is_fixed_and_is_a_fact() -> None:
    topology = {"preset": PRESET, "nodes": 2}
    item = {"collective": "broadcast", "sizes": "1 MiB", "protocol": "Simple", "channels": 2, "root": 3}
    scenario = {"name": "s", "topology": topology, "workload": [item | {"dtype": "bfloat16"}]}
    run = float(cs.run(scenario).to_frame()["time_us"][0]) / 1e6
    table = cs.cost_table("broadcast", None, scenario)
    assert table("1 MiB") == pytest.approx(run, rel=1e-12)
    assert [table.facts[key] for key in ("protocol", "channels", "root")] == ["Simple", 2, 3]
    other = cs.cost_table("all_reduce", None, scenario)  # type and reduction alone
    assert (other.facts["dtype"], "channels" in other.facts) == ("bfloat16", False)
    assert other("1 MiB") == cs.cost("all_reduce", "1 MiB", 16, topology, dtype="bfloat16")


def test_what_is_given_comes_before_what_a_scenario_says() -> None:
    env = {"NCCL_ALGO": "Tree"}
    scenario = {"topology": {"preset": PRESET, "nodes": 2}, "library": {"version": "2.19.3", "env": env}}
    for given in ({"mode": "single"}, {"library": {"version": "2.22.3"}}):
        table = cs.cost_table("all_reduce", None, scenario, **given)
        assert table.facts["env"] == env
        library = {"version": "2.19.3", "env": env} | given.get("library", {})  # type: ignore[operator]
        assert table(SIZE) == near(of_run(library=library, mode=given.get("mode", "back_to_back")))
    with pytest.warns(UserWarning, match="does not say how many cores"):
        assert cs.cost_table("all_reduce", None, scenario, library="gloo").facts["library"] == "gloo"


def test_items_that_differ_need_to_be_told_apart() -> None:
    items = [{"collective": "all_reduce", "sizes": "8 B", "dtype": dtype} for dtype in ("float32", "bfloat16")]
    scenario = {"name": "s", "topology": {"preset": "hgx-h100"}, "workload": items}
    with pytest.raises(CommsimError, match=r"found 2 items of all_reduce .* differ in dtype, expected one or dtype"):
        cs.cost("all_reduce", 8, None, scenario)
    assert cs.cost_table("all_reduce", None, scenario, dtype="bfloat16").facts["dtype"] == "bfloat16"


def test_equal_questions_share_a_table_and_a_changed_file_is_another(tmp_path: Path) -> None:
    path = tmp_path / "machine.yaml"
    path.write_text("extends: hgx-h100\n")
    tables = [shared_table("all_reduce", 8, machine) for machine in (path, str(path))]
    assert tables[0] is tables[1]
    assert shared_table("all_reduce", [0, 1], {"preset": "hgx-h100"}) is shared_table(
        "all_reduce", np.arange(2), {"preset": "hgx-h100"}
    )
    before = tables[0](1 << 30)
    path.write_text("extends: v100-pcie\n")
    os.utime(path, ns=(1, 1))
    assert cs.cost("all_reduce", 1 << 30, 4, path) > 2 * before


def test_warnings_say_what_was_assumed() -> None:
    table = cs.cost_table("all_reduce", 16, PRESET)
    table(8)
    assert any("2.26.2 is assumed" in text for text in table.warnings)
    assert not cs.cost_table("all_reduce", 16, PRESET, library={"version": "2.26.2"}).warnings


def test_settings_without_effect_are_python_warnings_once() -> None:
    library = {"registered": "window"}
    with pytest.warns(UserWarning, match="NCCL 2.26.2 has no symmetric memory") as caught:
        plain = cs.cost("all_gather", SIZE, 16, PRESET, library=library)
    assert len(caught) == 1  # and not that a version is assumed
    assert plain == cs.cost("all_gather", SIZE, 16, PRESET) == cs.cost("all_gather", SIZE, 16, PRESET, library=library)
    with warnings.catch_warnings(record=True) as several:
        warnings.simplefilter("always")
        table = cs.cost_table("all_reduce", 16, PRESET, library={"env": {"NCCL_ALG": "Ring"}})
    assert table.warnings[0].startswith("library.env.NCCL_ALG: found a variable that NCCL does not read")
    assert [str(each.message) for each in several] == [table.warnings[0], table.warnings[-1]]


QUESTION: dict[str, Any] = {"collective": "all_reduce", "ranks": 8, "machine": PRESET}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"collective": "allreduce"}, "collective: found 'allreduce', did you mean 'all_reduce'"),
        ({"collective": 3}, "collective: found 3, expected one of"),
        ({"collective": ["all_reduce"]}, "collective: found a list of 1"),
        ({"ranks": 0}, "ranks: found 0, expected 1 or more"),
        ({"ranks": True}, "ranks: found true"),
        ({"ranks": -3}, "ranks: found -3"),
        ({"ranks": []}, "ranks: found an empty list"),
        ({"ranks": [1, 1]}, "ranks: found rank 1 twice"),
        ({"ranks": [-1]}, "ranks: found -1"),
        ({"ranks": [[0], [1]]}, "ranks: found a list of 2"),
        ({"ranks": 1.5}, "ranks: found 1.5"),
        ({"ranks": object()}, "ranks: found .*expected a number or a list"),
        (
            {"machine": "hgx-h101"},
            "machine: found 'hgx-h101', which is no file and no shipped scenario; of presets, did you mean 'hgx-h100'",
        ),
        ({"machine": "no/such.yaml"}, "machine: found 'no/such.yaml', which is no file"),
        ({"machine": {"preset": "hgx-h101"}}, "cost topology.preset: found the unknown preset"),
        ({"machine": {"preset": PRESET, "nodes": 0}}, "cost topology.nodes: found 0"),
        ({"machine": {}}, "cost topology: expected a preset, a path, or a machine"),
        ({"machine": {1: object()}}, "expected plain values"),
        ({"machine": "hgx-h100", "ranks": 16}, "2 of 2 nodes without a NIC"),
        ({"machine": {"preset": "hgx-h100", "nodes": 1}, "ranks": 9}, "ranks: found 9 ranks, expected at most 8"),
        ({"machine": {"preset": PRESET, "nodes": 1}, "ranks": [9]}, "ranks: found rank 9, expected at most 8"),
        ({"dtype": "float"}, "dtype: found 'float', did you mean 'float32'"),
        ({"redop": "xor"}, "redop: found 'xor'"),
        ({"mode": "double"}, "cost mode: found 'double', expected one of back_to_back, single"),
        ({"library": {"version": "2"}}, "cost library.version: found '2'"),
        ({"library": {"env": {"NCCL_ALGO": object()}}}, "expected plain values"),
        ({"library": "gloo", "ranks": 3}, "found 3 of the 8 of .* with library gloo, expected all"),
        (
            {"machine": load_preset("hgx-h100"), "library": {"measured": {"all_reduce": {"8B": "23us"}}}},
            "library.measured: found it with a Topology",
        ),
        ({"machine": "x" * 5000}, "machine: found 'x.*which is no file"),
        ({"machine": "a\0b"}, "machine: found .*which is no file"),
        ({"machine": None}, "machine: found nothing, expected a preset"),
        ({"machine": 5}, "machine: found 5, expected a preset"),
        (
            {"machine": {"topology": {"preset": PRESET, "nodes": 2}, "placement": {"nodes": [0]}}},
            "beside the placement",
        ),
    ],
)
def test_a_question_without_an_answer_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CommsimError, match=message) as caught:
        cs.cost(nbytes=8, **QUESTION | changes)
    assert len(str(caught.value).splitlines()) <= 24


def test_a_file_of_several_scenarios_is_refused(checkout: Path) -> None:
    with pytest.raises(CommsimError, match=r"quickstart.yaml: found 3 scenarios, expected one"):
        cs.cost("all_reduce", 8, None, checkout / "scenarios" / "quickstart.yaml")


def test_a_file_of_another_kind_is_refused(checkout: Path) -> None:
    path = next((checkout / "scenarios" / "plan").glob("*.yaml"))
    with pytest.raises(CommsimError, match="found a plan, expected a scenario"):
        cs.cost("all_reduce", 8, None, path)
