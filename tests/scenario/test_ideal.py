"""`library: none` says what it is, and runs only counts that can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import commsim as cs
from commsim.collectives import registry
from commsim.collectives.semantics import DIVIDED
from commsim.scenario.load import load_scenarios
from commsim.scenario.raw import RawRows
from commsim.scenario.run import prepare, run


def _asked(library: str = "none", preset: str = "hgx-h100-ndr400", **item: Any) -> dict[str, Any]:
    work = {"collective": "all_reduce", "algorithm": "ring", "sizes": "1 GiB"} | item
    return {
        "name": "Ideal",
        "topology": {"preset": preset, "nodes": 4},
        "library": library,
        "workload": [{key: value for key, value in work.items() if value is not None}],
    }


def _note(result: cs.Result) -> str:
    (note,) = [text for text in result.warnings if text.startswith("library none: ")]
    return note


def test_it_says_how_far_from_nccl_it_is() -> None:
    result = cs.run(_asked())
    ours, theirs = result.items[0].rows[0], cs.run(_asked("nccl", algorithm=None)).items[0].rows[0]
    note = _note(result)
    assert "ring all_reduce is an ideal algorithm over one channel, without protocol, launch or NCCL's choices" in note
    assert f"at 1 GiB NCCL's model: {1e6 * theirs.time_s:.5g} us, {theirs.busbw / 1e9:.4g} GB/s" in note
    assert f"({theirs.algorithm}, {theirs.protocol}, channels: {theirs.channels})" in note
    assert f"this schedule: {ours.busbw / 1e9:.4g} GB/s, {ours.time_s / theirs.time_s:.3g} times as long" in note
    assert "channels: N shares it over more" in note
    assert "algorithm: auto takes the quickest" in note
    assert note in result.to_dict()["warnings"]


def test_of_several_channels_and_of_the_quickest_it_offers_neither_again() -> None:
    several, quickest = _note(cs.run(_asked(channels=2))), _note(cs.run(_asked(algorithm="auto", sizes="1 MiB")))
    assert "over 2 channels that take one way" in several
    assert "channels: N" not in several
    assert "algorithm: auto" not in quickest


def test_where_nccl_has_no_answer_none_is_given() -> None:
    assert "NCCL's model" not in _note(cs.run(_asked(preset="testbed-star", sizes="1 MiB")))


def test_points_of_a_sweep_are_spared_it(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "name: S\ntopology: {preset: hgx-h100-ndr400, nodes: 4, oversubscription: 2}\nlibrary: none\n"
        "workload: [{collective: all_reduce, sizes: 1 MiB}]\n"
    )
    (scenario,) = load_scenarios(tmp_path / "s.yaml")
    assert len(run(scenario).warnings) == 2
    assert run(scenario, notes=False).warnings == ()


@pytest.mark.parametrize("collective", sorted(DIVIDED | {"all_to_all_v"}))
@pytest.mark.parametrize("nodes", [1, 3])
def test_shares_are_whole_and_bytes_are_kept(collective: str, nodes: int, tmp_path: Path) -> None:
    """Of sizes below the ranks, and of those that do not divide: no part of an element, none lost, none twice."""
    file = tmp_path / "s.yaml"
    file.write_text(
        f"name: S\ntopology: {{preset: hgx-h100-ndr400, nodes: {nodes}}}\nlibrary: none\n"
        f"workload: [{{collective: {collective}, sizes: [4 B, 12 B, 32 B, 68 B, 1000 B, 4100 B]}}]\n"
    )
    ready = prepare(load_scenarios(file)[0])
    work: Any = ready.scenario.workload[0]
    n, rows = ready.topology.world_size, RawRows(ready.scenario, ready.topology, work)
    for size in work.sizes:
        row = rows(size)
        assert row.size_bytes == rows.whole(size)
        for _, algorithm in registry.names(collective):
            if registry.entry(collective, algorithm).adds_in:
                continue  # not on this machine
            s = rows.schedule(algorithm, size)
            assert s.nbytes == row.size_bytes
            assert (s.chunk_bytes >= 0).all()
            assert (s.chunk_bytes % 4 == 0).all()
            assert s.sent_bytes().sum() == s.received_bytes().sum()
            if collective in DIVIDED:
                blocks = s.chunk_bytes[: s.data_chunks].reshape(n, -1).sum(axis=1)
                assert row.count * 4 == blocks.max()
                assert np.ptp(blocks) <= 4
        if collective == "all_to_all":
            assert row.count * 4 * n == row.size_bytes > 0


def test_sizes_that_are_rounded_to_one_are_one_row() -> None:
    result = cs.run(_asked(collective="all_to_all", algorithm=None, sizes="4 B .. 256 B"))
    rows = result.items[0].rows
    assert [(row.size_bytes, row.count) for row in rows] == [(128, 1), (256, 2)]
    assert any(
        "all_to_all has equal blocks of whole float32 for 32 ranks: 4 B is timed as 128 B" in w for w in result.warnings
    )
