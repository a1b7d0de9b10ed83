"""The graphs of an NCCL graph file (NCCL_GRAPH_DUMP_FILE writes it, NCCL_GRAPH_FILE reads it): the tuner's inputs."""

from __future__ import annotations

from math import isfinite
from pathlib import Path

from commsim.errors import Fault, LogFormatError
from commsim.nccl.environment import PATHS
from commsim.nccl.system import PATTERNS, Graph
from commsim.xml_tree import Element, read_xml

_NAMES = {0: "ring", 1: "tree", 2: "collnet_chain", 3: "nvls", 4: "collnet_direct"}


def read_graphs(path: Path) -> dict[str, Graph]:
    """The graphs of a file by name: ring, tree, collnet_chain, nvls, collnet_direct.

    LogFormatError lists every fault with its line.
    """
    return graphs_of(read_xml(path, error=LogFormatError), str(path))


def graphs_of(root: Element, file: str) -> dict[str, Graph]:
    """The same of a file that is parsed."""
    faults: list[Fault] = []
    if root.name != "graphs":
        message = f"found <{root.name[:40]}>, expected <graphs>: a file of NCCL_GRAPH_DUMP_FILE"
        raise LogFormatError([Fault(file, root.line, 1, "", message)])
    graphs: dict[str, Graph] = {}
    for element in root.each("graph"):
        reader = _Reader(element, file, faults)
        name = _NAMES.get(reader.whole("id", 0))
        if name is None:
            reader.fault("id", "expected 0 to 4")
            continue
        graph = graphs[name] = reader.graph()
        if graph.channels != len(graph.orders):
            reader.fault("nchannels", f"but the graph lists {len(graph.orders)} channels")
    if not graphs and not faults:
        faults.append(Fault(file, root.line, 1, "", "found no <graph>"))
    if faults:
        raise LogFormatError(sorted(faults))
    return graphs


class _Reader:
    """Reads the attributes of one <graph>, noting every fault."""

    def __init__(self, element: Element, file: str, faults: list[Fault]) -> None:
        self._element, self._file, self._faults = element, file, faults

    def fault(self, name: str, expected: str) -> None:
        value = self._element.attributes.get(name)
        text = f"found {value[:40]!r}, {expected}" if value is not None else f"is missing; {expected}"
        self._faults.append(Fault(self._file, self._element.line, 1, name, text))

    def whole(self, name: str, least: int) -> int:
        text = self._element.attributes.get(name, "")
        if text.isdecimal() and least <= int(text) <= 10_000:
            return int(text)
        self.fault(name, f"expected a whole number from {least}")
        return least

    def speed(self, name: str) -> float:
        try:
            value = float(self._element.attributes.get(name, ""))
        except ValueError:
            value = -1.0
        if isfinite(value) and 0 <= value <= 1e5:
            return value
        self.fault(name, "expected a bandwidth in GB/s")
        return 0.0

    def path(self, name: str) -> str:
        text = self._element.attributes.get(name, "")
        if text not in PATHS:
            self.fault(name, f"expected one of {', '.join(PATHS)}")
            return "SYS"
        return text

    def graph(self) -> Graph:
        pattern = PATTERNS.get(self.whole("pattern", 1))
        if pattern is None:
            self.fault("pattern", "expected 1 to 6")
        return Graph(
            channels=self.whole("nchannels", 0),
            intra_gbps=self.speed("speedintra"),
            inter_gbps=self.speed("speedinter"),
            pattern=pattern or "RING",
            intra_type=self.path("typeintra"),
            inter_type=self.path("typeinter"),
            same_channels=self.whole("samechannels", 0) == 1,
            cross_nic=self.whole("crossnic", 0),
            orders=tuple(self.order(channel) for channel in self._element.each("channel")),
        )

    def order(self, channel: Element) -> tuple[int, ...]:
        order = []
        for gpu in channel.each("gpu"):
            try:
                order.append(int(gpu.attributes.get("dev", ""), 16))
            except ValueError:
                value = gpu.attributes.get("dev", "nothing")[:40]
                message = f"found {value!r}, expected a hexadecimal number"
                self._faults.append(Fault(self._file, gpu.line, 1, "dev", message))
        return tuple(order)
