"""The time of an NCCL call: the tuner's choice, lowered to channels, timed, and set against the launch.

In back-to-back runs (what nccl-tests measures) the host launches call k + 1 while call k runs, so the launch is a
maximum with the kernel and not a sum; where both are alike, jitter lets neither hide the other entirely, which a
power mean of order 6 describes. A single call (what a training step waits for) pays both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from commsim.bounds import crossing_bytes, latency_s
from commsim.errors import ScenarioError
from commsim.nccl.channels import Call, Split, nvls_channels, split
from commsim.nccl.communicator import communicator
from commsim.nccl.environment import ALGORITHM_NAMES, POINT_TO_POINT, Allowed, over_sockets, whole
from commsim.nccl.job_notes import TUNER_PLUGIN, job_notes
from commsim.nccl.kernel_time import BusyTime, kernel_time
from commsim.nccl.lower import misaligned
from commsim.nccl.machine import Machine, nic_efficiency
from commsim.nccl.messages import spread_s
from commsim.nccl.nodes import nodes_of
from commsim.nccl.operation import SUM, Operation, unknown_to
from commsim.nccl.parameters import MATCH_MODE, MATCHED_BY_NIC, Parameters, of_job
from commsim.nccl.protocols import DEFAULT_BUFFER_BYTES, PROTOCOLS, STEPS, Protocol
from commsim.nccl.tuner import Candidate, candidates, choose, left_out, max_threads
from commsim.nccl.version import ASSUMED, Version
from commsim.topology.graph import Topology

if TYPE_CHECKING:
    from commsim.nccl.graph_file import GraphFile
    from commsim.nccl.peers import PeerTimer
    from commsim.nccl.registered import Instead, Registration
    from commsim.nccl.tree import TreeTimer

_OVERLAP_ORDER = 6.0

NCCL_TESTS_ITERATIONS = 20
"""Calls that nccl-tests times together unless told otherwise (-n)."""


@dataclass(frozen=True)
class Options:
    """How the job runs NCCL."""

    version: Version | None = None
    env: dict[str, str] = field(default_factory=dict)
    launch: str = "process_per_gpu"  # or "one_process"
    mode: str = "back_to_back"  # or "single"
    iterations: int | None = NCCL_TESTS_ITERATIONS  # calls timed together back to back; None: ends do not show
    engine: str = "auto"  # closed_form | wavefront | event
    algorithm: str | None = None
    protocol: str | None = None
    channels: int | None = None
    operation: Operation = SUM
    exact: bool = False  # sizes are those of real calls; else those that nccl-tests rounds to whole packs per rank
    graphs: GraphFile | None = None  # that NCCL found on the machine; None: they are searched
    tree_pieces: int = 32  # of the coarsest cut of a tree that is simulated in place of a finer one
    registered: str = "none"  # buffers of the calls: buffer | window (`commsim.nccl.registered`)


@dataclass(frozen=True)
class Prediction:
    """What is predicted for one size; ``busy_s``: for how long the kernel keeps ``limit``, its busiest part, busy."""

    nbytes: int
    time_s: float
    kernel_s: float
    launch_s: float
    algorithm: str
    protocol: str
    channels: int
    bottleneck: str
    level: str
    limit: str = ""
    busy_s: float = 0.0
    place: str = ""  # what of the machine is slower than the rest, where that is what limits


class Predictor:
    """Predicts calls of one communicator on one topology: of all its ranks, or of some in their order.

    `nodes` are those of the communicator, `system` and `machine` what NCCL counts with and what is left of the rates
    over all of them. `warnings` collects what the user should know, each once.
    """

    def __init__(
        self,
        topology: Topology,
        options: Options,
        parameters: Parameters | None = None,
        ranks: Sequence[int] | None = None,
    ) -> None:
        self.warnings: list[str] = []
        if topology.nodes > 1 and topology.network != "ethernet" and over_sockets(topology.network, options.env):
            topology = replace(topology, network="ethernet", plugin="none", in_network_reduction=False)
            self._warn(
                "the job's variables send TCP over the NICs of the network; of another interface (NCCL_SOCKET_IFNAME) "
                "topology.node.nic says how many there are and how fast"
            )
        self.topology = topology
        self.version = options.version or ASSUMED
        self.options = replace(options, env=dict(options.env))
        if topology.plugin != "none":
            from commsim.nccl.plugins import plugin_note, with_plugin

            self.options = replace(options, env=with_plugin(topology, self.version, options.env))
            if text := plugin_note(topology, self.version, options.env):
                self._warn(text)
        if topology.network == "slingshot" and topology.nodes > MATCHED_BY_NIC and not options.env.get(MATCH_MODE):
            self._warn(
                f"Slingshot over more than {MATCHED_BY_NIC} nodes: messages are taken to be matched by the processor "
                f"({MATCH_MODE}: hardware in library.env says otherwise)"
            )
        if options.graphs is not None and options.graphs.lacks:
            self._warn(options.graphs.lacks)
        comm = communicator(topology, ranks)
        self._ranks = np.arange(topology.world_size) if ranks is None else np.asarray(ranks, np.int64)
        own = self.options
        self.nodes, unheeded = nodes_of(comm, self.version, own.env, own.graphs, parameters)
        for text in unheeded:
            self._warn(text)
        self.system = self.nodes.system
        if comm.plain:
            self.topology = self.nodes.kinds[0].topology
        if self.options.iterations is not None and self.options.iterations < 1:
            raise ScenarioError(f"iterations: found {self.options.iterations}, expected 1 or more")
        for text in job_notes(self.topology, options.version, self.options.env, self.nodes, own.registered):
            self._warn(text)

    @property
    def parameters(self) -> Parameters:
        """Those of the first kind of node; set, of all kinds."""
        return self.nodes.kinds[0].parameters

    @parameters.setter
    def parameters(self, parameters: Parameters) -> None:
        self.nodes = self.nodes.with_parameters(of_job(parameters, self.options.env))

    @property
    def machine(self) -> Machine:
        """What is left of the rates of a node over all nodes."""
        return self.nodes.weakest

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    def candidates(self, collective: str, nbytes: int, env: dict[str, str] | None = None) -> list[Candidate]:
        """NCCL's own table for one call, after the environment: the job's, or another."""
        operation = self.options.operation
        if reason := unknown_to(self.version, self.system.sm, collective, operation):
            raise ScenarioError(f"{collective} ({operation}): {reason}")
        return candidates(
            self.system, collective, nbytes, self.version, self.options.env if env is None else env, operation=operation
        )

    def choose(self, collective: str, nbytes: int) -> tuple[str, str]:
        """The (algorithm, protocol) that is timed: the scenario's, else NCCL's choice."""
        if (own := self._instead(collective, nbytes)) is not None:
            return own.algorithm, own.name
        options = self.options
        rules = Allowed.from_env(options.env, collective)
        table = self.candidates(collective, nbytes)
        if options.algorithm is not None:
            env = {k: v for k, v in options.env.items() if k != "NCCL_ALGO"} | {"NCCL_ALGO": options.algorithm}
            table = self.candidates(collective, nbytes, env)
        if options.protocol is not None:
            table = [c for c in table if c.protocol == options.protocol]
        if TUNER_PLUGIN in options.env:
            from commsim.nccl.tuner_ofi import own_choice

            best = own_choice(self.system, self.topology, options.env, collective, nbytes, table)
        else:
            best = choose(table)
        if best is None:
            open_to = rules.algorithms & {c.algorithm for c in table} or rules.algorithms
            asked = options.algorithm or ", ".join(sorted(open_to))
            protocol = options.protocol or ", ".join(sorted(rules.protocols))
            missing = left_out(self.system, collective, self.version, options.env, options.operation)
            possible = [f"{c.algorithm}/{c.protocol}" for c in self.candidates(collective, 1 << 20, {})]
            why = "".join(f" ({ALGORITHM_NAMES[name]}: {text})" for name, text in missing.items())
            raise ScenarioError(
                f"NCCL cannot run {collective} with algorithm {asked} and protocol {protocol} on "
                f"{self.topology.name}{why}; expected one of {', '.join(possible)}"
            )
        chosen, registered = (best.algorithm, best.protocol), self.registration
        if registered is not None and registered.prefers_nvls(collective, nbytes, chosen):
            return "nvls", "Simple"
        return chosen

    @cached_property
    def registration(self) -> Registration | None:
        """The registered buffers of the job's calls, where there are any."""
        if self.options.registered == "none":
            return None
        from commsim.nccl.registered import registration_of

        o, topology = self.options, self.nodes.kinds[0].topology
        return registration_of(o.registered, topology, self.system, self.version, o.env, o.operation, o.launch)

    def _instead(self, collective: str, nbytes: int) -> Instead | None:
        """What runs on registered buffers in place of an algorithm of the tuner's, unless the caller names one."""
        if self.registration is None:
            return None
        for text in self.registration.notes(collective):
            self._warn(text)
        asked = self.options.algorithm is not None or self.options.protocol is not None
        return None if asked else self.registration.instead(collective, nbytes)

    def predict(self, collective: str, nbytes: int) -> Prediction:
        """The predicted time of one call of `nbytes` (the nccl-tests size).

        all_to_all_v, whose size is what all ranks send together, is no call of NCCL's but sends and receives, as
        all_to_all is; all counts are taken as equal.
        """
        own = self._instead(collective, nbytes)
        return self._tuned(collective, nbytes) if own is None else self._without_tuner(collective, nbytes, own)

    def _without_tuner(self, collective: str, nbytes: int, own: Instead) -> Prediction:
        """Of a call by another kernel than those of rings and trees, or by copy engines."""
        from commsim.nccl.window_call import WindowCall

        if self.options.engine == "wavefront":
            raise ScenarioError(
                f"engine wavefront cannot time {collective} by {own.name}, which registered windows run; expected "
                "auto, closed_form or event"
            )
        if own.choice is None:
            self._warn(f"{collective} by copy engines: no published times hold what is predicted of them")
        far = self.nodes.at_farthest(1).kinds if self.system.nodes > 1 else self.nodes.kinds[:1]
        call = WindowCall(self.system, self.machine, far, own, collective, nbytes, self.version, self.options.env)
        kernel = BusyTime(*(call.simulated() if self.options.engine == "event" else call.time()))
        if self.system.nodes > 1:
            kernel = self._across(collective, nbytes, kernel)
        launch = call.launches * self._launch()
        return self._joined(collective, nbytes, kernel, launch, own.algorithm, own.name, own.channels)

    def _tuned(self, collective: str, nbytes: int) -> Prediction:
        """Of a call by an algorithm of the tuner's, or by sends and receives."""
        if collective == "all_to_all_v":
            return replace(self._tuned("all_to_all", round(nbytes / self.system.ranks)), nbytes=nbytes)
        if self.system.ranks == 1:
            copy = nbytes / self.parameters.copy_rate  # out of place; NCCL does nothing in place
            return self._joined(collective, nbytes, BusyTime(copy, copy, "GPU memory"), self._launch(), "copy", "-", 0)
        if collective in POINT_TO_POINT:
            return self._point_to_point(collective, nbytes)
        algorithm, name = self.choose(collective, nbytes)
        by_nvls = self.registration if self.registration is not None and self.registration.by_nvls else None
        limit = self.options.channels or self.system.coll_channels
        call = self.lowered(collective, nbytes, algorithm, name)
        if algorithm == "ring" and misaligned(call, self.system.ranks):
            self._warn(
                f"{collective}: sizes of which a rank has no multiple of 16 B are moved element by element, slowly"
            )
        o = self.options
        in_a_row = None if o.mode == "single" else o.iterations or inf
        kernel = kernel_time(self.nodes, call, o.engine, in_a_row, o.launch == "one_process", lambda: self.tree)
        channels = call.split.channels
        kernel = self._across(collective, nbytes, kernel, self.nodes.unlike(channels) if algorithm == "ring" else 1.0)
        if algorithm.startswith("nvls"):  # never takes channels away, so that its latency holds them all
            if by_nvls is not None:
                channels = min(channels, by_nvls.nvls_channels(collective))
            return self._joined(collective, nbytes, kernel, self._launch(), algorithm, name, channels)
        start = kernel.seconds + self.nodes.most(lambda parameters: parameters.base.of(name))
        start += self.nodes.most(lambda parameters: parameters.channel_cost_of(self.version)) * (channels - 1)
        start += spread_s(self.system, self.machine, self.parameters.network, call, limit)
        kernel = kernel._replace(seconds=start)
        return self._joined(collective, nbytes, kernel, self._launch(), algorithm, name, channels)

    def lowered(self, collective: str, nbytes: int, algorithm: str, protocol_name: str) -> Call:
        """A call as its fullest channel has it, by an algorithm of the tuner's."""
        protocol, limit = PROTOCOLS[protocol_name], self.options.channels or self.system.coll_channels
        parts = self._split(limit, nbytes, collective, algorithm, protocol)
        own = self.registration is not None and self.registration.by_nvls
        buffer, exact = self._buffer_bytes(), self.options.exact
        return Call(collective, nbytes, algorithm, protocol, parts, buffer, exact, self.version, registered=own)

    def _joined(
        self,
        collective: str,
        nbytes: int,
        kernel: BusyTime,
        launch: float,
        algorithm: str,
        protocol: str,
        channels: int,
    ) -> Prediction:
        """BusyTime and launch together, by the mode of the job."""
        seconds, busy, limit, level = kernel
        nodes = self.nodes
        if seconds < nodes.longest_s:  # else no way takes as long
            seconds = max(seconds, latency_s(nodes.comm.topology, collective, self._ranks))
        time = self._together(seconds, launch)
        way, over = "trees" if "tree" in algorithm else "ring", channels
        if algorithm == "send_recv":
            way, over = ("ring", self.system.coll_channels) if collective == "send_recv" else ("ports", channels)
        limit, place = nodes.slowest(limit, over, way) if nodes.count > 1 else (limit, "")
        bottleneck = "launch" if launch > seconds else limit if busy >= 0.5 * seconds else "latency"
        if bottleneck == "latency" and nodes.count > 1:
            place = nodes.slowest_latency(way, over) or place
        return Prediction(
            nbytes, time, seconds, launch, algorithm, protocol, channels, bottleneck, level, limit, busy, place
        )

    def _together(self, seconds: float, launch: float) -> float:
        if self.options.mode == "single":
            return launch + seconds
        time = float((launch**_OVERLAP_ORDER + seconds**_OVERLAP_ORDER) ** (1 / _OVERLAP_ORDER))
        if self.options.iterations is not None:  # nothing hides the launch of the first call
            time += (launch + seconds - time) / self.options.iterations
        return time

    def with_launch(self, kernel_s: float, launch_s: float | None = None) -> float:
        """Seconds of a call whose kernel takes so many, by the mode of the job; its launch, if left out, ungrouped."""
        return self._together(kernel_s, self._launch() if launch_s is None else launch_s)

    @cached_property
    def _peers(self) -> PeerTimer:
        from commsim.nccl.peers import PeerTimer

        return PeerTimer(self.version, self.options.env, self._warn)

    def _point_to_point(self, collective: str, nbytes: int) -> Prediction:
        if self.options.engine not in ("auto", "closed_form"):
            raise ScenarioError(f"engine {self.options.engine} cannot time {collective}; expected auto or closed_form")
        got = self._peers.time(self.nodes, collective, nbytes, exact=self.options.exact)
        kernel = self._across(collective, nbytes, BusyTime(got.seconds, got.busy, got.limit))
        launch = self._launch(grouped=collective != "send_recv")  # which is one task per GPU and no group of many
        out = self._joined(collective, nbytes, kernel, launch, "send_recv", "Simple", got.channels)
        return replace(out, place=got.place) if got.place else out

    def _across(self, collective: str, nbytes: int, kernel: BusyTime, unlike: float = 1.0) -> BusyTime:
        """The kernel where all must pass the machine's cut, in place of what hops take, the quickest `unlike` of it."""
        machine, parameters = self.machine, self.parameters
        if machine.cut == inf:
            return kernel
        alone = self.system.nodes == 1
        topology = self.nodes.kinds[0].topology if alone else self.topology
        share = parameters.efficiency.nvlink_direct if alone else nic_efficiency(machine, parameters)
        least = crossing_bytes(collective, topology, nbytes) / (machine.cut * share)
        if least <= kernel.busy * unlike:
            return kernel
        seconds = kernel.seconds - kernel.busy * unlike + least
        if least <= kernel.busy:
            return kernel._replace(seconds=seconds)
        return kernel._replace(seconds=seconds, busy=least, limit="NVLink" if alone else "fabric")

    def _split(self, limit: int, nbytes: int, collective: str, algorithm: str, protocol: Protocol) -> Split:
        if algorithm.startswith("nvls"):
            channels = nvls_channels(self.system.sm, self.system.nodes, self.version, self.options.env)
            return Split(channels, -(-nbytes // channels), 640)
        # Of all_gather and reduce_scatter NCCL counts N bytes of traffic per byte that a rank holds: 1 per byte of all.
        factor = 2 if collective == "all_reduce" else 1
        threads = max_threads(self.system, algorithm, protocol.name, self.options.env) or None
        ranks, version = self.system.ranks, self.version
        return split(limit, nbytes, algorithm, protocol, ranks, version, (factor, nbytes), max_threads=threads)

    @cached_property
    def tree(self) -> TreeTimer:
        """What times its trees."""
        from commsim.nccl.tree import TreeTimer  # brings the event engine with it

        return TreeTimer(self.nodes, self.options.tree_pieces)

    def _launch(self, *, grouped: bool = False) -> float:
        one_process = self.options.launch == "one_process"
        gpus = int(self.nodes.comm.counts.max())
        return self.nodes.most(lambda p: p.launch.seconds(gpus, one_process=one_process, grouped=grouped))

    def _buffer_bytes(self) -> int:
        # A slot holds at least what the threads of a block move at once.
        least = STEPS * PROTOCOLS["Simple"].grain_bytes
        return max(least, whole(self.options.env, "NCCL_BUFFSIZE") or DEFAULT_BUFFER_BYTES)
