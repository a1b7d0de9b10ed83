"""Collectives of a saved result: rows, measured curves and the use of the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from commsim.engine.usage import KindUse, LinkUse, Use
from commsim.measure.records import Curve
from commsim.report.saved import csv_rows, of_record
from commsim.scenario.item import Item, Row
from commsim.units import GIGA


def read_items(name: str, records: list[dict[str, Any]], folder: Path | None) -> list[Item]:
    """The items of a result's JSON, with the links of the table beside it."""
    links = _links(folder / "links.csv") if folder is not None else {}
    return [_item(name, record, tuple(links.get(number, ()))) for number, record in enumerate(records, 1)]


def _item(name: str, item: dict[str, Any], links: tuple[LinkUse, ...]) -> Item:
    rows = tuple(_row(item, record) for record in item["rows"])
    measured, predicted = [], []
    for curve in item.get("measured") or ():
        size, times, at = (np.array(curve[key], float) for key in ("size_bytes", "time_us", "predicted_us"))
        call = (item["collective"], curve["n_ranks"])
        measured.append(Curve(str(curve["name"]), *call, "measured", size.astype(np.int64), times / 1e6))
        predicted.append(Curve(name, *call, "predicted", size.astype(np.int64), at / 1e6))
    return Item(
        name=name,
        collective=str(item["collective"]),
        n_ranks=int(item["n_ranks"]),
        rows=rows,
        library=str(item["library"]),
        mode=str(item["mode"]),
        measured=tuple(measured),
        at_measured=tuple(predicted),
        parameters=str(item.get("parameters") or ""),
        use=_use(item.get("network_use"), links),
        use_bytes=max((row.size_bytes for row in rows), default=0),
    )


def _row(item: dict[str, Any], record: dict[str, Any]) -> Row:
    def algorithms(name: str) -> tuple[tuple[str, float], ...]:
        by_size = (item.get(name) or {}).get(str(record["size_bytes"]), {})
        return tuple((str(n), float(us) / 1e6) for n, us in by_size.items())

    return of_record(
        Row,
        record,
        algbw=GIGA * float(record["algbw_GBps"]),
        busbw=GIGA * float(record["busbw_GBps"]),
        candidates=algorithms("candidates_us"),
        left_out=algorithms("left_out_us"),
    )


def _use(record: dict[str, Any] | None, links: tuple[LinkUse, ...]) -> Use | None:
    """The use of the network; that of an old file, which has only its links, has these."""
    if record is None:
        return Use(0.0, 0.0, "", (), links, len(links)) if links else None
    return of_record(Use, record, kinds=tuple(KindUse(**kind) for kind in record["kinds"]), links=links)


def _links(path: Path) -> dict[int, list[LinkUse]]:
    """The links of links.csv by item, from 1."""
    links: dict[int, list[LinkUse]] = {}
    for row in csv_rows(path):
        busy, share = float(row["busy_us"]) / 1e6, float(row["utilisation"])
        links.setdefault(int(row["item"]), []).append(LinkUse(row["link"], row["kind"], int(row["bytes"]), busy, share))
    return links
