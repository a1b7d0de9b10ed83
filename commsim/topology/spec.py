"""What a topology may say: the models behind ``topology:`` in a scenario and the files in ``topologies/``.

A scenario names a machine in one of three ways and may then set the knobs `nodes`, `gpus_per_node`,
`nics_per_node`, `nic_bandwidth`, `oversubscription` and `nodes_per_leaf`::

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
    """The GPU of every rank."""

    model: Text | None = None
    generation: Literal["volta", "turing", "ampere", "ada", "hopper", "blackwell"] | None = None
    sm: Annotated[int, Field(strict=True, ge=10, le=200)] | None = None


class CpuSpec(_Block):
    """The host CPU; NCCL's tuner reads architecture and vendor."""

    arch: Literal["x86_64", "arm64", "ppc64"] | None = None
    vendor: Literal["intel", "amd", "arm", "ibm"] | None = None
    model: Text | None = None


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


class FabricSpec(_Block):
    """The network between nodes.

    `single_switch` never blocks. `rail_fat_tree`: NIC i of `nodes_per_leaf` nodes meets in one leaf.
    `fat_tree`: all NICs of `nodes_per_leaf` nodes meet in one leaf. Leaves are joined by `spines` (one stands
    for a group of them), with uplinks of nodes_per_leaf * NIC bandwidth / oversubscription.
    """

    kind: Literal["single_switch", "fat_tree", "rail_fat_tree"] | None = None
    network: Literal["infiniband", "roce", "slingshot", "efa", "ethernet"] | None = None
    switch_latency: Seconds | None = None
    cable_latency: Seconds | None = None
    nodes_per_leaf: Nodes | None = None
    oversubscription: Factor | None = None
    spines: Annotated[int, Field(strict=True, ge=1, le=1024)] | None = None


class Machine(_Block):
    """The four blocks that describe a machine, all optional so that one description can extend another."""

    gpu: GpuSpec | None = None
    cpu: CpuSpec | None = None
    node: NodeSpec | None = None
    fabric: FabricSpec | None = None


class TopologyFile(Machine):
    """A file of ``topologies/``: a machine, what it is, where its figures come from, and what it extends."""

    extends: Name | None = None
    name: Name | None = None
    description: Text | None = None
    source: Text | list[Text] | None = None


class TopologySpec(Machine):
    """What ``topology:`` in a scenario may hold: a preset, a path or a machine, and the knobs."""

    preset: Text | None = None
    path: Text | None = None
    nodes: Nodes = 1
    gpus_per_node: Gpus | None = None
    nics_per_node: Nics | None = None
    nic_bandwidth: Bandwidth | None = None
    oversubscription: Factor | None = None
    nodes_per_leaf: Nodes | None = None

    @model_validator(mode="after")
    def _one_source(self) -> TopologySpec:
        if self.preset is not None and self.path is not None:
            raise ValueError("found preset and path, expected one of them")
        if self.preset is None and self.path is None and self.node is None:
            raise ValueError("expected a preset, a path, or a machine (gpu, cpu, node)")
        return self
