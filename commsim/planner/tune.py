"""Rules for NCCL's example tuner plugin, from simulated best choices on one topology.

For every collective that the plugin knows and every size of a grid, each (algorithm, protocol) that NCCL allows is
predicted. A choice other than NCCL's own counts only at sizes that this collective was measured at on these ranks,
where the fit agrees with the log, and if its gain is outside the error: of the fit on sizes and on shapes of the
machine that it had not seen, and of differences between two choices on published machines (`choices.yaml`). What was
not measured is a command to measure it with. A fit to a sick machine or to another one, or one that is no better than
what ships, gives no rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from commsim.collectives.semantics import REDUCING
from commsim.document import read_documents
from commsim.errors import CommsimError, InfeasibleError, ScenarioError
from commsim.nccl.environment import ALGORITHM_NAMES, FUNCTIONS
from commsim.nccl.operation import SUM, Operation
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.tuner import left_out
from commsim.nccl.tuner_ofi import own_choice
from commsim.nccl.uncertainty import link_kind, spread
from commsim.nccl.version import ASSUMED, Version, format_version, parse_version
from commsim.scenario.seen import validity_of

if TYPE_CHECKING:
    from commsim.scenario.schema import Scenario
    from commsim.topology.graph import Topology

SIZES = tuple(1 << k for k in range(10, 34))
"""1 KiB to 8 GiB: where nothing was measured."""

PLUGIN_SINCE: Version = (2, 21, 0)
"""The first version whose plugins get a cost table (ncclTuner_v2)."""

MOST_COMMANDS = 4
"""Gains whose measurement is spelled out, the first ones."""

_EXACT_BEFORE: Version = (2, 22, 0)
"""Until 2.21 a plugin's channels are used as they are, later at most so many."""

DEFAULT_BAND = 1.25
"""Where nothing of the kind was ever measured, a gain below this is no gain."""

CHOICES = Path(__file__).with_name("choices.yaml")


@lru_cache(maxsize=1)
def choice_margin() -> float:
    """The factor that eight of ten predicted differences of two choices are within, on machines that were left out."""
    return float(read_documents(CHOICES)[0].data["margin"])


@dataclass(frozen=True)
class Rule:
    """One line: what to run for sizes in [low, high], and the largest gain in it; 1.0 is NCCL's own choice."""

    collective: str
    low: int
    high: int
    algorithm: str
    protocol: str
    channels: int
    gain: float = 1.0
    gain_at: int = 0
    time_s: float = 0.0
    nccl_s: float = 0.0
    nccl: str = ""


@dataclass(frozen=True)
class Tuning:
    """All rules of one communicator's shape, and what was left out and why."""

    topology: str
    nodes: int
    ranks: int
    version: Version
    rules: tuple[Rule, ...]  # that differ from NCCL's own choice
    refused: tuple[Rule, ...]  # gains inside the band
    band: float
    operations: tuple[tuple[str, Operation], ...] = ()  # of the collectives that reduce, what the rules are for
    left_out: tuple[str, ...] = ()  # algorithms that these cannot have, and why
    unmeasured: tuple[Rule, ...] = ()  # gains of collectives that the parameters were not fitted to here
    launch: str = "process_per_gpu"
    off: int = 0  # gains at sizes where the fit does not agree with the log


def tune(scenario: Scenario, topology: Topology, *, sizes: Iterable[int] = SIZES, unmeasured: bool = False) -> Tuning:
    """The rules for a scenario's topology, version and environment; InfeasibleError where no gain leaves the band.

    ``unmeasured``: also rules of collectives that were not measured on these ranks, by the error of published machines.
    ``sizes``: those of collectives that were not measured.

    Types and reductions are those of the scenario's workload, of each collective the first; else a sum of float32.
    """
    if scenario.library.name != "nccl":
        raise ScenarioError(f"found library {scenario.library.name}, expected nccl, whose tuner plugin is written for")
    scenario.refuse_placement()
    pinned = "version" in scenario.library.model_fields_set
    version = parse_version(scenario.library.version) if pinned else ASSUMED
    if version < PLUGIN_SINCE:
        raise ScenarioError(
            f"NCCL {format_version(version)} has no tuner plugin with a cost table; "
            f"expected {format_version(PLUGIN_SINCE)} or later"
        )
    from commsim.scenario.params import nccl_parameters
    from commsim.scenario.setting import nccl_graphs

    parameters, _ = nccl_parameters(scenario, topology)
    fit = validity_of(scenario)
    if fit is not None and (reasons := fit.refusals(topology)):
        raise InfeasibleError("no rule: " + "; ".join(reasons))
    options = Options(
        version=version,
        env=dict(scenario.library.env),
        launch=scenario.library.launch_mode,
        registered=scenario.library.registered,
        graphs=nccl_graphs(scenario, topology),
    )
    model = Predictor(topology, options, parameters)
    if model.system.ranks < 2:
        raise InfeasibleError(f"{topology.name} has one rank, which has nothing to tune")
    link = link_kind(model.system, model.machine, topology.network)
    options = model.options  # with what the machine's plugin sets
    operations: dict[str, Operation] = {w.collective: w.operation for w in reversed(scenario.collectives)}
    rules: list[Rule] = []
    refused: list[Rule] = []
    waiting: list[Rule] = []
    missing: list[str] = []
    if scenario.library.registered == "window":
        missing.append("kernels on symmetric memory run where NCCL has them, whatever a tuner plugin says")
    if fit is not None:
        missing += fit.outside("all_reduce", topology, format_version(version) if pinned else "")[:1]
    widest = 1.0
    off = 0
    for collective in FUNCTIONS:
        measured = fit.sizes(collective, topology) if fit is not None else {}
        own_band = fit.widest(collective, topology) if fit is not None and measured else None
        of_collective: list[tuple[int, Rule | None]] = []
        of_call = replace(options, operation=operations.get(collective, SUM))
        model.options = of_call
        reasons_out = left_out(model.system, collective, version, options.env, of_call.operation)
        missing += [f"{collective} not by {ALGORITHM_NAMES[name]}: {reason}" for name, reason in reasons_out.items()]
        for size in measured or sizes:
            band = choice_margin()
            if measured or unmeasured:  # to be worth a measurement a gain need not be sure
                known = spread(topology.gpu.generation, link, size, topology.nodes)
                band = max(band, own_band[1] if own_band else known.high if known else DEFAULT_BAND)
            widest = max(widest, band)
            best, rule = _better(model, of_call, collective, size), None
            if best is not None:
                if best.gain <= band:
                    refused.append(best)
                elif not measured.get(size, True):
                    off += 1
                elif measured or unmeasured:
                    rule = replace(best, channels=_channels(model, version, best))
                else:
                    waiting.append(best)
            of_collective.append((size, rule))
        rules += _merged(of_collective)
    tuning = Tuning(
        topology.name,
        topology.nodes,
        topology.world_size,
        version,
        tuple(rules),
        tuple(refused),
        widest,
        tuple((c, operations.get(c, SUM)) for c in FUNCTIONS if c in REDUCING),
        tuple(missing),
        tuple(_merged_gains(waiting)),
        scenario.library.launch_mode,
        off,
    )
    if not tuning.rules:
        raise InfeasibleError(_why_none(tuning))
    return tuning


def _merged_gains(gains: list[Rule]) -> list[Rule]:
    """Neighbours in size of one collective and choice as one, each with its own largest gain."""
    out = []
    for _, run in groupby(gains, lambda rule: (rule.collective, rule.algorithm, rule.protocol, rule.nccl)):
        alike = list(run)
        out.append(replace(max(alike, key=lambda rule: rule.gain), low=alike[0].low, high=alike[-1].high))
    return out


def _why_none(tuning: Tuning) -> str:
    if tuning.unmeasured:
        lines = "".join(f"\n  {line}" for line in measure_first(tuning))
        return (
            f"no rule is sure to help on {tuning.topology}: gains are predicted for what was not measured on these "
            f"ranks. Measure this first, then calibrate with the logs (commsim calibrate):{lines}"
        )
    most = max((rule.gain for rule in tuning.refused), default=1.0)
    if tuning.off:
        gains = "one gain is" if tuning.off == 1 else f"{tuning.off} gains are"
        return (
            f"no rule is sure to help on {tuning.topology}: {gains} predicted at sizes where the fit does not agree "
            "with the log; measure these sizes again, several times (commsim measure --repeats 5)"
        )
    return (
        f"no choice gains more on {tuning.topology} than predictions of the kind err (up to x{tuning.band:.2f}); "
        f"the largest predicted gain is x{most:.2f}. A calibration on this machine (commsim calibrate) narrows it"
    )


def measure_first(tuning: Tuning) -> list[str]:
    """Commands of nccl-tests for the gains that wait for a measurement: NCCL's own choice, then the other."""
    out: dict[str, None] = {}
    for rule in tuning.unmeasured[:MOST_COMMANDS]:
        name = rule.collective.replace("alltoall", "all_to_all")
        sizes = f"-b {rule.low} -e {rule.high} -f 2"
        algorithm = ALGORITHM_NAMES[rule.algorithm]
        start = f"mpirun -np {tuning.ranks}" if tuning.launch == "process_per_gpu" else ""
        each = "-g 1" if start else f"-g {tuning.ranks}"
        for forced in ("", f"NCCL_ALGO={algorithm} NCCL_PROTO={rule.protocol}"):
            if start:
                words = [start, *(f"-x {pair}" for pair in forced.split()), f"{name}_perf", sizes, each]
            else:
                words = [*forced.split(), f"{name}_perf", sizes, each]
            out[" ".join(words)] = None
    return list(out)


def _better(model: Predictor, options: Options, collective: str, size: int) -> Rule | None:
    """The quickest choice predicted where that is not what the job would run by itself; None where it is."""
    table = model.candidates(collective, size)
    own = own_choice(model.system, model.topology, options.env, collective, size, table)
    if own is None:
        return None
    times: dict[tuple[str, str], tuple[float, int]] = {}
    for candidate in table:
        model.options = replace(options, algorithm=candidate.algorithm, protocol=candidate.protocol)
        try:
            p = model.predict(collective, size)
        except CommsimError:
            continue
        finally:
            model.options = options
        times[candidate.algorithm, candidate.protocol] = (p.time_s, p.channels)
    if (own.algorithm, own.protocol) not in times:
        return None  # cannot be timed: nothing to compare with
    base, _ = times[own.algorithm, own.protocol]
    (algorithm, protocol), (best, channels) = min(times.items(), key=lambda item: item[1][0])
    if (algorithm, protocol) == (own.algorithm, own.protocol) or best >= base:
        return None
    own_name = f"{own.algorithm}/{own.protocol}"
    return Rule(collective, size, size, algorithm, protocol, channels, base / best, size, best, base, own_name)


def _channels(model: Predictor, version: Version, rule: Rule) -> int:
    """An explicit, positive number: without one the plugin makes it 1."""
    if rule.channels and (version < _EXACT_BEFORE or rule.algorithm.startswith("nvls")):
        return rule.channels
    return max(1, rule.channels, model.system.coll_channels)


def _merged(sizes: list[tuple[int, Rule | None]]) -> list[Rule]:
    """Neighbours in size that run the same as one, with the largest gain.

    A rule reaches to just below the next size that has none, or another, and never beyond the largest size.
    """
    merged: list[Rule] = []
    ends = [after - 1 for after, _ in sizes[1:]] + [size for size, _ in sizes[-1:]]
    reach = [(rule, end) for (_, rule), end in zip(sizes, ends, strict=True)]
    for key, run in groupby(reach, lambda pair: pair[0] and (pair[0].algorithm, pair[0].protocol, pair[0].channels)):
        if key is not None:
            alike = [(rule, end) for rule, end in run if rule is not None]
            best = max((rule for rule, _ in alike), key=lambda rule: rule.gain)
            merged.append(replace(best, low=alike[0][0].low, high=alike[-1][1]))
    return merged
