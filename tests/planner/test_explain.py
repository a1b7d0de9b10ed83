"""What bounds a run and what changes give: every figure again by another road."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import commsim as cs
from commsim.cli import app
from commsim.nccl.parameters import load_parameters
from commsim.planner.explain import Explanation, explain
from commsim.report.collectives import stretches
from commsim.report.explain import bound_words, explain_lines, next_best, result_page, to_dict
from commsim.report.page import html
from commsim.scenario.item import Row

RING = {
    "name": "a raw ring",
    "topology": {"preset": "hgx-h100"},
    "library": "none",
    "workload": [{"collective": "all_reduce", "algorithm": "ring", "sizes": ["1 KiB", "1 GiB"]}],
}
STEP = {
    "name": "four stages",
    "topology": {"preset": "hgx-h100", "gpus_per_node": 4},
    "workload": [{"training": {"model": "gpt2-1558m", "global_batch_size": 32, "mesh": {"pp": 4}}}],
}


def _gain(found: Explanation, what: str) -> Any:
    return next(g for g in found.gains if g.what.startswith(what))


def _repeat(scenario: dict[str, Any], overrides: str) -> Any:
    return cs.run(scenario, *shlex.split(overrides))


@pytest.mark.parametrize("library", ["none", "nccl"])
def test_every_gain_is_what_a_run_with_its_overrides_takes(library: str) -> None:
    work: dict[str, Any] = {"collective": "all_reduce", "sizes": ["256 KiB"]}
    scenario = {"name": "x", "topology": {"preset": "hgx-h100"}, "library": library, "workload": [work]}
    (found,) = explain(cs.run(scenario), [1 << 18])
    checked = [g for g in found.gains if g.overrides]
    assert len(checked) > 5
    for gain in checked:
        row = _repeat(scenario, gain.overrides).items[0].rows[0]
        assert row.time_s == pytest.approx(gain.seconds, rel=1e-12), gain.what
        assert gain.saved_s == pytest.approx(found.seconds - row.time_s, abs=1e-15)


def test_gains_are_sorted_and_the_best_have_something_to_give() -> None:
    small, large = explain(cs.run(RING))
    for found in (small, large):
        assert [g.seconds for g in found.gains] == sorted(g.seconds for g in found.gains)
        assert all(g.saved_s > 0 for g in found.best)


def test_a_ring_is_bound_by_latency_when_small_and_by_its_links_when_large() -> None:
    small, large = explain(cs.run(RING))
    assert "bound by latency" in bound_words(small)[0]
    # 14 steps of one hop: nothing but latency.
    assert _gain(small, "half the latency").seconds == pytest.approx(small.seconds / 2, rel=1e-3)
    assert "bound by NVLink" in bound_words(large)[0]
    link = "node0.gpu0 -> node0.nvswitch carries data at its rate for"
    assert (
        f"bound by latency: hops that wait for each other; {link} less than 1 % of the time." in bound_words(small)[0]
    )
    assert f"bound by NVLink: {link} 100 % of the time." in bound_words(large)[0]
    assert _gain(large, "NVLinks of twice the rate").seconds == pytest.approx(large.seconds / 2, rel=2e-3)
    assert next_best(large).startswith("The next best change, simulated: NVLinks of twice the rate, 2.09")


def test_a_ring_whose_messages_wait_says_so() -> None:
    work = {"collective": "all_gather", "sizes": ["64 MiB"]}
    scenario = {"name": "x", "topology": {"preset": "aws-p5", "nodes": 4}, "workload": [work]}
    (found,) = explain(cs.run(scenario))
    assert found.row is not None
    assert found.row.bottleneck == "messages of the NIC"
    assert "bound by messages between nodes that wait for each other: they take turns for" in bound_words(found)[0]


def test_bytes_that_hops_pass_on_in_turn_are_the_bound_where_the_breakdown_says_so() -> None:
    """A tree over PCIe: no link is busy for half of the time, and latency is 3 % of it."""
    library = {"name": "nccl", "version": "2.27.5", "env": {"NCCL_ALGO": "Tree", "NCCL_PROTO": "Simple"}}
    work = {"collective": "all_reduce", "sizes": ["2 MiB"]}
    (found,) = explain(
        cs.run({"name": "x", "topology": {"preset": "h100-pcie"}, "library": library, "workload": [work]}),
        what_if=False,
    )
    assert found.row is not None
    assert found.row.bottleneck == "latency"
    most, *_ = found.parts
    assert found.parts[most] > 0.9 * found.seconds
    assert f"bound by {most}, one hop after the other: " in bound_words(found)[0]
    assert to_dict(found)["bound_by"] == most


def test_what_a_share_is_of_and_what_the_rest_is() -> None:
    """By hand: of a kernel of 40 us that takes 44 us with its launch, 22 us are 55 %."""
    row = Row(8, 2, "float", "sum", -1, 44e-6, 1, 1, "ring", "LL", 2, "NVLink", launch_s=4e-6, kernel_s=40e-6)
    row = replace(row, busiest_link="NVLink", busiest_share=0.5)
    whole = "of the kernel's 40 us"
    assert _words(row) == f"bound by NVLink: it carries data at its rate for 55 % {whole}, the rest is latency."
    assert _words(replace(row, busiest_share=1.0)).endswith(f"for 100 % {whole}.")
    blocks = replace(row, busiest_link="thread block")
    late = "latency: hops that wait for each other; the thread blocks of the kernel copy at their rate for 55 %"
    assert _words(replace(blocks, bottleneck="latency")) == f"bound by {late} {whole}."
    cores = replace(row, bottleneck="cores", busiest_link="cores", launch_s=0.0)
    assert _words(cores) == "bound by the cores of a host: they work for 50 % of the time."
    assert _words(replace(cores, busiest_link="")) == "bound by the cores of a host."


def _words(row: Row) -> str:
    (line,) = bound_words(Explanation(0, "x", row.time_s, (), (), row))
    return line.partition(", ")[2]


def test_without_what_if_nothing_is_tried() -> None:
    small, _ = explain(cs.run(RING), what_if=False)
    assert not small.gains
    assert next_best(small) == ""
    assert explain_lines(small) == bound_words(small)


def test_sizes_are_grouped_by_what_bounds_them() -> None:
    result = cs.run(RING)
    assert stretches(result.items[0]) == "all_reduce by size: latency 1 KiB, NVLink 1 GiB."


def test_what_nccl_would_not_run_is_refused() -> None:
    scenario = {"name": "x", "topology": {"preset": "dgx-a100-hdr200"}, "workload": [
        {"collective": "all_reduce", "sizes": "64 MiB"}]}  # fmt: skip
    (found,) = explain(cs.run(scenario))
    assert "NCCL runs NVLS with Simple" in dict(found.refused)  # A100 has no reduction in its switches
    assert not any("NVLS" in g.what for g in found.gains)


def test_gloo_gains_from_cores() -> None:
    scenario = {"name": "g", "library": "gloo", "topology": {"path": "x"}} | {
        "topology": {"gpu": {"model": "CPU process", "generation": "cpu", "sm": 0}, "cpu": {"arch": "x86_64",
        "vendor": "intel", "cores": 2}, "node": {"gpus": 4, "pcie": {"bandwidth": "20 GB/s"}}},
        "workload": [{"collective": "all_reduce", "sizes": "1 MiB"}],
    }  # fmt: skip
    (found,) = explain(cs.run(scenario))
    assert _gain(found, "twice the cores").saved_s > 0
    assert _gain(found, "half the latency").saved_s > 0
    assert _gain(found, "calls from Python").saved_s > 0


def test_a_step_is_told_by_its_causes_and_its_gains_repeat() -> None:
    (found,) = explain(cs.run(STEP))
    assert found.step is not None
    assert sum(to_dict(found)["shares"].values()) == pytest.approx(1.0, rel=1e-6)
    assert "bound by compute" in bound_words(found)[0]
    assert any(line.startswith("Memory does not bind") for line in bound_words(found))
    for gain in [g for g in found.gains if g.overrides][:4]:
        assert _repeat(STEP, gain.overrides).trainings[0].step_s == pytest.approx(gain.seconds, rel=1e-9), gain.what


def test_what_does_not_fit_is_barred() -> None:
    step = {**STEP["workload"][0]["training"], "micro_batch_size": 8, "recompute": "full"}  # type: ignore[index]
    (found,) = explain(cs.run({**STEP, "workload": [{"training": step | {"model": "llama-3-8b", "mesh": {"tp": 4}}}]}))
    gain = _gain(found, "recompute none")
    assert gain.saved_s > 0
    assert gain.misses.startswith("needs ")
    assert gain not in found.best
    assert gain in found.barred


def test_pace_leaves_rates_alone() -> None:
    own = load_parameters("hopper")
    half = own.scaled(latency=0.5, launch=0.25)
    assert half.block_rate == own.block_rate
    assert half.network.channel_rate == own.network.channel_rate
    assert pytest.approx(own.ring_hop.nvlink.LL / 2) == half.ring_hop.nvlink.LL
    assert half.network.tree_hop.Simple == pytest.approx(own.network.tree_hop.Simple / 2)
    assert half.launch.process_per_gpu == pytest.approx(own.launch.process_per_gpu / 4)
    assert own.scaled() == own


def test_a_saved_result_is_explained_as_its_run(tmp_path: Path) -> None:
    runner = CliRunner()
    path = tmp_path / "ring.yaml"
    path.write_text(json.dumps(RING))
    ran = runner.invoke(app, ["run", str(path), "--explain", "--json", "--out", str(tmp_path / "out")])
    saved = runner.invoke(app, ["explain", str(tmp_path / "out"), "--json"])
    assert ran.exit_code == saved.exit_code == 0, (ran.output, saved.output)
    told = json.loads(ran.stdout)["results"][0]["explanations"]
    assert json.loads(saved.stdout)["results"][0]["explanations"] == told
    assert json.loads((tmp_path / "out" / "result.json").read_text())["explanations"] == told
    assert [e["bound_by"] for e in told] == ["latency", "NVLink"]
    one = runner.invoke(app, ["explain", str(tmp_path / "out" / "result.json"), "--size", "1 MiB", "--no-what-if"])
    assert "all_reduce of 1 MiB on 8 ranks" in one.stdout
    assert "next best" not in one.stdout


def test_a_result_of_another_version_is_told_apart(tmp_path: Path) -> None:
    runner = CliRunner()
    (tmp_path / "ring.yaml").write_text(json.dumps(RING))
    runner.invoke(app, ["run", str(tmp_path / "ring.yaml"), "--out", str(tmp_path / "out")])
    saved = tmp_path / "out" / "result.json"
    document = json.loads(saved.read_text())
    document["items"][0]["rows"][0]["time_us"] *= 1.02
    saved.write_text(json.dumps(document))
    done = runner.invoke(app, ["explain", str(tmp_path / "out"), "--no-what-if"])
    assert "differs by up to 2 %" in done.stderr


@pytest.mark.parametrize("arguments", [["no-such-scenario"], ["."], ["quickstart", "--size", "3"]])
def test_bad_input_says_what_was_expected(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["explain", *arguments])
    assert done.exit_code != 0
    assert "expected" in str(done.exception) or "shipped scenarios" in str(done.exception)


def test_the_page_begins_with_what_bounds_it() -> None:
    from commsim.report.explain import result_page
    from commsim.report.page import html

    result = cs.run(RING)
    page = result_page(result, [], explain(result))
    assert page.answer[0].endswith("at 1 GiB (4.183 ms), bound by NVLink.")
    assert page.answer[-1].startswith("The next best change, simulated: NVLinks")
    assert sum("bound by" in line for line in page.answer) == 1
    assert "What if: all_reduce of 1 KiB" in html(page)


@pytest.mark.parametrize(("own", "others"), [(None, [4, 8, 16, 32]), (8, [4, 16, 32])])
def test_other_numbers_of_channels_are_tried(own: int | None, others: list[int]) -> None:
    work = {"collective": "all_reduce", "sizes": ["1 MiB"]} | ({"channels": own} if own else {})
    scenario = {"name": "x", "topology": {"preset": "hgx-h100"}, "library": "nccl", "workload": [work]}
    (answer,) = explain(cs.run(scenario))
    tried = [int(g.what.split()[0]) for g in answer.gains if g.what.endswith(" channels")]
    assert sorted(tried) == others


def test_where_the_time_goes_is_told_on_every_page() -> None:
    """A line for each cost in the text, a table on the page, microseconds in the JSON; gloo's are not told apart."""
    work = {"collective": "all_reduce", "sizes": ["8 B"]}
    result = cs.run({"name": "x", "topology": {"preset": "hgx-h100"}, "workload": [work]})
    (found,) = explain(result, what_if=False)
    lines = explain_lines(found)
    at = lines.index("Where the time goes (what hides behind something longer takes none):")
    assert lines[at + 1].split()[:4] == ["hops", "inside", "a", "node"]
    assert sum(to_dict(found)["parts_us"].values()) == pytest.approx(1e6 * found.seconds, rel=0.01)
    assert "where the time goes" in html(result_page(result, (), [found]))
    gloo = {"name": "x", "topology": {"preset": "testbed-star", "nodes": 4}, "library": "gloo", "workload": [work]}
    (other,) = explain(cs.run(gloo), what_if=False)
    assert not other.parts
    assert "parts_us" not in to_dict(other)
    assert not [line for line in explain_lines(other) if "Where the time goes" in line]
