"""Caches between pools: their ways, what they take, and how they share links."""

from __future__ import annotations

import numpy as np
import pytest
import simpy

from commsim.generation.cache_send import NETWORK_EFFICIENCY, SETUP_S, CacheWays, PoolPlace, ways
from commsim.generation.memory import replica_memory
from commsim.generation.replica import Replica
from commsim.topology.kinds import LinkKind
from commsim.topology.presets import load_preset
from commsim.training.accelerator import accelerator
from commsim.training.model import model

NIC = NETWORK_EFFICIENCY * 50e9
TOPOLOGY = load_preset("hgx-h100-ndr400", nodes=2)


def _replica(tp: int, name: str = "llama-3-8b", groups: int = 1) -> Replica:
    return Replica(model(name), accelerator("H100"), tp=tp, attention_dp=groups, moe_ep=groups)


def _ways(reader: Replica, readers: tuple[int, ...], decoder: Replica, decoders: tuple[int, ...]) -> CacheWays:
    return CacheWays(PoolPlace(reader, readers), PoolPlace(decoder, decoders), TOPOLOGY)


@pytest.mark.parametrize(("src", "dst"), [(0, 8), (0, 9), (5, 8), (7, 15), (3, 12)])
def test_a_way_between_nodes_leaves_and_comes_in_by_the_nics_of_its_gpus(src: int, dst: int) -> None:
    t = TOPOLOGY
    link, pair = ways(t, np.array([[src, dst]]))
    assert not pair.any()
    wires = link[t.link_kind[link] == LinkKind.NETWORK]
    own = [t.routes([rank], [other]).along()[0] for rank, other in ((src, src + 8), (dst - 8, dst))]
    leaves, comes = own[0][t.link_kind[own[0]] == LinkKind.NETWORK], own[1][t.link_kind[own[1]] == LinkKind.NETWORK]
    assert (wires[0], wires[-1]) == (leaves[0], comes[-1])
    assert t.link_src[link[0]] == t.rank_vertex[src]
    assert t.link_dst[link[-1]] == t.rank_vertex[dst]


def test_a_way_inside_a_node_is_the_machines() -> None:
    link, _ = ways(TOPOLOGY, np.array([[0, 3]]))
    assert link.tolist() == TOPOLOGY.routes([0], [3]).along()[0].tolist()


def test_every_gpu_that_decodes_gets_its_part_at_the_rate_of_its_nic() -> None:
    four = _replica(4)
    way = _ways(four, (0,), four, (8,))
    nbytes = replica_memory(four).sequence_bytes(8000)
    assert nbytes == pytest.approx(8000 * 131072 / 4)
    assert way.seconds(0, 0, 8000) - SETUP_S == pytest.approx(nbytes / NIC, rel=1e-2)
    assert not way.meets
    near = _ways(four, (0,), four, (4,))
    assert near.seconds(0, 0, 8000) < way.seconds(0, 0, 8000) / 3  # over NVLink


def test_two_halves_that_one_gpu_made_leave_by_its_one_nic() -> None:
    """Of a reader of two GPUs each has what two of four GPUs that decode want."""
    wide = _ways(_replica(2), (0,), _replica(4), (8,))
    narrow = _ways(_replica(4), (0,), _replica(4), (8,))
    assert wide.seconds(0, 0, 8000) == pytest.approx(2 * narrow.seconds(0, 0, 8000), rel=1e-2)


def test_latent_caches_are_whole_on_every_rank() -> None:
    """Every rank of tensor parallelism holds all of MLA's cache, a group of attention one alone."""
    reader = _replica(8, "deepseek-v3")
    groups = _replica(1, "deepseek-v3", groups=8)
    one, all_ranks = (_ways(reader, (0,), r, (8,)) for r in (groups, reader))
    assert one.seconds(0, 0, 4096) == pytest.approx(all_ranks.seconds(0, 0, 4096), rel=1e-2)


def _sent_together(way: CacheWays, pairs: list[tuple[int, int]], tokens: int) -> list[float]:
    env, send, ends = simpy.Environment(), way.sender(), []

    def one(reader: int, decoder: int):  # type: ignore[no-untyped-def]
        yield from send(env, reader, decoder, tokens)
        ends.append(env.now)

    for pair in pairs:
        env.process(one(*pair))
    env.run()
    return ends


def test_caches_for_one_replica_share_its_nics_and_those_of_a_pair_follow_one_another() -> None:
    four = _replica(4)
    way = _ways(four, (0, 4), four, (8, 12))
    alone = way.seconds(0, 0, 8000)
    assert way.meets
    assert _sent_together(way, [(0, 0), (1, 1)], 8000) == pytest.approx([alone, alone])
    assert _sent_together(way, [(0, 0), (1, 0)], 8000) == pytest.approx([2 * alone, 2 * alone], rel=1e-2)
    assert _sent_together(way, [(0, 0), (0, 0), (0, 0)], 8000) == pytest.approx([alone, 2 * alone, 3 * alone])
