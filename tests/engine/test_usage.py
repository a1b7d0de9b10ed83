"""Use of links in words and numbers, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import program

from commsim.collectives.ring import ring_all_reduce
from commsim.engine.evaluate import evaluate
from commsim.engine.family import ring_family
from commsim.engine.simulate import simulate
from commsim.engine.usage import bottleneck, covered_s, usage
from commsim.topology.presets import load_preset

_TOPOLOGY = load_preset("hgx-h100-ndr400", nodes=2)


def test_a_ring_over_two_nodes_is_held_up_by_the_narrowest_link() -> None:
    outcome = evaluate(ring_all_reduce(16, 16 << 22), _TOPOLOGY)
    rows = usage(outcome, _TOPOLOGY)
    kinds = {row.kind: row for row in rows}
    assert rows[0].busiest_share > 0.99
    assert kinds["NIC"].links == 4
    assert kinds["NIC"].nbytes == 4 * 30 * (1 << 22)
    assert kinds["NVLink"].busiest_share < 0.2
    assert "transfer, most of it over node" in bottleneck(outcome, _TOPOLOGY)


def test_totals_of_a_family_read_alike() -> None:
    family = evaluate(ring_family("all_reduce", 16, 16 << 22), _TOPOLOGY)
    full = evaluate(ring_all_reduce(16, 16 << 22), _TOPOLOGY)
    for a, b in zip(usage(family, _TOPOLOGY), usage(full, _TOPOLOGY), strict=True):
        assert (a.kind, a.links, a.nbytes) == (b.kind, b.links, b.nbytes)
        assert a.busiest_share == pytest.approx(b.busiest_share)


def test_names() -> None:
    assert "->" in _TOPOLOGY.link_name(0)
    assert bottleneck(evaluate(ring_all_reduce(1, 4), load_preset("hgx-h100"), "event"), _TOPOLOGY) == "nothing to send"


def test_the_first_link_of_all_is_named_too() -> None:
    """2 of 3 us on link 0, 1 us of latency behind it."""
    alone = program([2000], [[0]], bandwidth=[1e9], latency=[1e-6])
    words = f"67 % transfer, most of it over {_TOPOLOGY.link_name(0)}"
    assert bottleneck(simulate(alone), _TOPOLOGY).startswith(words)


_SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), max_size=8)


@given(_SPANS)
def test_the_time_of_sending_counts_each_moment_once(spans: list[tuple[int, int]]) -> None:
    start = np.array([s for s, _ in spans], np.float64)
    end = start + np.array([length for _, length in spans], np.float64)
    assert covered_s(start, end) == len({cell for s, length in spans for cell in range(s, s + length)})
