"""What each physical term of the channel model is worth: every log predicted with it and without it.

Nothing is fitted: the parameters are those that ship. A term that was read off a machine may still please that machine
only; its gain over all *other* systems, and over other shapes of the same (`Term.read_off`), is what decides whether it
stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from commsim.errors import CommsimError
from commsim.files import write_atomically
from commsim.fitting.fields import replaced
from commsim.fitting.planes import FieldPredictor, noting
from commsim.nccl.parameters import Parameters, load_parameters
from commsim.nccl.uncertainty import SIZE_BANDS, band_of
from commsim.processes import Pool
from study.case import Case
from study.cases import CLASSES, fabric_class
from study.log import Log, read_logs
from study.paths import DOCS, VALIDATION
from study.system import predictor_key, predictor_of
from study.validate import Progress
from study.words import words_of

Float64 = npt.NDArray[np.float64]
Values = Mapping[str, float | None]

FOLDERS = ("measured", "outside", "silicon")
"""Folders of `validation/` whose logs speak: those that values were chosen by, and two others."""

FREE = 1e15
"""Bytes/s of a rate that is no limit."""

TOUCHED = 0.005
"""A size counts where a term changes its predicted time by more than this share."""

LEAST = -0.1
"""A term does harm whose mean gain over other systems is below so many points, and which fewer than half gain by."""

PAGE, RECORD = DOCS / "accuracy-terms.md", VALIDATION / "terms.json"


@dataclass(frozen=True)
class Term:
    """One physical term: the parameters that hold it with the values at which it does nothing.

    `read_off`: (system, ranks) of the curves that suggested it as `validation/parameters.csv` has it, 0 ranks for all
    shapes of a system, and a folder of `FOLDERS` in place of a system where the medians of all its logs did.
    """

    name: str
    what: str
    off: Values
    read_off: tuple[tuple[str, int], ...] = ()

    def suggested_by(self, case: Case) -> bool:
        """Whether a log's own shape of its machine suggested the term."""
        names = (case.system, case.path.parent.name)
        return any(name in names and ranks in (0, case.n_ranks) for name, ranks in self.read_off)


def _protocols(path: str, value: float) -> dict[str, float]:
    return {f"{path}.{protocol}": value for protocol in ("LL", "LL128", "Simple")}


TERMS = (
    Term("channel_cost", "the kernel's work for each channel, NCCL 2.14 on", {"channel_cost": 0.0}, (("alps", 4),)),
    Term("channel_cost_before_2_14", "the same before", {"channel_cost_before_2_14": 0.0}, (("abci-a100", 0),)),
    Term("first_pass", "fencing a full pass of a block of Simple", {"first_pass": 0.0}, (("measured", 0),)),
    Term(
        "pass_share", "LL, LL128: what a pass takes until all of it is written", {"pass_share": 0.0},
        (("alps", 4), ("abci-v100", 4), ("abci-a100", 8), ("togethercomputer:hgx-h100:one node", 8)),
    ),
    Term("pause", "a block's barriers and fences", _protocols("pause", 0.0), (("measured", 0),)),
    Term(
        "drain", "sm 80: a block waits for its last reads", {"drain": 0.0},
        (("azure-nd-a100-v4", 8), ("chuhan-ouyang:hgx-a100-4:one node", 4)),
    ),
    Term(
        "lines", "sm 80: lines are slower than reads", {"efficiency.lines": 1.0},
        (("sophia", 0), ("coreweave-a100", 8)),
    ),
    Term("staging_rate", "sm 80: what a rank begins with is copied", {"staging_rate": None}, (("coreweave-a100", 0),)),
    Term(
        "keep_rate", "Simple: a block stores what a loop brings last", {"keep_rate": None},
        (("silicon-h100-sxm", 0), ("silicon-b200-sxm", 0)),
    ),
    Term("block_rate", "a thread block's own rate", _protocols("block_rate", FREE)),
    Term(
        "nvls.round", "what a round of NVLS costs beside its bytes", {"nvls.round": 0.0, "nvls.tree_round": 0.0},
        (("aws-p6", 8), ("gcp-a4", 0)),
    ),
    Term("flag_rate", "LL's flags are checked in the host's memory", {"flag_rate": FREE}),
    Term(
        "message_cost", "the proxy posts the messages of a NIC in turn", _protocols("network.message_cost", 0.0),
        (("NVIDIA:hgx-h100:infiniband", 16), ("aws-p5", 16)),
    ),
    Term("connection_cost", "and those of a connection", _protocols("network.connection_cost", 0.0), (("aws-p5", 16),)),
    Term("ordering", "EFA, TCPX: one large message at a time", {"network.ordering": 0.0}, (("aws-p5", 0),)),
    Term(
        "spread", "the slowest of many ways between nodes", {"network.spread": 0.0},
        (("aws-p5", 16), ("gcp-a3-mega", 16), ("gcp-a4", 16), ("google:hgx-h200:roce", 16)),
    ),
    Term(
        "rendezvous", "large messages ask first", {"network.rendezvous": 0.0},
        (("polaris", 0), ("alps", 0), ("aws-p3dn", 0), ("aws-p4d", 0)),
    ),
    Term("fetch", "a NIC reads LL from the host's memory", {"network.fetch": 0.0}, (("alps", 0), ("polaris", 0))),
    Term("inline_cost", "the host reads small sends from a GPU", {"network.inline_cost": 0.0}, (("polaris", 0),)),
    Term("peer_cost", "each remote peer of an all_to_all", {"network.peer_cost": 0.0}, (("polaris", 0),)),
    Term(
        "network.copy_rate", "a processor copies what passes the network", {"network.copy_rate": None},
        (("aws-p3dn", 0), ("dywsy21:a800:ethernet", 0)),
    ),
    Term(
        "through_host", "NIC and GPU meet in the host", {"network.through_host_efficiency": 1.0},
        (("polaris", 0), ("aws-p3dn", 0)),
    ),
    Term(
        "channel_rate", "one channel of a send", {"network.channel_rate": FREE, "point_to_point.channel_rate": FREE},
        (("xxrjun-c01", 0),),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Gain:
    """What a term is worth on one log: points by which the error of the sizes it touches grows without it."""

    term: Term
    case: Case
    fabric: str  # a class of `CLASSES`
    points: float
    bands: Mapping[str, float]

    @property
    def fresh(self) -> bool:
        """Whether the log had no part in the term."""
        return not self.term.suggested_by(self.case)


def without(parameters: Parameters, term: Term, read: Mapping[str, float]) -> Parameters | None:
    """The parameters with a term off; None where that changes nothing that a prediction has read (`noting`)."""
    values = {path: value for path, value in term.off.items() if path in read and read[path] != value}
    return replaced(parameters, values) if values else None  # type: ignore[arg-type]


def predicted(predictor: FieldPredictor, collective: str, nbytes: Sequence[int]) -> dict[str, Float64]:
    """Seconds of every size by the name of the term that is off; under a blank name those of the whole model."""
    shipped = load_parameters(predictor.generation, predictor.network)
    seconds = {"": np.zeros(len(nbytes))}
    for i, n in enumerate(nbytes):
        read: dict[str, float] = {}
        predictor.parameters = noting(shipped, read)
        seconds[""][i] = predictor.predict(collective, n).time_s
        for term in TERMS:
            parameters = without(shipped, term, read)
            if parameters is not None:
                of_term = seconds.setdefault(term.name, np.full(len(nbytes), np.nan))
                of_term[i] = predictor.seconds(collective, n, parameters)
    for name, of_term in seconds.items():
        seconds[name] = np.where(np.isnan(of_term), seconds[""], of_term)
    return seconds


def _job(job: tuple[Case, tuple[int, ...]]) -> tuple[str, dict[str, Float64]] | None:
    case, nbytes = job
    try:
        predictor = predictor_of(case)
        network = predictor.network if predictor.topology.nodes > 1 else "one_node"
        return fabric_class(network, predictor.topology.nodes), predicted(predictor, case.collective, nbytes)
    except CommsimError:
        return None


def gains(logs: Sequence[Log], workers: int, progress: Progress | None = None) -> list[Gain]:
    """The gain of every term on every log that it touches, logs known degraded left out."""
    logs = [log for log in logs if log.case.healthy != "no"]
    alike: dict[tuple[object, ...], list[int]] = {}
    for i, log in enumerate(logs):
        alike.setdefault((predictor_key(log.case), log.case.collective), []).append(i)
    members = list(alike.values())
    jobs = [(logs[group[0]].case, tuple(sorted({n for i in group for n in logs[i].nbytes}))) for group in members]
    order = sorted(range(len(jobs)), key=lambda k: -jobs[k][0].n_ranks)
    out: list[Gain] = []
    with Pool(workers) as pool:
        results = pool.map(_job, [jobs[k] for k in order])
        shown: Iterable[Any] = results if progress is None else progress(results, "terms", len(jobs))
        for k, result in zip(order, shown, strict=True):
            if result is not None:
                at = {n: j for j, n in enumerate(jobs[k][1])}
                for i in members[k]:
                    out += _of_log(logs[i], result[0], result[1], [at[n] for n in logs[i].nbytes])
    return out


def _of_log(log: Log, fabric: str, seconds: Mapping[str, Float64], pick: Sequence[int]) -> Iterable[Gain]:
    whole = seconds[""][pick]
    band = np.array([band_of(n) for n in log.nbytes])
    for term in TERMS:
        if term.name not in seconds:
            continue
        off = seconds[term.name][pick]
        touched = np.abs(off / whole - 1) > TOUCHED
        if touched.any():
            points = 100 * (np.abs(off / log.time_s - 1) - np.abs(whole / log.time_s - 1))
            bands = {
                name: float(points[use].mean()) for name, _ in SIZE_BANDS if (use := touched & (band == name)).any()
            }
            yield Gain(term, log.case, fabric, float(points[touched].mean()), bands)


def over_systems(some: Iterable[Gain]) -> list[float]:
    """The mean gain of each system, systems in the order of their names."""
    systems: dict[str, list[float]] = {}
    for gain in some:
        systems.setdefault(gain.case.system, []).append(gain.points)
    return [float(np.mean(systems[name])) for name in sorted(systems)]


def document(every: Sequence[Gain]) -> dict[str, Any]:
    """By term: logs, gain over systems that had no part in it, and over those that had; by fabric, band, collective."""
    return {"schema_version": 1, "terms": {term.name: _summary(term, every) for term in TERMS}}


def _summary(term: Term, every: Sequence[Gain]) -> dict[str, Any]:
    own = [gain for gain in every if gain.term is term]
    fresh = [gain for gain in own if gain.fresh]

    def parts(key: str) -> dict[str, Any]:
        values = sorted({str(getattr(g, key, None) or getattr(g.case, key)) for g in fresh})
        return {v: _worth(g for g in fresh if str(getattr(g, key, None) or getattr(g.case, key)) == v) for v in values}

    bands = {
        name: _worth(Gain(g.term, g.case, g.fabric, g.bands[name], {}) for g in fresh if name in g.bands)
        for name, _ in SIZE_BANDS
    }
    return {
        "what": term.what,
        "logs": len(own),
        "fresh": _worth(fresh),
        "read_off": _worth(gain for gain in own if not gain.fresh),
        "by_fabric": {name: part for name in CLASSES if (part := parts("fabric").get(name))},
        "by_band": {name: part for name, part in bands.items() if part["systems"]},
        "by_collective": parts("collective"),
        "by_system": {k: round(v["gain"], 2) for k, v in parts("system").items()},
    }


def _worth(some: Iterable[Gain]) -> dict[str, Any]:
    """Systems, how many of them gain, the mean of their gains in points; None without any."""
    each = over_systems(some)
    return {
        "systems": len(each),
        "better": sum(g > 0 for g in each),
        "gain": round(float(np.mean(each)), 2) if each else None,
    }


def harmful(figures: Mapping[str, Any]) -> list[str]:
    """The terms that do harm over the systems that had no part in them."""
    return [
        f"{name}: {part['fresh']['gain']:+.1f} points over {part['fresh']['systems']} other systems"
        for name, part in figures["terms"].items()
        if part["fresh"]["gain"] is not None
        and part["fresh"]["gain"] < LEAST
        and part["fresh"]["better"] < part["fresh"]["systems"] / 2
    ]


def all_logs(folders: Sequence[Path], only: Sequence[str] | None = None) -> list[Log]:
    """The logs of some folders, by default of `FOLDERS`."""
    return read_logs(folders or [VALIDATION / name for name in FOLDERS], only)


# -- as text ---------------------------------------------------------

HEAD = ("term", "logs", "other systems", "better", "gain", "where it was read off")


def rows(figures: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row of words for each term: `HEAD`, then its gain by class of fabric and by band of sizes."""
    out = []
    for name, part in figures["terms"].items():
        fresh, read = part["fresh"], part["read_off"]
        cells = [name, str(part["logs"]), str(fresh["systems"]), str(fresh["better"]), _points(fresh), _points(read)]
        cells += [_points(part["by_fabric"].get(c)) for c in CLASSES]
        out.append((*cells, *(_points(part["by_band"].get(b)) for b, _ in SIZE_BANDS)))
    return out


def _points(part: Mapping[str, Any] | None) -> str:
    return "-" if part is None or part["gain"] is None else f"{part['gain']:+.1f}"


def heads() -> tuple[str, ...]:
    """The heads of `rows`."""
    return (*HEAD, *CLASSES, *(name for name, _ in SIZE_BANDS))


def summary(figures: Mapping[str, Any], *, harm: bool = True) -> str:
    """A table for the screen, and what does harm where that is to be told."""
    table = [heads(), *rows(figures)]
    width = [max(len(row[c]) for row in table) for c in range(len(table[0]))]
    lines = ["  ".join([row[0].ljust(width[0]), *map(str.rjust, row[1:], width[1:])]) for row in table]
    lines += [f"does harm: {line}" for line in harmful(figures)] if harm else []
    return "\n".join(line.rstrip() for line in lines) + "\n"


def page(figures: Mapping[str, Any]) -> str:
    """The page docs/accuracy-terms.md."""
    lines = [
        "# What each term is worth",
        "",
        "Written by `commsim validate terms --report`; do not edit by hand.",
        "",
        words_of("accuracy-terms"),
        "",
        "Every published log is predicted with all terms of the model and with one of them switched off, at the "
        "shipped parameters: nothing is fitted. The gain is by how many points the mean error of the "
        "sizes that the term touches (by over 0.5 %) grows without it: the mean over systems of the mean over their "
        "logs. Systems, or shapes of a system, that a term was read off stand apart: *other systems* had no part in "
        f"it. A term whose gain there is below {LEAST} points, and by which fewer than half of them gain, goes.",
        "",
        "| " + " | ".join(heads()) + " |",
        "|---|" + "--:|" * (len(heads()) - 1),
        *("| " + " | ".join((f"`{row[0]}`", *row[1:])) + " |" for row in rows(figures)),
        "",
        "| term | what it is | by collective, other systems |",
        "|---|---|---|",
    ]
    for name, part in figures["terms"].items():
        several = ", ".join(f"{c} {_points(p)}" for c, p in part["by_collective"].items())
        lines.append(f"| `{name}` | {part['what']} | {several} |")
    return "\n".join(lines) + "\n"


def write_report(figures: Mapping[str, Any]) -> list[Path]:
    """Writes the page and the record."""
    text = json.dumps(figures, indent=0, allow_nan=False) + "\n"
    return [write_atomically(PAGE, page(figures)), write_atomically(RECORD, text)]
