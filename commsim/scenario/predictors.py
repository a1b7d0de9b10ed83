"""Which predictor a scenario's library has: NCCL's model, gloo's, kernels', or raw schedules; models are kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from commsim.nccl.environment import POINT_TO_POINT, over_sockets
from commsim.nccl.pools import MESHES
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.uncertainty import link_kind, spread
from commsim.nccl.version import ASSUMED, format_version
from commsim.scenario.item import Row
from commsim.scenario.placement import placed
from commsim.scenario.rows import Pace, RowPredictor
from commsim.scenario.setting import build_topology
from commsim.units import format_bytes, format_percent

if TYPE_CHECKING:
    from commsim.engine.variation import Variation
    from commsim.nccl.parameters import Parameters
    from commsim.nccl.predict import Prediction
    from commsim.scenario.collective import CollectiveSpec
    from commsim.scenario.setting import Setting
    from commsim.topology.graph import Topology
    from commsim.training.communicators import GroupCalls

K = TypeVar("K")
V = TypeVar("V")


class Cache:
    """Topologies, NCCL models and groups' calls already built in this process, for runs that differ little; the latest
    few of each."""

    KEPT, KEPT_GROUPS = 16, 4

    def __init__(self) -> None:
        self._topologies: dict[str, Topology] = {}
        self._models: dict[tuple[object, ...], Predictor] = {}
        self._groups: dict[tuple[object, ...], GroupCalls] = {}

    def topology(self, scenario: Setting) -> Topology:
        """The topology of a scenario."""
        key = f"{scenario.base_dir}\n{scenario.topology.model_dump_json()}"
        return self._kept(self._topologies, key, lambda: build_topology(scenario))

    def model(
        self,
        topology: Topology,
        options: Options,
        parameters: Parameters | None = None,
        ranks: tuple[int, ...] | None = None,
    ) -> Predictor:
        """The NCCL model of a topology and what else is given; of one topology object, if it comes from here."""
        of = {**vars(options), "env": tuple(sorted(options.env.items())), "parameters": parameters, "ranks": ranks}
        return self._kept(
            self._models, (topology, *of.values()), lambda: Predictor(topology, options, parameters, ranks)
        )

    def groups(self, key: tuple[object, ...], build: Callable[[], GroupCalls]) -> GroupCalls:
        """What is known under a key of the calls of groups, fresh."""
        return self._kept(self._groups, key, build, self.KEPT_GROUPS).fresh()

    def _kept(self, kept: dict[K, V], key: K, build: Callable[[], V], most: int = KEPT) -> V:
        value = kept.pop(key) if key in kept else build()
        kept[key] = value
        if len(kept) > most:
            del kept[next(iter(kept))]
        return value


def varied(scenario: Setting, topology: Topology) -> Topology:
    """The machine with the slow GPUs of the scenario's stragglers."""
    if scenario.variation is None:
        return topology
    from commsim.topology.faults import with_slow_gpus

    stragglers = scenario.variation.variation.stragglers
    return with_slow_gpus(topology, {rank: s.factor for s in stragglers if s.factor != 1.0 for rank in s.ranks})


def survived(scenario: Setting, nodes: Collection[int] | None = None) -> list[str]:
    """What NCCL makes of faults that set in while a job runs, for the user; a ScenarioError for one that it dies of.

    Those at `nodes` that do not take part (None: all do) are no matter.
    """
    said = []
    for i, fault in enumerate(scenario.topology.faults or ()):
        node = fault.node if fault.nic is None else fault.nic[0]
        if nodes is not None and node is not None and node not in nodes:
            continue
        if fault.failed and fault.start:
            raise scenario.document.error(
                ("topology", "faults", i, "start"),
                "found a link that fails while the job runs, which NCCL does not get round: calls hang until the "
                "transport gives up (InfiniBand: NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT) and the communicator is "
                "aborted; expected a bandwidth_factor, or failed from the start, which NCCL plans round",
            )
        if fault.latency_factor is not None:
            said.append(
                f"topology.faults.{i}: latency_factor has an effect on NCCL's times only where the links of a way take "
                "longer than its hop between nodes (in a node: than the call), which holds those of healthy links"
            )
    return said


_CHECKS_PEER = (2, 16, 2)
"""The NCCL from which on a socket asks what kind of network connects to it (src/misc/socket.cc)."""


def refuse_unlike_networks(scenario: Setting, topology: Topology, nodes: Collection[int] | None = None) -> None:
    """A ScenarioError where a fault leaves one of the `nodes` (None: all) without RDMA that talks to others.

    The ends of a connection are of one network plugin or there is none, and no rank tells others which it has.
    """
    part = set(range(topology.nodes)) if nodes is None else set(nodes)
    faults = scenario.topology.faults or ()
    tcp = {fault.node: i for i, fault in reversed(list(enumerate(faults))) if fault.no_rdma and fault.node in part}
    alike = topology.network == "ethernet" or over_sockets(topology.network, scenario.library.env)
    if not tcp or len(part) == 1 or alike:
        return
    version = scenario.library.named_version or ASSUMED
    first, place = next(iter(sorted(tcp.items())))
    other = next((node for node in sorted(part) if node not in tcp), None)
    every = "all nodes on TCP are library.env.NCCL_IB_DISABLE=1"
    if other is None:
        text = f"found no_rdma at all nodes, expected it at some; {every}"
    else:
        own, of_other = (int(topology.node_first_rank[node]) for node in (first, other))
        ends = "ncclCommInitRank ends with an internal error (socketFinalizeAccept: wrong socket type)"
        how = ends if version >= _CHECKS_PEER else "ncclCommInitRank hangs"
        text = (
            f"found node {first} without RDMA beside node {other} with it, with which NCCL {format_version(version)} "
            f"does not start: rank {own} takes NET/Socket, rank {of_other} NET/IB or a plugin, both ends of a "
            f"connection need the same, and {how}; expected the same on all nodes: {every}"
        )
    raise scenario.document.error(("topology", "faults", place, "no_rdma"), text)


def _held_for(scenario: Setting, collective: str, topology: Topology) -> tuple[tuple[float, float] | None, list[str]]:
    """The band of a scenario's parameter file for a collective, and what lies outside of what the fit has seen."""
    from commsim.scenario.seen import beyond_fit, validity_of

    fit = validity_of(scenario)
    band = None if fit is None else fit.band_of(collective, topology)
    return band, beyond_fit(scenario, collective, topology)


class NcclRows(RowPredictor):
    """Rows of NCCL's model: of the `ranks` given, else of those that the scenario places."""

    def __init__(
        self,
        scenario: Setting,
        topology: Topology,
        work: CollectiveSpec,
        cache: Cache,
        ranks: tuple[int, ...] | None = None,
    ) -> None:
        from commsim.scenario.params import nccl_parameters
        from commsim.scenario.setting import nccl_graphs

        topology = varied(scenario, topology)
        where = placed(scenario.placement, scenario.free_path(), scenario.document, topology)
        nodes = None if where is None else where.nodes
        if ranks is None and where is not None:
            ranks = where.ranks
        elif ranks is not None:
            nodes = tuple(set(topology.rank_node[list(ranks)].tolist()))
        refuse_unlike_networks(scenario, topology, nodes)
        super().__init__(work, topology, in_network=True, ranks=ranks)  # NVLS and CollNet where switches add
        library = scenario.library
        parameters, own = nccl_parameters(scenario, topology)
        self.model = cache.model(
            topology,
            Options(
                version=library.named_version,
                env=scenario.nccl_env(work),
                launch=library.launch_mode,
                registered=library.registered,
                mode=scenario.mode,
                engine=scenario.engine,
                operation=work.operation,
                graphs=nccl_graphs(scenario, topology),
            ),
            parameters,
            self.ranks,
        )
        self._own, outside = own, list[str]()
        if scenario.params is not None:
            self._own, outside = _held_for(scenario, work.collective, topology)
        self.model.warnings += [text for text in survived(scenario, nodes) if text not in self.model.warnings]
        self._variation = None if scenario.variation is None else scenario.variation.variation
        late = [s for rank, s in scenario.late_s.items() if self.ranks is None or rank in self.ranks]
        self._late = max(late, default=0.0)
        self.warnings = self.model.warnings
        if self.ranks is not None and topology.nodes > 1 and topology.kind in MESHES:
            self.warnings.append(f"the links of a {topology.kind} are not shared by place: their order costs nothing")
        even = work.collective in {*POINT_TO_POINT} - {"send_recv"} and self.model.nodes.comm.plain
        if self.model.nodes.count > 1:
            from commsim.nccl.flowlets import path_notes

            outside += path_notes(topology, even=even)
        self.warnings += [text for text in outside if text not in self.warnings]
        self.provenance = self.model.parameters.provenance
        self._cache = cache
        # What was measured are runs back to back.
        self._link = link_kind(self.model.system, self.model.machine, self.model.nodes.comm.topology.network)
        self._measured = scenario.mode == "back_to_back" and self.n_ranks > 1

    def at_pace(self, pace: Pace) -> None:
        """Scales the parameters: the latencies of links are theirs."""
        parameters = self.model.parameters.scaled(pace.latency, pace.launch)
        self.model = self._cache.model(self.topology, self.model.options, parameters, self.ranks)

    def parts(self, size: int) -> dict[str, float]:
        """As of the RowPredictor."""
        from commsim.fitting.parts import time_parts

        return time_parts(self.model, self.work.collective, size)

    def choose(self, size: int) -> tuple[str, ...]:
        """NCCL's choice, which needs no time."""
        if self.work.collective in POINT_TO_POINT:
            return super().choose(size)
        return self.model.choose(self.work.collective, size)

    def timed(self, size: int) -> tuple[float, str, str]:
        """As of the RowPredictor."""
        p, _ = self._noisy(self.model.predict(self.work.collective, size), self._variation)
        return p.time_s + self._late, p.algorithm, p.protocol

    def _noisy(self, plain: Prediction, variation: Variation | None) -> tuple[Prediction, float | None]:
        """A prediction of runs that vary: their median, and their 99th percentile."""
        if variation is None or not variation.draws:
            return plain, None
        from commsim.engine.variation import RepeatedTimes
        from commsim.nccl.noise import noise_of

        later = RepeatedTimes(noise_of(self.model, variation, self.work.collective, plain))
        kernel_s = plain.kernel_s + later.median_s

        def time(later_s: float) -> float:  # which no noise leaves as it is, to the bit
            if not later_s:
                return plain.time_s
            return max(plain.time_s, self.model.with_launch(plain.kernel_s + later_s, plain.launch_s))

        noisy = replace(plain, time_s=time(later.median_s), kernel_s=kernel_s)
        if variation.jitter is not None and later.median_s > 0.5 * noisy.time_s:
            noisy = replace(noisy, bottleneck="latency")
        return noisy, time(later.p99_s) + self._late if variation.repeats > 1 else None

    def lost(self, size: int) -> str:
        """As of the RowPredictor."""
        variation = self._variation
        if variation is None or not variation.node_spread or self.model.nodes.count == 1:
            return ""
        work = self.work.collective
        plain = self.model.predict(work, size)
        alone, _ = self._noisy(plain, replace(variation, jitter=None))
        nodes, share = self.model.nodes.count, alone.time_s / plain.time_s - 1.0
        runs = f"median of {variation.repeats:,} runs" if variation.repeats > 1 else "one run"
        return (
            f"{work} of {format_bytes(size)} loses {format_percent(share)} to the slowest of {nodes:,} nodes "
            f"({runs}, node_spread {100 * variation.node_spread:.3g} %)"
        )

    def __call__(self, size: int) -> Row:
        p, p99_s = self._noisy(self.model.predict(self.work.collective, size), self._variation)
        time = p.time_s + self._late  # nobody ends a call before its last rank has begun it
        share = p.busy_s / time if time else 0.0
        return replace(
            self.row(size, time, None if self._over_nodes_in_windows(p.algorithm) else self._band(size)),
            kernel_s=p.kernel_s,
            launch_s=p.launch_s,
            p99_s=p99_s,
            algorithm=p.algorithm,
            protocol=p.protocol,
            channels=p.channels,
            bottleneck="late rank" if self._late > 0.5 * time else p.bottleneck,
            level=p.level,
            slow_place=p.place,
            busiest_link=p.limit,
            busiest_share=min(share, 1.0) if p.limit else None,
        )

    def _over_nodes_in_windows(self, algorithm: str) -> bool:
        """Whether a kernel on symmetric memory runs over nodes, of which no time is published."""
        return algorithm == "symmetric" and self.model.nodes.count > 1

    def notes_on(self, rows: Sequence[Row]) -> list[str]:
        """What the largest loses to the slowest node, and what to doubt in rows on registered windows."""
        model, text = self.model, self.lost(max(row.size_bytes for row in rows)) if rows else ""
        lost = [text] if text else []
        if model.options.registered != "window":
            return lost
        from commsim.scenario.window_notes import window_notes

        plain = self._cache.model(
            self.topology, replace(model.options, registered="none", engine="auto"), model.parameters, self.ranks
        )
        work, held = self.work.collective, "" if model.nodes.count > 1 else self.topology.gpu.generation
        late = self._late
        return [*lost, *window_notes(work, held, rows, lambda size: plain.predict(work, size).time_s + late)]

    def doubt(self, size: int) -> None:
        """As of the RowPredictor."""
        self._band(size)

    def _band(self, size: int) -> tuple[float, float] | None:
        """Factors on the time: those of the fit, else of published curves; None where there are none."""
        if self._own is not None or not self._measured:
            return self._own
        band = spread(self.model.nodes.kinds[0].topology.gpu.generation, self._link, size, self.model.nodes.count)
        if band is None:
            return None
        if band.warning and band.warning not in self.warnings:
            self.warnings.append(band.warning)
        return band.low, band.high


class GlooRows(RowPredictor):
    def __init__(self, scenario: Setting, topology: Topology, work: CollectiveSpec) -> None:
        from commsim.gloo.predict import GlooPredictor
        from commsim.scenario.params import gloo_parameters

        super().__init__(work, topology)
        parameters, self._band = gloo_parameters(scenario)
        if scenario.params is not None:
            self._band, outside = _held_for(scenario, work.collective, topology)
            self.warnings += outside
        one_host, late_s = scenario.library.one_host, scenario.late_s
        self._build = partial(GlooPredictor, one_host=one_host, mode=scenario.mode, late_s=late_s)
        self.model = self._build(topology, parameters)
        self.provenance = parameters.provenance
        if topology.cpu.cores == 0:
            self.warnings.append("the topology does not say how many cores a node has; taken as enough for all ranks")

    def at_pace(self, pace: Pace) -> None:
        """Scales what messages and calls cost, and the latencies of links."""
        super().at_pace(pace)
        self.model = self._build(self.topology, self.model.parameters.scaled(pace.latency, pace.launch))

    def __call__(self, size: int) -> Row:
        p = self.model.predict(self.work.collective, size, root=self.work.root or 0, itemsize=self.work.item_bytes)
        return replace(
            self.row(size, p.time_s, self._band),
            algorithm=p.algorithm,
            bottleneck=p.bottleneck,
            level="event",
            busiest_link=p.limit,
            busiest_share=p.share if p.limit else None,
        )


def row_predictor(
    scenario: Setting,
    topology: Topology,
    work: CollectiveSpec,
    cache: Cache,
    pace: Pace | None = None,
    *,
    ranks: tuple[int, ...] | None = None,
) -> RowPredictor:
    """What predicts the rows of one workload item on a topology, at another pace than the machine's if one is given.

    Of NCCL's model it may be asked of some `ranks` of the machine, in their order.
    """
    predictor: RowPredictor
    if scenario.library.name == "nccl":
        predictor = NcclRows(scenario, topology, work, cache, ranks)
    elif scenario.library.name == "gloo":
        predictor = GlooRows(scenario, topology, work)
    elif scenario.library.name == "custom_all_reduce":
        from commsim.scenario.kernel_rows import KernelRows, beside_kernels

        predictor = KernelRows(scenario, topology, work, NcclRows(beside_kernels(scenario), topology, work, cache))
    elif scenario.library.name == "synthesized":
        from commsim.scenario.perfect import PerfectRows

        predictor = PerfectRows(topology, work)
    else:
        from commsim.scenario.raw import RawRows

        predictor = RawRows(scenario, topology, work)
    if pace is not None:
        predictor.at_pace(pace)
    return predictor
