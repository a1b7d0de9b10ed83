"""Traces through `commsim run`: what is printed and written, faults in one screen, other people's files, our steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from chakra_files import call, message, work, write_scenario, write_traces
from typer.testing import CliRunner, Result

from commsim.chakra.reading import read_trace
from commsim.cli import app
from commsim.errors import CommsimError
from commsim.scenario.load import load_scenarios
from commsim.scenario.run import prepare, run

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "chakra"


def _cli(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["run", *map(str, arguments)])


def _said(*arguments: str | Path) -> str:
    """The message of a run that must end in one, exit status 2."""
    result = _cli(*arguments)
    assert isinstance(result.exception, CommsimError), result.output
    return str(result.exception)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    nodes = [work(0, 2e-3), call(1, "all_reduce", 1 << 20, 0), work(2, 1e-3, 1)]
    write_traces(tmp_path, dict.fromkeys(range(8), nodes))
    write_scenario(tmp_path)
    return tmp_path


def test_a_run_prints_and_writes(folder: Path) -> None:
    out = folder / "out"
    result = _cli(folder / "replay.yaml", "--out", out, "--html", "--plot", "--trace", out / "t.json")
    assert result.exit_code == 0, result.output
    assert "bottleneck          compute (99% of the critical path)" in result.output
    assert "all_reduce over 8 ranks" in result.output
    assert {p.name for p in out.iterdir()} >= {
        "result.json",
        "trace_ranks.csv",
        "trace_calls.csv",
        "report.html",
        "ranks.png",
        "ranks.svg",
        "t.json",
    }
    stated = json.loads((out / "result.json").read_text())["traces"][0]
    assert stated["nodes"] == 24
    assert stated["compute_us"] == pytest.approx(3000)
    assert stated["time_us"] == pytest.approx(3000 + stated["exposed_us"])
    assert len((out / "trace_ranks.csv").read_text().splitlines()) == 9
    events = json.loads((out / "t.json").read_text())["traceEvents"]
    assert sum(e["ph"] == "X" for e in events) == 24
    assert {e["args"]["name"] for e in events if e["name"] == "thread_name"} >= {"compute", "collective"}
    page = (out / "report.html").read_text()
    assert "How long do these traces take" in page
    assert "What every rank spends the time on." in page
    assert "as a whole were not compared with measured ones" in page
    # The scenario beside the result finds the traces from where it lies.
    again = _cli(out / "scenario.yaml", "--json", "--no-files")
    saved = json.loads(again.stdout)["results"][0]
    assert saved["traces"][0]["time_us"] == stated["time_us"]
    assert saved["scenario_hash"] == json.loads((out / "result.json").read_text())["scenario_hash"]
    write_traces(folder, {7: [work(0, 2e-3), call(1, "all_reduce", 1 << 20, 0)]})
    changed = json.loads(_cli(out / "scenario.yaml", "--json", "--no-files").stdout)["results"][0]
    assert changed["scenario_hash"] != saved["scenario_hash"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("ranks: 0 .. 3", "found a trace of rank 4 (t.4.et), expected ranks 0..3"),
        ("ranks: 5 .. 12", "found rank 8, expected one of the 8 ranks"),
        ("dims: [3, 2]", "found 3 * 2 = 6, expected a product of 8"),
        ("groups: no.json", "no.json: No such file"),
        ("others: maybe", "expected one of refuse, repeat, ready"),
        ("compute_scale: 0", "expected a number > 0"),
        ("accelerator: H9000", "found the accelerator 'H9000'"),
        ("accelerator: V100, precision: bf16", "has no bf16 rate"),
        ("colour: red", "found the unknown key 'colour'"),
    ],
)
def test_faults_of_the_item(folder: Path, more: str, says: str) -> None:
    found = _said(write_scenario(folder, more=more), "--no-files")
    assert says in found
    assert "replay.yaml:5:" in found


def test_a_missing_rank_says_what_could_be_done(folder: Path) -> None:
    (folder / "t.5.et").unlink()
    found = _said(folder / "replay.yaml", "--no-files")
    assert "found 7 traces for 8 ranks, none for rank 5" in found
    assert "others: repeat" in found
    assert _cli(write_scenario(folder, more="others: ready"), "--no-files").exit_code == 0


def test_files_at_fault_are_named_with_their_bytes(folder: Path) -> None:
    whole = (folder / "t.2.et").read_bytes()
    (folder / "t.2.et").write_bytes(whole[:-5])
    write_traces(folder, {6: [work(0, 1.0, 1), work(1, 1.0, 0)]})
    found = _said(folder / "replay.yaml", "--out", folder / "out")
    assert "t.2.et byte " in found
    assert "the file ends in a message of" in found
    assert "t.6.et byte " in found
    assert "found a cycle" in found
    assert not (folder / "out").exists()


def test_ranks_that_do_not_match_are_named(folder: Path) -> None:
    write_traces(folder, {3: [call(0, "all_gather", 8)]})
    found = _said(folder / "replay.yaml", "--no-files")
    assert "call 1 on a group of 8 ranks (0, 1, 2, 3, 4, 5, 6, 7) is all_gather of 64 bytes on rank 3" in found


def test_a_replay_is_explained(folder: Path) -> None:
    result = _cli(folder / "replay.yaml", "--out", folder / "out", "--explain")
    assert "bound by compute (99% of the critical path) to the end of rank 0." in result.output
    again = CliRunner().invoke(app, ["explain", str(folder / "out")])
    assert "The mean rank computes 99 % of the time" in again.output
    assert "differs" not in again.output


@pytest.mark.parametrize("library", ["gloo", "none"])
def test_traces_need_nccl(folder: Path, library: str) -> None:
    assert f"found a trace with library {library}" in _said(folder / "replay.yaml", f"library={library}", "--no-files")


# -- other people's files ---------------------------------


@pytest.mark.skipif(not SHARED.is_dir(), reason="no traces of others beside the checkout")
@pytest.mark.parametrize(
    ("prefix", "ranks", "more", "calls"),
    [
        ("all_gather_4npus_1MB_all_gather", 4, "", ("all_gather", 4, 4 << 20, 1)),
        ("all_reduce_4npus_1MB_all_reduce", 4, "", ("all_reduce", 4, 1 << 20, 1)),
        ("all_reduce_8npus_1MB_all_reduce", 8, "", ("all_reduce", 8, 1 << 20, 1)),
        ("all_reduce_16npus_1MB_all_reduce", 16, "", ("all_reduce", 16, 1 << 20, 1)),
        ("all_to_all_4npus_1MB_all_to_all", 4, "", ("all_to_all", 4, 1 << 20, 1)),
        ("reduce_scatter_4npus_1MB_reduce_scatter", 4, "", ("reduce_scatter", 4, 1 << 20, 1)),
        ("custom_ring_allreduce_8npus_1MB_custom_allreduce", 8, ", others: repeat", ("send", 2, 1 << 17, 112)),
    ],
)
def test_shared_traces_run(
    tmp_path: Path, prefix: str, ranks: int, more: str, calls: tuple[str, int, int, int]
) -> None:
    file = write_scenario(tmp_path, str(SHARED / prefix), f"ranks: 0 .. {ranks - 1}{more}", nodes=-(-ranks // 8))
    (item,) = run(load_scenarios(file)[0]).traces
    (row,) = item.calls
    assert (row.call, row.ranks, row.nbytes, row.count) == calls
    assert item.seconds > 0
    if row.call == "send":  # seven times send, receive, add 7 us; then seven times send and receive
        assert item.seconds == pytest.approx(14 * row.mean + 7 * 7e-6, rel=1e-9)


@pytest.mark.skipif(not SHARED.is_dir(), reason="no traces of others beside the checkout")
def test_every_shared_file_is_read() -> None:
    files = sorted(SHARED.glob("*.et"))
    assert len(files) > 40
    assert all(read_trace(file).nodes for file in files)


# -- steps of our own ---------------------------------

STEP = """name: step
topology: {preset: hgx-h100-ndr400, nodes: 1}
library: {name: nccl, version: 2.26.2}
workload:
  - training: {model: llama-2-7b, seq_len: 4096, global_batch_size: 8, contention: false, %s}
"""


@pytest.mark.parametrize(
    ("what", "within"),
    [
        ("mesh: {tp: 2, pp: 2, dp: 2}, sequence_parallel: true, zero_stage: 1", 1e-4),
        ("mesh: {dp: 8}, zero_stage: 2, bucket_size: 100 MiB", 1e-9),
        ("mesh: {dp: 8}, zero_stage: 1, slowdown: 1.5", 1e-9),
        ("mesh: {dp: 8}, overlap_dp: false", 1e-9),
        ("mesh: {dp: 8}, zero_stage: 3, shard_ranks: 4, framework: fsdp2", 1e-9),
        ("mesh: {dp: 8}, zero_stage: 1, shard_ranks: 4", 1e-9),
        ("mesh: {tp: 2, cp: 2, dp: 2}, zero_stage: 1", 1e-9),
        ("mesh: {tp: 2, pp: 4}, virtual_stages: 2, pipeline_schedule: interleaved_1f1b, overlap_pp: false", 1e-4),
        ("mesh: {tp: 2, pp: 4}, pipeline_schedule: zb_h1", 1e-4),
        ("mesh: {tp: 2, pp: 4}, pipeline_schedule: dualpipe", 1e-4),
    ],
)
def test_an_exported_step_takes_the_steps_time(tmp_path: Path, what: str, within: float) -> None:
    """Without a pipeline to the last digit; with one the all_reduce of the norm, some microseconds, comes on top."""
    file = tmp_path / "step.yaml"
    file.write_text(STEP % what)
    folder = tmp_path / "traces"
    result = _cli(file, "--no-files", "--json", "--export-chakra", folder)
    item = json.loads(result.stdout)["results"][0]["trainings"][0]
    assert result.exit_code == int(not item["fits"]), result.output
    wanted = item["step_s"]
    ready = prepare(load_scenarios(folder / "replay.yaml")[0])
    (replayed,) = run(ready).traces
    assert wanted <= replayed.seconds * (1 + 1e-12)
    assert replayed.seconds == pytest.approx(wanted, rel=within)


def test_an_exported_step_holds_the_steps_bytes(tmp_path: Path) -> None:
    """tp 2, dp 4: per pass of 32 layers 64 sums of 8,192 tokens... of activations, and gradients of 4 bytes each."""
    file = tmp_path / "step.yaml"
    file.write_text(STEP % "mesh: {tp: 2, dp: 4}, micro_batch_size: 2")
    folder = tmp_path / "traces"
    assert _cli(file, "--no-files", "--export-chakra", folder).exit_code == 1  # it does not fit, and is written
    (item,) = run(load_scenarios(folder / "replay.yaml")[0]).traces
    sent = {(row.ranks, row.nbytes): row.count * row.nbytes for row in item.calls}
    hidden = 2 * 4096 * 4096 * 2  # two sequences of 4096 tokens, 4096 wide, two bytes
    # Four groups, each pass twice per layer forward and backward, once for the embedding and once for the logits.
    assert sent[2, hidden] == 4 * hidden * (2 * 32 * 2 + 2)
    gradients = sum(total for (ranks, _), total in sent.items() if ranks == 4)
    weights = 6_738_415_616 / 2  # of Llama-2 7B, cut in two; norms are on both halves
    assert gradients == pytest.approx(2 * 4 * weights, rel=1e-3)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("mesh: {dp: 8}, gradients: parameter_server", "found a parameter server, which a trace cannot say"),
        ("mesh: {pp: 2, dp: 4}, stragglers: {1: 1.5}", "found stragglers, which a trace cannot say"),
    ],
)
def test_what_a_trace_cannot_say(tmp_path: Path, what: str, says: str) -> None:
    file = tmp_path / "step.yaml"
    file.write_text(STEP % what)
    assert says in _said(file, "--no-files", "--export-chakra", tmp_path / "traces")
    assert not (tmp_path / "traces").exists()


def test_only_steps_are_exported(folder: Path) -> None:
    assert "expected one to export" in _said(folder / "replay.yaml", "--no-files", "--export-chakra", folder / "x")


def test_a_step_of_too_many_nodes_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "step.yaml"
    file.write_text(STEP.replace("nodes: 1", "nodes: 128").replace(": 8,", ": 4096,") % "mesh: {tp: 8, dp: 128}")
    assert "expected at most 2,000,000" in _said(file, "--no-files", "--export-chakra", tmp_path / "traces")


def test_messages_between_nodes_are_timed_by_the_network(tmp_path: Path) -> None:
    """A trace on ranks of two nodes: its messages take what NCCL's send_recv takes between them."""
    write_traces(tmp_path, {0: [message(0, "send", 1, 1 << 24)], 1: [message(0, "recv", 0, 1 << 24)]})
    near = run(load_scenarios(write_scenario(tmp_path, more="ranks: 0 .. 1", nodes=2))[0]).traces[0]
    far = run(load_scenarios(write_scenario(tmp_path, more="ranks: 0 .. 8 +8", nodes=2))[0]).traces[0]
    assert far.seconds > 2 * near.seconds
