"""What a topology may say: the models behind ``topology:`` in a scenario and the files in ``topologies/``.

A scenario names a machine in one of four ways and may then set the knobs `nodes`, `gpus_per_node`,
`nics_per_node`, `nic_bandwidth`, `oversubscription` and `nodes_per_leaf`, and list `faults`::

    topology: {preset: hgx-h100-ndr400, nodes: 64, oversubscription: 2}     # a shipped file
    topology: {path: my-machine.yaml, nodes: 2}                             # your file, beside the scenario
    topology:                                                               # in place
      gpu: {model: RTX 4090, generation: ada, sm: 89}
      cpu: {arch: x86_64, vendor: amd}
      node:
        gpus: 4
        pcie: {bandwidth: 24 GB/s, latency: 0.2 us, sockets: 2, socket_bandwidth: 16 GB/s}
        nic: {count: 1, bandwidth: 100 Gb/s, attach: host}
      fabric: {kind: single_switch, network: roce}
      nodes: 2
    topology:                                                               # different nodes in one cluster
      groups: [{preset: hgx-h100-ndr400, nodes: 4}, {preset: dgx-a100-hdr200, nodes: 2}]
      fabric: {kind: fat_tree, nodes_per_leaf: 2}
      faults: [{nic: [0, 3], bandwidth_factor: 0.5}, {link: [leaf0, spine0], failed: true}]

`gpu`, `cpu`, `node` and `fabric` beside `preset` or `path` replace single fields of that machine. A file
holds the same four blocks, and `extends: NAME` to start from a shipped one. `node` is either a pattern, as
above (NVLink of kind `switch`, `mesh`, `cube_mesh`, `pairs` or `none`; a PCIe tree; C2C), or vertices and
links written out::

    node:
      vertices: {gpu0: gpu, gpu1: gpu, sw0: pcie_switch, cpu0: host, nic0: nic}
      links:
        - {ends: [gpu0, gpu1], kind: nvlink, bandwidth: 25 GB/s, count: 4, latency: 0.2 us}
        - {ends: [gpu0, sw0], kind: pcie, bandwidth: 24 GB/s}

A link's `bandwidth` is that of one link in one direction; `count` links in parallel carry `count` times as
much.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from commsim.fields import Bandwidth, Bytes, Seconds
from commsim.units import GIGA

Text = Annotated[str, Field(strict=True, min_length=1, max_length=200)]
Name = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]
Factor = Annotated[float, Field(strict=True, ge=1, le=1e6, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]
Index = Annotated[int, Field(strict=True, ge=0)]
Nodes = Annotated[int, Field(strict=True, ge=1, le=65536)]
Gpus = Annotated[int, Field(strict=True, ge=1, le=576)]
Nics = Annotated[int, Field(strict=True, ge=0, le=576)]
Links = Annotated[int, Field(strict=True, ge=0, le=64)]


def optional(description: str) -> Any:
    """A field that may be left out."""
    return Field(default=None, description=description)


class _Block(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class GpuSpec(_Block):
    """The GPU of every rank; generation `cpu` for ranks that are processes without one, then `sm` is 0."""

    model: Text | None = optional("as the vendor calls it")
    generation: Literal["volta", "turing", "ampere", "ada", "hopper", "blackwell", "cpu"] | None = optional(
        "of its architecture; `cpu` for ranks that are processes without a GPU"
    )
    sm: Annotated[int, Field(strict=True, ge=0, le=200)] | None = optional(
        "compute capability times ten, such as 90; 0 for `cpu`"
    )
    peer_to_peer: bool | None = optional(
        "whether GPUs may write to each other's memory over PCIe, which the driver of a GeForce denies; "
        "left out: they may"
    )

    @model_validator(mode="after")
    def _sm_of_a_gpu(self) -> GpuSpec:
        if self.generation not in ("cpu", None) and self.sm is not None and self.sm < 10:
            raise ValueError(f"sm: found {self.sm}, expected the compute capability times ten, such as 90")
        return self


class CpuSpec(_Block):
    """The host CPU; NCCL's tuner reads architecture and vendor, gloo's model the `cores` that a node's ranks share."""

    arch: Literal["x86_64", "arm64", "ppc64"] | None = optional("NCCL's choice depends on it")
    vendor: Literal["intel", "amd", "arm", "ibm", "zhaoxin"] | None = optional("NCCL's choice depends on it")
    model: Text | None = optional("NCCL's choice depends on it")
    cores: Annotated[int, Field(strict=True, ge=1, le=4096)] | None = optional(
        "those that the ranks of a node share, for gloo"
    )


class NvlinkSpec(_Block):
    """NVLink inside a node; its NVSwitches are drawn as one."""

    kind: Literal["switch", "mesh", "cube_mesh", "pairs", "none"] | None = optional(
        "how links are wired: to NVSwitches, shared evenly by the other GPUs, the DGX-1's, or bridges that "
        "join 0-1, 2-3 ..."
    )
    links: Links | None = optional("per GPU")
    bandwidth: Bandwidth | None = optional("of one link, one direction")
    latency: Seconds | None = optional("of one link")


class PcieSpec(_Block):
    """GPUs under PCIe switches under the host bridges of CPUs; boards of sockets are joined by NVLink only."""

    bandwidth: Bandwidth | None = optional("of a GPU's link, one direction")
    latency: Seconds | None = optional("of a link")
    sockets: Annotated[int, Field(strict=True, ge=1, le=288)] | None = optional("CPUs, each a host bridge")
    gpus_per_switch: Annotated[int, Field(strict=True, ge=0, le=64)] | None = optional(
        "0 for GPUs right under the host bridge"
    )
    switch_bandwidth: Bandwidth | None = optional("uplink of a switch; left out: `bandwidth`")
    socket_bandwidth: Bandwidth | None = optional("between two sockets")
    socket_latency: Seconds | None = optional("between two sockets")
    linked_sockets: Annotated[int, Field(strict=True, ge=1, le=288)] | None = optional(
        "sockets joined all to all on one board; left out: all"
    )


class C2cSpec(_Block):
    """NVLink-C2C from each GPU to its own CPU, instead of PCIe (superchips)."""

    bandwidth: Bandwidth | None = optional("of a GPU to its own CPU, one direction")
    latency: Seconds | None = optional("of that link")


class NicSpec(_Block):
    """The NICs of a node, spread over its GPUs."""

    count: Nics | None = optional("per node")
    bandwidth: Bandwidth | None = optional("of one card, one direction")
    latency: Seconds | None = optional("of one card and its cable to the leaf")
    attach: Literal["switch", "host"] | None = optional("beside a GPU under its PCIe switch, or under its host")
    pcie_bandwidth: Bandwidth | None = optional("of the card's own PCIe link; left out: that of the PCIe tree")


class LinkSpec(_Block):
    """One written-out link, both directions alike."""

    ends: tuple[Name, Name] = Field(description="two vertices")
    kind: Literal["nvlink", "c2c", "pcie", "host"] = Field(description="what it is")
    bandwidth: Bandwidth = Field(description="of one link, one direction")
    latency: Seconds = Field(default=0.0, description="of one link")
    count: Annotated[int, Field(strict=True, ge=1, le=64)] = Field(
        default=1, description="links in parallel, which carry so many times as much"
    )


class NodeSpec(_Block):
    """One node: a pattern (`gpus`, `nvlink`, `pcie`, `c2c`), or `vertices` and `links`; and its NICs."""

    gpus: Gpus | None = optional("how many")
    nvlink: NvlinkSpec | None = optional("NVLink between them")
    pcie: PcieSpec | None = optional("the PCIe tree")
    c2c: C2cSpec | None = optional("NVLink-C2C to CPUs instead of PCIe (superchips)")
    nic: NicSpec | None = optional("network cards")
    vertices: dict[Name, Literal["gpu", "nvswitch", "pcie_switch", "host", "nic", "card"]] | None = Field(
        default=None,
        max_length=2048,
        description="written out: name to kind of every part, with `links`; a card is a device whose ports are NICs",
    )
    links: Annotated[list[LinkSpec], Field(max_length=8192)] | None = optional(
        "written out: every link, with `vertices`"
    )

    @model_validator(mode="after")
    def _one_form(self) -> NodeSpec:
        if (self.vertices is None) != (self.links is None):
            raise ValueError("vertices and links are written out together; found only one of them")
        if self.vertices is not None and (self.gpus or self.nvlink or self.pcie or self.c2c):
            raise ValueError("a node is a pattern (gpus, nvlink, pcie, c2c) or written out (vertices, links), not both")
        return self


FabricKind = Literal["single_switch", "fat_tree", "rail_fat_tree", "rail_only", "dragonfly", "torus"]
Routing = Literal["shortest", "ecmp", "flowlet", "spray", "rail", "static"]
Count = Annotated[int, Field(strict=True, ge=1, le=4096)]
Vertex = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]


class RouteSpec(_Block):
    """A route between two switches or two NICs (`node0.nic3`), over the switches of `via` in order; and back."""

    ends: tuple[Vertex, Vertex] = Field(description="two switches, or two cards such as `node0.nic3`")
    via: Annotated[list[Vertex], Field(max_length=64)] = Field(
        default_factory=list, description="switches in order; and back"
    )
    one_way: Flag = Field(default=False, description="not back")


class FabricSpec(_Block):
    """The network between nodes.

    `single_switch` never blocks. `fat_tree`: all NICs of `nodes_per_leaf` nodes meet in one leaf. `rail_fat_tree`:
    NIC i of `nodes_per_leaf` nodes meets in one leaf. `rail_only`: the same without a link between rails. Leaves are
    joined by `spines` (one stands for a group of them), with uplinks of nodes_per_leaf * NIC bandwidth /
    oversubscription. With `levels: 3` a pod of `leaves_per_pod` leaves (per rail) has spines of its own, and pods are
    joined by `cores`. `ports: k` sets all of these for switches of k ports. `planes` copies of the tree share the
    NICs of a node and nothing else.

    `dragonfly`: groups of `leaves_per_group` switches joined all to all, and groups joined all to all by
    `global_links` each. `torus`: a router per node, `dimensions` as sizes, or how many for a shape near a cube.

    `plugin`: NCCL's network plugin on the machine. Clouds' plugins set variables of NCCL's environment, which count as
    the job's unless ``library.env`` sets them itself: `aws-ofi-nccl` of EC2, Google's `gib`, `tcpxo` (A3 Mega) and
    `tcpx` (A3 High).

    `in_network_reduction`: the switches add and multicast (SHARP on InfiniBand), and the jobs may have them do so; not
    taken for granted, as it needs an aggregation manager, licences and a plugin.

    `routing`: `shortest` spreads over equal paths by place, `ecmp` by a hash, `flowlet` by a hash that each flowlet of
    a stream draws anew, `spray` evenly (equal paths are merged), `rail` changes rails inside a node over NVLink,
    `static` takes `routes` where they are given.
    """

    kind: FabricKind | None = optional("shape of the network")
    network: Literal["infiniband", "roce", "slingshot", "efa", "efa_v1", "tcpx", "ethernet"] | None = optional(
        "what runs on it: NCCL's constants differ"
    )
    plugin: Literal["none", "aws-ofi-nccl", "gib", "tcpxo", "tcpx"] | None = optional(
        "NCCL's network plugin; every job gets the variables that it sets, unless it sets them itself"
    )
    in_network_reduction: Flag | None = optional("InfiniBand switches add for the job (SHARP); not taken for granted")
    routing: Routing | None = optional(
        "how equal paths are used: by place, by a hash, by one for each flowlet, evenly, changing rails inside a node, "
        "or as `routes` say"
    )
    hash_seed: Annotated[int, Field(strict=True, ge=0, le=2**31)] | None = optional("of `ecmp` and `flowlet`")
    flowlet_size: Annotated[Bytes, Field(gt=0, le=1 << 40)] | None = optional(
        "of `flowlet`: bytes of a stream after which it draws a path anew; left out: 512 KiB"
    )
    routes: Annotated[list[RouteSpec], Field(max_length=65536)] | None = optional("for `static`")
    switch_latency: Seconds | None = optional("of a switch")
    cable_latency: Seconds | None = optional("of a cable between switches")
    nodes_per_leaf: Nodes | None = optional(
        "nodes whose cards meet in one leaf switch (trees); nodes per switch (dragonfly)"
    )
    oversubscription: Factor | None = optional("bandwidth towards the nodes over bandwidth towards the spines")
    spines: Annotated[int, Field(strict=True, ge=1, le=1024)] | None = optional(
        "switches above the leaves; one stands for a group of them"
    )
    levels: Literal[2, 3] | None = optional("of a tree")
    leaves_per_pod: Count | None = optional("with three levels, per rail")
    cores: Annotated[int, Field(strict=True, ge=1, le=65536)] | None = optional("switches above the pods")
    core_oversubscription: Factor | None = optional("bandwidth towards the leaves over bandwidth towards the cores")
    ports: Annotated[int, Field(strict=True, ge=2, le=1024)] | None = optional(
        "of every switch: sets the other numbers of a tree"
    )
    rails: Count | None = optional("how many; left out: one per card")
    planes: Count | None = optional("copies of the tree that share the cards of a node and nothing else")
    link_bandwidth: Bandwidth | None = optional("of a link in a dragonfly's group or of a torus, one direction")
    leaves_per_group: Count | None = optional("switches of a dragonfly's group")
    global_links: Count | None = optional("per pair of groups")
    global_bandwidth: Bandwidth | None = optional("of one of them")
    global_latency: Seconds | None = optional("of one of them")
    dimensions: (
        Annotated[int, Field(strict=True, ge=1, le=6)]
        | Annotated[list[Nodes], Field(min_length=1, max_length=6)]
        | None
    ) = optional("of a torus: sizes, or how many for a shape near a cube")


class FaultSpec(_Block):
    """Something degraded or failed: one of `link`, `nic`, `node` and `switch`, and what is wrong with it."""

    link: tuple[Vertex, Vertex] | None = optional(
        "two neighbours by name, both directions: `[leaf0, spine1]`, `[node0.gpu3, node0.nvswitch]`"
    )
    nic: tuple[Index, Index] | None = optional("`[node, index]`, its port, such as `[1, 0]`")
    node: Index | None = optional("all its cards")
    switch: Vertex | None = optional("all its links")
    bandwidth_factor: Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)] | None = optional(
        "multiplies the bandwidth"
    )
    latency_factor: Annotated[float, Field(strict=True, ge=1, le=GIGA, allow_inf_nan=False)] | None = optional(
        "multiplies the latency"
    )
    failed: Flag = Field(default=False, description="the links are gone")
    no_gdr: Flag = Field(
        default=False, description="of a node: its cards do not reach the memory of its GPUs (no GPUDirect RDMA)"
    )
    no_rdma: Flag = Field(
        default=False,
        description="of a node: NCCL finds no RDMA there and takes TCP, as with NCCL_IB_DISABLE=1 on that node alone",
    )
    start: Seconds = Field(
        default=0.0,
        description=(
            "when it sets in, after the job has begun: what a library chooses at its start is that of the machine "
            "without it, times are those with it"
        ),
    )

    @model_validator(mode="after")
    def _one_place_one_fault(self) -> FaultSpec:
        places = [n for n in ("link", "nic", "node", "switch") if getattr(self, n) is not None]
        if len(places) != 1:
            raise ValueError(f"a fault is at one link, nic, node or switch; found {' and '.join(places) or 'none'}")
        for flag in ("no_gdr", "no_rdma"):
            if getattr(self, flag) and self.node is None:
                raise ValueError(f"found {flag} at a {places[0]}, expected it at a node")
        if self.no_rdma and self.start:
            raise ValueError("found no_rdma with a start, expected none: NCCL takes its network when a job begins")
        wrong = self.bandwidth_factor is not None or self.latency_factor is not None
        if self.failed + wrong + self.no_gdr + self.no_rdma != 1:
            flags = "failed: true, no_gdr: true, no_rdma: true"
            raise ValueError(f"expected {flags}, or bandwidth_factor (0 to 1) or latency_factor (1 or more)")
        return self


class MachineSpec(_Block):
    """The four blocks that describe a machine, all optional so that one description can extend another."""

    gpu: GpuSpec | None = optional("the GPU of every rank")
    cpu: CpuSpec | None = optional("the host")
    node: NodeSpec | None = optional("what a node holds")
    fabric: FabricSpec | None = optional("the network between nodes")


class _NodesSpec(MachineSpec):
    """Nodes that are alike: a preset, a path or a machine, and the knobs of its nodes."""

    preset: Text | None = optional("a shipped machine: `commsim topo list` prints them")
    path: Text | None = optional("a description of your own, relative to the scenario file")
    nodes: Nodes = Field(default=1, description="how many")
    gpus_per_node: Gpus | None = optional("use fewer GPUs than a node has")
    nics_per_node: Nics | None = optional("network cards of a node; left out: as described")
    nic_bandwidth: Bandwidth | None = optional("of one card; left out: as described")

    def _check_source(self, *, needed: bool = True) -> None:
        if self.preset is not None and self.path is not None:
            raise ValueError("found preset and path, expected one of them")
        if needed and self.preset is None and self.path is None and self.node is None:
            raise ValueError("expected a preset, a path, or a machine (gpu, cpu, node)")


class GroupSpec(_NodesSpec):
    """Some nodes of a cluster of different nodes: a preset, a path or a machine, and the knobs of its nodes."""

    @model_validator(mode="after")
    def _no_fabric(self) -> GroupSpec:
        self._check_source()
        if self.fabric is not None:
            raise ValueError("the fabric joins all groups; describe it beside groups, not inside one")
        return self


Groups = Annotated[list[GroupSpec], Field(min_length=1, max_length=64)]
Faults = Annotated[list[FaultSpec], Field(max_length=4096)]


class TopologyFile(MachineSpec):
    """A file of ``topologies/``: a machine, what it is, where its figures come from, and what it extends.

    Or a cluster: `groups` of nodes, and the `fabric` and `faults` of all.
    """

    extends: Name | None = optional("a preset that this file changes")
    name: Name | None = optional("of the machine")
    description: Text | None = optional("one sentence")
    source: Text | list[Text] | None = optional("where the figures come from")
    groups: Groups | None = optional("nodes of different kinds")
    faults: Faults | None = optional("degraded or failed parts, such as `[{nic: [1, 0], failed: true}]`")

    @model_validator(mode="after")
    def _one_form(self) -> TopologyFile:
        beside = [n for n in ("extends", "gpu", "cpu", "node") if getattr(self, n) is not None]
        if self.groups is not None and beside:
            raise ValueError(f"{', '.join(beside)} belong inside each of the groups")
        return self


class TopologySpec(_NodesSpec):
    """What ``topology:`` in a scenario may hold: a preset, a path, a machine or `groups` of them, and the knobs."""

    oversubscription: Factor | None = optional(
        "bandwidth towards the nodes over bandwidth towards the spines; left out: as described"
    )
    nodes_per_leaf: Nodes | None = optional("nodes whose cards meet in one leaf switch; left out: as described")
    groups: Groups | None = optional("nodes of different kinds, in place of `preset` or `path`")
    faults: Faults | None = optional("degraded or failed parts, such as `[{nic: [1, 0], failed: true}]`")

    @model_validator(mode="after")
    def _one_form(self) -> TopologySpec:
        self._check_source(needed=self.groups is None)
        of_nodes = {*_NodesSpec.model_fields} - {"fabric"}
        beside = sorted(of_nodes & self.model_fields_set)
        if self.groups is not None and beside:
            raise ValueError(f"{', '.join(beside)} belong inside each of the groups")
        return self
