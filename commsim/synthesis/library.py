"""A schedule as a library's kernels would run it: NCCL's protocols, hops, thread blocks and rates.

As MSCCL's interpreter does: a thread block for every connection and channel copies at its rate; a piece costs a hop of
the protocol, inside a node or between nodes, and its bytes with the flags of LL and LL128; links reach the share of
their rate that they do under NCCL. What is measured of a pipeline inside a chunk is not in it: a piece is one message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from commsim.collectives.registry import build, entry, names
from commsim.collectives.schedule import Schedule
from commsim.engine.program import Program, pointers
from commsim.engine.simulate import simulate
from commsim.errors import CommsimError, ScheduleError
from commsim.nccl.machine import nic_efficiency
from commsim.nccl.predict import Predictor
from commsim.nccl.protocols import PROTOCOLS, Protocol
from commsim.synthesis.search import Synthesis, laid_out
from commsim.topology.graph import Topology
from commsim.topology.kinds import Float64, LinkKind

CHANNELS = (1, 2, 4, 8, 16, 32)
"""Channels that are tried: MSCCL's runtime has 32."""
_PIECES = (1, 4, 16, 64, 256, 1024)
_WORSE = 2
"""Numbers of pieces in a row that are tried without a gain."""
REGISTRY_BYTES = 2**24
"""Size up to which the registry's algorithms are timed too: beyond it none of them comes near."""
MOST_ROWS = 100_000
"""Rows of a schedule up to which it is timed."""


@dataclass(frozen=True)
class LibraryRun:
    """Seconds of one call, launch included, and with which algorithm, protocol, channels and pieces."""

    seconds: float
    algorithm: str
    protocol: str
    channels: int
    pieces: int = 0


def library_run(
    schedule: Schedule, topology: Topology, model: Predictor, ranks: Sequence[int] | None = None
) -> LibraryRun:
    """The quickest way to run the schedule; ScheduleError where switches act or it has too many moves."""
    if schedule.endpoints > schedule.world_size:
        raise ScheduleError(f"{schedule.algorithm} {schedule.collective}: no kernel has switches copy or add")
    if schedule.rows > MOST_ROWS:
        raise ScheduleError(f"found {schedule.rows} moves, expected at most {MOST_ROWS}")
    own = np.arange(schedule.world_size) if ranks is None else np.asarray(ranks)
    frame = _LibraryFrame(schedule, topology, own, model)
    best = LibraryRun(np.inf, "", "", 0)
    for protocol in PROTOCOLS.values():
        idle = 0
        for channels in CHANNELS:
            seconds = frame.seconds(protocol, channels)
            idle = 0 if seconds < best.seconds else idle + 1
            if seconds < best.seconds:
                best = LibraryRun(seconds, schedule.algorithm, protocol.name, channels)
            if idle == 2:
                break
    return best


def best_of_registry(
    collective: str, nbytes: int, topology: Topology, model: Predictor, root: int = 0, itemsize: int = 1
) -> tuple[LibraryRun, Schedule] | None:
    """The quickest algorithm of the registry that kernels could run, timed alike; None where there is none."""
    best: tuple[LibraryRun, Schedule] | None = None
    per_node = topology.ranks_per_node if topology.uniform and topology.nodes > 1 else None
    for _, algorithm in names(collective):
        known = entry(collective, algorithm)
        if known.adds_in:
            continue
        for chunks in (1, 4) if "chunks" in known.takes else (1,):
            try:
                schedule = build(
                    collective,
                    algorithm,
                    topology.world_size,
                    nbytes,
                    root if "root" in known.takes else 0,
                    chunks=chunks,
                    ranks_per_node=per_node if "ranks_per_node" in known.takes else None,
                    itemsize=itemsize,
                )
                one = library_run(schedule, topology, model)
            except CommsimError:
                continue
            if best is None or one.seconds < best[0].seconds:
                best = one, schedule
    return best


def library_best(
    one: Synthesis, topology: Topology, model: Predictor, ranks: Sequence[int] | None = None
) -> LibraryRun | None:
    """The quickest that kernels could run: the synthesized trees in more or fewer pieces, or the registry's best.

    A piece is a message, so that fewer are better here than on ideal links, unless more channels are to have one each.
    None where switches act in the trees.
    """
    q, runs = one.question, list[LibraryRun]()
    for count in _PIECES:
        if count > max(one.pieces, CHANNELS[-1] * len(one.forest.share)) or count > q.size:
            break
        if len(runs) > _WORSE and min(run.seconds for run in runs[:-_WORSE]) < min(
            run.seconds for run in runs[-_WORSE:]
        ):
            break
        try:
            schedule = laid_out(q, one.forest, count).schedule
            runs.append(replace(library_run(schedule, topology, model, ranks), pieces=count))
        except ScheduleError:
            break
    if q.size <= REGISTRY_BYTES and ranks is None:
        if one.known:
            runs.append(library_run(one.laid.schedule, topology, model, ranks))
        known = best_of_registry(q.collective, q.size, topology, model, q.root, q.itemsize)
        runs += [] if known is None else [known[0]]
    return min(runs, key=lambda run: run.seconds, default=None)


class _LibraryFrame:
    """What all protocols and channels of one schedule share."""

    def __init__(
        self, schedule: Schedule, topology: Topology, ranks: npt.NDArray[np.integer], model: Predictor
    ) -> None:
        self.schedule, self.topology, self.model = schedule, topology, model
        s, t = schedule, topology
        self._pair, self._of_row = np.unique(s.src.astype(np.int64) * s.endpoints + s.dst, return_inverse=True)
        src, dst = ranks[self._pair // s.endpoints], ranks[self._pair % s.endpoints]
        self._routes = t.routes(src, dst)
        self._across = t.rank_node[src] != t.rank_node[dst]
        self._inside = src == dst
        self._order = s.dependencies()

    def seconds(self, protocol: Protocol, channels: int) -> float:
        """Seconds of a call with the launch."""
        s, t, model = self.schedule, self.topology, self.model
        parameters, machine, name = model.parameters, model.machine, protocol.name
        channel = s.src_chunk.astype(np.int64) % channels
        used, route = np.unique(self._of_row.reshape(-1) * channels + channel, return_inverse=True)
        pair = used // channels
        links = [self._routes.link[slice(*self._routes.ptr[[r, r + 1]])] for r in self._routes.index.tolist()]
        first = t.link_bandwidth.size  # thread blocks come after the links
        ways = [np.concatenate([[first + k], links[p]]) for k, p in enumerate(pair.tolist())]
        hop = np.full(self._pair.size, parameters.hop_inside(parameters.ring_hop, machine.intra_kind, name))
        hop[self._across] = parameters.network.ring_hop.of(name)
        hop[self._inside] = 0.0
        program = Program(
            nbytes=np.ceil(s.payload_bytes() * protocol.wire_factor).astype(np.int64),
            route=route.reshape(-1).astype(np.int32),
            delay_s=hop[self._of_row.reshape(-1)],
            succ_ptr=self._order[0],
            succ_idx=self._order[1],
            route_ptr=pointers([way.size for way in ways]),
            route_link=np.concatenate(ways).astype(np.int32),
            link_bandwidth=np.concatenate(
                [
                    _reached(t, model, protocol),
                    np.full(used.size, parameters.block_rate.of(name) * protocol.wire_factor),
                ]
            ),
            link_latency=np.zeros(first + used.size),
        )
        own = parameters.base.of(name) + (channels - 1) * parameters.channel_cost_of(model.version)
        return model.with_launch(own + simulate(program).makespan_s)


def _reached(t: Topology, model: Predictor, protocol: Protocol) -> Float64:
    """Bytes/s on the wires of every link, as a collective reaches them, (L,)."""
    parameters, machine = model.parameters, model.machine
    share = np.ones(t.link_bandwidth.size)
    inside = parameters.efficiency.inside(machine.intra_kind, protocol)
    share[t.link_kind == LinkKind.NVLINK] = inside if machine.intra_kind.startswith("nvlink") else 1.0
    share[t.link_kind == LinkKind.PCIE] = parameters.efficiency.pcie
    if t.nodes > 1:
        share[t.link_kind == LinkKind.NETWORK] = nic_efficiency(machine, parameters)
    return np.asarray(t.link_bandwidth * share)
