"""Memory of communicators: sizes worked out by hand from NCCL's source, laws, and what threads of its users state."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from commsim.nccl.connections import Connections, allocation
from commsim.nccl.memory import (
    INIT,
    KERNEL_BYTES,
    SENDS,
    WINDOW,
    CommunicatorMemory,
    communicator_memory,
    kernel_bytes,
)
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.version import Version, parse_version
from commsim.topology.presets import load_topology
from commsim.topology.spec import TopologySpec

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
RING, TREE = ("all_reduce", "ring"), ("all_reduce", "tree")
TO_ALL = ("all_to_all", "")


def model(
    name: str, version: Version = (2, 26, 2), ranks: list[int] | None = None, *, nodes: int = 0, **env: str
) -> Predictor:
    spec = TopologySpec(path=f"topologies/{name}.yaml")
    spec = spec.model_copy(update={"nodes": nodes}) if nodes else spec
    return Predictor(load_topology(spec, ROOT), Options(version=version, env=env), ranks=ranks)


def parts(memory: CommunicatorMemory) -> dict[str, float]:
    """MiB of the GPU by kind."""
    return {each.kind: each.gpu / MIB for each in memory.held if each.gpu}


# -- by hand ---------------------------------


def test_buffers_of_a_connection_are_those_of_the_source() -> None:
    a100, h100 = model("dgx-a100"), model("hgx-h100")
    size = allocation(h100.system, h100.machine, h100.version, {})
    assert (size.ll, size.ll128, size.simple) == (8 * 512 * 8 * 16, 120 * 640 * 8 * 8, 4 << 20)
    # The sender has a head, the receiver 0.5 + 4.69 + 4 MiB: 2 and 10 with what is mapped in 2 MiB (nccl 1685).
    assert [Connections(h100, 0).buffers(0, 1, sends)[0] for sends in (True, False)] == [2 << 20, 10485760]
    # sm 80 reads Simple's 4 MiB at the sender.
    assert [Connections(a100, 0).buffers(0, 1, sends)[0] / MIB for sends in (True, False)] == [6, 6]


def test_variables_size_the_buffers() -> None:
    small = model("hgx-h100", NCCL_BUFFSIZE="1048576", NCCL_LL_BUFFSIZE="65536", NCCL_LL128_BUFFSIZE="524288")
    assert [Connections(small, 0).buffers(0, 1, sends)[0] / MIB for sends in (True, False)] == [2, 2]
    assert not [text for text in small.warnings if "NCCL_BUFFSIZE" in text]
    assert [text for text in small.warnings if "NCCL_LL_BUFFSIZE" in text and "times" in text]


@pytest.mark.parametrize("name", ["NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE"])
def test_buffer_of_no_bytes_is_the_default_and_said(name: str) -> None:
    plain = model("hgx-h100")
    none = Predictor(plain.topology, Options(version=(2, 26, 2), env={name: "0"}))
    assert communicator_memory(none, [RING]).held == communicator_memory(plain, [RING]).held
    assert any(text.startswith(f"{name}=0 asks for buffers of no bytes") for text in none.warnings)


@pytest.mark.parametrize(("gpus", "mib"), [(1, 388), (2, 196), (4, 244), (8, 244)])
def test_structures_are_granules_of_channels(gpus: int, mib: int) -> None:
    """Three of each channel and one of each of NVLS, two besides: one GPU alone has 64 channels, others 32 and 24."""
    topology = load_topology(TopologySpec(path="topologies/hgx-h100.yaml", gpus_per_node=gpus), ROOT)
    got = communicator_memory(Predictor(topology, Options(version=(2, 26, 2))))
    assert parts(got)["structures"] == mib
    channels, of_nvls = {1: (64, 0), 2: (32, 0)}.get(gpus, (32, 24))
    assert mib == 2 * (3 * channels + of_nvls + 2)


@pytest.mark.parametrize(
    ("version", "peers", "buffers"),
    [
        ((2, 19, 3), 16, 16 * 2 * 8 * 6),
        ((2, 20, 5), 24, 24 * 2 * 8 * 6),
        ((2, 21, 5), 24, 24 * 2 * 8 * 3),
        ((2, 27, 7), 24, 16 * 2 * 8),
        ((2, 28, 3), 16, 16 * 2 * 8),
    ],
)
def test_nvls_sets_up_all_channels_or_its_own(version: Version, peers: int, buffers: int) -> None:
    h100 = model("hgx-h100", version)
    held = parts(communicator_memory(h100, [("all_reduce", "nvls")]))
    of = Connections(h100, 0)
    assert (of.channels, of.nvls) == (24, 16)
    assert held["NVLS buffers"] == buffers
    ranks = 1 if version >= (2, 23, 0) else 0  # the array of local ranks
    assert held["structures"] == 2 * (3 * max(of.channels, of.p2p) + peers + 1 + ranks)


def test_old_release_connects_rings_and_trees_at_init() -> None:
    got = communicator_memory(model("dgx-a100", (2, 18, 3)), [RING, TREE], rank=0)
    # 24 channels of 6 + 6 MiB; the root of a chain sends to its child over the ring's connection, and receives anew.
    # 32 channels of sends have 16 chunks of 512 KiB each.
    assert parts(got) == {"structures": 2, "ring connections": 288, "tree connections": 144, "pool of sends": 256}
    assert {each.when for each in got.held} == {INIT}
    assert (
        communicator_memory(model("dgx-a100", (2, 18, 3)), (), rank=0).held == got.held
    )  # the calls found all connected
    inside = communicator_memory(model("dgx-a100", (2, 18, 3)), (), rank=3)
    assert parts(inside)["tree connections"] == 288  # between two neighbours both ways are new


def test_new_release_connects_what_is_called() -> None:
    h100 = model("hgx-h100")
    idle = communicator_memory(h100, ())
    # 32 channels have three arrays, 24 those of NVLS, each 2 MiB; the communicator's own and the map of ranks.
    assert parts(idle) == {"structures": 2 * (3 * 32 + 24 + 2), "NVLS credits": 2}
    after = communicator_memory(h100, [("all_reduce", "nvls"), RING, RING, TREE], rank=0)
    assert parts(after) == parts(idle) | {
        "NVLS buffers": 16 * 2 * 8,  # channels, two of each head, 8 steps of 128 KiB
        "ring connections": 24 * 12,
        "tree connections": 24 * 10,
    }
    assert [each.when for each in after.held] == [INIT, INIT, "nvls", "ring", "tree"]
    assert after.gpu_at("ring") == 24 * 12 * MIB


def test_nvls_shrank_by_release() -> None:
    whole = {version: parts(communicator_memory(model("hgx-h100", version)))["NVLS buffers"] for version in _NVLS}
    assert whole == _NVLS
    assert "NVLS buffers" not in parts(communicator_memory(model("hgx-h100", (2, 22, 3))))
    asked = communicator_memory(model("hgx-h100", (2, 22, 3), NCCL_RUNTIME_CONNECT="0"))
    assert parts(asked)["NVLS buffers"] == 256


_NVLS: dict[Version, float] = {(2, 18, 3): 16 * 2 * 8 * 6, (2, 20, 5): 24 * 2 * 8 * 6, (2, 21, 5): 24 * 2 * 8 * 3}


def test_first_all_to_all_connects_all_peers() -> None:
    got = communicator_memory(model("hgx-h100"), [TO_ALL])
    assert parts(got)["connections of sends"] == 7 * 32 * 12
    twice = communicator_memory(model("hgx-h100"), [TO_ALL, ("send_recv", ""), TO_ALL])
    assert twice.held == got.held
    ring = communicator_memory(model("hgx-h100"), [("send_recv", "")])
    assert parts(ring)["connections of sends"] == 32 * 12
    fewer = communicator_memory(model("hgx-h100", NCCL_MAX_P2P_NCHANNELS="8"), [TO_ALL])
    assert parts(fewer)["connections of sends"] == 7 * 8 * 12


def test_root_has_most_of_a_gather() -> None:
    got = communicator_memory(model("hgx-h100"), [("gather", "")])
    assert (got.rank, parts(got)["connections of sends"]) == (0, 7 * 32 * 10)
    got = communicator_memory(model("hgx-h100"), [("scatter", "")], rank=3)
    assert parts(got)["connections of sends"] == 32 * 10


def test_pool_serves_other_nodes() -> None:
    two = model("hgx-h100-ndr400", nodes=2)
    got = communicator_memory(two, [TO_ALL])
    channels = Connections(two, 0).p2p
    # With PXN the GPU beside a NIC has a pool for the sends of each of its node, and one for what it receives itself.
    assert parts(got)["pool of sends"] == (8 + 1) * channels * 16 * 128 / 1024
    alone = communicator_memory(model("hgx-h100-ndr400", nodes=2, NCCL_PXN_DISABLE="1"), [TO_ALL])
    assert parts(alone)["pool of sends"] == 2 * channels * 16 * 128 / 1024
    assert sum(each.host for each in got.held if each.when == SENDS) == 2 * 8 * Connections(two, 0).per_peer * 2 * 4096


def test_pool_of_old_releases() -> None:
    old = communicator_memory(model("hgx-h100-ndr400", (2, 18, 3), nodes=2), [TO_ALL])
    channels = Connections(model("hgx-h100-ndr400", (2, 18, 3), nodes=2), 0).p2p
    pools = [(each.when, each.gpu / MIB) for each in old.held if each.kind == "pool of sends"]
    assert pools == [(INIT, 8 * channels * 2), (SENDS, channels * 2)]  # sends of each GPU of the node; what it receives
    one = communicator_memory(model("dgx-a100-hdr200", (2, 10, 3), nodes=2), [TO_ALL])
    channels = Connections(model("dgx-a100-hdr200", (2, 10, 3), nodes=2), 0).p2p
    # Both ways eight sends of a channel with a slice of a MiB each, and nothing before the first.
    assert [(e.when, e.gpu / MIB) for e in one.held if e.kind == "pool of sends"] == [(SENDS, 2 * channels * 8)]


def test_pat_is_connected_by_powers_of_two() -> None:
    alone = model("hgx-h100-ndr400", nodes=8, ranks=[8 * node for node in range(8)])
    got = communicator_memory(alone, [("all_gather", "pat")])
    # Ranks at distances 1, 2 and 4, of which 4 is one: five, to and from each 10 MiB on every channel.
    assert parts(got)["PAT connections"] == 5 * (10 + 10) * Connections(alone, 0).channels


def test_head_of_nvls_tree_has_parent_and_children() -> None:
    four = model("hgx-h100-ndr400", nodes=4)
    got = communicator_memory(four, [("all_reduce", "nvls_tree")], rank=16)
    # Half of 16 channels follow the tree where node 2 has a parent and two children, half that where it is a leaf.
    assert parts(got)["NVLSTree connections"] == 8 * (3 + 1) * (10 + 10)
    root = communicator_memory(four, [("all_reduce", "nvls_tree")], rank=0)
    assert parts(root)["NVLSTree connections"] == 8 * (1 + 1) * (10 + 10)


def test_collnet_has_a_pool_and_joins_all_with_heads() -> None:
    spec = TopologySpec(path="validation/machines/hgx-h100-ndr400-sharp.yaml").model_copy(update={"nodes": 2})
    options = Options(version=(2, 26, 2), env={"NCCL_COLLNET_ENABLE": "1"})
    sharp = Predictor(load_topology(spec, ROOT), options)
    channels, heads = Connections(sharp, 0).channels, sharp.system.collnet_heads
    got = communicator_memory(sharp, [("all_reduce", "collnet_direct")], rank=0)
    assert parts(got)["CollNet pool"] == 2 * channels * 4
    # With the other heads as theirs, with all others as their head: to and from, each on a connector of its own.
    assert parts(got)["CollNet connections"] == channels * (heads - 1 + 7) * (2 + 10)
    chain = communicator_memory(sharp, [("all_reduce", "collnet_chain")], rank=0)
    assert sharp.system.collnet_chain is not None
    orders = sharp.system.collnet_chain.orders
    neighbours = [1 if 0 in (order[0], order[-1]) else 2 for order in orders]  # at an end of the chain one
    assert parts(chain)["CollNet connections"] == 12 * sum(neighbours[c % len(orders)] for c in range(channels))


def test_buffers_lie_in_the_host_where_gpus_do_not_meet() -> None:
    hidden = communicator_memory(model("hgx-h100", NCCL_P2P_DISABLE="1"), [RING])
    ring = next(each for each in hidden.held if each.kind == "ring connections")
    channels = Connections(model("hgx-h100", NCCL_P2P_DISABLE="1"), 0).channels
    assert (ring.gpu, ring.host) == (0, channels * (2 * 4096 + 524288 + 4915200 + 4194304))
    far = communicator_memory(model("hgx-h100-ndr400", nodes=2, NCCL_NET_GDR_LEVEL="LOC"), [TO_ALL])
    assert "pool of sends" not in parts(far)


def test_window_takes_buffers_of_low_latency() -> None:
    for version, held in (((2, 28, 9), 10 * MIB), ((2, 27, 3), 10 * MIB), ((2, 26, 2), 0)):
        plain = model("hgx-h100", version)
        registered = Predictor(plain.topology, replace(plain.options, registered="window"))
        assert communicator_memory(registered).gpu_at(WINDOW) == held


def test_kernels_are_those_of_the_last_release_read() -> None:
    assert kernel_bytes(90, (2, 27, 3)) == KERNEL_BYTES[2][1][90] == 101_906_652
    assert kernel_bytes(86, (2, 8, 3)) == kernel_bytes(80, (2, 18, 1)) == 58_355_296
    assert kernel_bytes(100, (2, 28, 9)) == kernel_bytes(103, (2, 30, 7)) == 98_964_492


# -- laws ---------------------------------


@pytest.mark.parametrize(
    "version", [(2, 8, 4), (2, 12, 12), (2, 18, 3), (2, 21, 5), (2, 22, 3), (2, 28, 9), (2, 30, 7)]
)
@pytest.mark.parametrize("name", ["dgx-a100", "hgx-h100", "hgx-h100-ndr400", "v100-sxm2-4", "rtx3090"])
def test_memory_grows_with_calls_and_never_shrinks(name: str, version: Version) -> None:
    one = model(name, version, nodes=2 if "ndr" in name else 0)
    before = communicator_memory(one, ())
    for calls in ([RING], [RING, TREE], [RING, TREE, TO_ALL]):
        after = communicator_memory(one, calls)
        assert after.gpu >= before.gpu > 0
        assert after.host >= before.host > 0
        before = after
    fewer = communicator_memory(model(name, version, nodes=2 if "ndr" in name else 0, NCCL_MAX_CTAS="1"), calls)
    assert fewer.gpu + fewer.host < before.gpu + before.host


def test_order_of_algorithms_does_not_matter_in_the_end() -> None:
    two = model("hgx-h100-ndr400", nodes=2)
    calls = [RING, TREE, ("all_reduce", "nvls_tree")]
    forth, back = communicator_memory(two, calls, rank=5), communicator_memory(two, calls[::-1], rank=5)
    assert forth.gpu == back.gpu
    assert forth.host == back.host


def test_many_nodes_take_what_sixteen_do_but_for_arrays() -> None:
    few, many = (communicator_memory(model("hgx-h100-ndr400", nodes=nodes), [RING, TREE]) for nodes in (16, 64))
    assert parts(few)["ring connections"] == parts(many)["ring connections"]
    assert parts(few)["tree connections"] == parts(many)["tree connections"]
    assert parts(few)["structures"] <= parts(many)["structures"]


# -- what threads state ---------------------------------


def _stated() -> list[dict[str, str]]:
    with (ROOT / "validation/communicator_memory.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("row", _stated(), ids=lambda row: row["id"])
def test_memory_is_what_a_thread_states(row: dict[str, str]) -> None:
    env = dict(pair.split("=") for pair in row["env"].split())
    version, ranks = parse_version(row["nccl"]), [int(rank) for rank in row["ranks"].split()]
    topology = load_topology(TopologySpec(path=row["topology"]), ROOT)
    made = Predictor(topology, Options(version=version, env=env), ranks=ranks)
    calls = [(row["collective"], row["algorithm"])] if row["collective"] else []
    got = communicator_memory(made, calls, rank=int(row["rank"]))
    nbytes = got.gpu
    if row["of"] == "pool of sends":
        nbytes = next(each.gpu for each in got.held if each.kind == row["of"])
    if row["of"].endswith("kernels"):
        nbytes += kernel_bytes(topology.gpu.sm, version)
    assert nbytes == pytest.approx(float(row["stated"]) * float(row["unit_bytes"]), rel=0.05)
