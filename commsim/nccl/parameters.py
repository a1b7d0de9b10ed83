"""The physical parameters of the channel model: a file per GPU generation and one per kind of network.

Each says what one thing costs: launching a kernel, starting it, one more channel, handing data to the next rank, and
how fast a thread block or a link moves bytes. `validation/parameters.csv` says where each value comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

from commsim.document import read_documents, validate
from commsim.errors import TopologyError
from commsim.fields import Bandwidth, Bytes, Seconds
from commsim.nccl.environment import whole
from commsim.nccl.protocols import LL, Protocol
from commsim.topology.graph import Topology

GENERATIONS = ("volta", "turing", "ampere", "ada", "hopper", "blackwell")
NETWORKS = ("infiniband", "roce", "slingshot", "slingshot_software", "efa", "efa_v1", "tcpx", "ethernet")
"""Kinds of network with parameters of their own (`network_of`)."""

ONE_QUEUE_SINCE = (2, 14, 0)
"""From 2.14 the work of all channels is written to one queue at once (src/enqueue.cc, uploadWork); before, each channel
had a queue, whose slot the host waited for (getNextOp)."""

MATCH_MODE = "FI_CXI_RX_MATCH_MODE"

COPY_LIMIT = "FI_CXI_SAFE_DEVMEM_COPY_THRESHOLD"

MATCHED_BY_PROCESSOR = "slingshot_software"
"""The network whose messages a processor matches, and copies from where they came to where NCCL reads them."""

_ASKS_FROM = 16 << 10
"""Bytes from which libfabric asks before it sends, whatever a processor may copy (prov/cxi, CXIP_RDZV_THRESHOLD)."""

MATCHED_BY_NIC = 8
"""Nodes up to which a NIC of Slingshot is taken to match messages where nothing says so: left to it, all_gather and
all_to_all of Polaris take 0.3 to 0.7 of the processor's time over 2 and 8 nodes, and as long over 256."""

_LATENCY_OF_PASS = 0.5
"""Part of the time of a full block's pass of LL that a pass of fewer threads takes too: a thread takes its next 8 bytes
when it has handed on those before (measured with 64 to 512 threads of V100 and A100, validation/evidence.md)."""

_FOLDER = Path(__file__).parent

B = TypeVar("B", bound=BaseModel)


class Frozen(BaseModel):
    """Figures of a file, every one of them known."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class _OfProtocols(Frozen):
    def of(self, protocol: str) -> float:
        """The value for a protocol name."""
        return float(getattr(self, protocol))


class PerProtocol(_OfProtocols):
    """One time per protocol."""

    LL: Seconds
    LL128: Seconds
    Simple: Seconds


class Rates(_OfProtocols):
    """Payload bytes per second that one thread block moves, per protocol."""

    LL: Bandwidth
    LL128: Bandwidth
    Simple: Bandwidth


class HopTimes(Frozen):
    """Time from "slice sent" to "receiver may use it" beyond the slice's own transmission, per kind of path."""

    nvlink: PerProtocol
    pcie: PerProtocol


class Efficiency(Frozen):
    """Share of a link's nominal rate that payload plus protocol flags reach (packet headers, flow control)."""

    nvlink_direct: float
    nvlink_switch: float
    pcie: float
    host: float  # of PCIe, where one GPU writes into the memory of a host what the other reads
    nvls: float  # of the NVLink rate, for a reduction in the switch
    lines: float  # LL and LL128 over NVLink, as a share of what Simple reaches: sm 80 writes lines, but reads slices

    def inside(self, kind: str, protocol: Protocol) -> float:
        """Share that a protocol reaches inside a node on nvlink_direct, nvlink_switch, pcie or (by its) host."""
        lines = 1.0 if protocol.is_simple or kind in ("pcie", "host") else self.lines
        return float(getattr(self, kind)) * lines


class Launch(Frozen):
    """Time the host needs per call, hidden behind the previous kernel in back-to-back runs."""

    one_process: Seconds  # for each GPU that the process drives
    process_per_gpu: Seconds
    grouped_one_process: Seconds  # the same for a group of sends and receives
    grouped_process_per_gpu: Seconds

    def seconds(self, gpus: int, *, one_process: bool, grouped: bool) -> float:
        """What the host, or each host process, of a node of ``gpus`` needs for a call."""
        alone = self.grouped_process_per_gpu if grouped else self.process_per_gpu
        shared = self.grouped_one_process if grouped else self.one_process
        return float(shared * gpus if one_process else alone)


class Nvls(Frozen):
    """Reduction in the NVSwitch: the way of one round through the switch, and what every further round adds."""

    latency: Seconds
    round: Seconds
    tree_latency: Seconds  # NVLSTree: the rounds at both ends of the network's tree
    tree_round: Seconds


class PointToPoint(Frozen):
    """Sends and receives: start of the kernel, and the rate of one channel of a peer."""

    base: Seconds
    channel_rate: Bandwidth


class NetworkParameters(Frozen):
    """What a kind of network costs, whatever GPU sits at its ends."""

    name: str
    provenance: str
    ring_hop: PerProtocol  # from "message complete" to "receiver may use it": proxy, NIC, fabric, NIC, proxy
    tree_hop: PerProtocol  # the same in a tree, whose thread blocks do two things at a time
    rendezvous: Seconds  # what a message above `eager` waits for besides
    eager: Bytes  # largest message that is sent without asking
    message_cost: PerProtocol  # time between two messages of one NIC: its proxy thread posts and polls them in turn
    connection_cost: PerProtocol  # time between two messages of one connection, however many there are
    ordering: Seconds  # until a message is acknowledged, where the next one waits for that (`nccl.messages`)
    spread: Seconds  # how much later the slowest of twice as many NICs is
    peer_cost: Seconds  # each remote peer of an all_to_all
    inline: Bytes  # largest message whose bytes the host itself hands to the NIC
    inline_cost: Seconds  # what that takes beside `peer_cost` where it must read them from a GPU
    fetch: Seconds  # what a NIC takes to read a larger one of LL, which lies in host memory
    channel_rate: Bandwidth  # payload bytes/s of one channel of a send to another node
    efficiency: float  # payload share of the NIC's nominal rate
    all_to_all_efficiency: float  # the same when every rank sends to every other
    through_host_efficiency: float  # share of that where NIC and GPU meet in the PCIe root of a host, not in a switch
    copy_rate: Bandwidth | None = None  # of the proxy of one GPU, sent and received together, where a processor copies

    def at_least(self, seconds: float) -> NetworkParameters:
        """The same with no hop shorter; itself where none is."""

        def hops(block: PerProtocol) -> PerProtocol:
            short = {name: seconds for name in PerProtocol.model_fields if block.of(name) < seconds}
            return block.model_copy(update=short) if short else block

        rings, trees = hops(self.ring_hop), hops(self.tree_hop)
        if rings is self.ring_hop and trees is self.tree_hop:
            return self
        return self.model_copy(update={"ring_hop": rings, "tree_hop": trees})


class Parameters(Frozen):
    """All parameters of one GPU generation, and those of the network between its nodes."""

    generation: str
    provenance: str
    launch: Launch
    base: PerProtocol  # kernel start and end
    channel_cost: Seconds  # each further channel
    channel_cost_before_2_14: Seconds  # the same while every channel had a work queue of its own (`ONE_QUEUE_SINCE`)
    block_rate: Rates
    flag_rate: Bandwidth  # payload of LL whose flags a proxy of the hosts of this generation checks, in host memory
    copy_rate: Bandwidth  # of a copy from GPU memory to GPU memory: what a collective of one rank is
    keep_rate: Bandwidth | None = None  # Simple: of a block that puts what a loop brings last to its place
    staging_rate: Bandwidth | None = None  # sm 80: of a block that copies into a buffer its neighbour reads
    drain: Seconds  # sm 80: a block's wait for the reads of a slice's last full pass
    first_pass: Seconds  # Simple: fencing a full pass of the thread block instead of a few stores
    pass_share: float  # LL, LL128: part of the time of a pass of the block that goes by until all of it is written
    pause: PerProtocol  # a block's wait, barriers and fence, when nothing moves: Simple per slice, others per chunk
    ring_hop: HopTimes
    tree_hop: HopTimes
    efficiency: Efficiency
    nvls: Nvls
    point_to_point: PointToPoint
    network: NetworkParameters

    def channel_cost_of(self, version: tuple[int, int, int]) -> float:
        """Seconds for each channel after the first, for an NCCL version."""
        return float(self.channel_cost if version >= ONE_QUEUE_SINCE else self.channel_cost_before_2_14)

    def ll_rate(self, threads: int) -> float:
        """Payload bytes/s that so many threads of a block pass on of LL."""
        part = min(1.0, threads / LL.max_threads)
        return float(self.block_rate.LL) * part / (_LATENCY_OF_PASS + (1 - _LATENCY_OF_PASS) * part)

    def hop_inside(self, hops: HopTimes, kind: str, protocol: str) -> float:
        """Seconds of a hop inside a node over links of a kind (`Efficiency.inside`), for a protocol name.

        Through the memory of a host it is never sooner than over NVLink.
        """
        if kind == "host":
            return max(hops.pcie.of(protocol), hops.nvlink.of(protocol))
        return hops.pcie.of(protocol) if kind == "pcie" else hops.nvlink.of(protocol)

    def scaled(self, latency: float = 1.0, launch: float = 1.0) -> Parameters:
        """The same with every hop, and what the host needs to launch, taking so many times as long; rates stay."""

        def times(block: B, factor: float, *fields: str) -> B:
            return block.model_copy(update={name: factor * float(getattr(block, name)) for name in fields})

        def hop(block: PerProtocol) -> PerProtocol:
            return times(block, latency, "LL", "LL128", "Simple")

        def hops(block: HopTimes) -> HopTimes:
            return block.model_copy(update={"nvlink": hop(block.nvlink), "pcie": hop(block.pcie)})

        network = self.network.model_copy(
            update={"ring_hop": hop(self.network.ring_hop), "tree_hop": hop(self.network.tree_hop)}
        )
        update = {
            "ring_hop": hops(self.ring_hop),
            "tree_hop": hops(self.tree_hop),
            "nvls": times(self.nvls, latency, "latency", "tree_latency"),
            "network": times(network, latency, "rendezvous", "ordering", "spread", "fetch"),
            "launch": times(self.launch, launch, *Launch.model_fields),
        }
        return self.model_copy(update=update)


def network_of(topology: Topology, env: Mapping[str, str]) -> str:
    """The one of `NETWORKS` that a job's calls go over; the first on one node.

    Slingshot's NICs match a message with its receiver's buffer themselves unless libfabric is told to leave that to the
    processor (fi_cxi(7), FI_CXI_RX_MATCH_MODE), or their lists run out, which they are taken to do in large jobs
    (`MATCHED_BY_NIC`) unless the variable says ``hardware``.
    """
    if topology.nodes == 1:
        return NETWORKS[0]
    if topology.network != "slingshot":
        return topology.network
    mode = env.get(MATCH_MODE, "").strip().lower()
    by_nic = mode == "hardware" or (mode != "software" and topology.nodes <= MATCHED_BY_NIC)
    return "slingshot" if by_nic else MATCHED_BY_PROCESSOR


def of_job(parameters: Parameters, env: Mapping[str, str]) -> Parameters:
    """The parameters under a job's variables.

    A processor that matches messages stores one of up to 4 KiB in the memory of a GPU itself, and has a larger one
    copied by CUDA, which takes longer; FI_CXI_SAFE_DEVMEM_COPY_THRESHOLD moves that limit (prov/cxi, cxip_copy_to_md).
    """
    limit = whole(env, COPY_LIMIT)
    if limit is None or parameters.network.name != MATCHED_BY_PROCESSOR:
        return parameters
    network = parameters.network.model_copy(update={"eager": min(limit, _ASKS_FROM)})
    return parameters.model_copy(update={"network": network})


@lru_cache(maxsize=64)
def load_parameters(generation: str, network: str = "infiniband") -> Parameters:
    """The shipped parameters of a GPU generation (`GENERATIONS`) on a kind of network (`NETWORKS`)."""
    for value, known, kind in ((generation, GENERATIONS, "GPU generation"), (network, NETWORKS, "network")):
        if value not in known:
            raise TopologyError(f"found the {kind} {value!r}, expected one of {', '.join(known)}")
    gpu, fabric = (
        read_documents(_FOLDER / folder / f"{name}.yaml", error=TopologyError)[0]
        for folder, name in (("generations", generation), ("networks", network))
    )
    merged = replace(gpu, data=gpu.data | {"network": fabric.data})
    return validate(Parameters, merged, error=TopologyError)
