"""Recorded reality: every published log and table beside the checkout, and every table carried into it."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from commsim.errors import LogFormatError
from commsim.measure.parsers import read_measured
from commsim.measure.records import collective_name

_CHECKOUT = Path(__file__).resolve().parents[2]
_SHARED = Path(os.environ.get("COMMSIM_SHARED_DATA", _CHECKOUT.parent / "shared" / "data")) / "nccl"
_MEASURED = _CHECKOUT / "validation" / "measured"
needs_logs = pytest.mark.skipif(not (_SHARED / "raw").is_dir(), reason="the published logs are not beside the checkout")

# One log prints too few digits for its 1024 ranks; nothing else in it names them.
_SILENT_ABOUT_RANKS = {"hca_h100_n128x8_allreduce_ring_ll128": 1024}


def _index(folder: Path) -> dict[str, dict[str, str]]:
    return {
        record["slug"]: record
        for path in sorted(folder.glob("INDEX_*.csv"))
        for record in csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    }


def _sizes(path: Path) -> list[int]:
    rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    return [size for row in rows if (size := int(row["size_bytes"])) > 0]


@needs_logs
@pytest.mark.parametrize("path", sorted((_SHARED / "raw").glob("*.log")), ids=lambda path: path.stem)
def test_a_published_log_gives_the_rows_of_its_table(path: Path) -> None:
    if "FAILED_no_rows" in path.name:
        with pytest.raises(LogFormatError, match="a table without rows"):
            read_measured(path)
        return
    record = _index(_SHARED).get(path.stem)
    curves = read_measured(path, n_ranks=_SILENT_ABOUT_RANKS.get(path.stem))
    assert sum(curve.skipped_lines for curve in curves) == 0
    if record is None:
        return
    (curve,) = curves
    assert curve.size_bytes.tolist() == _sizes(_SHARED / f"{path.stem}.csv")
    assert (curve.collective, curve.n_ranks) == (collective_name(record["collective"]), int(record["n_ranks"]))


def test_every_carried_table_is_read_whole() -> None:
    index = _index(_MEASURED)
    assert len(index) == len([p for p in _MEASURED.glob("*.csv") if not p.name.startswith(("INDEX", "SPREAD"))])
    for slug, record in index.items():
        (curve,) = read_measured(_MEASURED / f"{slug}.csv")
        assert curve.size_bytes.tolist() == _sizes(_MEASURED / f"{slug}.csv"), slug
        assert (curve.collective, curve.n_ranks) == (collective_name(record["collective"]), int(record["n_ranks"])), (
            slug
        )
        assert curve.skipped_lines == 0, slug
        assert (curve.conditions.get("old_convention") == "yes") == (record["old_convention"] == "yes"), slug


@needs_logs
def test_carrying_is_reproducible(tmp_path: Path) -> None:
    script = _CHECKOUT / "validation" / "carry.py"
    subprocess.run([sys.executable, str(script), str(_SHARED), str(tmp_path)], check=True, timeout=120)
    written = sorted(tmp_path.glob("*.csv"))
    assert len(written) == len(list(_MEASURED.glob("*.csv")))
    for path in written:
        assert path.read_bytes() == (_MEASURED / path.name).read_bytes(), path.name
