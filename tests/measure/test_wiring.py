"""How a topology is laid out in namespaces, bridges and shapers; nothing is built."""

from __future__ import annotations

import re

import pytest

from commsim.errors import TopologyError
from commsim.measure.wiring import PREFIX, WiringPlan, burst_bytes, commands, wiring
from commsim.topology.presets import load_preset

STAR = wiring(load_preset("testbed-star", nodes=3))
TREE = wiring(load_preset("testbed-tree", nodes=4))
RING = wiring(load_preset("testbed-ring", nodes=5))


def lines(w: WiringPlan, *program: str) -> list[str]:
    return [line for command, batch in commands(w) for line in batch if command[: len(program)] == program]


@pytest.mark.parametrize(("w", "cables", "bridges"), [(STAR, 3, 1), (TREE, 4 + 2, 3), (RING, 5 + 5, 5)])
def test_one_cable_per_link_and_one_bridge_per_switch(w: WiringPlan, cables: int, bridges: int) -> None:
    assert (len(w.cables), len(w.bridges)) == (cables, bridges)
    assert sum(map(len, w.bridges)) == 2 * cables - w.nodes  # an end of each cable, but for the nodes' own


def test_uplinks_are_oversubscribed() -> None:
    """Two hosts of 25 MB/s share an uplink of 25 MB/s: 2 to 1."""
    assert {cable.rates for cable in TREE.cables} == {(25e6, 25e6)}
    wide = wiring(load_preset("testbed-tree", nodes=4, oversubscription=1.0))
    assert sorted(cable.rates[0] for cable in wide.cables) == [25e6] * 4 + [50e6] * 2


def test_every_end_is_shaped() -> None:
    shapers = lines(RING, "tc")
    assert len(shapers) == 2 * len(RING.cables)
    assert all("rate 200000000bit burst 27042 " in line for line in shapers)


def test_hosts_send_by_reno_and_keep_three_frames_in_their_queues() -> None:
    for node in range(STAR.nodes):
        settings = lines(STAR, "ip", "netns", "exec", f"{PREFIX}{node}")
        assert settings == [
            "echo reno > /proc/sys/net/ipv4/tcp_congestion_control",
            "echo 27042 > /proc/sys/net/ipv4/tcp_limit_output_bytes",
        ]
    assert sum("gso_max_segs 1 " in line for line in lines(STAR, "ip", "-n")) == STAR.nodes


def test_a_burst_is_a_millisecond_or_three_frames() -> None:
    assert burst_bytes(125e6) == 125_000
    assert burst_bytes(1e6) == 3 * 9014


def test_a_ring_forwards_the_short_way() -> None:
    """Of 5 routers, each reaches two nodes one way and two the other way, and its own."""
    per_bridge = [sorted(port for port, _ in RING.forwarding if port in ports) for ports in RING.bridges]
    assert [sorted({p: ports.count(p) for p in ports}.values()) for ports in per_bridge] == [[1, 2, 2]] * 5


def test_only_our_names_are_used() -> None:
    for w in (STAR, TREE, RING):
        assert all(name.startswith(PREFIX) for name in w.namespaces())
        assert all(re.fullmatch(rf"netns add {PREFIX}\S+", line) for line in commands(w)[0][1])
        for program, _ in commands(w)[2:]:
            assert program[1] == "-n" or program[:3] == ("ip", "netns", "exec")
            assert next(word for word in program[2:] if word != "exec").startswith(PREFIX)
        assert all(line.count(f"netns {PREFIX}") == 2 for line in commands(w)[1][1])


@pytest.mark.parametrize(
    ("name", "knobs", "message"),
    [
        ("testbed-star", {"nodes": 1}, "a testbed joins nodes"),
        ("hgx-h100-ndr400", {"nodes": 2}, "found 8 NICs per node, gloo uses one"),
        ("testbed-star", {"nodes": 65}, "at most 64"),
        ("testbed-tree", {"nodes": 8, "fabric": {"spines": 2}}, "depending on where they come from"),
    ],
)
def test_what_cannot_be_built(name: str, knobs: dict[str, object], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        wiring(load_preset(name, **knobs))
