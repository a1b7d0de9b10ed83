"""What bounds a run, and what the next best change would give, in sentences and as JSON; the page of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from commsim.document.overrides import overridden
from commsim.planner.explain import NOTHING, Explanation, Gain
from commsim.report.generation_words import generation_bound, generation_words
from commsim.report.page import Cell, Code, Facts, Page, Part, Section, Text, table
from commsim.report.rl_words import rl_bound, rl_words
from commsim.report.tables import aligned
from commsim.report.view import Shown, view_of
from commsim.units import GIB, format_time, microseconds

if TYPE_CHECKING:
    from commsim.accuracy.compare import Comparison
    from commsim.planner.explain import Explanation
    from commsim.planner.placement import PlacementCost
    from commsim.scenario.item import Row
    from commsim.scenario.result import Result
    from commsim.scenario.training_result import TrainingItem

MOST_GAINS = 8
"""Changes listed by name; the JSON has all."""

_CAUSES = {
    "tp": "waiting for tp (tensor parallelism)",
    "cp": "waiting for cp (context parallelism)",
    "ep": "waiting for ep (experts' dispatch and combine)",
    "dp": "waiting for dp (gradients and parameters)",
    "offload": "waiting for offload (parameters from the host)",
    "pp": "waiting for pp (sends between stages)",
    "bubble": "bubble (stages that wait for the schedule)",
    "optimizer": "optimizer (the update)",
}
_ALL = 0.95
"""Share from which on nothing need be said of the rest."""

_RESOURCES = {
    "thread block": "the thread blocks of the kernel",
    "cores": "the cores of a host",
    "messages of the NIC": "messages between nodes that wait for each other",
}
_WORK = {"thread block": "copy at their rate", "messages of the NIC": "take turns"}


def bound_words(explanation: Explanation) -> list[str]:
    """What bounds it, what its placement and unlike nodes cost, in some sentences."""
    lost = [f"{explanation.lost}."] if explanation.lost else []
    if explanation.step is not None:
        return _step_words(explanation.step) + lost + _perfect_words(explanation)
    if explanation.generation is not None:
        return generation_words(explanation.generation)
    if explanation.rl is not None:
        return rl_words(explanation.rl)
    assert explanation.row is not None
    row, path = explanation.row, explanation.use.bottleneck if explanation.use else ""
    lines = _row_words(explanation, row, path)
    if explanation.limit_s and row.time_s:
        least, part = format_time(explanation.limit_s), percent(explanation.limit_s / row.time_s)
        lines.append(f"No algorithm takes less than {least} here, {part} of that.")
        lines.append(f"It takes {row.time_s / explanation.limit_s:.2f} times the bound: {explanation.limit}.")
        lines += _fault_words(explanation)
    lines += lost
    return lines + ([] if explanation.placement is None else _placement_words(explanation.placement))


def _fault_words(explanation: Explanation) -> list[str]:
    """What the machine's faults cost as it runs, and what they cost a schedule at the limit."""
    if explanation.sound is None:
        return []
    seconds, limit_s = explanation.sound
    cost, least = explanation.seconds / seconds, explanation.limit_s / limit_s
    if max(cost, least) < 1 + NOTHING:
        return ["The machine's faults cost nothing at this size."]
    return [
        f"With the machine's faults it takes {cost:.2f} times as long, at the limit {least:.2f} times: a schedule for "
        "the machine as it is comes near to that (commsim synthesize)."
    ]


def _perfect_words(explanation: Explanation) -> list[str]:
    """What a step would gain from collectives that lose nothing."""
    if explanation.perfect_s is None:
        return []
    gain = 100 * (1 - explanation.perfect_s / explanation.seconds)
    at = format_time(explanation.perfect_s)
    return [
        f"No collectives make it quicker than {at}, {gain:.1f} % less (library=synthesized: the limit of the links)."
    ]


def _passed_on(explanation: Explanation) -> str:
    """The bytes that take the time where no link is busy for half of it, as hops pass them on in turn; else empty."""
    row, (most, seconds) = explanation.row, next(iter(explanation.parts.items()), ("", 0.0))
    late = row is not None and row.bottleneck == "latency"
    return most if late and most.startswith("bytes ") and seconds >= 0.5 * explanation.seconds else ""


def _row_words(explanation: Explanation, row: Row, path: str) -> list[str]:
    passed, work = _passed_on(explanation), f"; {_at_work(row)}" if row.busiest_link else ""
    if row.bottleneck == "launch":
        why = f"the launch: the host needs {format_time(row.launch_s)} per call, the kernel {format_time(row.kernel_s)}"
    elif passed:
        share = percent(explanation.parts[passed] / explanation.seconds)
        why = f"{passed}, one hop after the other: {share} of the time{work}"
    elif row.bottleneck == "latency":
        why = f"latency: hops that wait for each other{work}"
    else:
        why = _RESOURCES.get(row.bottleneck, row.bottleneck or "nothing named")
        why += f": {_at_work(row, row.bottleneck)}" if row.busiest_link else ""
    lines = [f"{explanation.title}: {format_time(row.time_s)}, bound by {why}."]
    if row.limiting_place:
        lines.append(f"Slower than the rest of the machine, and the limit: {row.limiting_place}.")
    if "most of it over" in path:  # of the critical path
        lines.append(f"On the critical path: {path}.")
    return lines


_LONG = 120
"""Characters from which on an override is left to the JSON."""


def _placement_words(cost: PlacementCost) -> list[str]:
    """What a placement costs against those beside it, and what to change."""
    others = " and ".join(
        f"{cost.seconds / rival.seconds:.2f} times what {rival.what} take ({format_time(rival.seconds)})"
        for rival in cost.rivals
    )
    limit = f", limited by {cost.limit}" if cost.limit else ""
    lines = [f"This placement takes {format_time(cost.seconds)}{limit}: {others}."]
    best = cost.best
    if cost.seconds - best.seconds <= NOTHING * cost.seconds:
        return [*lines, "No better placement is known."]
    example = f", such as {best.overrides}" if len(best.overrides) < _LONG else ""
    return [*lines, f"To change: {best.advice}{example}."]


def _at_work(row: Row, named: str = "") -> str:
    """For what share of what time the busiest part works, and what the rest is; `named`: the part just mentioned."""
    name, share, whole = row.busiest_link, row.busiest_share or 0.0, "the time"
    who = _RESOURCES.get(name, name)
    several = who != name
    if name == named:
        who = "they" if several else "it"
    does = _WORK.get(name, "work" if several else "carries data at its rate")
    rest = ""
    if row.launch_s and row.kernel_s:  # NCCL: a kernel is the work of its busiest part and the latency of hops
        share, kernel = min(1.0, share * row.time_s / row.kernel_s), format_time(row.kernel_s)
        whole = "the kernel's time" if kernel == format_time(row.time_s) else f"the kernel's {kernel}"
        rest = ", the rest is latency" if named and share < _ALL else ""
    return f"{who} {does} for {percent(share)} of {whole}{rest}"


def percent(share: float) -> str:
    """A share in words."""
    return f"{100 * share:.0f} %" if share >= 0.01 else "less than 1 %"


def _step_words(item: TrainingItem) -> list[str]:
    shares = {name: seconds / item.step_s for name, seconds in item.causes.items() if seconds > 5e-4 * item.step_s}
    ordered = sorted(shares, key=lambda name: -shares[name])
    first = ordered[0]
    rest = ", ".join(f"{100 * shares[name]:.1f} % {_CAUSES.get(name, name)}" for name in ordered[1:])
    lines = [
        f"{item.name}: {format_time(item.step_s)} a step, bound by {_bound_name(first)}: {100 * shares[first]:.1f} % "
        f"of the step is {_CAUSES.get(first, first)}{f', {rest}' if rest else ''}."
    ]
    if shares.get("compute"):
        reached = item.hfu / shares["compute"]
        lines.append(
            f"While a GPU computes it reaches {100 * reached:.0f} % of its peak; over the step {item.mfu:.1%} MFU."
        )
    memory, peak = item.memory, item.memory.fullest.peak
    held = f"{peak / GIB:.1f} of {memory.capacity / GIB:.1f} GiB"
    if memory.fits:
        lines.append(f"Memory does not bind: the fullest GPU holds {held}.")
    else:
        lines.insert(0, f"{item.name} does not run, bound by memory: the fullest GPU needs {held}.")
    return lines


def _bound_name(cause: str) -> str:
    named = {"compute": "compute", "bubble": "the bubble of the pipeline", "optimizer": "the optimizer"}
    return named.get(cause, f"communication ({cause})")


_LEAST_PART = 0.01
"""Share of the time from which on a kind of cost has a line."""


def part_lines(explanation: Explanation) -> list[str]:
    """A line for each kind of physical cost, the largest first; none where they are not told apart."""
    parts = [(kind, s) for kind, s in explanation.parts.items() if s >= _LEAST_PART * explanation.seconds]
    if not parts:
        return []
    rows = [(f"  {kind}", format_time(seconds), percent(seconds / explanation.seconds)) for kind, seconds in parts]
    return ["Where the time goes (what hides behind something longer takes none):", *aligned(rows)]


def next_best(explanation: Explanation) -> str:
    """The best change in a sentence; empty where none was tried."""
    if not explanation.gains and not explanation.refused:
        return ""
    best = explanation.best
    if not best:
        tried = len(explanation.gains)
        return f"None of {tried} changes that were simulated saves as much as {100 * NOTHING:g} % of the time."
    return f"The next best change, simulated: {_gain_words(best[0], explanation.seconds)}."


def _gain_words(gain: Gain, seconds: float) -> str:
    return (
        f"{gain.what}, {format_time(gain.seconds)} instead of {format_time(seconds)} "
        f"({format_time(gain.saved_s)} or {100 * gain.saved_s / seconds:.1f} % less)"
    )


def explain_lines(explanation: Explanation, command: str = "commsim run FILE") -> list[str]:
    """All that is said of one size or step: what bounds it, changes that help, best first, and those that do not.

    `command` asked it, and asks again with a change.
    """
    lines = [*bound_words(explanation), *part_lines(explanation)]
    first = next_best(explanation)
    if not first:
        return lines
    lines += [first, *(f"  then {_gain_words(gain, explanation.seconds)}" for gain in explanation.best[1:MOST_GAINS])]
    more = len(explanation.best) - MOST_GAINS
    if more > 0:
        lines.append(f"  and {more} more that save less")
    lines += [
        f"  barred: {_gain_words(gain, explanation.seconds)}, but it {gain.misses}" for gain in explanation.barred[:3]
    ]
    idle = [g.what for g in explanation.gains if abs(g.saved_s) <= NOTHING * explanation.seconds]
    if idle:
        lines.append(f"  no change from: {', '.join(idle[:10])}{', ...' if len(idle) > 10 else ''}")
    if explanation.best and explanation.best[0].overrides:
        lines.append(f"  to repeat the best: {overridden(command, explanation.best[0].overrides)}")
    return lines


def text(result: Result, explanations: Sequence[Explanation], command: str = "commsim run FILE") -> str:
    """The explanations as lines for a terminal, of what a command asked; ends with a newline."""
    lines = [line for answer in result.answers for line in view_of(answer.kind).words(answer)]
    lines += [line for one in explanations for line in explain_lines(one, command)]
    lines = lines or ["# claims explain themselves"]
    known = [f"# {text}"] if (text := result.provenance.get("known")) else []
    return "\n".join([f"# why: {result.name}", *known, *lines]) + "\n"


def answer(explanations: Sequence[Explanation]) -> list[str]:
    """The first lines of a page: what bounds each, and its next best change; of a collective the largest size only.

    What bounds a collective is in its own sentence.
    """
    last = {one.place: one for one in explanations}
    lines = [(("" if one.row is not None else bound_words(one)[0]), next_best(one)) for one in last.values()]
    return [line for pair in lines for line in pair if line]


def why_sections(explanations: Sequence[Explanation]) -> list[Section]:
    """A table of all changes for each size and step, under what bounds it."""
    sections = []
    columns = ["change", "time", "saved", "saved (%)", "note", "to repeat"]
    for one in explanations:
        rows = [
            (
                g.what, Cell(format_time(g.seconds), g.seconds), Cell(_saved(g.saved_s, one.seconds), g.saved_s),
                100 * g.saved_s / one.seconds, g.misses or g.choice, g.overrides,
            )
            for g in one.gains
        ]  # fmt: skip
        rest = f"Not to be had here: {', '.join(change for change, _ in one.refused)}." if one.refused else ""
        parts: list[Part] = [Text(" ".join(bound_words(one)))]
        if one.parts:
            costs = [(kind, Cell(format_time(s), s), 100 * s / one.seconds) for kind, s in one.parts.items()]
            parts.append(table(["where the time goes", "time", "share (%)"], costs))
        if rows:
            parts.append(table(columns, rows, f"Every line is a simulation of its own. {rest}".strip()))
        sections.append(Section(f"What if: {one.title}", tuple(parts)))
    return sections


def _saved(seconds: float, of: float) -> str:
    """A time that is saved, or lost; none where it is no part of the whole worth a word."""
    if abs(seconds) <= NOTHING * of:
        return "none"
    return f"-{format_time(-seconds)}" if seconds < 0 else format_time(seconds)


def to_dict(explanation: Explanation) -> dict[str, Any]:
    """Plain values, times in microseconds."""
    row, step = explanation.row, explanation.step
    bound: dict[str, Any] = {}
    if row is not None:
        bound = {
            "size_bytes": row.size_bytes,
            "bound_by": _passed_on(explanation) or row.bottleneck,
            "busiest": row.busiest_link,
            "busy_share": row.busiest_share,
        }
        if explanation.limit_s:
            ratio = explanation.seconds / explanation.limit_s
            bound |= {"limit_us": microseconds(explanation.limit_s), "limit": explanation.limit, "ratio": ratio}
        if explanation.sound is not None:
            names = ("time_us", "limit_us")
            bound["without_faults"] = dict(zip(names, map(microseconds, explanation.sound), strict=True))
    if step is not None:
        causes = {name: seconds / step.step_s for name, seconds in step.causes.items()}
        bound_by = max(causes, key=lambda name: causes[name]) if step.memory.fits else "memory"
        bound = {"bound_by": bound_by, "shares": causes}
        if explanation.perfect_s is not None:
            bound["perfect_us"] = microseconds(explanation.perfect_s)
    if explanation.generation is not None:
        bound = generation_bound(explanation.generation)
    if explanation.rl is not None:
        bound = rl_bound(explanation.rl)
    return {
        "title": explanation.title,
        "time_us": microseconds(explanation.seconds),
        "sentences": bound_words(explanation) + [s for s in (next_best(explanation),) if s],
        **bound,
        **({"placement": _placement_dict(explanation.placement)} if explanation.placement else {}),
        **({"parts_us": {kind: microseconds(s) for kind, s in explanation.parts.items()}} if explanation.parts else {}),
        "changes": [
            {
                "what": g.what,
                "time_us": microseconds(g.seconds),
                "saved_us": microseconds(g.saved_s),
                "saved_percent": 100 * g.saved_s / explanation.seconds,
                "overrides": g.overrides,
                "misses": g.misses,
                "choice": g.choice,
            }
            for g in explanation.gains
        ],
        "refused": [{"what": change, "why": why} for change, why in explanation.refused],
    }


def _placement_dict(cost: PlacementCost) -> dict[str, Any]:
    return {
        "ranks": cost.ranks,
        "of_ranks": cost.of_ranks,
        "time_us": microseconds(cost.seconds),
        "limit": cost.limit,
        "others": [
            {
                "what": rival.what,
                "time_us": microseconds(rival.seconds),
                "ratio": cost.seconds / rival.seconds,
                "overrides": rival.overrides,
            }
            for rival in cost.rivals
        ],
    }


def result_page(result: Result, comparisons: Sequence[Comparison], reasons: Sequence[Explanation] = ()) -> Page:
    """The page of a result, its comparisons with measured curves, and what bounds it and would help."""
    shown = Shown(result, comparisons)
    runs = shown.runs()
    return Page(
        title=result.name,
        question=runs[0][0].question,
        answer=(*(line for view, answers in runs for line in view.sentences(shown, answers)), *answer(reasons)),
        sections=(
            *(section for view, answers in runs for section in view.sections(shown, answers)),
            *why_sections(reasons),
            Section("How sure this is", tuple(_sureness(shown))),
            Section("Scenario", (Code(result.resolved),)),
            Section("Where the figures come from", (Facts(_provenance(result)),)),
        ),
        warnings=result.warnings,
        provenance=f"Scenario {result.scenario_hash}.",
    )


def _sureness(shown: Shown) -> list[Part]:
    """What is known of the error of each kind; what several say alike is said once."""
    parts: list[Part] = []
    for view, answers in shown.kinds():
        parts += [part for part in view.sureness(shown, answers) if part not in parts]
    return parts


def _provenance(result: Result) -> tuple[tuple[str, str], ...]:
    known = result.provenance.get("known", "")
    parameters = dict.fromkeys(text for text in (known, *(answer.parameters for answer in result.answers)) if text)
    return (
        ("commsim", result.provenance["commsim"]),
        ("scenario", f"{result.provenance.get('source') or 'made in code'}, hash {result.scenario_hash}"),
        ("topology", f"{result.topology['name']}, {result.topology['ranks']} ranks"),
        *(("parameters", text) for text in parameters),
    )
