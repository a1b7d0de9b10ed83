"""Hostile logs and tables through the whole of `commsim compare` and `commsim doctor`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path

import commsim.cli.which_machine as terminal
from commsim.accuracy.judge import judged, sort_files
from commsim.accuracy.judge_logs import judge_logs
from commsim.doctor.examination import Examination
from commsim.doctor.forward import Unknown
from commsim.doctor.posterior import Priors
from commsim.doctor.reading import cluster_of, observations_of, read_findings, written
from commsim.doctor.suspect import suspects_of
from commsim.report.answers import Compared
from commsim.report.diagnosis import diagnosis_dict, diagnosis_lines
from commsim.report.page import html
from commsim.report.several_logs import junit
from commsim.report.verdict import comparison_csv, verdict_dict, verdict_table
from study.dump_hostile import Hostile, alone
from study.dump_mutants import mutants

_MOST_RESULTS_JUDGED = 200  # the tests of a doctor's file that are weighed: its cost grows with them


def of_logs(logs: Sequence[Path], count: int, folder: Path) -> Hostile:
    """So many mutants of raw logs, each without a scenario."""
    return alone("logs, `compare`", ((data, []) for data in _mutants(logs, count)), folder, compared, "hostile.log")


def of_tables(logs: Sequence[Path], count: int, folder: Path) -> Hostile:
    """So many mutants of tables of times, each on a machine that is named."""
    tables = [_as_table(log) for log in logs]
    sound = [text for text in tables if text.count(b"\n") > 3]
    files: Iterator[tuple[bytes | Path, list[Path]]] = ((data, []) for data in _mutants_of(sound, count))
    return alone(
        "tables, `compare --on`", files, folder, lambda p, drawn: compared(p, drawn, "hgx-h100"), "all_reduce.csv"
    )


def of_doctor(logs: Sequence[Path], count: int, folder: Path) -> list[Hostile]:
    """So many mutants of logs, tables and files of a cluster for the doctor."""
    pairs = b"hosts,time_us\n" + b"".join(b"n%d n%d,%d\n" % (i, i + 1, 5000 + i) for i in range(8))
    cluster = b"hosts: n[0-7]\ngpus: 8\nnodes_per_leaf: 4\nmeasurements:\n" + b"".join(
        b"- {hosts: [n%d, n%d], scope: all, collective: all_reduce, size: 1 GiB, time: %d us}\n" % (i, i + 1, 5000 + i)
        for i in range(7)
    )
    kinds = (
        ("logs, `doctor`", "hostile.log", [log.read_bytes() for log in logs if log.stat().st_size < 1 << 16]),
        ("tables, `doctor`", "hostile.csv", [pairs]),
        ("clusters, `doctor`", "hostile.yaml", [cluster]),
    )
    return [
        alone(kind, ((data, []) for data in _mutants_of(sound, count)), folder / str(i), diagnosed, name)
        for i, (kind, name, sound) in enumerate(kinds)
    ]


def of_floods(log: Path, folder: Path) -> Hostile:
    """What is long, deep or of one byte, and thousands of tables."""
    return alone("floods", ((data, []) for data in _floods(log.read_bytes())), folder, compared, "flood.log")


def _floods(log: bytes) -> Iterator[bytes]:
    head = b"# nThread 1 nGpus 8 minBytes 8 maxBytes 8\n#  size  count  type  redop  root  time  algbw  busbw #wrong\n"
    row = b"1048576 262144 float sum -1 10.00 104.86 183.50 0\n"
    yield b""
    yield bytes(8 << 20)
    yield b"\xff" * (8 << 20)
    yield b"\n" * (32 << 20)
    yield b"9" * (64 << 20)
    yield b"#  Rank  0 Group  0 Pid 1 on h device  0 [0x00] NVIDIA H100\n" * 500_000
    yield head * 100_000
    yield head + row * 600_000
    yield (head + row) * 3_000
    yield log * 3_000
    yield head + row.replace(b"10.00", b"1e999")
    yield head + row.replace(b"1048576", b"9" * 400)
    yield (
        b"".join(b"#  Rank %d Group 0 Pid 1 on h%d device 0 [0x0] NVIDIA H100\n" % (i, i) for i in range(200_000))
        + head
        + row
    )
    yield b'{"a":' * 200_000
    yield b"[{" + b'"a":[' * 100_000
    yield b"size_bytes,time_us\n" + b"8,1\n" * 2_000_000
    yield b"size_bytes," + b"x," * 1_000_000 + b"time_us\n1,1\n"


def _mutants(logs: Sequence[Path], count: int) -> Iterator[bytes]:
    return _mutants_of([log.read_bytes()[: 1 << 16] for log in logs], count)


def _mutants_of(sound: Sequence[bytes], count: int) -> Iterator[bytes]:
    makers = [mutants(data, count, seed) for seed, data in enumerate(sound)]
    return islice((next(maker) for maker in cycle(makers)), count)


_ROW = re.compile(rb"^\s*(\d+)\s+\d+\s+(?:float|half)\s+\S+\s+-?\d+\s+([\d.]+)\s", re.MULTILINE)


def _as_table(log: Path) -> bytes:
    """The rows of a log as a table of sizes and times."""
    return b"size_bytes,time_us\n" + b"".join(b"%s,%s\n" % m.groups() for m in _ROW.finditer(log.read_bytes()))


def compared(paths: Sequence[Path], drawn: bool, on: str | None = None) -> None:
    """All that `commsim compare` makes of logs; every fiftieth is `drawn` too, and its causes are looked for."""
    _, curves = sort_files(list(paths))
    paired, said = judge_logs(curves, on, terminal.ask)
    results = [judged(source, verdict, what_if=drawn) for source, verdict in paired]
    for verdict, tried in results:
        verdict_table(verdict, tried)
        json.dumps(verdict_dict(verdict, tried), allow_nan=False)
    comparison_csv([verdict.comparison for verdict, _ in results])
    junit(results, {"slower"})
    if drawn:
        html(Compared(tuple(results), said, ()).page())


def diagnosed(paths: Sequence[Path], drawn: bool) -> None:
    """All that `commsim doctor` makes of files."""
    findings = read_findings(paths)
    cluster = cluster_of(findings)
    examination = Examination(suspects_of(cluster), Unknown(), Priors())
    observed = observations_of(findings, cluster)[:_MOST_RESULTS_JUDGED]
    examination.add([each.test for each in observed], [each.seconds for each in observed])
    diagnosis = examination.diagnosis()
    diagnosis_lines(diagnosis)
    json.dumps(diagnosis_dict(diagnosis, cluster), allow_nan=False)
    written(observed, cluster, None)
