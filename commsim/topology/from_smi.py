"""The matrix of ``nvidia-smi topo -m`` as a description of a machine.

It says how close devices are and how many NVLinks join GPUs, but nothing of speeds: those are flags, and the error
names each that is missing. On a machine with NVSwitches every pair shows all links of a GPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from commsim.errors import Fault, TopologyError
from commsim.files import text_within
from commsim.topology.imported import (
    NVLINK_GB_PER_S,
    NVLINK_MOST,
    Given,
    Imported,
    gb_per_s,
    generation_of,
    imported,
    link,
    nvlinks,
    socket_links,
)

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_CELL = re.compile(r"^(X|NV\d+|PIX|PXB|PHB|NODE|SYS)$")
_MOST_BYTES = 1 << 20


@dataclass
class _Matrix:
    columns: list[str]
    cells: dict[tuple[str, str], str] = field(default_factory=dict)
    affinity: dict[str, str] = field(default_factory=dict)
    line: int = 0

    @property
    def gpus(self) -> list[str]:
        return [name for name in self.columns if name.startswith("GPU")]

    def joined(self, kinds: tuple[str, ...]) -> list[list[str]]:
        """Groups of devices that cells of some kinds join, in the order of the columns."""
        group = {name: name for name in self.columns}

        def root(name: str) -> str:
            while group[name] != name:
                name = group[name]
            return name

        for (a, b), cell in self.cells.items():
            near = cell in kinds or (cell.startswith("NV") and "NODE" in kinds and self._beside(a, b))
            if near and a in group and b in group:
                group[root(b)] = root(a)
        members: dict[str, list[str]] = {}
        for name in self.columns:
            members.setdefault(root(name), []).append(name)
        return list(members.values())

    def _beside(self, a: str, b: str) -> bool:
        return bool(self.affinity.get(a)) and self.affinity.get(a) == self.affinity.get(b)


def read_topology_matrix(path: Path, given: Given | None = None) -> Imported:
    """The machine of a saved matrix; TopologyError names the line that is cut, or the flags that are missing."""
    given = given or Given()
    text = text_within(path, _MOST_BYTES)
    if text is None:
        raise TopologyError([Fault(str(path), 0, 0, "", f"the file is larger than {_MOST_BYTES >> 20} MiB")])
    notes: list[str] = []
    matrix = _read(text, str(path), notes)
    links = _nvlink_counts(matrix, str(path))
    nics = len(matrix.columns) > len(matrix.gpus)
    needed = (
        (given.sm, "--sm, the compute capability times ten (90 for an H100)"),
        (given.pcie_bandwidth, "--pcie-bandwidth, of one GPU ('24 GB/s' for fourth generation x16)"),
        (given.cpu_vendor, "--cpu-vendor intel, amd, arm or ibm"),
        (given.nic_bandwidth if nics else "", "--nic-bandwidth, of one NIC ('200 Gb/s')"),
    )
    missing = [flag for value, flag in needed if value is None]
    if missing:
        text = "topo -m says nothing of speeds; give " + "; ".join(missing)
        raise TopologyError([Fault(str(path), matrix.line, 1, "", text)])
    assert given.sm is not None
    assert given.cpu_vendor is not None
    if generation_of(given.sm) is None:
        raise TopologyError(f"{path}: --sm: found {given.sm}, expected 70 or more")
    vertices, wires = _tree(matrix, given)
    more, bundles = _nvlinks(matrix, links, given.sm)
    node = {"vertices": vertices | more, "links": wires + bundles}
    arch = {"arm": "arm64", "ibm": "ppc64"}.get(given.cpu_vendor, "x86_64")
    cpu = {"arch": arch, "vendor": given.cpu_vendor}
    return imported(path, given.sm, cpu, node, given.nic_bandwidth if nics else None, given, notes)


def _split(line: str) -> list[str]:
    cells = [c.strip() for c in (line.split("\t") if "\t" in line else re.split(r"\s{2,}", line.strip()))]
    return [c for c in cells if c]


def _read(text: str, file: str, notes: list[str]) -> _Matrix:
    """The first matrix of a text; further ones (other hosts, the p2p table) are left out."""
    matrix: _Matrix | None = None
    cut: list[Fault] = []
    done = False
    for number, raw in enumerate(text.splitlines(), start=1):
        cells = _split(_ANSI.sub("", raw).rstrip())
        if not cells:
            done = done or (matrix is not None and bool(matrix.cells))
            continue
        if cells[0] == "GPU0" and (len(cells) == 1 or not _CELL.match(cells[1])):
            if matrix is not None:
                notes.append(f"line {number}: a further matrix is left out; save one host per file")
                break
            stop = next((i for i, c in enumerate(cells) if "Affinity" in c or c == "GPU NUMA ID"), len(cells))
            matrix = _Matrix(cells[:stop], line=number)
        elif matrix is not None and not done and cells[0] in matrix.columns:
            values = cells[1 : 1 + len(matrix.columns)]
            good = [v for v in values if _CELL.match(v)]
            if len(good) < len(matrix.columns):
                where = Fault(file, number, 1, cells[0], f"found {len(good)} of {len(matrix.columns)} cells: cut short")
                if cells[0] in matrix.gpus:
                    cut.append(where)
                else:
                    notes.append(f"line {number}: the row of {cells[0]} is cut; the rows of the GPUs say enough")
                continue
            matrix.cells |= {(cells[0], c): v for c, v in zip(matrix.columns, values, strict=True) if v != "X"}
            if len(cells) > 1 + len(matrix.columns):
                matrix.affinity[cells[0]] = cells[1 + len(matrix.columns)]
    if matrix is None:
        raise TopologyError([Fault(file, 0, 0, "", "found no matrix: expected a heading GPU0 ... and a row per GPU")])
    rows = {a for a, _ in matrix.cells} | set(matrix.affinity)
    for gpu in matrix.gpus:
        if gpu not in rows and not any(f.path == gpu for f in cut) and len(matrix.columns) > 1:
            cut.append(Fault(file, matrix.line, 1, gpu, "the heading names it, but it has no row"))
    if cut:
        raise TopologyError(cut)
    return matrix


def _nvlink_counts(matrix: _Matrix, file: str) -> dict[tuple[str, str], int]:
    """NVLinks of every pair of GPUs that has some; TopologyError where two cells of a pair differ."""
    for a, b in combinations(matrix.gpus, 2):
        one, other = matrix.cells.get((a, b)), matrix.cells.get((b, a))
        if one != other:
            message = f"found {one} from {a} to {b}, but {other} from {b} to {a}"
            raise TopologyError([Fault(file, matrix.line, 1, "", message)])
    return {pair: int(cell[2:]) for pair, cell in matrix.cells.items() if cell.startswith("NV") and pair[0] < pair[1]}


def _nvlinks(
    matrix: _Matrix, counts: dict[tuple[str, str], int], sm: int
) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """(vertices, links) of the NVLinks: to NVSwitches where a GPU would otherwise have more than there are."""
    of_one = sum(n for pair, n in counts.items() if matrix.gpus[0] in pair)
    if len(set(counts.values())) == 1 and of_one > NVLINK_MOST.get(sm, 18):
        return nvlinks([gpu.lower() for gpu in matrix.gpus], sm, max(counts.values()), "switch")
    bandwidth = gb_per_s(NVLINK_GB_PER_S.get(sm, 25.0))
    return {}, [link(a.lower(), b.lower(), "nvlink", bandwidth, n) for (a, b), n in counts.items()]


def _tree(matrix: _Matrix, given: Given) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Hosts, switches and devices: PIX meets in one switch, PXB in a switch above switches, PHB and NODE in a host."""
    gpus, bandwidth = matrix.gpus, given.pcie_bandwidth or ""
    nics = [name for name in matrix.columns if name not in gpus]
    names = {gpu: gpu.lower() for gpu in gpus} | {name: f"nic{i}" for i, name in enumerate(nics)}
    vertices = {name: "gpu" if device in gpus else "nic" for device, name in names.items()}
    wires: list[dict[str, Any]] = []

    def switch(above: str) -> str:
        name = f"pcie{list(vertices.values()).count('pcie_switch')}"
        vertices[name] = "pcie_switch"
        wires.append(link(name, above, "pcie", bandwidth))
        return name

    under_one, under_many = matrix.joined(("PIX",)), matrix.joined(("PIX", "PXB"))
    hosts = matrix.joined(("PIX", "PXB", "PHB", "NODE"))
    for h, members in enumerate(hosts):
        vertices[f"cpu{h}"] = "host"
        for group in (g for g in under_many if g[0] in members):
            inner = [g for g in under_one if g[0] in group]
            above = switch(f"cpu{h}") if len(inner) > 1 else f"cpu{h}"
            for one in inner:
                parent = switch(above) if len(one) > 1 or len(inner) > 1 else above
                wires += [link(names[device], parent, "pcie", bandwidth) for device in one]
    return vertices, wires + socket_links([f"cpu{h}" for h in range(len(hosts))], given.cpu_vendor or "")
