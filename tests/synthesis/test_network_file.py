"""Networks in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from commsim.errors import TopologyError
from commsim.synthesis.network_file import load_network

GOOD = """
ranks: 3
switches: {sw: {copies: true}}
links:
  - {ends: [gpu0, gpu1], bandwidth: 50 GB/s, latency: 0.7 us}
  - {ends: [gpu1, sw], bandwidth: 25 GB/s, count: 2}
  - {ends: [sw, gpu2], bandwidth: 12.5 GB/s, one_way: true}
  - {ends: [gpu2, gpu0], bandwidth: 12.5 GB/s, one_way: true}
"""


def test_links_go_both_ways_unless_they_say_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(GOOD)
    network = load_network(path)
    assert (network.name, network.n, network.vertices, network.edges) == ("net", 3, 4, 6)
    rates = {
        (network.vertex[a], network.vertex[b]): float(network.rate(e))
        for e, (a, b) in enumerate(zip(network.tail.tolist(), network.head.tolist(), strict=True))
    }
    assert rates["gpu1", "sw"] == 50e9
    assert ("gpu2", "sw") not in rates
    assert network.copies.sum() == 1


@pytest.mark.parametrize(
    ("change", "place", "message"),
    [
        (("[sw, gpu2]", "[sw, gpu9]"), ":7:17 links.2.ends.1", "found 'gpu9', expected one of the ranks"),
        (("12.5 GB/s, one_way", "12.5, one_way"), "links.2.bandwidth", "unit"),
        (("[gpu2, gpu0]", "[gpu2, gpu2]"), "links.3.ends", "twice"),
        (("ranks: 3", "ranks: [gpu0, gpu1, sw]"), "switches", "among the ranks too"),
        (("ranks: 3", "ranks: 3\nspeed: 1"), "speed", "found no such|unknown|expected"),
    ],
)
def test_faults_have_places(tmp_path: Path, change: tuple[str, str], place: str, message: str) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(GOOD.replace(*change))
    with pytest.raises(TopologyError, match=message) as caught:
        load_network(path)
    assert place in str(caught.value)


def test_ranks_that_cannot_reach_each_other_are_named(tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(GOOD.replace("[gpu2, gpu0]", "[gpu1, gpu0]"))
    with pytest.raises(TopologyError, match="no way"):
        load_network(path)
