"""The kinds of pictures, what each needs of a result, and how it is drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from commsim.document.labels import short_label
from commsim.errors import CommsimError, TopologyError
from commsim.measure.records import Curve
from commsim.report.crossover import Winner, plot_crossover, plot_map, winners_of
from commsim.report.over_nodes import lines_over_nodes, plot_over_nodes
from commsim.report.plots import plot_bandwidth
from commsim.report.saved import Saved
from commsim.report.scaling import plot_scaling, scalings
from commsim.report.steps import plot_breakdown
from commsim.report.sweep_plot import curves, figure_of, numeric_paths, plot_sweep, settings
from commsim.report.view import VIEWS, PictureChoice, PictureKind, Pictures, view_of
from commsim.scenario.training_result import CAUSES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from commsim.scenario.workload.collective import CollectiveWork


def kinds_of(saved: Saved) -> list[str]:
    """The kinds that a result can show."""
    return [name for name, kind in KINDS.items() if kind.has(saved)]


def pictures(saved: Saved, name: str, selection: PictureChoice | None = None) -> list[tuple[str, Figure]]:
    """The pictures of a kind; CommsimError, naming the kinds that there are, where the result has not what it needs."""
    possible = kinds_of(saved)
    if name not in possible:
        fault = f"found the kind {name!r}" if name else "found no --kind"
        if not possible:
            raise CommsimError(f"{saved.name}: {_none_shown(saved)}")
        shown = "".join(f"\n  {kind:<10} {KINDS[kind].shows}" for kind in possible)
        raise CommsimError(f"{saved.name}: {fault}, expected one of those that this {saved.sort} can show:{shown}")
    made = list(KINDS[name].draw(saved, selection or PictureChoice()))
    if not made:
        raise CommsimError(f"{saved.name}: found nothing to draw as {name}")
    return made


def _none_shown(saved: Saved) -> str:
    """Why a result has no picture."""
    if saved.sort != "sweep":
        return f"found nothing that a picture of a {saved.sort} can show"
    if all(point["error"] for point in saved.points):
        return "found no point with an answer, expected one at least to draw"
    paths = dict.fromkeys(name for point in saved.points for name in point["values"])
    of_words = f" (found words along {', '.join(paths)})" if paths else ""
    return f"no picture of this sweep: expected several numbers along a path{of_words}, or several sizes at a point"


# -- collectives ---------------------------------


def _bandwidth(saved: Saved, selection: PictureChoice) -> Pictures:
    if saved.sort == "sweep":
        by_collective = _sweep_curves(saved)
        for collective, lines in by_collective.items():
            title = f"{saved.name}: {collective}" + (" (the first 12)" if len(lines) > 12 else "")
            suffix = f"-{collective}" if len(by_collective) > 1 else ""
            yield suffix, plot_bandwidth(lines[:12], [], title, (), saved.provenance)
        return
    items = [item for item in saved.items if item.rows]
    for suffix, item in selection.of(items):
        measured = list(item.measured)
        yield suffix, plot_bandwidth([item.curve()], measured, saved.name, (), saved.provenance, item.choices)


def _sweep_curves(saved: Saved) -> dict[str, list[Curve]]:
    """A curve per point of a sweep with several sizes, by collective; equal ones are one."""
    alike: dict[str, dict[Any, list[Curve]]] = {}
    pairs = {(name, str(value)) for point in saved.points for name, value in point["values"].items()}
    counts = Counter(name for name, _ in pairs if not name.endswith(".collective"))  # the title names the collective
    for point in saved.points:
        by: dict[str, list[dict[str, Any]]] = {}
        for row in point["rows"]:
            if row.get("size_bytes") is not None:
                by.setdefault(row["collective"], []).append(row)
        varying = {name: value for name, value in point["values"].items() if counts[name] > 1}
        for collective, rows in by.items():
            if len(rows) > 1:
                rows.sort(key=lambda row: int(row["size_bytes"]))
                curve = Curve(
                    name=settings(varying) or "all",
                    collective=collective,
                    n_ranks=int(rows[0]["n_ranks"]),
                    kind="predicted",
                    size_bytes=np.array([row["size_bytes"] for row in rows], np.int64),
                    time_s=np.array([row["time_us"] for row in rows], float) / 1e6,
                )
                alike.setdefault(collective, {}).setdefault((curve.n_ranks, curve.time_s.tobytes()), []).append(curve)
    return {
        collective: [
            same[0] if len(same) == 1 else replace(same[0], name=f"{same[0].name} and {len(same) - 1} alike")
            for same in by_times.values()
        ]
        for collective, by_times in alike.items()
    }


def _accuracy(saved: Saved, selection: PictureChoice) -> Pictures:
    if saved.sort == "validation":
        from commsim.report.validation_chart import plot_validation

        yield "", plot_validation(saved.document, "Predicted against measured")
        return
    from commsim.accuracy.compare import compare

    for suffix, item in selection.of([item for item in saved.items if item.measured]):
        pairs = [compare(p, m) for m, p in zip(item.measured, item.at_measured, strict=True)]
        # Comparisons know their measured curve by identity.
        predicted = [item.curve()] if item.rows else list(item.at_measured)
        measured = list(item.measured)
        yield suffix, plot_bandwidth(predicted, measured, saved.name, pairs, saved.provenance, item.choices)


def _crossover(saved: Saved, selection: PictureChoice) -> Pictures:
    if saved.sort == "run":
        items = [item for item in saved.items if any(row.candidates for row in item.rows)]
        for suffix, item in selection.of(items):
            yield suffix, plot_crossover(item, saved.name, saved.provenance)
        return
    if saved.sort == "sweep":
        collectives = list(dict.fromkeys(r["collective"] for r in saved.rows if r.get("collective")))
        for name in collectives:
            winners = winners_of([r for r in saved.rows if r.get("collective") == name])
            suffix = f"-{name}" if len(collectives) > 1 else ""
            yield suffix, plot_map(winners, f"{saved.name}: {name}", saved.provenance, _who(saved.rows))
        return
    assert saved.scenario is not None
    for suffix, work in selection.of(saved.scenario.collectives):
        winners = _winners(saved, work, selection.nodes)
        if not winners:
            raise CommsimError(f"{saved.name}: found no machine of two ranks or more, expected some to draw a map of")
        who = "NCCL's choice" if saved.scenario.library.name == "nccl" else "quickest"
        title = f"{work.collective} on {winners[0].machine}"
        yield suffix, plot_map(winners, title, names_title=who)


def _who(rows: Sequence[dict[str, Any]]) -> str:
    """What rows of a sweep show: NCCL runs what it chooses, quickest or not, and alone names a protocol."""
    chosen = [row.get("protocol") in ("LL", "LL128", "Simple") for row in rows if row.get("algorithm")]
    return "NCCL's choice" if all(chosen) else "quickest"


DEFAULT_NODES = (1, 2, 4, 8, 16, 32)


def _winners(saved: Saved, work: CollectiveWork, nodes: tuple[int, ...]) -> list[Winner]:
    """The choices of a scenario on other numbers of nodes: NCCL's own, or the quickest of `algorithm: auto`."""
    from commsim.scenario.predictors import Cache, row_predictor
    from commsim.scenario.run import prepare

    assert saved.scenario is not None
    scenario, winners, cache = saved.scenario, [], Cache()
    if not work.sizes:
        raise CommsimError(f"{saved.name}: found no sizes of its own, expected some to draw a map over")
    for count in nodes or DEFAULT_NODES:
        one = scenario.model_copy(
            update={"topology": scenario.topology.model_copy(update={"nodes": count}), "compare": (), "placement": None}
        )
        one._document, one._base_dir = scenario.document, scenario.base_dir
        try:
            ready = prepare(one, cache)
        except TopologyError:
            if nodes:
                raise
            continue  # a machine without a network is drawn as the one node that it is
        if ready.topology.world_size < 2:
            continue
        predictor = row_predictor(one, ready.topology, work, cache)
        for size in work.sizes:
            name = "/".join(predictor.choose(size))
            winners.append(Winner(size, ready.topology.world_size, name, ready.topology.name))
    return winners


def _scenario_chooses(saved: Saved) -> bool:
    scenario = saved.scenario
    if saved.sort != "scenario" or scenario is None or not scenario.collectives or scenario.topology.groups:
        return False
    auto = all(work.algorithm == "auto" for work in scenario.collectives)
    return scenario.library.name == "nccl" or (scenario.library.name == "none" and auto)


def _is_map(saved: Saved) -> bool:
    rows = [r for r in saved.rows if r.get("algorithm") and r.get("n_ranks")]
    return len({r["size_bytes"] for r in rows}) > 1 and len({r["n_ranks"] for r in rows}) > 1


def _scaling(saved: Saved, selection: PictureChoice) -> Pictures:
    yield "", plot_scaling(scalings(saved.rows), saved.name, saved.provenance)


def _nodes(saved: Saved, selection: PictureChoice) -> Pictures:
    of = lines_over_nodes(saved.rows)
    for collective, lines in of.items():
        suffix, title = (f"-{collective}", f"{saved.name}: {collective}") if len(of) > 1 else ("", saved.name)
        yield suffix, plot_over_nodes(lines, title, saved.provenance)


# -- training ---------------------------------


def _breakdown(saved: Saved, selection: PictureChoice) -> Pictures:
    yield "", plot_breakdown(_bars(saved), saved.name, saved.provenance)


def _bars(saved: Saved) -> list[tuple[str, dict[str, float]]]:
    if saved.sort == "run":
        return [(f"{s.name}\n{s.schedule}" if len(saved.steps) > 1 else s.schedule, s.causes) for s in saved.steps]
    if saved.sort == "plan":
        from commsim.report.plan_tables import cut

        return [(f"{c['rank']}: {cut(c)}, mb {c['micro_batch_size']}", dict(c["causes_s"])) for c in saved.choices]
    bars = []
    for row in saved.rows:
        if row.get("step_s") and not row.get("error"):
            label = settings({name: value for name, value in row.items() if "." in name}) or str(row.get("item", ""))
            bars.append((label, {cause: float(row.get(f"{cause}_s") or 0.0) for cause in CAUSES}))
    return bars


# -- plans, sweeps ---------------------------------


def _pareto(saved: Saved, selection: PictureChoice) -> Pictures:
    from commsim.report.plan_tables import plot_choices

    yield "", plot_choices(saved.choices, saved.name, saved.provenance)


def _knees(saved: Saved, selection: PictureChoice) -> Pictures:
    paths = _paths(saved)
    if selection.path is not None and selection.path not in paths:
        raise CommsimError(f"found --path {selection.path}, expected one of {', '.join(paths)}")
    for path in paths if selection.path is None else [selection.path]:
        suffix = "-" + short_label(path, paths).replace(" ", "-") if len(paths) > 1 else ""
        yield suffix, plot_sweep(saved.points, path, figure_of(saved.points), saved.name)


def _paths(saved: Saved) -> list[str]:
    try:
        figure = figure_of(saved.points)
    except CommsimError:
        return []
    return [path for path in numeric_paths(saved.points) if curves(saved.points, path, figure)]


_OF_SEVERAL: dict[str, PictureKind] = {
    "bandwidth": PictureKind(
        "bus bandwidth against message size, with band and lower bound",
        lambda s: any(item.rows for item in s.items) or bool(_sweep_curves(s)),
        _bandwidth,
    ),
    "accuracy": PictureKind(
        "predicted against measured, with band and error",
        lambda s: s.sort == "validation" or any(item.measured for item in s.items),
        _accuracy,
    ),
    "crossover": PictureKind(
        "which algorithm is quickest, by message size and ranks",
        lambda s: any(r.candidates for i in s.items for r in i.rows) or _is_map(s) or _scenario_chooses(s),
        _crossover,
    ),
    "scaling": PictureKind(
        "strong and weak scaling against the number of ranks",
        lambda s: s.sort == "sweep" and bool(scalings(s.rows)),
        _scaling,
    ),
    "nodes": PictureKind(
        "time of a collective over the number of nodes, beside its bus bandwidth",
        lambda s: s.sort == "sweep" and bool(lines_over_nodes(s.rows)),
        _nodes,
    ),
    "breakdown": PictureKind(
        "time of a step: compute, exposed communication by axis, bubble",
        lambda s: any(sum(causes.values()) > 0 for _, causes in _bars(s)),
        _breakdown,
    ),
    "pareto": PictureKind("time against memory of a plan's choices", lambda s: bool(s.choices), _pareto),
    "knees": PictureKind("a figure along every path of a sweep, knees marked", lambda s: bool(_paths(s)), _knees),
}
"""Pictures that runs, sweeps, plans and validations share, or that no run has."""

KINDS = _OF_SEVERAL | {name: kind for of in VIEWS for name, kind in view_of(of).kinds.items()}
