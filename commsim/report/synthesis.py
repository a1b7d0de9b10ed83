"""A synthesized schedule in words and as a document: the limit, what is reached, and what NCCL takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from commsim.report.tables import aligned, hanging
from commsim.synthesis.library import LibraryRun
from commsim.synthesis.search import Synthesis
from commsim.synthesis.words import why
from commsim.units import format_bytes, format_time, microseconds

if TYPE_CHECKING:
    from commsim.synthesis.bound import BoundQuestion
    from commsim.topology.graph import Topology


@dataclass(frozen=True)
class RawBound:
    """Seconds that no measurement falls below, and the rates of a link that sets it apart from the limit, in words.

    ``adding``: switches that add make it less, which the limit does not count.
    """

    seconds: float
    rates: str
    adding: bool = False

    @classmethod
    def of(cls, topology: Topology, question: BoundQuestion, nbytes: int, limit_s: float) -> RawBound | None:
        """The bound of tables, which lets switches add; None where it is the limit."""
        from commsim.synthesis.bound import quick_bound

        bound = quick_bound(topology, replace(question, in_network=True))
        seconds, (_, rates) = bound.seconds(nbytes), bound.listed(nbytes)
        if not rates or seconds >= limit_s:
            return None
        return cls(seconds, rates, seconds < quick_bound(topology, question).seconds(nbytes))

    def lines(self) -> list[str]:
        """The line of it below that of the limit."""
        more = " and with switches that add" if self.adding else ""
        words = f"as `commsim run` counts, at raw rates{more}; the limit counts net of {self.rates}"
        return hanging("  bound    ", f"{format_time(self.seconds)}  {words}")


@dataclass(frozen=True)
class Beside:
    """What else is known of a size: NCCL's own time on the machine, its choice, and the time as it would run ours.

    ``adding_limit_s``: the limit if switches add too, where NCCL's choice has them add and ours has not. ``bound``:
    that of `commsim run`, where it counts links at other rates than the limit does.
    """

    nccl_s: float | None = None
    choice: str = ""
    library: LibraryRun | None = None
    adding_limit_s: float | None = None
    bound: RawBound | None = None


def to_dict(one: Synthesis, beside: Beside = Beside()) -> dict[str, Any]:
    """The figures of one schedule; times in microseconds."""
    s, q = one.laid.schedule, one.question
    document: dict[str, Any] = {
        "collective": q.collective,
        "size_bytes": q.size,
        "ranks": q.network.n,
        "limit_us": microseconds(one.limit_s),
        "reached_us": microseconds(one.seconds),
        "ratio": one.ratio,
        "bandwidth_limit_us": microseconds(one.limit.bandwidth_s(q.size)),
        "latency_limit_us": microseconds(one.limit.latency_s),
        "limit_by": one.limit.by,
        "exact": one.limit.exact,
        "why": why(q.network, one.limit),
        "busiest_link_us": microseconds(one.packed_s),
        "algorithm": s.algorithm,
        "trees": 0 if one.known else len(one.forest.share),
        "depth": one.depth,
        "pieces": one.pieces,
        "steps": s.steps,
        "moves": s.rows,
        "in_switches": one.in_switches,
    }
    if beside.nccl_s is not None:
        document |= {"nccl_us": microseconds(beside.nccl_s), "nccl_ratio": beside.nccl_s / one.limit_s}
        document["nccl_choice"] = beside.choice
    if beside.adding_limit_s is not None:
        document["in_network_limit_us"] = microseconds(beside.adding_limit_s)
    if beside.bound is not None:
        document["bound_us"] = microseconds(beside.bound.seconds)
    if beside.library is not None:
        run = beside.library
        document["as_a_library"] = {
            "time_us": microseconds(run.seconds),
            "algorithm": run.algorithm,
            "protocol": run.protocol,
            "channels": run.channels,
            "pieces": run.pieces,
        }
    return document


def text(one: Synthesis, beside: Beside = Beside(), *, proven: bool = True) -> str:
    """Some lines on one schedule."""
    q, s = one.question, one.laid.schedule
    lines = [
        f"{q.network.name}: {q.collective} of {format_bytes(q.size)} among {q.network.n} ranks",
        *hanging("  limit    ", f"{format_time(one.limit_s)}  {_limit_words(one)}"),
        *(beside.bound.lines() if beside.bound else ()),
        *hanging("  reached  ", f"{format_time(one.seconds)}  {one.ratio:#.4g} of the limit, on ideal links"),
        *hanging(
            "  schedule ",
            f"{_kind_of(one)}, {_many(one.pieces, 'piece')}, {s.rows} moves{'; switches copy or add' * one.in_switches}"
            + ("; proven: every rank ends with what the collective promises" if proven else ""),
        ),
    ]
    if beside.library is not None:
        run = beside.library
        how = f"{run.algorithm}, {run.protocol}, channels: {run.channels}{f', pieces: {run.pieces}' * (run.pieces > 0)}"
        lines += hanging("  as a library would run it  ", f"{format_time(run.seconds)} ({how})")
    if beside.nccl_s is not None:
        share = f"{beside.nccl_s / one.limit_s:.4g} of the limit ({beside.choice})"
        lines += hanging("  NCCL     ", f"{format_time(beside.nccl_s)}  {share}{_quicker(beside)}")
    if beside.adding_limit_s is not None:
        lines += hanging(
            " " * 11,
            f"the limit is without sums in switches, which NCCL's choice has: with them it is "
            f"{format_time(beside.adding_limit_s)}; --in-network looks for a schedule",
        )
    return "\n".join(lines)


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _quicker(beside: Beside) -> str:
    """How NCCL's time stands to the time of a library, both with kernels and protocols."""
    if beside.nccl_s is None or beside.library is None:
        return ""
    ratio = beside.nccl_s / beside.library.seconds
    if f"{ratio:.3g}" == "1":
        return "; as a library would run it this is as quick"
    if ratio > 1:
        return f"; as a library would run it this is {ratio:.3g} times as quick as NCCL"
    return f"; NCCL is {1 / ratio:.3g} times as quick as a library would run this"


def _kind_of(one: Synthesis) -> str:
    if one.known:
        return f"{one.laid.schedule.algorithm} in {_many(one.depth, 'step')}"
    return f"{_many(len(one.forest.share), 'tree')} of depth {one.depth}"


def _limit_words(one: Synthesis) -> str:
    if one.limit.latency_s >= one.limit.bandwidth_s(one.question.size):
        return "the quickest way to the farthest rank"
    sort = {"flow": "exact", "program": "a linear program", "cut": "a cut"}[one.limit.by]
    return f"{sort}: {why(one.question.network, one.limit)}"


def table(many: Sequence[tuple[Synthesis, Beside]]) -> str:
    """One line for each size."""
    nccl = any(beside.nccl_s is not None for _, beside in many)
    header = ["size", "limit", "reached", "ratio", "trees", "depth", "pieces"] + (
        ["as a library", "NCCL", "of the limit"] if nccl else []
    )
    rows = [tuple(header)]
    for one, beside in many:
        cells = [
            format_bytes(one.question.size),
            format_time(one.limit_s),
            format_time(one.seconds),
            f"{one.ratio:.4g}",
            "-" if one.known else str(len(one.forest.share)),
            str(one.depth),
            str(one.pieces),
        ]
        if nccl:
            known = beside.nccl_s is not None
            cells.append("-" if beside.library is None else format_time(beside.library.seconds))
            cells.append(format_time(beside.nccl_s) if beside.nccl_s is not None else "-")
            cells.append(f"{(beside.nccl_s or 0.0) / one.limit_s:.4g}" if known else "-")
        rows.append(tuple(cells))
    return "\n".join(aligned(rows, (), spare=(4, 5, 6, 3)))
