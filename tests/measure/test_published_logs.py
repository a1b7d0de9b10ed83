"""Recorded reality: every published log and table beside the checkout, and every table carried into it."""

from __future__ import annotations

import csv
import os
import random
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


@pytest.mark.parametrize("folder", [_MEASURED, _MEASURED.parent / "silicon"], ids=lambda folder: folder.name)
def test_every_carried_table_is_read_whole(folder: Path) -> None:
    index = _index(folder)
    assert len(index) == len([p for p in folder.glob("*.csv") if not p.name.startswith(("INDEX", "SPREAD"))])
    for slug, record in index.items():
        (curve,) = read_measured(folder / f"{slug}.csv")
        assert curve.size_bytes.tolist() == _sizes(folder / f"{slug}.csv"), slug
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


def test_a_new_log_brings_its_conditions(tmp_path: Path) -> None:
    script, head = _CHECKOUT / "validation" / "carry.py", "slug,collective,n_ranks,healthy,date,source_url,gpu_model"
    (tmp_path / "INDEX_multi_node.csv").write_text(f"{head},intra_link,inter_link,nccl_tests_version\n")
    text = (tmp_path / "INDEX_multi_node.csv").read_text() + "fresh,all_reduce,8,yes,2025,https://x.org,H100,,,\n"
    (tmp_path / "INDEX_single_node.csv").write_text(text)
    (tmp_path / "fresh.csv").write_text("size_bytes,oop_time_us\n8,1\n")
    words = [sys.executable, str(script), str(tmp_path), str(tmp_path / "to")]
    (tmp_path / "to").mkdir()
    run = subprocess.run(words, check=False, capture_output=True, text=True, timeout=120)
    assert run.returncode == 1
    assert run.stderr.strip() == ("fresh: fill in machine, nodes, gpus_per_node, launch (docs/guides/validate.md)")


def _mutant(text: bytes, rng: random.Random) -> bytes:
    """A log cut short, with lines cut or joined, with another writer's text, or with bytes that are no text."""
    kind = rng.randrange(5)
    if kind == 0:
        return text[: rng.randrange(len(text) + 1)]
    lines = text.splitlines(keepends=True)
    for _ in range(rng.randint(1, 12)):
        i = rng.randrange(len(lines))
        if kind == 1:
            lines[i] = lines[i][: rng.randrange(len(lines[i]) + 1)].rstrip(b"\n") + b"\n"
        elif kind == 2:
            lines[i] = lines[i].rstrip(b"\n") + b" host:12:34 NCCL INFO ready "
        elif kind == 3:
            at = rng.randrange(len(lines[i]) + 1)
            lines[i] = lines[i][:at] + b"host:12:34 NCCL WARN late\n" + lines[i][at:]
        else:
            noise = bytes(rng.randrange(128, 256) for _ in range(rng.randint(1, 6)))
            at = rng.randrange(len(lines[i]) + 1)
            lines[i] = lines[i][:at] + noise + lines[i][at + len(noise) :]
    return b"".join(lines)


def _pairs(path: Path) -> set[tuple[int, float]]:
    return {(int(s), float(t)) for c in read_measured(path) for s, t in zip(c.size_bytes, c.time_s, strict=True)}


@needs_logs
@pytest.mark.parametrize("count", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_mutants_of_published_logs_give_rows_that_were_there_or_an_error(count: int, tmp_path: Path) -> None:
    rng = random.Random(count)
    logs = [path for path in sorted((_SHARED / "raw").glob("*.log")) if "FAILED" not in path.name]
    logs = [path for path in logs if path.stem not in _SILENT_ABOUT_RANKS]
    # Repeats of a size are folded into their median, which a lost repeat changes: such logs cannot be judged so.
    whole = {path: _pairs(path) for path in logs if all(c.low_s is None for c in read_measured(path))}
    read = 0
    for _ in range(count):
        path = rng.choice(sorted(whole))
        mutant = tmp_path / path.name
        mutant.write_bytes(_mutant(path.read_bytes(), rng))
        try:
            found = _pairs(mutant)
        except LogFormatError:
            continue
        read += 1
        assert found <= whole[path]
    assert read > count // 3


@pytest.mark.slow
def test_a_log_of_100_mb_is_read_in_bounded_memory(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "large.log"
    noise = b"node7:4321:4388 [3] NCCL INFO Channel 03/0 : 0[0] -> 1[1] via P2P/CUMEM and more words\n"
    head = b"# nccl-tests version 2.17.1\n# nThread 1 nGpus 8 minBytes 8\n"
    table = (
        b"#       size         count      type   redop    root     time   algbw   busbw  #wrong\n"
        b"     1048576        262144     float     sum      -1    50.00   20.97   36.70       0\n"
    )
    with path.open("wb") as stream:
        stream.write(head + table)
        for _ in range(110):
            stream.write(noise * (1_000_000 // len(noise)))
        stream.write(b"     2097152        524288     float     sum      -1    80.00   26.21   45.88       0\n")
    assert path.stat().st_size > 100e6
    tracemalloc.start()
    (curve,) = read_measured(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert curve.size_bytes.tolist() == [1 << 20, 1 << 21]
    assert peak < 16 * 2**20
