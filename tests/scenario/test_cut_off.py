"""Nodes that faults cut off: what takes part without them runs; what needs them is refused at its place."""

from __future__ import annotations

from pathlib import Path

import pytest

import commsim as cs
from commsim.errors import CommsimError
from commsim.scenario.load import load_scenarios
from commsim.scenario.run import run

_HEAD = "name: cut\ntopology:\n  preset: hgx-h100-ndr400\n  nodes: 4\n  faults:\n    - {node: 3, failed: true%s}\n"
_ONE = "library: {name: nccl, version: 2.26.2}\nworkload:\n  - {collective: all_reduce, sizes: 1 MiB}\n"
_JOBS = (
    "library: {name: nccl, version: 2.26.2}\nworkload:\n"
    "  - jobs:\n      - {ranks: 0 .. 15, collective: all_reduce, size: 1 MiB}\n"
    "      - {ranks: 16 .. %d, collective: all_reduce, size: 1 MiB}\n"
    "    background:\n      - {src: 0, dst: %d, rate: 5 GB/s}\n"
)


def _answer(folder: Path, text: str) -> cs.Result:
    (folder / "s.yaml").write_text(text)
    return run(load_scenarios(folder / "s.yaml")[0])


@pytest.mark.parametrize("start", ["", ", start: 2 s"])
def test_a_placement_on_the_others_takes_as_long_as_without_the_fault(tmp_path: Path, start: str) -> None:
    placed = "placement: {nodes: [0, 1, 2]}\n"
    cut = _answer(tmp_path, _HEAD % start + placed + _ONE)
    whole = _answer(tmp_path, (_HEAD % start).split("  faults")[0] + placed + _ONE)
    assert cut.items[0].rows[0].time_s == whole.items[0].rows[0].time_s


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (_HEAD % "" + _ONE, ":3:3 topology: hgx-h100-ndr400: node3 is cut off"),
        (_HEAD % "" + "placement: {nodes: [0, 3]}\n" + _ONE, ":7:12 placement: hgx-h100-ndr400: node3 is cut off"),
        (_HEAD % "" + _ONE.replace("nccl, version: 2.26.2", "none"), ":3:3 topology: hgx-h100-ndr400: node3 is cut"),
        (_HEAD % "" + _JOBS % (31, 8), ":11:9 workload.0.jobs.1: hgx-h100-ndr400: node3 is cut off"),
        (_HEAD % "" + _JOBS % (23, 25), ":13:9 workload.0.background.0: hgx-h100-ndr400: no way from node0 to node3"),
        (
            _HEAD % ", start: 2 s" + "placement: {nodes: [0, 3]}\n" + _ONE,
            ":7:12 placement: hgx-h100-ndr400: node3 is cut off",
        ),
    ],
)
def test_what_needs_the_node_is_refused_at_its_place(tmp_path: Path, text: str, where: str) -> None:
    with pytest.raises(CommsimError) as raised:
        _answer(tmp_path, text)
    assert where in str(raised.value)


def test_jobs_of_other_ranks_run(tmp_path: Path) -> None:
    rows = _answer(tmp_path, _HEAD % "" + _JOBS % (23, 8)).jobs[0].rows
    assert [row.n_ranks for row in rows] == [16, 8]
