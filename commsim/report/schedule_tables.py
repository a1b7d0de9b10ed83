"""Schedules as text: the list of algorithms, the table of steps by rank, the figures of one, the table of proofs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from commsim.collectives.canonical import earliest_steps
from commsim.collectives.schedule import Buffer, Op, Schedule
from commsim.collectives.semantics import bandwidth_bytes, latency_steps
from commsim.report.tables import aligned, ranges
from commsim.units import format_bytes

if TYPE_CHECKING:
    from commsim.collectives.prove import Proof

_MOST_CELL = 26


def algorithm_table(entries: Sequence[tuple[str, str, Sequence[str], str]]) -> str:
    """(collective, algorithm, options, summary) rows under a header; ends without a newline."""
    header = ("collective", "algorithm", "options", "what it does")
    rows = [(c, a, ", ".join(options) or "-", summary) for c, a, options, summary in entries]
    return "\n".join(aligned([header, *rows], range(len(header)), spare=(2,)))


def step_table(schedule: Schedule, *, width: int = 100, ranks: int | None = 16, steps: int | None = 40) -> str:
    """What each rank sends in each step: ``3→1+`` is chunk 3 to rank 1, added there; ``3→1`` copied.

    ``3↺0`` is a copy of chunk 3 to place 0 within the rank; ``s`` marks chunks in scratch.
    Ranks stand side by side as far as ``width`` characters allow, the others in further tables below. At most
    ``ranks`` endpoints and ``steps`` steps are shown (None: all), with a line that says what was left out.
    """
    s = schedule
    shown = s.world_size if ranks is None else min(s.world_size, ranks)
    last = s.steps if steps is None else min(s.steps, steps)
    cells = _cells(s, last)
    names = [f"rank {e}" if e < s.world_size else f"switch {e - s.world_size}" for e in range(s.endpoints)]
    order = [*range(shown), *range(s.world_size, s.endpoints)]
    sizes = {e: max([len(names[e]), *(len(cells.get((step, e), "")) for step in range(last))]) for e in order}
    lines = [*heading(s), ""]
    while order:
        taken, used = 0, 6
        while taken < len(order) and (not taken or used + sizes[order[taken]] + 2 <= width):
            used += sizes[order[taken]] + 2
            taken += 1
        part, order = order[:taken], order[taken:]
        lines.append("  ".join(["step", *(f"{names[e]:<{sizes[e]}}" for e in part)]).rstrip())
        for step in range(last):
            row = [f"{step:>4}", *(f"{cells.get((step, e), '·'):<{sizes[e]}}" for e in part)]
            lines.append("  ".join(row).rstrip())
        lines.append("")
    hidden = [f"{s.steps - last} more steps"] * (s.steps > last)
    hidden += [f"{s.world_size - shown} more ranks"] * (s.world_size > shown)
    if hidden:
        lines.append(f"... and {' and '.join(hidden)}")
    return "\n".join(lines).rstrip() + "\n"


def heading(s: Schedule) -> list[str]:
    """Name, size and place of a schedule, as lines."""
    count = s.endpoints - s.world_size
    switches = f" and {count} switch{'es' if count > 1 else ''}" if count else ""
    ranks = f"{s.world_size} rank{'s' if s.world_size > 1 else ''}{switches}"
    root = f", root {s.root}" if s.root else ""
    place = "in place" if s.in_place else "out of place"
    counts = f"{s.steps} steps, {s.rows} moves of {s.chunk_bytes.size} chunks"
    return [f"{s.algorithm} {s.collective}, {ranks}{root}, {format_bytes(s.nbytes)} {place}: {counts}"]


def _cells(s: Schedule, steps: int) -> dict[tuple[int, int], str]:
    """Text by (step, sender)."""
    rows = slice(0, int(np.searchsorted(s.step, steps)))
    bundles: dict[tuple[int, int, int, bool], list[int]] = defaultdict(list)
    for row, key in enumerate(zip(s.step[rows].tolist(), s.src[rows].tolist(), s.dst[rows].tolist(), strict=True)):
        bundles[*key, bool(s.op[row] == Op.REDUCE)].append(row)
    # Peers that get the same chunks in the same way share one text.
    peers: dict[tuple[int, int], dict[tuple[str, str], list[int]]] = defaultdict(lambda: defaultdict(list))
    for (step, src, dst, adds), moved in bundles.items():
        chunks, to = _places(s, "src", moved), _places(s, "dst", moved)
        mark = "+" if adds else ""
        if src == dst:
            mark = f"↺{'' if chunks == to else to}{mark}"
        peers[step, src][chunks, mark].append(dst)
    text: dict[tuple[int, int], str] = {}
    for place, by_chunks in peers.items():
        parts = [
            f"{chunks}{mark}" if mark.startswith("↺") else f"{chunks}→{ranges(sorted(ranks))}{mark}"
            for (chunks, mark), ranks in by_chunks.items()
        ]
        text[place] = " ".join(parts)
        if len(text[place]) > _MOST_CELL:
            ends = {rank for ranks in by_chunks.values() for rank in ranks}
            text[place] = f"{len(parts)} sets to {len(ends)} ranks"
    return text


def _places(s: Schedule, side: str, rows: list[int]) -> str:
    """'0-3' of the chunks that rows read or write; 's' marks scratch."""
    buffer, chunk = getattr(s, f"{side}_buffer")[rows], getattr(s, f"{side}_chunk")[rows]
    parts = [(mark, np.unique(chunk[(buffer == Buffer.SCRATCH) == (mark == "s")]).tolist()) for mark in ("", "s")]
    return ",".join(mark + ranges(numbers) for mark, numbers in parts if numbers)


def schedule_stats(schedule: Schedule) -> dict[str, Any]:
    """Steps and payload bytes of a schedule beside the least that any algorithm of the collective needs (``bound``).

    The bound of steps is ceil(log2 n) when no rank sends or receives two messages in one step, and one step
    otherwise. ``bytes_over_bound`` is what the busiest rank sends or receives over the bound for it.
    """
    s = schedule
    sent, received = s.sent_bytes(), s.received_bytes()
    in_network = s.endpoints > s.world_size
    bound = bandwidth_bytes(s.collective, s.world_size, s.nbytes, in_network=in_network)
    one_port = _one_port(s) and not in_network
    least = latency_steps(s.collective, s.world_size, one_port=one_port)
    of_ranks = {"sent": sent[: s.world_size], "received": received[: s.world_size]}
    busiest = max(int(nbytes.max()) for nbytes in of_ranks.values())
    stats: dict[str, Any] = {
        "collective": s.collective,
        "algorithm": s.algorithm,
        "ranks": s.world_size,
        "switches": s.endpoints - s.world_size,
        "nbytes": s.nbytes,
        "moves": s.rows,
        "chunks": int(s.chunk_bytes.size),
        "channels": int(np.unique(s.channel).size),
        "steps": s.steps,
        "longest_chain": int(earliest_steps(s).max(initial=-1)) + 1,
        "steps_bound": least,
        "one_port": one_port,
    }
    for way, nbytes in of_ranks.items():
        stats[f"{way}_bytes_least"] = int(nbytes.min())
        stats[f"{way}_bytes_mean"] = float(nbytes.mean())
        stats[f"{way}_bytes_most"] = int(nbytes.max())
    return stats | {
        "all_sent_bytes": int(sent.sum()),
        "bytes_bound": bound,
        "bytes_over_bound": busiest / bound if bound else None,
        "steps_over_bound": s.steps / least if least else None,
    }


def _one_port(s: Schedule) -> bool:
    """Whether no endpoint sends to two others, or receives from two, in one step."""
    across, ends = s.src != s.dst, s.endpoints
    senders = s.step[across].astype(np.int64) * ends + s.src[across]
    moves = np.unique(senders * ends + s.dst[across])
    step, receiver = moves // ends**2, moves % ends
    return all(np.unique(busy).size == moves.size for busy in (moves // ends, step * ends + receiver))


def stats_table(stats: dict[str, Any]) -> str:
    """The figures as a small table; ends without a newline."""
    t = stats
    spread = {
        way: (str(t[f"{way}_bytes_least"]), f"{t[f'{way}_bytes_mean']:.10g}", str(t[f"{way}_bytes_most"]))
        for way in ("sent", "received")
    }
    ratios = ["-" if t[name] is None else f"{t[name]:.4g}" for name in ("steps_over_bound", "bytes_over_bound")]
    busiest = str(max(t["sent_bytes_most"], t["received_bytes_most"]))
    rows = [
        ("", "least", "mean", "most", "bound", "most/bound"),
        ("steps", "", "", str(t["steps"]), str(t["steps_bound"]), ratios[0]),
        ("sent per rank (B)", *spread["sent"], "", ""),
        ("received per rank (B)", *spread["received"], "", ""),
        ("busiest rank (B)", "", "", busiest, f"{t['bytes_bound']:.10g}", ratios[1]),
    ]
    port = "one message at a time" if t["one_port"] else "several messages at once"
    switches = ", with switches that reduce" if t["switches"] else ""
    more = [
        f"longest chain of dependences: {t['longest_chain']} moves; channels: {t['channels']}",
        f"sent by all endpoints: {t['all_sent_bytes']} B",
        f"bounds: any algorithm of ranks that send and receive {port}{switches}",
    ]
    return "\n".join([*aligned(rows), *more])


def proof_table(proofs: Sequence[Proof]) -> str:
    """One line per algorithm: schedules proven, combinations that do not exist, faults, time; then the sums."""
    rows: list[tuple[str, ...]] = [("collective", "algorithm", "proven", "not applicable", "faults", "CPU s")]
    rows += [
        (p.collective, p.algorithm, str(p.proven), str(_left_out(p)), str(len(p.faults)), f"{p.seconds:.1f}")
        for p in proofs
    ]
    sums = (sum(p.proven for p in proofs), sum(map(_left_out, proofs)), sum(len(p.faults) for p in proofs))
    rows.append(("all", "", *(str(n) for n in sums), f"{sum(p.seconds for p in proofs):.1f}"))
    reasons = sum((Counter(p.not_applicable) for p in proofs), Counter())
    lines = [f"not applicable: {count} x {reason}" for reason, count in reasons.most_common()]
    return "\n".join([*aligned(rows, range(2)), *lines])


def _left_out(proof: Proof) -> int:
    return sum(proof.not_applicable.values())
