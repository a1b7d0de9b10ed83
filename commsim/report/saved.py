"""Results read back for drawing: what `run --out`, `sweep`, `plan --out` and `validate --json` wrote.

The files may come from anyone: they are read as data, in bounded memory, and what is missing or odd is a CommsimError.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from commsim.engine.timeline import Timeline
from commsim.errors import CommsimError
from commsim.measure.records import Curve
from commsim.report.steps import GIB, StepFigures, figures_of
from commsim.scenario.item import Item, Row
from commsim.scenario.training_result import CAUSES
from commsim.training.simulate import NAMES, STREAMS

if TYPE_CHECKING:
    from commsim.scenario.result import Result
    from commsim.scenario.schema import Scenario

MOST_BYTES = 256 << 20
"""Larger files are refused."""

_ODD = (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError)


@dataclass(frozen=True)
class LinkShares:
    """How busy links were under one item of a run, by name."""

    item: int
    title: str
    shares: dict[str, float]


@dataclass(frozen=True, eq=False)
class Saved:
    """A result to draw: ``sort`` is run, sweep, plan, validation or scenario; what that sort has not is empty.

    ``rows`` are those of a sweep as in rows.csv, ``points`` as its journal holds them, ``choices`` those of a plan.
    """

    name: str
    sort: str
    folder: Path
    provenance: str = ""
    items: tuple[Item, ...] = ()
    steps: tuple[StepFigures, ...] = ()
    links: tuple[LinkShares, ...] = ()
    scenario: Scenario | None = None
    points: tuple[dict[str, Any], ...] = ()
    rows: tuple[dict[str, Any], ...] = ()
    choices: tuple[dict[str, Any], ...] = ()
    document: dict[str, Any] = field(default_factory=dict)


def saved_of(result: Result) -> Saved:
    """The same of a result in this process."""
    return Saved(
        name=result.name,
        sort="run",
        folder=Path(),
        provenance=f"commsim {result.provenance['commsim']}, scenario {result.scenario_hash}",
        items=result.items,
        steps=tuple(map(figures_of, result.trainings)),
        links=tuple(
            LinkShares(i, _use_title(item), {link.link: link.busy_share for link in item.use.links})
            for i, item in enumerate(result.items, 1)
            if item.use is not None and item.use.links
        ),
        scenario=result.scenario,
    )


def read_saved(path: Path) -> Saved:
    """What lies in a folder or file; CommsimError if it is no result."""
    if not path.exists():
        raise CommsimError(f"{path}: found no such file or folder, expected a result of commsim")
    try:
        return _folder(path) if path.is_dir() else _file(path)
    except _ODD as fault:
        reason = f"no {fault}" if isinstance(fault, KeyError) else str(fault)
        raise CommsimError(
            f"{path}: found {reason or type(fault).__name__}, expected a result as this version of commsim writes it"
        ) from None


def _folder(folder: Path) -> Saved:
    journals = sorted(folder.glob("journal*.jsonl"))
    for name, read in (("result.json", _run), ("plan.json", _plan)):
        if (folder / name).is_file():
            return read(folder / name, _json(folder / name))
    if journals:
        return _sweep(folder, journals)
    inside = sorted(p.parent.name for p in folder.glob("*/result.json"))
    hint = f"; its folders {', '.join(inside[:6])} hold one each" if inside else ""
    raise CommsimError(
        f"{folder}: found no result.json, plan.json or journal.jsonl, expected what run, plan or sweep wrote{hint}"
    )


def _file(path: Path) -> Saved:
    if path.suffix == ".jsonl":
        return _sweep(path.parent, [path])
    if path.suffix in (".yaml", ".yml"):
        from commsim.scenario.load import load_scenarios

        (scenario, *more) = load_scenarios(path)
        if more:
            raise CommsimError(f"{path}: found {1 + len(more)} scenarios, expected one")
        return Saved(scenario.name, "scenario", Path("out") / scenario.slug, scenario=scenario)
    if path.name == "rows.csv" and (path.parent / "journal.jsonl").is_file():
        return _folder(path.parent)
    document = _json(path)
    if "results" in document:  # of run --json
        (document, *more) = document["results"]
        if more:
            raise CommsimError(f"{path}: found {1 + len(more)} results, expected one")
    if "choices" in document:
        return _plan(path, document)
    if "per_log" in document or "per_row" in document:
        return Saved(path.stem, "validation", path.parent, document=document)
    if "items" in document:
        return _run(path, document)
    raise CommsimError(f"{path}: found no result, expected JSON of run, plan or validate, or a sweep's journal")


def _json(path: Path) -> dict[str, Any]:
    if path.stat().st_size > MOST_BYTES:
        raise CommsimError(f"{path}: found {path.stat().st_size >> 20} MiB, expected at most {MOST_BYTES >> 20}")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as fault:
        raise CommsimError(f"{path}: cannot be read as JSON: {fault}") from None
    if not isinstance(document, dict):
        raise CommsimError(f"{path}: found a {type(document).__name__}, expected the JSON object of a result")
    return document


# -- runs ---------------------------------


def _run(path: Path, document: dict[str, Any]) -> Saved:
    folder, name = path.parent, str(document["name"])
    whole = path.name == "result.json"  # other files lie beside it only in the folder that --out wrote
    timelines = _timelines(folder / "timeline.csv") if whole else {}
    return Saved(
        name=name,
        sort="run",
        folder=folder,
        provenance=f"commsim {document['provenance']['commsim']}, scenario {document['scenario_hash']}",
        items=tuple(_item(name, item) for item in document["items"]),
        steps=tuple(_step(step, timelines.get(i)) for i, step in enumerate(document["trainings"], 1)),
        links=tuple(_links(folder / "links.csv")) if whole else (),
        scenario=_scenario(folder / "scenario.yaml") if whole else None,
    )


def _item(name: str, item: dict[str, Any]) -> Item:
    candidates = item.get("candidates_us") or {}
    rows = tuple(_row(record, candidates.get(str(record["size_bytes"]), {})) for record in item["rows"])
    measured, predicted = [], []
    for curve in item.get("measured") or ():
        size = np.array(curve["size_bytes"], np.int64)
        common: dict[str, Any] = {"collective": item["collective"], "n_ranks": curve["n_ranks"], "size_bytes": size}
        measured.append(
            Curve(name=str(curve["name"]), kind="measured", time_s=np.array(curve["time_us"], float) / 1e6, **common)
        )
        at = np.array(curve["predicted_us"], float) / 1e6
        predicted.append(Curve(name=name, kind="predicted", time_s=at, **common))
    return Item(
        name=name,
        collective=str(item["collective"]),
        n_ranks=int(item["n_ranks"]),
        rows=rows,
        library=str(item["library"]),
        mode=str(item["mode"]),
        measured=tuple(measured),
        at_measured=tuple(predicted),
    )


def _row(record: dict[str, Any], candidates: dict[str, float]) -> Row:
    def seconds(name: str) -> float | None:
        return None if record.get(name) is None else float(record[name]) / 1e6

    return Row(
        size_bytes=int(record["size_bytes"]),
        count=int(record["count"]),
        dtype=str(record["dtype"]),
        redop=str(record["redop"]),
        root=int(record["root"]),
        time_s=float(record["time_us"]) / 1e6,
        algbw=1e9 * float(record["algbw_GBps"]),
        busbw=1e9 * float(record["busbw_GBps"]),
        algorithm=str(record["algorithm"]),
        protocol=str(record["protocol"]),
        bottleneck=str(record["bottleneck"]),
        lower_bound_s=seconds("lower_bound_us"),
        low_s=seconds("low_us"),
        high_s=seconds("high_us"),
        runner_up=str(record.get("runner_up") or ""),
        runner_up_s=seconds("runner_up_us"),
        candidates=tuple((str(n), float(us) / 1e6) for n, us in candidates.items()),
    )


def _step(record: dict[str, Any], timeline: Timeline | None) -> StepFigures:
    memory = tuple({str(n): GIB * float(v) for n, v in s["parts_GiB"].items()} for s in record["memory"])
    return StepFigures(
        name=str(record["item"]),
        schedule=str(record["pipeline_schedule"]),
        step_s=float(record["step_s"]),
        stages=int(record["pp"]),
        virtual_stages=int(record["virtual_stages"]),
        micro_batches=int(record["micro_batches"]),
        causes={cause: float(record.get(f"{cause}_s") or 0.0) for cause in CAUSES},
        memory=memory,
        capacity=GIB * float(record["capacity_GiB"]),
        timeline=timeline,
    )


def _table(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a CSV file; none where there is no file."""
    if not path.is_file():
        return
    if path.stat().st_size > MOST_BYTES:
        raise CommsimError(f"{path}: found {path.stat().st_size >> 20} MiB, expected at most {MOST_BYTES >> 20}")
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            yield from csv.DictReader(stream)
    except (csv.Error, OSError) as fault:
        raise CommsimError(f"{path}: cannot be read as CSV: {fault}") from None


def _timelines(path: Path) -> dict[int, Timeline]:
    """The timelines of timeline.csv by item, from 1."""
    found: dict[int, list[tuple[float, float, int, int, int]]] = {}
    for row in _table(path):
        place = (int(row["stage"]), STREAMS.index(row["stream"]), NAMES.index(row["name"]))
        found.setdefault(int(row["item"]), []).append((float(row["start_s"]), float(row["end_s"]), *place))
    timelines = {}
    for item, rows in found.items():
        start, end, stage, stream, code = (np.array(column) for column in zip(*rows, strict=True))
        timelines[item] = Timeline(
            start, end, stage.astype(np.int32), stream.astype(np.int32), code.astype(np.uint8),
            np.zeros(start.size, np.int64), NAMES,
        )  # fmt: skip
    return timelines


def _links(path: Path) -> list[LinkShares]:
    from commsim.units import format_bytes

    shares: dict[tuple[int, str], dict[str, float]] = {}
    for row in _table(path):
        title = f"{row['collective']} of {format_bytes(int(row['size_bytes']))}"
        shares.setdefault((int(row["item"]), title), {})[row["link"]] = float(row["utilisation"])
    return [LinkShares(item, title, found) for (item, title), found in shares.items()]


def _use_title(item: Item) -> str:
    from commsim.units import format_bytes

    return f"{item.collective} of {format_bytes(item.use_bytes)}"


def _scenario(path: Path) -> Scenario | None:
    if not path.is_file():
        return None
    from commsim.scenario.load import load_scenarios

    return load_scenarios(path)[0]


# -- plans and sweeps ---------------------------------


def _plan(path: Path, document: dict[str, Any]) -> Saved:
    choices = tuple(document["choices"])
    for choice in choices:
        for name in ("step_s", "memory_GiB", "tokens"):
            float(choice[name])
    return Saved(str(document["name"]), "plan", path.parent, choices=choices)


def _sweep(folder: Path, journals: list[Path]) -> Saved:
    """The points that the journals hold so far."""
    from commsim.planner.journal import read_journal
    from commsim.planner.results import flat_rows

    points: dict[int, dict[str, Any]] = {}
    version, name = "", ""
    for path in journals:
        if path.stat().st_size > MOST_BYTES:
            raise CommsimError(f"{path}: found {path.stat().st_size >> 20} MiB, expected at most {MOST_BYTES >> 20}")
        header, records = read_journal(path)
        version = f"commsim {header.get('commsim', '')}, sweep {header['identity']}"
        name = name or str(header.get("name") or "")
        for record in records:
            points.setdefault(int(record["number"]), record)
    listed = tuple(points[n] for n in sorted(points))
    return Saved(name or folder.name, "sweep", folder, version, points=listed, rows=tuple(flat_rows(listed)))
