"""``commsim topo``: the machines that commsim knows, and yours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commsim.cli.commands import group

if TYPE_CHECKING:
    from commsim.topology.graph import Topology

app = group("List, show, draw and check topologies.")

Machine = Annotated[str, typer.Argument(metavar="NAME|FILE", help="A preset (see `topo list`) or a YAML file.")]
Nodes = Annotated[int, typer.Option("--nodes", "-n", help="Number of nodes.")]
Gpus = Annotated[int | None, typer.Option("--gpus-per-node", help="GPUs in use per node.", show_default=False)]
Nics = Annotated[int | None, typer.Option("--nics-per-node", help="NICs per node.", show_default=False)]
Rate = Annotated[str | None, typer.Option("--nic-bandwidth", help="Of one NIC: '400 Gb/s'.", show_default=False)]
Over = Annotated[float | None, typer.Option("--oversubscription", help="Of the leaves: 2.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


def _load(machine: str, **knobs: object) -> Topology:
    from commsim.errors import TopologyError
    from commsim.topology.presets import load_file, load_preset, preset_names

    stated = {key: value for key, value in knobs.items() if value is not None}
    path = Path(machine)
    if machine in preset_names():
        return load_preset(machine, **stated)
    if path.suffix in {".yaml", ".yml"} or len(path.parts) > 1 or path.exists():
        return load_file(path, **stated)
    try:
        return load_preset(machine, **stated)
    except TopologyError as error:
        raise TopologyError(f"{error}; and there is no file of that name") from None


@app.command("list")
def list_command(json_output: Json = False) -> None:
    """List the shipped machines."""
    from commsim.report.topology_tables import preset_table
    from commsim.topology.presets import list_presets

    presets = list_presets()
    if json_output:
        import json
        from dataclasses import asdict

        typer.echo(json.dumps([asdict(p) for p in presets], indent=2, allow_nan=False))
    else:
        typer.echo(preset_table(presets))


@app.command()
def show(
    machine: Machine,
    nodes: Nodes = 1,
    gpus_per_node: Gpus = None,
    nics_per_node: Nics = None,
    nic_bandwidth: Rate = None,
    oversubscription: Over = None,
    json_output: Json = False,
) -> None:
    """Show a machine: links by kind with their bandwidths, path types of a node, bisection bandwidth."""
    from commsim.report.topology_tables import describe, topology_sheet

    topology = _load(
        machine,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        nics_per_node=nics_per_node,
        nic_bandwidth=nic_bandwidth,
        oversubscription=oversubscription,
    )
    if json_output:
        import json

        typer.echo(json.dumps(describe(topology), indent=2, allow_nan=False))
    else:
        typer.echo(topology_sheet(topology), nl=False)


@app.command()
def draw(
    machine: Machine,
    out: Annotated[Path, typer.Option("--out", "-o", help="Picture to write: FILE.png or FILE.svg.")],
    nodes: Nodes = 1,
    gpus_per_node: Gpus = None,
    nics_per_node: Nics = None,
    nic_bandwidth: Rate = None,
    oversubscription: Over = None,
) -> None:
    """Draw a machine: one node in detail and the fabric above it."""
    from commsim.errors import CommsimError

    form = out.suffix.lower().lstrip(".")
    if form not in {"png", "svg"}:
        raise CommsimError(f"{out}: found the ending {out.suffix!r}, expected .png or .svg")
    topology = _load(
        machine,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        nics_per_node=nics_per_node,
        nic_bandwidth=nic_bandwidth,
        oversubscription=oversubscription,
    )
    from commsim.files import write_atomically
    from commsim.report.plots import figure_bytes
    from commsim.report.topology_plot import plot_topology

    write_atomically(out, figure_bytes(plot_topology(topology), form))
    typer.echo(f"wrote {out}", err=True)


@app.command("check")
def check_command(machine: Machine, nodes: Nodes = 1) -> None:
    """Check a machine: every rank reachable, every link with a bandwidth, every NIC with its path."""
    from commsim.errors import TopologyError
    from commsim.topology.check import check

    topology = _load(machine, nodes=nodes)
    faults = check(topology)
    if faults:
        raise TopologyError("\n".join(f"{topology.name}: {fault}" for fault in faults))
    links = len(topology.link_src)
    typer.echo(f"{topology.name}: sound; {topology.world_size} ranks, {links} links one way")


@app.command("import")
def import_command(
    file: Annotated[Path, typer.Argument(help="Topology XML of NCCL, or a saved `nvidia-smi topo -m`.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Topology file to write: FILE.yaml.")],
    sm: Annotated[
        int | None, typer.Option("--sm", help="Compute capability times ten: 90.", show_default=False)
    ] = None,
    nvlink_links: Annotated[
        int | None, typer.Option("--nvlink-links", help="NVLinks of one GPU; 0 for none.", show_default=False)
    ] = None,
    nvlink_kind: Annotated[
        str, typer.Option("--nvlink-kind", help="How --nvlink-links are wired: switch, mesh, cube_mesh or pairs.")
    ] = "switch",
    nic_bandwidth: Rate = None,
    pcie_bandwidth: Annotated[
        str | None, typer.Option("--pcie-bandwidth", help="Of one GPU: '24 GB/s'.", show_default=False)
    ] = None,
    cpu_vendor: Annotated[
        str | None, typer.Option("--cpu-vendor", help="intel, amd, arm, ibm or zhaoxin.", show_default=False)
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            "--network", help="infiniband, roce, slingshot, efa, efa_v1, tcpx or ethernet.", show_default=False
        ),
    ] = None,
    peer_to_peer: Annotated[
        bool | None,
        typer.Option(
            "--peer-to-peer/--no-peer-to-peer",
            help="Whether GPUs may write to each other's memory over PCIe; GeForce cards may not.",
            show_default=False,
        ),
    ] = None,
    nodes: Nodes = 1,
) -> None:
    """Turn a machine's own description into a topology file; --nodes checks it with so many nodes."""
    import yaml

    from commsim.errors import CommsimError
    from commsim.files import write_atomically
    from commsim.topology.imported import Given
    from commsim.topology.importing import checked, import_file

    if out.suffix not in {".yaml", ".yml"}:
        raise CommsimError(f"{out}: found the ending {out.suffix!r}, expected .yaml")
    if nvlink_kind not in {"switch", "mesh", "cube_mesh", "pairs"}:
        raise CommsimError(f"--nvlink-kind: found {nvlink_kind!r}, expected switch, mesh, cube_mesh or pairs")
    given = Given(sm, nvlink_links, nvlink_kind, nic_bandwidth, pcie_bandwidth, cpu_vendor, network, peer_to_peer)
    imported = import_file(file, given)
    topology = checked(imported, file, nodes)
    text = yaml.safe_dump(imported.data, sort_keys=False, default_flow_style=None, width=110)
    write_atomically(out, text.encode())
    for note in imported.notes:
        typer.echo(f"note: {note}", err=True)
    typer.echo(f"wrote {out}: {topology.world_size} ranks, {topology.nics_per_node} NICs per node", err=True)
