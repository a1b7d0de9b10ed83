"""How busy every link was, for the drawing of a topology: a colour from pale to dark, grey where nothing went."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from commsim.topology.graph import Topology

IDLE = "#D3D8DD"
_PALEST = 0.18  # of the colour map: paler lines cannot be seen on white


@dataclass(frozen=True, eq=False)
class Heat:
    """The share of the time that each link of a topology was busy, (links,); NaN where nothing went over it."""

    share: npt.NDArray[np.float64]

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


def node_heat(topology: Topology, heat: Heat) -> Heat:
    """For a drawing in which node 0 stands for all like it: each of its links as busy as the busiest of its likes."""
    first = topology.node_first_link
    alike = np.flatnonzero(topology.node_group == topology.node_group[0])
    inside = int(first[1] - first[0])
    share = heat.share.copy()
    share[first[0] : first[1]] = np.fmax.reduce(share[first[:-1][alike][:, None] + np.arange(inside)])
    return Heat(share)


def colour_bar(figure: Figure, height: float) -> None:
    """The scale of the colours below the drawing; `height` of the figure in inches."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    scale = ListedColormap([colour(i / 255) for i in range(256)])
    axes = figure.add_axes((0.3, 0.52 / height, 0.4, 0.13 / height))
    bar = figure.colorbar(ScalarMappable(Normalize(0, 100), scale), cax=axes, orientation="horizontal")
    bar.set_label("time for which a link is busy (%): the busier direction; grey: nothing is sent", fontsize=9)
