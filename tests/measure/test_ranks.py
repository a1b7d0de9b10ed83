"""Real ranks on this computer: every collective, the files, and a rerun."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import sys
from pathlib import Path

import pytest
from ranks import measure

from commsim.collectives.registry import build
from commsim.measure.parsers import read_measured

ALL = """
name: every collective
topology: {preset: loopback, gpus_per_node: 2}
library: gloo
workload:
  - {collective: all_reduce, sizes: 64 KiB .. 1 MiB x16}
  - {collective: all_reduce, sizes: 4 KiB, dtype: bfloat16, redop: avg}
  - {collective: reduce, sizes: 4 KiB, root: 1, dtype: int8, redop: max}
  - {collective: reduce_scatter, sizes: 4 KiB, dtype: float64, redop: prod}
  - {collective: all_gather, sizes: 4 KiB}
  - {collective: broadcast, sizes: 4 KiB, root: 1}
  - {collective: gather, sizes: 4 KiB, root: 1}
  - {collective: scatter, sizes: 4 KiB, root: 1}
  - {collective: all_to_all, sizes: 4 KiB}
  - {collective: all_to_all_v, sizes: 4096 B, dtype: int32}
  - {collective: send_recv, sizes: 4 KiB}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """The scenario, the folder and the printed table of one run of every collective."""
    folder = tmp_path_factory.mktemp("measure")
    (folder / "all.yaml").write_text(ALL)
    status, printed, said = measure(
        str(folder / "all.yaml"), "--iterations", "4", "--warmup", "1", "--out", str(folder / "m")
    )
    assert status == 0, said
    return folder / "all.yaml", folder / "m", printed


def test_every_result_is_right(run: tuple[Path, Path, str]) -> None:
    rows = [line.split() for line in run[2].splitlines() if not line.startswith("#")]
    assert len(rows) == 12
    assert {wrong for row in rows for wrong in (row[8], row[12])} == {"0", "N/A"}


def test_curves_are_read_back(run: tuple[Path, Path, str]) -> None:
    curves = read_measured(run[1])
    assert {c.collective for c in curves} == set(re.findall(r"collective: (\w+)", ALL))
    assert {c.n_ranks for c in curves} == {2}
    assert next(c for c in curves if c.collective == "all_reduce").size_bytes.tolist() == [1 << 16, 1 << 20]


def test_conditions_name_no_host(run: tuple[Path, Path, str]) -> None:
    text = (run[1] / "run.json").read_text()
    said = json.loads(text)
    assert said["finished"] is True
    assert (said["backend"], said["world_size"], said["hosts"], said["ranks_per_host"]) == ("gloo", 2, 1, 2)
    assert os.uname().nodename not in text
    assert str(Path.home()) not in text


@pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO is Linux's")
def test_bytes_sent_are_those_of_the_ring(run: tuple[Path, Path, str]) -> None:
    """Within 1 %, with gloo's headers of 48 B per message; by the schedule, and by the formula 2(n-1)/n."""
    for row in csv.DictReader(io.StringIO((run[1] / "measured.csv").read_text())):
        if (row["collective"], row["size_bytes"]) == ("all_reduce", "1048576"):
            sent = [int(n) for n in row["sent_bytes"].split()]
            assert row["expected_sent_bytes"] == "1048576 1048576"
            assert sent == pytest.approx(build("all_reduce", "ring", 2, 1 << 20).sent_bytes().tolist(), rel=0.01)
            assert sent == pytest.approx([1 << 20] * 2, rel=0.01)
            return
    pytest.fail("no row of 1 MiB")


@pytest.mark.slow
def test_a_rerun_measures_only_what_is_missing(run: tuple[Path, Path, str]) -> None:
    scenario, folder, _ = run
    table = (folder / "measured.csv").read_bytes()
    (folder / "measured.csv").write_bytes(table[: table.rstrip().rfind(b"\n") + 20])  # the last row lost, in part
    status, printed, said = measure(str(scenario), "--iterations", "4", "--warmup", "1", "--out", str(folder))
    assert status == 0, said
    assert len([line for line in printed.splitlines() if not line.startswith("#")]) == 1
    assert sum(len(c) for c in read_measured(folder)) == 12
    assert (folder / "measured.csv").read_bytes().startswith(table[: table.rstrip().rfind(b"\n") + 1])
