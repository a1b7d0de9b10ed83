"""The picture of time over nodes: a line for each size, named at its end, time above and bus bandwidth below."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from commsim.cli import app
from commsim.report.over_nodes import MOST_LINES, lines_over_nodes, over_nodes_chart

MIB = 1 << 20


def rows(*sizes: int, nodes: tuple[int, ...] = (1, 2, 4), algorithm: str | None = None) -> list[dict[str, Any]]:
    return [
        {
            "collective": "all_reduce",
            "topology.nodes": n,
            "size_bytes": s,
            "time_us": s / 1e3 * n,
            "busbw_GBps": 8.0 / n,
        }
        | ({} if algorithm is None else {"library.env.NCCL_ALGO": algorithm})
        for n in nodes
        for s in sizes
    ]


def test_a_line_for_each_size_in_both_panels() -> None:
    chart = over_nodes_chart(lines_over_nodes(rows(MIB, 64 * MIB))["all_reduce"], "t")
    times, rates = chart.panels
    assert [line.name for line in times.series] == [line.name for line in rates.series] == ["1 MiB", "64 MiB"]
    assert all(line.named for panel in chart.panels for line in panel.series)
    assert times.series[0].x == (1.0, 2.0, 4.0)
    assert times.series[0].y == pytest.approx([MIB / 1e9 * n for n in (1, 2, 4)])
    assert rates.series[1].y == pytest.approx([8.0, 4.0, 2.0])


def test_other_paths_that_vary_are_in_the_names() -> None:
    both = [*rows(MIB, algorithm=""), *rows(MIB, algorithm="Tree")]
    assert list(lines_over_nodes(both)["all_reduce"]) == ["1 MiB, NCCL_ALGO NCCL's own", "1 MiB, NCCL_ALGO Tree"]


def test_of_many_sizes_some_are_drawn_and_the_others_counted() -> None:
    sizes = [1024 << k for k in range(20)]
    chart = over_nodes_chart(lines_over_nodes(rows(*sizes))["all_reduce"], "t")
    names = [line.name for line in chart.panels[0].series]
    assert (len(names), names[0], names[-1]) == (MOST_LINES, "1 KiB", "512 MiB")
    assert chart.note == "12 more sizes are not drawn"


@pytest.mark.parametrize("given", [rows(MIB, nodes=(2,)), [{"collective": "all_reduce", "topology.nodes": 2}], []])
def test_without_two_numbers_of_nodes_there_is_nothing_to_draw(given: list[dict[str, Any]]) -> None:
    assert lines_over_nodes(given) == {}


def test_the_command_draws_it(tmp_path: Path) -> None:
    asked = ["all_reduce", "--on", "hgx-h100-ndr400", "-b", "1M", "-e", "4M", "topology.nodes=1..2 x2", "-j", "1"]
    assert CliRunner().invoke(app, ["sweep", *asked, "--out", str(tmp_path)]).exit_code == 0
    done = CliRunner().invoke(app, ["plot", str(tmp_path), "--kind", "nodes"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "nodes.png").is_file()
