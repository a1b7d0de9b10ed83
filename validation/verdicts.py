"""Counts how often a verdict on a log is wrong, and writes what healthy machines look like.

    python validation/verdicts.py            the table (three minutes: every log of the project is predicted)
    python validation/verdicts.py --write    also docs/accuracy-verdicts.md and commsim/accuracy/healthy.yaml

Every log is judged by `commsim.accuracy.healthy` with its own system left out of the spread. Logs known to be healthy
are taken as they are, and with their times multiplied; logs known to be degraded as they are.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from verdict_causes import beside_healthy, cause_counts, degraded_offs, degraded_spread, named_causes, section
from verdict_spread import tail_of

from commsim.accuracy.healthy import BAND_ENDS, LARGE_ABOVE, PATH, RARE, Healthy, Tail, beside, parts_of, state_of
from commsim.accuracy.posterior import band_of
from commsim.accuracy.whatif import FITS
from commsim.files import write_atomically
from study.validate import Scored, training_folder, validate
from study.words import words_of

CHECKOUT = Path(__file__).resolve().parents[1]
OUTSIDE = CHECKOUT / "validation" / "outside"
PAGE = CHECKOUT / "docs" / "accuracy-verdicts.md"
PARTS = ("large", "small")


@dataclass(frozen=True, eq=False)
class Log:
    """A log: its system, whether it is healthy (yes, unknown, no), and ln(measured / predicted) by size."""

    slug: str
    system: str
    healthy: str
    nodes: int
    nbytes: np.ndarray
    ratio: np.ndarray

    @property
    def large(self) -> np.ndarray:
        """Which sizes are."""
        return self.nbytes > LARGE_ABOVE

    def middle(self, part: str) -> float | None:
        """The median of a part, None where it has no size."""
        rows = self.ratio[self.large if part == "large" else ~self.large]
        return float(np.median(rows)) if rows.size else None


def logs(folder: Path) -> list[Log]:
    """Every log of a folder that is predicted, degraded ones too."""
    validation = validate([folder], ["zero-shot"])
    return [_log(each) for each in validation.listed if "zero-shot" in each.outcomes]


def _log(each: Scored) -> Log:
    assert each.log is not None
    ratio = np.log(each.log.time_s / each.outcomes["zero-shot"].seconds)
    case = each.case
    return Log(case.slug, case.system, case.healthy, case.nodes, np.asarray(each.log.nbytes), ratio)


def spread_of(of: Sequence[Log], part: str) -> Tail:
    """How healthy systems differ from the prediction."""
    return tail_of([(log.system, m) for log in of if log.healthy == "yes" and (m := log.middle(part)) is not None])


def one_node_spreads_of(of: Sequence[Log]) -> tuple[Tail, Tail]:
    """How healthy systems of one node differ from the prediction, by large messages and by those of the last band."""
    alone = [log for log in of if log.nodes == 1]
    return spread_of(alone, "large"), band_spread_of(alone, len(BAND_ENDS))


def own_spread_of(of: Sequence[Log], part: str) -> Tail:
    """How a healthy log differs from the middle of the other healthy logs of its system, where there are some."""
    return tail_of([
        (log.system, m - middle)
        for log in of
        if log.healthy == "yes" and (m := log.middle(part)) is not None
        if (middle := others_middle(of, log, part)) is not None
    ])  # fmt: skip


def others_middle(of: Sequence[Log], log: Log, part: str) -> float | None:
    """The middle of the other healthy logs of a log's system, None where there is none."""
    others = [
        m for o in of if o.system == log.system and o is not log and o.healthy == "yes"
        if (m := o.middle(part)) is not None
    ]  # fmt: skip
    return float(np.median(others)) if others else None


def band_spread_of(of: Sequence[Log], band: int) -> Tail:
    """How healthy systems differ from the prediction in a band of sizes."""
    known = []
    for log in of:
        rows = log.ratio[band_of(log.nbytes) == band]
        if log.healthy == "yes" and rows.size:
            known.append((log.system, float(np.median(rows))))
    return tail_of(known)


def known_without(of: Sequence[Log], *systems: str) -> Healthy:
    """What healthy machines look like, some systems left out."""
    rest = [log for log in of if log.system not in systems]
    return Healthy(
        small=spread_of(rest, "small"),
        large=spread_of(rest, "large"),
        own_small=own_spread_of(rest, "small"),
        own_large=own_spread_of(rest, "large"),
        one_node=one_node_spreads_of(rest),
        bands=tuple(band_spread_of(rest, band) for band in range(len(BAND_ENDS) + 1)),
    )


def state(
    log: Log, known: Healthy, times: float = 1.0, above: int = 0, others: Mapping[str, float | None] | None = None
) -> str:
    """The verdict on a log, with its times multiplied: at large sizes alone, where `above` is not zero.

    `others`: by part, the middle of the other logs of its machine, beside which it is judged.
    """
    ratio = log.ratio + math.log(times) * (log.large if above else 1.0)
    parts = list(parts_of(log.nbytes, ratio, known, one_node=log.nodes == 1))
    if others is not None:
        parts = [beside(p, [m] if (m := others[p.name]) is not None else [], known) for p in parts]
    return state_of(parts)


def as_if_healthy(of: Sequence[Log]) -> list[tuple[str, str]]:
    """System of each degraded log with a stated cause, and the verdict on it by its machine as it is when healthy."""
    out = []
    for pair, names, curve, ratio in beside_healthy():
        assert pair.cases is not None
        systems = {pair.system, *(log.system for log in of if log.slug in names)}
        log = Log(pair.name, pair.system, "no", pair.cases[0].nodes, curve.size_bytes, ratio)
        out.append((pair.system, state(log, known_without(of, *systems))))
    return out


STATES = ("slower", "unjudged", "as expected", "faster")


def rates(states: Iterable[str]) -> str:
    """Cells of a table: how many, and percent by verdict."""
    said = Counter(states)
    n = sum(said.values())
    return " | ".join([str(n), *(f"{100 * said[s] / n:.1f}" for s in STATES)])


def table(of: Sequence[Log], outside: Sequence[Log], stated: Sequence[tuple[str, str]]) -> str:
    """What is said of healthy, slowed and degraded logs, in percent of logs.

    `outside`: that no fit has seen. `stated`: what is said of degraded ones as if healthy, by system.
    """
    known = {system: known_without(of, system) for system in {log.system for log in (*of, *outside)}}
    yes = [log for log in of if log.healthy == "yes"]
    large = [log for log in yes if log.large.any()]
    lines = ["| logs | n | slower | cannot judge | as expected | faster |", "|---|--:|--:|--:|--:|--:|"]
    for name, those, times, above in (
        ("known to be healthy", yes, 1.0, 0),
        ("healthy, no fit has seen", [log for log in outside if log.healthy == "yes"], 1.0, 0),
        ("of unknown health", [log for log in of if log.healthy == "unknown"], 1.0, 0),
        *(
            (f"healthy, times x{times:g} {where}", logs, times, above)
            for times in (1.5, 2.0, 4.0)
            for where, logs, above in (("above 1 MiB", large, 1), ("at all sizes", yes, 0))
        ),
        ("degraded, as their rows say", [log for log in of if log.healthy == "no"], 1.0, 0),
        ("the same, no fit has seen", [log for log in outside if log.healthy == "no"], 1.0, 0),
    ):
        lines.append(f"| {name} | {rates(state(log, known[log.system], times, above) for log in those)} |")
    lines.append(f"| degraded by a stated cause, as if healthy | {rates(said for _, said in stated)} |")
    beside_others = [log for log in yes if any(others_middle(of, log, part) is not None for part in PARTS)]
    for times in (1.0, 1.5, 2.0):
        name = "healthy, beside others of their machine" + (f", times x{times:g} at all sizes" if times > 1 else "")
        states = (
            state(log, known[log.system], times, 0, {part: others_middle(of, log, part) for part in PARTS})
            for log in beside_others
        )
        lines.append(f"| {name} | {rates(states)} |")
    return "\n".join(lines)


def nearer(of: Sequence[Log], off: float) -> float:
    """Share of logs whose mean |ln(measured / predicted)| is at most so much."""
    return float(np.mean([np.mean(np.abs(log.ratio)) <= off for log in of]))


def page(of: Sequence[Log], rows: str) -> str:
    """The page of the documentation; `rows` is its table."""
    known = known_without(of)
    top, one, one_top = known.bands[-1], *known.one_node
    yes = [log for log in of if log.healthy == "yes"]
    wrong = sorted(
        (log for log in yes if state(log, known_without(of, log.system)) == "slower"),
        key=lambda log: log.slug,
    )
    return f"""# How often a verdict is wrong

Written by `python validation/verdicts.py --write`; do not edit by hand.

{words_of("accuracy-verdicts")}

`commsim compare` holds a log against the prediction as shipped by three numbers: the median of measured / predicted
time above 1 MiB, above 64 MiB, and up to 1 MiB; of the first two the rarer counts. Healthy machines differ by what no
description says; over the published systems that are known to be healthy the logarithm of each number follows a Student
t of two degrees of freedom, most within a tenth and some beyond a factor of two. "Slower" is said where fewer than
{100 * RARE["large"]:g} % of healthy machines are as slow (small messages: {100 * RARE["small"]:g} %), "cannot judge"
where large or small messages of a machine twice as slow might look like these. Above 1 MiB a machine of one node is
held against such machines, which differ less. Messages most of whose sizes lie within a band that reaches to twice the
predicted time are not called slower or faster either; the table knows no bands, and counts them. A prediction whose
parameters are the machine's own (`params`, `library.measured`) is held against its own band.

Each log below is judged without its own system; "no fit has seen" are those of `validation/outside`, which had no part
in what healthy machines look like. The row of a degraded log may say the cause, so that the prediction has it: "as if
healthy" are those whose source states a cause, against the prediction without it. Percent of logs:

{rows}

Healthy logs that are called slower: {", ".join(f"`{log.slug}`" for log in wrong)}.

| ln(measured / predicted) | systems | middle | scale |
|---|--:|--:|--:|
| above 1 MiB | {known.large.systems} | {known.large.middle:+.3f} | {known.large.scale:.3f} |
| above 64 MiB | {top.systems} | {top.middle:+.3f} | {top.scale:.3f} |
| above 1 MiB, one node | {one.systems} | {one.middle:+.3f} | {one.scale:.3f} |
| above 64 MiB, one node | {one_top.systems} | {one_top.middle:+.3f} | {one_top.scale:.3f} |
| up to 1 MiB | {known.small.systems} | {known.small.middle:+.3f} | {known.small.scale:.3f} |
| above 1 MiB, against the other logs of the system | {known.own_large.systems} | {known.own_large.middle:+.3f} \
| {known.own_large.scale:.3f} |
| up to 1 MiB, against the other logs of the system | {known.own_small.systems} | {known.own_small.middle:+.3f} \
| {known.own_small.scale:.3f} |

Several logs of one machine are judged beside each other where that tells more: a log against the middle of the others
that are as expected. It does for small messages. For large ones the logs of one system, of other nodes, collectives and
settings, differ among each other as much as systems do, so they stay judged by these.

A cause is named where its simulation is at most {100 * math.expm1(FITS):.0f} % off the curve, as a mean factor;
{100 * nearer(yes, FITS):.0f} % of the healthy logs are so near to their prediction.

The shares that count as rare were chosen with this table in view: the first row is no forecast, and the rows of slowed
logs follow from it. With 0.5 % as many healthy logs would be called slower, and three of four that are 1.5 times as
slow.
"""


def yaml_of(known: Healthy) -> str:
    """What `commsim.accuracy.healthy` reads."""
    spreads = {name: getattr(known, name) for name in ("small", "large", "own_small", "own_large")}
    lines = [
        "# Written by `python validation/verdicts.py --write`: ln(measured / predicted) of healthy systems; own_: of a "
        "log against",
        "# the other healthy logs of its system; one_node: systems of one node, above 1 MiB and above 64 MiB; bands:",
        "# up to 32 KiB, 1 MiB, 64 MiB, and above; degraded: of degraded logs, predicted with their cause, above",
        "# 1 MiB; causes: how many published degraded systems have a cause of each kind.",
        *(f"{name}: {_tail(s)}" for name, s in spreads.items()),
        "one_node:",
        *(f"  - {_tail(s)}" for s in known.one_node),
        "bands:",
        *(f"  - {_tail(s)}" for s in known.bands),
        "degraded:",
        *(f"  - {_tail(s)}" for s in known.degraded),
        "causes:",
        *(f"  {kind}: {count:g}" for kind, count in known.causes.items()),
    ]
    return "\n".join(lines) + "\n"


def _tail(s: Tail) -> str:
    return f"{{middle: {s.middle}, scale: {s.scale}, systems: {s.systems}}}"


def main(words: Sequence[str]) -> int:
    """Prints the table, and writes both files where asked to."""
    of, outside, offs = logs(training_folder()), logs(OUTSIDE), degraded_offs()
    known = known_without(of).model_copy(update={"degraded": degraded_spread(offs), "causes": cause_counts()})
    stated = as_if_healthy(of)
    causes = section(list(named_causes(known, offs)), [(system, said == "slower") for system, said in stated])
    rows = table(of, outside, stated)
    print(rows, causes, sep="\n\n")
    if "--write" in words:
        write_atomically(PATH, yaml_of(known))
        write_atomically(PAGE, page(of, rows) + "\n" + causes)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
