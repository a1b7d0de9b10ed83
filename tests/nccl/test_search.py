"""The search on nodes drawn by hand: what fits is found, what does not is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.nccl.search import search
from commsim.nccl.view import view_of
from commsim.topology.graph import Topology
from commsim.topology.presets import load_topology
from commsim.topology.spec import TopologySpec

VERSION = (2, 26, 2)


def machine(links: int, kind: str = "switch", gpus: int = 4, sm: int = 80, nics: int = 0) -> Topology:
    """A node of Ampere GPUs, each with so many NVLinks; with NICs two nodes."""
    node = {
        "gpus": gpus,
        "nvlink": {"kind": kind, "links": links, "bandwidth": "25 GB/s"},
        "pcie": {"bandwidth": "24 GB/s", "sockets": 1},
    }
    spec: dict[str, object] = {
        "gpu": {"model": "A100", "generation": "ampere", "sm": sm},
        "cpu": {"arch": "x86_64", "vendor": "amd"},
    }
    if nics:
        node["nic"] = {"count": nics, "bandwidth": "25 GB/s", "latency": "1 us"}
        spec["fabric"] = {"kind": "single_switch", "network": "infiniband"}
        spec["nodes"] = 2
    return load_topology(TopologySpec.model_validate(spec | {"node": node}), Path())


@pytest.mark.parametrize(("links", "channels", "gbps"), [(2, 2, 20.0), (4, 4, 20.0), (12, 12, 20.0)])
def test_one_ring_per_link_of_twenty(links: int, channels: int, gbps: float) -> None:
    found = search(view_of(machine(links), VERSION, {}), "RING", VERSION, least=1, most=32, cross_nic=2)
    assert (found.channels, found.intra) == (channels, gbps)


def test_every_channel_visits_every_gpu_once() -> None:
    found = search(view_of(machine(6, "mesh"), VERSION, {}), "RING", VERSION, least=1, most=32, cross_nic=2)
    assert found.channels
    assert all(sorted(order) == [0, 1, 2, 3] for order in found.orders)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from([3, 6, 9, 12]), st.sampled_from(["switch", "mesh"]))
def test_rings_never_take_more_than_the_links_have(links: int, kind: str) -> None:
    view = view_of(machine(links, kind), VERSION, {})
    before = list(view.left)
    found = search(view, "RING", VERSION, least=1, most=32, cross_nic=2)
    assert view.left == before
    used = [0.0] * len(before)
    for order in found.orders:
        for a, b in zip(order, [*order[1:], order[0]], strict=True):
            for link in view.gpu_gpu[a][b].links:
                used[link] += found.intra
    assert all(u <= has + 0.01 for u, has in zip(used, before, strict=True))


def test_heads_of_nvls_need_a_hopper_switch() -> None:
    assert search(view_of(machine(12), VERSION, {}), "NVLS", VERSION, least=1, most=32, cross_nic=2).channels == 0
    hopper = search(view_of(machine(12, sm=90), VERSION, {}), "NVLS", VERSION, least=1, most=32, cross_nic=2)
    assert hopper.channels == 4


@pytest.mark.parametrize(
    ("gpus", "nics", "gbps"),
    [
        (2, 1, 20.0),  # all of the channel crosses the one link
        (4, 1, 48.0),  # a third of it crosses each link of the head, 16 of 20
        (4, 2, 30.0),  # two heads meet on the link between them: 2 x 10 of 20, as 48 would take 2 x 16
        (4, 4, 30.0),
    ],
)
def test_a_head_of_collnet_direct_shares_a_channel_among_the_other_gpus(gpus: int, nics: int, gbps: float) -> None:
    """One NVLink of 20 GB/s between any two GPUs; one head per NIC."""
    view = view_of(machine(gpus - 1, "mesh", gpus, nics=nics), VERSION, {})
    found = search(view, "COLLNET_DIRECT", VERSION, least=1, most=32, cross_nic=2)
    assert (found.channels, found.intra) == (nics, gbps)


@pytest.mark.parametrize(
    ("preset", "gpus", "ends"),
    [
        ("hgx-h100-4-ndr400", range(4), ("node0.gpu0", "node0.gpu2")),
        ("gh200x4-ndr200", (0, 1, 3), ("node0.gpu0", "node0.gpu1")),
        ("hgx-a100-4-hdr200", (1, 2, 3), None),
    ],
)
@pytest.mark.parametrize("version", [(2, 18, 3), (2, 26, 2)])
def test_what_is_left_out_as_hopeless_changes_nothing(
    preset: str, gpus: Any, ends: tuple[str, str] | None, version: Any, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Of nodes with a GPU that has lost a link, or has no rank, also without the bound of each GPU's own links."""
    from commsim.nccl import search as module
    from commsim.nccl.graph import _search_all
    from commsim.topology.part import alike

    faults = [{"link": list(ends), "failed": True}] if ends else None
    spec = TopologySpec.model_validate({"preset": preset, "nodes": 2, "faults": faults})
    part = alike(load_topology(spec, Path()), 0, tuple(gpus), 2)
    bounded = _search_all(part, version, {})
    monkeypatch.setattr(module._Search, "_ports", lambda *_, **__: [])
    assert _search_all(part, version, {}) == bounded
