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

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from commsim.fields import Bandwidth, Seconds

Text = Annotated[str, Field(strict=True, min_length=1, max_length=200)]
Name = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]
Factor = Annotated[float, Field(strict=True, ge=1, le=1e6, allow_inf_nan=False)]


Nodes = Annotated[int, Field(strict=True, ge=1, le=65536)]
Gpus = Annotated[int, Field(strict=True, ge=1, le=576)]
Nics = Annotated[int, Field(strict=True, ge=0, le=576)]
Links = Annotated[int, Field(strict=True, ge=0, le=64)]


class _Block(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class GpuSpec(_Block):
    """The GPU of every rank; generation `cpu` for ranks that are processes without one, then `sm` is 0."""

    model: Text | None = None
    generation: Literal["volta", "turing", "ampere", "ada", "hopper", "blackwell", "cpu"] | None = None
    sm: Annotated[int, Field(strict=True, ge=0, le=200)] | None = None

    @model_validator(mode="after")
    def _sm_of_a_gpu(self) -> GpuSpec:
        if self.generation not in ("cpu", None) and self.sm is not None and self.sm < 10:
            raise ValueError(f"sm: found {self.sm}, expected the compute capability times ten, such as 90")
        return self


class CpuSpec(_Block):
    """The host CPU; NCCL's tuner reads architecture and vendor, gloo's model the `cores` that a node's ranks share."""

    arch: Literal["x86_64", "arm64", "ppc64"] | None = None
    vendor: Literal["intel", "amd", "arm", "ibm"] | None = None
    model: Text | None = None
    cores: Annotated[int, Field(strict=True, ge=1, le=4096)] | None = None


class NvlinkSpec(_Block):
    """NVLink inside a node.

    `links` is per GPU; `bandwidth` and `latency` are of one link. `switch`: all links of a GPU go to
    NVSwitches, drawn as one. `mesh`: the links are shared evenly by the other GPUs. `cube_mesh`: the DGX-1
    wiring of 8 GPUs. `pairs`: bridges join GPUs 0-1, 2-3, ...
    """

    kind: Literal["switch", "mesh", "cube_mesh", "pairs", "none"] | None = None
    links: Links | None = None
    bandwidth: Bandwidth | None = None
    latency: Seconds | None = None


class PcieSpec(_Block):
    """GPUs under PCIe switches (`gpus_per_switch`, 0 for none) under the host bridges of `sockets` CPUs.

    `switch_bandwidth` is the uplink of a switch (default: `bandwidth`). Sockets are joined all to all inside
    boards of `linked_sockets` (default: all of them); boards are joined by NVLink only.
    """

    bandwidth: Bandwidth | None = None
    latency: Seconds | None = None
    sockets: Annotated[int, Field(strict=True, ge=1, le=288)] | None = None
    gpus_per_switch: Annotated[int, Field(strict=True, ge=0, le=64)] | None = None
    switch_bandwidth: Bandwidth | None = None
    socket_bandwidth: Bandwidth | None = None
    socket_latency: Seconds | None = None
    linked_sockets: Annotated[int, Field(strict=True, ge=1, le=288)] | None = None


class C2cSpec(_Block):
    """NVLink-C2C from each GPU to its own CPU, instead of PCIe (superchips)."""

    bandwidth: Bandwidth | None = None
    latency: Seconds | None = None


class NicSpec(_Block):
    """The NICs of a node, spread over its GPUs: beside a GPU under its PCIe switch, or under its host.

    `latency` is that of one NIC and its cable to the leaf; `pcie_bandwidth` defaults to that of the PCIe
    tree.
    """

    count: Nics | None = None
    bandwidth: Bandwidth | None = None
    latency: Seconds | None = None
    attach: Literal["switch", "host"] | None = None
    pcie_bandwidth: Bandwidth | None = None


class LinkSpec(_Block):
    """One written-out link, both directions alike."""

    ends: tuple[Name, Name]
    kind: Literal["nvlink", "c2c", "pcie", "host"]
    bandwidth: Bandwidth
    latency: Seconds = 0.0
    count: Annotated[int, Field(strict=True, ge=1, le=64)] = 1


class NodeSpec(_Block):
    """One node: a pattern (`gpus`, `nvlink`, `pcie`, `c2c`), or `vertices` and `links`; and its NICs."""

    gpus: Gpus | None = None
    nvlink: NvlinkSpec | None = None
    pcie: PcieSpec | None = None
    c2c: C2cSpec | None = None
    nic: NicSpec | None = None
    vertices: dict[Name, Literal["gpu", "nvswitch", "pcie_switch", "host", "nic"]] | None = Field(
        default=None, max_length=2048
    )
    links: Annotated[list[LinkSpec], Field(max_length=8192)] | None = None

    @model_validator(mode="after")
    def _one_form(self) -> NodeSpec:
        if (self.vertices is None) != (self.links is None):
            raise ValueError("vertices and links are written out together; found only one of them")
        if self.vertices is not None and (self.gpus or self.nvlink or self.pcie or self.c2c):
            raise ValueError("a node is a pattern (gpus, nvlink, pcie, c2c) or written out (vertices, links), not both")
        return self


FabricKind = Literal["single_switch", "fat_tree", "rail_fat_tree", "rail_only", "dragonfly", "torus"]
Routing = Literal["shortest", "ecmp", "spray", "rail", "static"]
Count = Annotated[int, Field(strict=True, ge=1, le=4096)]
Vertex = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]


class RouteSpec(_Block):
    """A route between two switches or two NICs (`node0.nic3`), over the switches of `via` in order; and back."""

    ends: tuple[Vertex, Vertex]
    via: Annotated[list[Vertex], Field(max_length=64)] = []
    one_way: Annotated[bool, Field(strict=True)] = False


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

    `in_network_reduction`: the switches add and multicast (SHARP on InfiniBand), and the jobs may have them do so; not
    taken for granted, as it needs an aggregation manager, licences and a plugin.

    `routing`: `shortest` spreads over equal paths by place, `ecmp` by a hash, `spray` evenly (equal paths are merged),
    `rail` changes rails inside a node over NVLink, `static` takes `routes` where they are given.
    """

    kind: FabricKind | None = None
    network: Literal["infiniband", "roce", "slingshot", "efa", "efa_v1", "tcpx", "ethernet"] | None = None
    in_network_reduction: Annotated[bool, Field(strict=True)] | None = None
    routing: Routing | None = None
    hash_seed: Annotated[int, Field(strict=True, ge=0, le=2**31)] | None = None
    routes: Annotated[list[RouteSpec], Field(max_length=65536)] | None = None
    switch_latency: Seconds | None = None
    cable_latency: Seconds | None = None
    nodes_per_leaf: Nodes | None = None
    oversubscription: Factor | None = None
    spines: Annotated[int, Field(strict=True, ge=1, le=1024)] | None = None
    levels: Literal[2, 3] | None = None
    leaves_per_pod: Count | None = None
    cores: Annotated[int, Field(strict=True, ge=1, le=65536)] | None = None
    core_oversubscription: Factor | None = None
    ports: Annotated[int, Field(strict=True, ge=2, le=1024)] | None = None
    rails: Count | None = None
    planes: Count | None = None
    link_bandwidth: Bandwidth | None = None
    leaves_per_group: Count | None = None
    global_links: Count | None = None
    global_bandwidth: Bandwidth | None = None
    global_latency: Seconds | None = None
    dimensions: (
        Annotated[int, Field(strict=True, ge=1, le=6)]
        | Annotated[list[Nodes], Field(min_length=1, max_length=6)]
        | None
    ) = None


class FaultSpec(_Block):
    """Something degraded or failed: one of `link`, `nic`, `node` and `switch`, and what is wrong with it.

    `link`: two neighbours by name (`[leaf0, spine1]`, `[node0.gpu3, node0.nvswitch]`), both directions. `nic`:
    [node, index], its port. `node`: all its NICs. `switch`: all its links. `bandwidth_factor` multiplies the
    bandwidth, `latency_factor` the latency; `failed` takes the links away.
    """

    link: tuple[Vertex, Vertex] | None = None
    nic: tuple[Annotated[int, Field(strict=True, ge=0)], Annotated[int, Field(strict=True, ge=0)]] | None = None
    node: Annotated[int, Field(strict=True, ge=0)] | None = None
    switch: Vertex | None = None
    bandwidth_factor: Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)] | None = None
    latency_factor: Annotated[float, Field(strict=True, ge=1, le=1e9, allow_inf_nan=False)] | None = None
    failed: Annotated[bool, Field(strict=True)] = False

    @model_validator(mode="after")
    def _one_place_one_fault(self) -> FaultSpec:
        places = [n for n in ("link", "nic", "node", "switch") if getattr(self, n) is not None]
        if len(places) != 1:
            raise ValueError(f"a fault is at one link, nic, node or switch; found {' and '.join(places) or 'none'}")
        wrong = self.bandwidth_factor is not None or self.latency_factor is not None
        if self.failed == wrong:
            raise ValueError("expected failed: true, or bandwidth_factor (0 to 1) or latency_factor (1 or more)")
        return self


class Machine(_Block):
    """The four blocks that describe a machine, all optional so that one description can extend another."""

    gpu: GpuSpec | None = None
    cpu: CpuSpec | None = None
    node: NodeSpec | None = None
    fabric: FabricSpec | None = None


class GroupSpec(Machine):
    """Some nodes of a cluster of different nodes: a preset, a path or a machine, and the knobs of its nodes."""

    preset: Text | None = None
    path: Text | None = None
    nodes: Nodes = 1
    gpus_per_node: Gpus | None = None
    nics_per_node: Nics | None = None
    nic_bandwidth: Bandwidth | None = None

    @model_validator(mode="after")
    def _one_source(self) -> GroupSpec:
        if self.preset is not None and self.path is not None:
            raise ValueError("found preset and path, expected one of them")
        if self.preset is None and self.path is None and self.node is None:
            raise ValueError("expected a preset, a path, or a machine (gpu, cpu, node)")
        if self.fabric is not None:
            raise ValueError("the fabric joins all groups; describe it beside groups, not inside one")
        return self


Groups = Annotated[list[GroupSpec], Field(min_length=1, max_length=64)]
Faults = Annotated[list[FaultSpec], Field(max_length=4096)]


class TopologyFile(Machine):
    """A file of ``topologies/``: a machine, what it is, where its figures come from, and what it extends.

    Or a cluster: `groups` of nodes, and the `fabric` and `faults` of all.
    """

    extends: Name | None = None
    name: Name | None = None
    description: Text | None = None
    source: Text | list[Text] | None = None
    groups: Groups | None = None
    faults: Faults | None = None

    @model_validator(mode="after")
    def _one_form(self) -> TopologyFile:
        stated = [n for n in ("extends", "gpu", "cpu", "node") if getattr(self, n) is not None]
        if self.groups is not None and stated:
            raise ValueError(f"{', '.join(stated)} belong inside each of the groups")
        return self


class TopologySpec(Machine):
    """What ``topology:`` in a scenario may hold: a preset, a path, a machine or `groups` of them, and the knobs."""

    preset: Text | None = None
    path: Text | None = None
    nodes: Nodes = 1
    gpus_per_node: Gpus | None = None
    nics_per_node: Nics | None = None
    nic_bandwidth: Bandwidth | None = None
    oversubscription: Factor | None = None
    nodes_per_leaf: Nodes | None = None
    groups: Groups | None = None
    faults: Faults | None = None

    @model_validator(mode="after")
    def _one_source(self) -> TopologySpec:
        if self.preset is not None and self.path is not None:
            raise ValueError("found preset and path, expected one of them")
        if self.groups is not None:
            return self._of_groups()
        if self.preset is None and self.path is None and self.node is None:
            raise ValueError("expected a preset, a path, or a machine (gpu, cpu, node)")
        return self

    def _of_groups(self) -> TopologySpec:
        of_nodes = {"nodes", "gpus_per_node", "nics_per_node", "nic_bandwidth", "gpu", "cpu", "node", "path", "preset"}
        stated = sorted(of_nodes & self.model_fields_set)
        if stated:
            raise ValueError(f"{', '.join(stated)} belong inside each of the groups")
        return self
