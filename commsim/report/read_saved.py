"""Results read back for drawing: what `run --out`, `sweep`, `plan --out` and `validate --json` wrote.

The files may come from anyone: they are read as data, in bounded memory, and what is missing or odd is a CommsimError.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commsim.errors import CommsimError
from commsim.report.saved import Saved, refuse_large
from commsim.report.view import VIEWS, Shown, view_of

if TYPE_CHECKING:
    from commsim.scenario.result import Result
    from commsim.scenario.schema import Scenario

_FAULTS = (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError)


def saved_of(result: Result) -> Saved:
    """The same of a result in this process."""
    return Saved(
        name=result.name,
        sort="run",
        folder=Path(),
        provenance=Shown(result).provenance,
        answers=tuple(view_of(answer.kind).keep(answer) for answer in result.answers),
        scenario=result.scenario,
    )


def read_saved(path: Path) -> Saved:
    """What lies in a folder or file; CommsimError if it is no result."""
    if not path.exists():
        raise CommsimError(f"{path}: found no such file or folder, expected a result of commsim")
    try:
        return _folder(path) if path.is_dir() else _file(path)
    except _FAULTS as fault:
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
    refuse_large(path)
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
    return Saved(
        name=name,
        sort="run",
        folder=folder,
        provenance=f"commsim {document['provenance']['commsim']}, scenario {document['scenario_hash']}",
        answers=tuple(_answers(document, folder if whole else None)),
        scenario=_scenario(folder / "scenario.yaml") if whole else None,
    )


def _answers(document: dict[str, Any], folder: Path | None) -> list[Any]:
    """The answers of every kind in the order of the file; files of earlier versions lack kinds and the order."""
    answers = {kind: view_of(kind).read(document[kind], document, folder) for kind in VIEWS if document.get(kind)}
    order = document.get("order") or [kind for kind, some in answers.items() for _ in some]
    return [answers[kind].pop(0) for kind in order]


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
        refuse_large(path)
        header, records = read_journal(path)
        version = f"commsim {header.get('commsim', '')}, sweep {header['identity']}"
        name = name or str(header.get("name") or "")
        for record in records:
            points.setdefault(int(record["number"]), record)
    listed = tuple(points[n] for n in sorted(points))
    return Saved(name or folder.name, "sweep", folder, version, points=listed, rows=tuple(flat_rows(listed)))
