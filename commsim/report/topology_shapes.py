"""Colours, names, boxes and heat shared by the parts of a topology picture.

Heat is how busy every link was: from pale to dark, grey where nothing went.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from commsim.nccl.plugins import PLUGINS
from commsim.topology.graph import LinkKind, VertexKind

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from commsim.topology.graph import Topology

INK = "#22303c"
MUTED = "#566573"
FILL = {
    VertexKind.GPU: "#8ccf5d",
    VertexKind.NVSWITCH: "#3f8f3a",
    VertexKind.PCIE_SWITCH: "#9db7d5",
    VertexKind.HOST: "#f4b266",
    VertexKind.NIC: "#c6a5de",
    VertexKind.SWITCH: "#d9dee3",
    VertexKind.CARD: "#e3d3ee",
}
FILL_NODE = "#eef6e7"
LINE = {
    LinkKind.NVLINK: "#3f8f3a",
    LinkKind.C2C: "#c2185b",
    LinkKind.PCIE: "#5b7fa8",
    LinkKind.HOST: "#d9822b",
    LinkKind.NETWORK: "#8556ab",
    LinkKind.FABRIC: "#4a5866",
}
LINK_NAME = {
    LinkKind.NVLINK: "NVLink",
    LinkKind.C2C: "NVLink-C2C",
    LinkKind.PCIE: "PCIe",
    LinkKind.HOST: "CPU to CPU",
    LinkKind.NETWORK: "NIC to switch",
    LinkKind.FABRIC: "leaf to spine",
}
_NETWORKS = {
    "infiniband": "InfiniBand",
    "roce": "RoCE",
    "slingshot": "Slingshot",
    "efa": "EFA",
    "efa_v1": "EFA (first generation)",
    "tcpx": PLUGINS["tcpx"],
    "ethernet": "Ethernet",
}


def network_name(network: str, plugin: str) -> str:
    """What people call a network: TCPX and TCPXO, which the model holds for one, by the plugin."""
    return PLUGINS[plugin] if network == "tcpx" and plugin in PLUGINS else _NETWORKS.get(network, network)


def cut(count: int, most: int, wanted: Iterable[int] = ()) -> list[int | None]:
    """Indices to draw: all, or the first, those wanted and the last, with None where some are left out."""
    if count <= most:
        return list(range(count))
    kept = dict.fromkeys([*[k for k in wanted if k < count][: most - 2], count - 1, *range(count)])
    chosen = sorted(list(kept)[: most - 1])
    shown: list[int | None] = []
    for before, k in zip([-1, *chosen], chosen, strict=False):
        shown += [k] if k == before + 1 else [None, k]
    return shown


def ellipsis(ax: Axes, x: float, y: float, size: float) -> None:
    """Stands for what is left out of a row."""
    ax.text(x, y, "...", fontsize=size, ha="center", va="center", color=INK)


def box(ax: Axes, centre: tuple[float, float], size: tuple[float, float], text: str, fill: str) -> None:
    """A box with a text in its middle."""
    from matplotlib.patches import FancyBboxPatch

    (x, y), (w, h) = centre, size
    ink = "white" if fill == FILL[VertexKind.NVSWITCH] else INK
    corner, shape = (x - w / 2, y - h / 2), "round,pad=0,rounding_size=0.07"
    ax.add_patch(FancyBboxPatch(corner, w, h, boxstyle=shape, facecolor=fill, edgecolor=INK, linewidth=0.8, zorder=2))
    ax.text(x, y, text, ha="center", va="center", fontsize=8, color=ink, zorder=4, linespacing=1.1)


IDLE = "#D3D8DD"
_PALEST = 0.18  # of the colour map: paler lines cannot be seen on white


@dataclass(frozen=True, eq=False)
class Heat:
    """The share of the time that each link of a topology was busy, (links,); NaN where nothing went over it.

    With `names` it is no time, but what the links are (1) and are not (NaN): their names in the key.
    """

    share: npt.NDArray[np.float64]
    names: tuple[str, str] | None = None

    @property
    def busiest(self) -> int:
        """The link that is busy the longest; -1 where nothing was sent, or shares are no time."""
        sent = self.names is None and not np.isnan(self.share).all()
        return int(np.nanargmax(self.share)) if sent else -1

    def of(self, links: Iterable[int]) -> float:
        """The largest share of some links; NaN if nothing went over any."""
        return float(np.fmax.reduce(self.share[[link for link in links if link >= 0]], initial=np.nan))

    def look(self, links: Iterable[int], wide: float = 2.4) -> dict[str, Any]:
        """Colour and width of the line for some links."""
        share = self.of(links)
        if np.isnan(share):
            return {"color": IDLE, "linewidth": 0.9, "alpha": 1.0}
        return {"color": colour(share), "linewidth": wide, "alpha": 1.0}


def colour(share: float) -> Any:
    """The colour of a share from 0 to 1."""
    from matplotlib import colormaps

    return colormaps["YlOrRd"](_PALEST + (1 - _PALEST) * min(max(share, 0.0), 1.0))


def heat_of(topology: Topology, shares: Mapping[str, float]) -> Heat:
    """The heat of links by name (``node0.gpu0 -> node0.nvswitch``); of parallel links each has the largest share."""
    place = {name: vertex for vertex, name in enumerate(topology.vertex_name)}
    by_ends: dict[tuple[int, int], float] = {}
    for name, share in shares.items():
        src, _, dst = name.partition(" -> ")
        if src in place and dst in place:
            ends = (place[src], place[dst])
            by_ends[ends] = max(share, by_ends.get(ends, 0.0))
    links = zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True)
    return Heat(np.array([by_ends.get(ends, np.nan) for ends in links]))


def node_heat(topology: Topology, heat: Heat, node: int = 0) -> Heat:
    """For a drawing in which a node stands for all like it: each of its links as busy as the busiest of its likes."""
    first = topology.node_first_link
    alike = np.flatnonzero(topology.node_group == topology.node_group[node])
    inside = int(first[node + 1] - first[node])
    share = heat.share.copy()
    share[first[node] : first[node + 1]] = np.fmax.reduce(share[first[:-1][alike][:, None] + np.arange(inside)])
    return replace(heat, share=share)


def colour_bar(figure: Figure, height: float, heat: Heat) -> None:
    """The scale of the colours below the drawing, or what they name; `height` of the figure in inches."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize
    from matplotlib.lines import Line2D

    if heat.names is not None:
        lines = [
            Line2D([], [], color=c, linewidth=3, label=n) for c, n in zip((colour(1.0), IDLE), heat.names, strict=True)
        ]
        figure.legend(handles=lines, loc="lower center", ncols=2, frameon=False, fontsize=9.5)
        return
    scale = ListedColormap([colour(i / 255) for i in range(256)])
    axes = figure.add_axes((0.3, 0.52 / height, 0.4, 0.13 / height))
    bar = figure.colorbar(ScalarMappable(Normalize(0, 100), scale), cax=axes, orientation="horizontal")
    bar.set_label("time for which a link is busy (%): the busier direction; grey: nothing is sent", fontsize=9)
