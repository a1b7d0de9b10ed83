"""A drawing of a machine as plain values: boxes, and lines that stand for links, with what a fault there is called."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from commsim.report.topology_shapes import LINK_NAME
from commsim.topology.graph import LinkKind, Topology, VertexKind
from commsim.topology.kinds import Float64
from commsim.units import format_bandwidth

_HALF = 15.0
FINE, DEGRADED, FAILED = "", "degraded", "failed"


@dataclass
class Drawing:
    """Boxes and lines by plain values; `place` is what a fault there is called."""

    topology: Topology
    heat: Float64
    boxes: list[dict[str, Any]] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)
    place: dict[int, tuple[float, float]] = field(default_factory=dict)  # of vertices drawn
    half: dict[int, float] = field(default_factory=dict)  # of the height of their boxes, where it is not `_HALF`
    height: float = 0.0
    width: float = 0.0

    def box(
        self, centre: tuple[float, float], size: tuple[float, float], text: str, fill: str, **more: Any
    ) -> None:  # fmt: skip
        """Adds a box."""
        (x, y), (w, h) = centre, size
        self.boxes.append({"x": x - w / 2, "y": y - h / 2, "w": w, "h": h, "text": text, "fill": fill} | more)

    def line(self, a: int, b: int, place: str, bend: float = 0.0, *, upright: bool = False) -> None:
        """Adds the line between two vertices, which stands for the links of both directions.

        An `upright` one ends in the wide box of `b` straight below `a`.
        """
        t = self.topology
        links = np.flatnonzero(((t.link_src == a) & (t.link_dst == b)) | ((t.link_src == b) & (t.link_dst == a)))
        if not links.size:
            return
        share = np.fmax.reduce(self.heat[links], initial=np.nan)
        kind = LinkKind(int(t.link_kind[links[0]]))
        left = 1.0 if t.link_share is None else float(t.link_share[links].min())
        state = FAILED if not t.works[links].all() else DEGRADED if left < 1.0 else FINE
        name = f"{t.vertex_name[a]} - {t.vertex_name[b]}"
        rate = format_bandwidth(float(t.link_bandwidth[links[0]]))
        words = [f"{name}: {LINK_NAME[kind]}, {rate} one direction"]
        words += ["failed"] if state == FAILED else [f"at {100 * left:.0f} % of its rate"] if left < 1.0 else []
        words += [] if np.isnan(share) else [f"the call uses {100 * share:.0f} %"]
        (x, y), (to_x, to_y) = self.place[a], self.place[b]
        if not bend and y != to_y:  # from edge to edge, so that it runs behind no box of the two rows
            down = 1 if to_y > y else -1
            y, to_y = y + down * self.half.get(a, _HALF), to_y - down * self.half.get(b, _HALF)
        self.lines.append(
            {
                "from": (x, y),
                "to": (x if upright else to_x, to_y),
                "bend": bend,
                "heat": None if np.isnan(share) else float(share),
                "state": state,
                "title": "; ".join(words),
                "place": place,
                "kind": kind.name.lower(),
            }
        )


def fault_place(t: Topology, a: int, b: int) -> str:
    """What a fault of the link between two vertices is called in a state."""
    for nic, other in ((a, b), (b, a)):
        if t.vertex_kind[nic] == VertexKind.NIC and t.vertex_node[other] < 0:
            node = int(t.vertex_node[nic])
            mine = slice(int(t.node_first_vertex[node]), nic)
            return f"nic:{node}.{int((t.vertex_kind[mine] == VertexKind.NIC).sum())}"
    return f"link:{t.vertex_name[a]}~{t.vertex_name[b]}"
