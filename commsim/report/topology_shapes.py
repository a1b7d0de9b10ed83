"""Colours, names and boxes shared by the parts of a topology picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commsim.nccl.plugins import PLUGINS
from commsim.topology.graph import LinkKind, VertexKind

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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


def cut(count: int, most: int) -> list[int | None]:
    """Indices to draw: all, or the first ones, None for an ellipsis, and the last."""
    if count <= most:
        return list(range(count))
    return [*range(most - 2), None, count - 1]


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
