"""``commsim topo``: the machines that commsim knows, and yours."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commsim.cli.commands import group
from commsim.cli.options import Json, complete_machines, spread
from commsim.cli.say import print_json
from commsim.cli.topo_new import MachineAnswers, write_new
from commsim.errors import CommsimError, TopologyError

if TYPE_CHECKING:
    from commsim.topology.graph import Topology

app = group("List, show, draw and check topologies.")

Machine = Annotated[
    str,
    typer.Argument(
        metavar="NAME|FILE", autocompletion=complete_machines, help="A preset (see `topo list`) or a YAML file."
    ),
]
Nodes = Annotated[int, typer.Option("--nodes", "-n", help="Number of nodes.")]
Rate = Annotated[str | None, typer.Option("--nic-bandwidth", help="Of one NIC: '400 Gb/s'.")]


@dataclass(frozen=True)
class MachineChanges:
    """What is changed of a machine; None where it is as described."""

    nodes: Nodes = 1
    gpus_per_node: Annotated[int | None, typer.Option(help="GPUs in use per node.")] = None
    nics_per_node: Annotated[int | None, typer.Option(help="NICs per node.")] = None
    nic_bandwidth: Rate = None
    oversubscription: Annotated[float | None, typer.Option(help="Of the leaves: 2.")] = None


def load_machine(machine: str, changes: MachineChanges) -> Topology:
    """The topology of a preset or a file, changed."""
    from commsim.topology.presets import load_file, load_preset, preset_names

    values = {name: value for name, value in vars(changes).items() if value is not None}
    path = Path(machine)
    if machine in preset_names():
        topology = load_preset(machine, **values)
        _say_idle(machine, values, topology)
        return topology
    if path.suffix in {".yaml", ".yml"} or len(path.parts) > 1 or path.exists():
        return load_file(path, **values)
    try:
        return load_preset(machine, **values)
    except TopologyError as error:
        raise TopologyError(f"{error}; and there is no file of that name") from None


def _say_idle(machine: str, values: dict[str, Any], topology: Topology) -> None:
    """Warns of options of a preset that change nothing on it."""
    from commsim.topology.idle import idle_knobs
    from commsim.topology.presets import topology_spec

    for knob, reason in idle_knobs(topology_spec("", {"preset": machine, **values}), topology, Path()).items():
        if knob[-1] in values:
            typer.echo(f"warning: --{knob[-1].replace('_', '-')} {reason}", err=True)


@app.command("list")
def list_command(json_output: Json = False) -> None:
    """List the shipped machines."""
    from commsim.report.topology_tables import preset_table
    from commsim.topology.presets import list_presets

    presets = list_presets()
    if json_output:
        print_json([asdict(p) for p in presets])
    else:
        typer.echo(preset_table(presets))


@app.command()
@spread
def show(machine: Machine, changes: MachineChanges, json_output: Json = False) -> None:
    """Show a machine: links by kind with their bandwidths, path types of a node, bisection bandwidth."""
    from commsim.report.topology_tables import describe, topology_sheet

    topology = load_machine(machine, changes)
    if json_output:
        print_json(describe(topology))
    else:
        typer.echo(topology_sheet(topology), nl=False)


@app.command()
@spread
def draw(
    machine: Machine,
    out: Annotated[Path, typer.Option("--out", "-o", help="Picture to write: FILE.png or FILE.svg.")],
    changes: MachineChanges,
) -> None:
    """Draw a machine: one node in detail and the fabric above it."""
    from commsim.cli.pictures import form_of, write_picture
    from commsim.report.topology_plot import plot_topology

    form_of(out)
    write_picture(out, plot_topology(load_machine(machine, changes)))
    typer.echo(f"wrote {out}", err=True)


@app.command("check")
def check_command(machine: Machine, nodes: Nodes = 1) -> None:
    """Check a machine: every rank reachable, every link with a bandwidth, every NIC with its path."""
    from commsim.topology.check import check

    topology = load_machine(machine, MachineChanges(nodes))
    faults = check(topology)
    if faults:
        raise TopologyError("\n".join(f"{topology.name}: {fault}" for fault in faults))
    links = len(topology.link_src)
    typer.echo(f"{topology.name}: sound; {topology.world_size} ranks, {links} links one way")


@app.command("new")
@spread
def new_command(
    answers: MachineAnswers,
    file: Annotated[Path, typer.Argument(help="Topology file to write.")] = Path("my-machine.yaml"),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing: the rest is as usual with that GPU.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Ask what a machine is made of, and write it as a topology file.

    Every answer may be given as an option, or piped in, a line each.
    """
    write_new(file, answers, yes, force)


@app.command("import")
def import_command(
    file: Annotated[Path, typer.Argument(help="Topology XML of NCCL, or a saved `nvidia-smi topo -m`.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Topology file to write: FILE.yaml.")],
    sm: Annotated[int | None, typer.Option(help="Compute capability times ten: 90.")] = None,
    nvlink_links: Annotated[int | None, typer.Option(help="NVLinks of one GPU; 0 for none.")] = None,
    nvlink_kind: Annotated[
        str, typer.Option(help="How --nvlink-links are wired: switch, mesh, cube_mesh or pairs.")
    ] = "switch",
    nic_bandwidth: Rate = None,
    pcie_bandwidth: Annotated[str | None, typer.Option(help="Of one GPU: '24 GB/s'.")] = None,
    cpu_vendor: Annotated[str | None, typer.Option(help="intel, amd, arm, ibm or zhaoxin.")] = None,
    network: Annotated[
        str | None, typer.Option(help="infiniband, roce, slingshot, efa, efa_v1, tcpx or ethernet.")
    ] = None,
    peer_to_peer: Annotated[
        bool | None,
        typer.Option(help="Whether GPUs may write to each other's memory over PCIe; GeForce cards may not."),
    ] = None,
    nodes: Nodes = 1,
) -> None:
    """Turn a machine's own description into a topology file; --nodes checks it with so many nodes."""
    import yaml

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
