"""Collectives of a training step on a machine with faults: of the groups that meet in a step the slowest counts.

A step waits for the last of the groups on an axis: tensor groups of a stage meet in its gradients, data groups in the
next step. So a group's time is that of its shape, times what the slowest of the groups like it, in its pipeline stage,
takes longer for the faults of its own nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np

from commsim.nccl.predict import Predictor
from commsim.topology.graph import Topology
from commsim.topology.kinds import Bool, Int64, LinkKind
from commsim.topology.part import states
from commsim.training.communicators import CommTime, Ranks
from commsim.training.mesh import Mesh

_AXES = ("tp", "cp", "dp", "pp")


class SlowGroups:
    """`CommTime` of a machine with faults, by that of a healthy one.

    ``predictor(topology, ranks, ring)`` is the library's model of a group; `healthy` is the machine without its faults.
    """

    def __init__(
        self,
        times: CommTime,
        mesh: Mesh,
        faulty: Topology,
        healthy: Topology,
        predictor: Callable[[Topology, Ranks], Predictor],
    ) -> None:
        self._times, self._mesh, self._predictor = times, mesh, predictor
        self._machines = healthy, faulty
        self._bad, self._state = unlike(faulty)
        self._known: dict[tuple[object, ...], float] = {}

    def __call__(self, collective: str, nbytes: float, ranks: Ranks) -> float:
        """Seconds of one call; 0 for a group of one."""
        seconds = self._times(collective, nbytes, ranks)
        if len(ranks) < 2 or nbytes <= 0:
            return seconds
        key = collective, round(nbytes), ranks.tobytes()
        if key not in self._known:
            slower = (self._slower(collective, round(nbytes), group) for group in self._bad_groups(ranks))
            self._known[key] = max(slower, default=1.0)
        return seconds * self._known[key]

    def _bad_groups(self, ranks: Ranks) -> Iterator[Ranks]:
        """Groups like one, in its pipeline stage, that have a node unlike most; one for each set of such nodes."""
        coordinates = self._mesh.coordinates()
        at = {axis: coordinates[axis][ranks] for axis in _AXES}
        fixed = [axis for axis in _AXES if axis != "pp" and (at[axis] == at[axis][0]).all()]
        nodes, seen = self._machines[1].rank_node, set[tuple[int, ...]]()
        for place in product(*(range(self._mesh.size(axis)) for axis in fixed)):
            moved = at | {axis: np.full(len(ranks), k) for axis, k in zip(fixed, place, strict=True)}
            group = self._mesh.ranks(**moved)
            its = np.unique(nodes[group])
            if not self._bad[its].any():
                continue
            state = tuple(self._state[its].tolist())
            if state not in seen:
                seen.add(state)
                yield group

    def _slower(self, collective: str, nbytes: int, group: Ranks) -> float:
        """How many times as long a group takes with the faults of its nodes."""
        healthy, faulty = (self._predictor(t, group).predict(collective, nbytes).time_s for t in self._machines)
        return max(1.0, faulty / healthy)


def unlike(topology: Topology) -> tuple[Bool, Int64]:
    """Of each node whether it, its ports or the uplinks of its leaves are unlike those of most; a number for how."""
    t = topology
    share = np.ones(t.link_bandwidth.size) if t.link_share is None else np.where(t.works, t.link_share, 0.0)
    known: list[object] = states(t).tolist()
    if t.nodes > 1:
        switches = len(t.vertex_name) - int(t.node_first_vertex[-1])
        wires = np.flatnonzero(t.link_kind == LinkKind.FABRIC)
        above = np.ones(switches)
        np.minimum.at(above, t.link_src[wires] - t.node_first_vertex[-1], share[wires])
        here = t.fabric.port_up >= 0
        ports = np.where(here, np.minimum(share[t.fabric.port_up], share[t.fabric.port_down]), 1.0)
        leaves = np.where(here, above[np.where(here, t.fabric.leaf, 0)], 1.0)
        known = [(s, p.tobytes(), a.tobytes()) for s, p, a in zip(known, ports, leaves, strict=True)]
    number = {what: i for i, what in enumerate(dict.fromkeys(known))}
    of = np.array([number[what] for what in known], np.int64)
    return np.asarray(of != np.bincount(of).argmax()), of
