"""The graphs that NCCL itself found on a machine: what a graph file or a debug log of a job there says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from commsim.errors import Fault, LogFormatError
from commsim.nccl.debug_log import read_debug_log
from commsim.nccl.graph_xml import graphs_of
from commsim.nccl.system import Graph, NamedGraphs
from commsim.xml_tree import read_xml

_HOW = "set NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,GRAPH in that job"


@dataclass(frozen=True)
class GraphFile:
    """Graphs in place of those of a search, and the communicator that they were found for, where the file says it.

    A name whose graph is None was looked for without success; one that is missing was not looked for.
    """

    path: str
    graphs: NamedGraphs
    coll_channels: int | None = None
    gpus: int | None = None  # of a node
    several_nodes: bool | None = None
    lacks: str = ""  # what of the graphs the file does not say, and a search adds

    def misfit(self, gpus: int, nodes: int) -> str:
        """Why the graphs are not those of a job on so many GPUs of a node; empty where they may be."""
        if self.gpus not in (None, gpus):
            return f"{self.path}: its graphs are of {self.gpus} GPUs a node, but this job has {gpus}"
        if self.several_nodes not in (None, nodes > 1):
            was = "several nodes" if self.several_nodes else "one node"
            return f"{self.path}: its graphs are of {was}, but this job has {nodes} node{'s' * (nodes > 1)}"
        return ""


def read_graph_file(path: Path) -> GraphFile:
    """The graphs of a file of NCCL_GRAPH_DUMP_FILE (XML), or of a log of NCCL_DEBUG=INFO.

    A log that prints channels, but no graph, gives their number, and the rest is searched. LogFormatError with lines
    for a broken file, and with the settings that are missing for a log with neither.
    """
    with path.open("rb") as stream:
        is_xml = stream.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<")
    return _of_xml(path) if is_xml else _of_log(path)


def _of_xml(path: Path) -> GraphFile:
    root = read_xml(path, error=LogFormatError)
    graphs = graphs_of(root, str(path))
    if "ring" not in graphs or not graphs["ring"].channels:
        raise LogFormatError([Fault(str(path), 1, 1, "", 'found no channels of <graph id="0"> (ring), expected them')])
    named = tuple((name, graph if graph.channels else None) for name, graph in sorted(graphs.items()))
    crosses = any(element.name == "net" for element in root.walk())
    return GraphFile(str(path), named, gpus=len(graphs["ring"].orders[0]) or None, several_nodes=crosses)


def _of_log(path: Path) -> GraphFile:
    log = read_debug_log(path)
    names = ("ring", "tree", "nvls", "collnet_chain", "collnet_direct")
    graphs: dict[str, Graph | None] = {name: log.graph(name) for name in names}
    missing = [name for name in ("ring", "tree") if (graph := graphs[name]) is None or not graph.channels]
    lacks = ""
    if missing:
        lacks = f"the log holds no {' and no '.join(missing)} graph"
        if log.coll_channels is None:
            raise LogFormatError([Fault(str(path), 0, 0, "", f"{lacks} and no channels; {_HOW}")])
        graphs = {name: graph for name, graph in graphs.items() if graph is not None and graph.channels}
    named = tuple((name, graph if graph is not None and graph.channels else None) for name, graph in graphs.items())
    known = log.ranks is not None and log.nodes is not None
    return GraphFile(
        str(path),
        named,
        log.coll_channels,
        log.ranks // log.nodes if known and log.ranks and log.nodes else None,
        log.nodes > 1 if log.nodes is not None else None,
        lacks and f"{path}: {lacks}, only its {log.coll_channels} channels; their speeds are searched ({_HOW})",
    )
