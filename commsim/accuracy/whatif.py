"""What could make a machine slower than predicted: a few what-if simulations, and which of them fits a curve best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from commsim.errors import CommsimError
from commsim.measure.records import Curve
from commsim.nccl.plugins import PLUGINS, plugin_note

if TYPE_CHECKING:
    from commsim.scenario.schema import Scenario
    from commsim.topology.graph import Topology

Float64 = npt.NDArray[np.float64]

MOST_SIZES = 12
FITS = 0.25
"""Largest mean |ln(measured / predicted)| with which a cause is named at all."""

AS_PREDICTED = "as predicted"

BETTER = 0.6
"""A cause must leave at most this part of the prediction's own error."""


@dataclass(frozen=True)
class WhatIf:
    """A cause in words, and the value that it gives to a path of the scenario."""

    cause: str
    path: str
    value: Any

    def change(self, scenario: Scenario) -> Scenario:
        """The scenario with the cause at work."""
        other: Scenario = _with_value(scenario, self.path, self.value)
        other._document, other._base_dir = scenario.document, scenario.base_dir
        return other


def _with_value(model: Any, path: str, value: Any) -> Any:
    """A copy of a description with a value at a path; a block that was left out is begun."""
    from commsim.topology.spec import CpuSpec, FabricSpec, NodeSpec, NvlinkSpec

    blocks = {"cpu": CpuSpec, "fabric": FabricSpec, "node": NodeSpec, "nvlink": NvlinkSpec}
    head, _, rest = path.partition(".")
    if rest:
        value = _with_value(getattr(model, head) or blocks[head](), rest, value)
    return model.model_copy(update={head: value})


@dataclass(frozen=True, eq=False)
class Tried:
    """A what-if's times at the sizes tried, and its mean |ln(measured / time)|."""

    cause: str
    size_bytes: npt.NDArray[np.int64]
    time_s: Float64
    score: float


def predicted_curve(scenario: Scenario, collective: str, sizes: Sequence[int], like: Curve | None = None) -> Curve:
    """The scenario's prediction of one of its collectives at other sizes; CommsimError where it cannot be had.

    Type and reduction are those of the curve that it shall be `like`, where the scenario states none.
    """
    from commsim.scenario.run import Prepared, run
    from commsim.scenario.setting import build_topology

    work = next((w for w in scenario.collectives if w.collective == collective), None)
    if work is None:
        held = ", ".join(sorted({w.collective for w in scenario.collectives})) or "nothing"
        raise CommsimError(f"{scenario.name!r} predicts {held}, not {collective}")
    if like is not None and scenario.library.name == "nccl":
        work = work.as_logged(like.dtype, like.redop)
    item = work.item_bytes
    whole = sorted({max(item, int(n) // item * item) for n in sizes})
    one = scenario.model_copy(update={"workload": (work.model_copy(update={"sizes": tuple(whole)}),), "compare": ()})
    one._document, one._base_dir = scenario.document, scenario.base_dir
    return run(Prepared(one, build_topology(one), ())).items[0].curve()


def likely(scenario: Scenario, measured: Curve) -> list[Tried]:
    """What-ifs that fit a measured curve, best first; the prediction itself is the one called `AS_PREDICTED`.

    Empty where nothing fits clearly better than the prediction does.
    """
    few = np.linspace(0, len(measured) - 1, min(MOST_SIZES, len(measured)))
    sizes = np.unique(np.round(few).astype(np.int64))
    chosen = measured.size_bytes[sizes]
    time = measured.time_s[sizes]
    own = _try(scenario, measured, chosen, time, AS_PREDICTED)
    if own is None:
        return []
    attempts = [
        tried
        for option in what_ifs(scenario, measured.conditions.get("launch", ""))
        if (tried := _try(option.change(scenario), measured, chosen, time, option.cause)) is not None
    ]
    good = sorted((t for t in attempts if t.score <= FITS and t.score <= BETTER * own.score), key=lambda t: t.score)
    return [*good, own] if good else []


def _try(scenario: Scenario, measured: Curve, sizes: npt.NDArray[np.int64], time: Float64, cause: str) -> Tried | None:
    try:
        curve = predicted_curve(scenario, measured.collective, [int(n) for n in sizes], measured)
    except CommsimError:
        return None  # this machine cannot be changed so
    predicted = curve.seconds_at(sizes)
    return Tried(cause, sizes, predicted, float(np.mean(np.abs(np.log(time / predicted)))))


def what_ifs(scenario: Scenario, launch: str = "") -> list[WhatIf]:
    """The causes worth trying for a scenario; those that its own environment decides already are left out.

    `launch`: how the log says that its ranks were started; the other way is then no cause.
    """
    from commsim.scenario.setting import build_topology

    topology = build_topology(scenario)
    if scenario.library.name == "nccl":
        return [*_launch(scenario, topology, launch), *_nccl_choices(scenario, topology), *_machine(scenario, topology)]
    return _network(topology) + (_cores(topology) if scenario.library.name == "gloo" else [])


_LAUNCHES = {
    "one_process": "one process drives all GPUs of a node",
    "process_per_gpu": "every GPU has a process or a thread of its own",
}


def _launch(scenario: Scenario, topology: Topology, logged: str) -> list[WhatIf]:
    alike = {"process_per_node": "one_process", "thread_per_gpu": "process_per_gpu"}  # threads launch side by side
    stated, logged = (alike.get(launch, launch) for launch in (scenario.library.launch_mode, logged))
    (other,) = set(_LAUNCHES) - {stated}
    if topology.ranks_per_node == 1 or logged == stated:
        return []
    words = f"{_LAUNCHES[other]}{', as the log says' if logged == other else ''}"
    return [WhatIf(f"{words} (library.launch_mode={other})", "library.launch_mode", other)]


def _nccl_choices(scenario: Scenario, topology: Topology) -> list[WhatIf]:
    options = [
        ("NCCL runs Ring (NCCL_ALGO=Ring, or a tuner plugin)", {"NCCL_ALGO": "Ring"}),
        ("NCCL runs Tree (NCCL_ALGO=Tree, or a tuner plugin)", {"NCCL_ALGO": "Tree"}),
        ("LL128 is off (NCCL_PROTO=^LL128)", {"NCCL_PROTO": "^LL128"}),
        ("only Simple is used (NCCL_PROTO=Simple)", {"NCCL_PROTO": "Simple"}),
        ("only LL is used (NCCL_PROTO=LL)", {"NCCL_PROTO": "LL"}),
        ("few channels (NCCL_MAX_NCHANNELS=4)", {"NCCL_MAX_NCHANNELS": "4"}),
        ("one channel (a tuner plugin without channels)", {"NCCL_MAX_NCHANNELS": "1"}),
    ]
    if topology.has_nvswitch and topology.gpu.sm >= 90:
        options.append(("no reduction in the NVSwitch (NCCL_NVLS_ENABLE=0)", {"NCCL_NVLS_ENABLE": "0"}))
    if topology.ranks_per_node > 1:
        options.append(("GPUs of a node talk through host memory (NCCL_P2P_DISABLE=1)", {"NCCL_P2P_DISABLE": "1"}))
    if topology.nodes > 1:
        options.append(("no GPUDirect RDMA", {"NCCL_NET_GDR_LEVEL": "LOC"}))
    set_already = scenario.library.env.keys()
    causes = [
        WhatIf(cause, "library.env", scenario.library.env | env)
        for cause, env in options
        if not env.keys() & set_already
    ]
    if plugin_note(topology, env=set_already):
        cause = f"{PLUGINS[topology.plugin]} does not set its variables (fabric.plugin=none)"
        causes.append(WhatIf(cause, "topology.fabric.plugin", "none"))
    return causes


def _machine(scenario: Scenario, topology: Topology) -> list[WhatIf]:
    causes = _network(topology)
    if topology.nodes > 1 and topology.network not in ("ethernet", "none"):
        causes.append(WhatIf("TCP sockets instead of RDMA", "topology.fabric.network", "ethernet"))
    if topology.nvlink_links and scenario.topology.groups is None:
        causes.append(WhatIf("PCIe instead of NVLink", "topology.node.nvlink.kind", "none"))
    return causes


def _network(topology: Topology) -> list[WhatIf]:
    if topology.nodes < 2:
        return []
    half = topology.nic_bandwidth / 2
    causes = [WhatIf("links of the network at half their rate", "topology.nic_bandwidth", half)]
    nics = topology.nics_per_node
    fewer = (
        (1, f"one NIC of {nics} missing in every node", nics - 1),
        (3, f"half of the {nics} NICs of a node", nics // 2),
        (2, f"one NIC of {nics} in use", 1),
    )
    return causes + [WhatIf(cause, "topology.nics_per_node", n) for above, cause, n in fewer if nics > above]


def _cores(topology: Topology) -> list[WhatIf]:
    cores = topology.cpu.cores
    return [WhatIf(f"one core instead of {cores}", "topology.cpu.cores", 1)] if cores > 1 else []
