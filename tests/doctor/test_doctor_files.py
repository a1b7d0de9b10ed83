"""Files of the doctor: logs, tables and clusters in, faults with their places, and what is written read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from commsim.doctor.cluster import HostCluster
from commsim.doctor.cluster_file import MeasurementSpec
from commsim.doctor.group_test import GroupTest
from commsim.doctor.posterior import Observation
from commsim.doctor.reading import cluster_of, observations_of, read_findings, written
from commsim.doctor.script import mark
from commsim.errors import CommsimError

HEADER = """# nThread 1 nGpus 1 minBytes 1073741824 maxBytes 1073741824 step: 2(factor) iters: 20
# Using devices
{ranks}
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
{rows}
"""


def rank(number: int, host: str, device: int, group: int = 0) -> str:
    where = f"Pid {700 + number} on {host:>10} device {device:2d}"
    return f"#  Rank {number:2d} Group {group:2d} {where} [0000:1b:00] NVIDIA H100"


def row(nbytes: int, seconds: float, ranks: int) -> str:
    algbw = nbytes / seconds / 1e9
    group = f"{1e6 * seconds:.1f} {algbw:.2f} {algbw * 2 * (ranks - 1) / ranks:.2f} 0"
    return f"{nbytes} {nbytes // 4} float sum -1 {group} {group}"


def log(*places: tuple[str, int, int], seconds: float = 0.04, nbytes: int = 1 << 30) -> str:
    """A log of nccl-tests with ranks at (host, device, communicator)."""
    ranks = "\n".join(rank(i, host, device, group) for i, (host, device, group) in enumerate(places))
    size = len(places) // len({group for *_, group in places})
    return HEADER.format(ranks=ranks, rows=row(nbytes, seconds, size))


def only(tmp_path: Path, text: str, name: str = "a.log") -> tuple[HostCluster, Observation]:
    path = tmp_path / name
    path.write_text(text)
    findings = read_findings([path])
    cluster = cluster_of(findings)
    (observation,) = observations_of(findings, cluster)
    return cluster, observation


@pytest.mark.parametrize(
    ("groups", "scope"), [((0, 0, 0, 0), "all"), ((0, 1, 0, 1), "across"), ((0, 0, 1, 1), "inside")]
)
def test_a_log_says_hosts_and_rings(tmp_path: Path, groups: tuple[int, ...], scope: str) -> None:
    places = list(zip(("n1", "n1", "n2", "n2"), (0, 1, 0, 1), groups, strict=True))
    cluster, seen = only(tmp_path, log(*places))
    assert (cluster.hosts, cluster.gpus) == (("n1", "n2"), 2)
    assert (seen.test.scope, seen.test.hosts, seen.test.gpus) == (scope, (0, 1), (0, 1))
    assert seen.seconds == pytest.approx(0.04)


def test_a_log_of_several_pairs_is_several_tests(tmp_path: Path) -> None:
    path = tmp_path / "pairs.log"
    pairs = [("a", "b", 0.04), ("c", "d", 0.08), ("a", "c", 0.08)]
    path.write_text("".join(log((one, 0, 0), (two, 0, 0), seconds=t) for one, two, t in pairs))
    findings = read_findings([path])
    seen = observations_of(findings, cluster_of(findings))
    assert [each.test.hosts for each in seen] == [(0, 1), (2, 3), (0, 2)]
    assert [each.seconds for each in seen] == pytest.approx([0.04, 0.08, 0.08])


def test_what_a_script_wrote_before_a_run_counts_more_than_its_devices(tmp_path: Path) -> None:
    """CUDA_VISIBLE_DEVICES numbers GPUs anew, so that a log cannot say which they are."""
    cluster = HostCluster(("a", "b"), 8, 8)
    test = GroupTest("across", (1, 0), (2, 5), 1 << 30, shift=4)
    text = f"{mark(test, cluster)}\n" + log(("b", 0, 0), ("b", 1, 1), ("a", 0, 0), ("a", 1, 1))
    read, seen = only(tmp_path, text)
    assert read.hosts == ("b", "a")
    assert (seen.test.gpus, seen.test.shift, seen.test.scope) == ((2, 5), 4, "across")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    cluster = HostCluster(("a", "b", "c", "d"), 4, 2)
    seen = [
        Observation(GroupTest("across", (2, 0), (1, 3), 1 << 30), 0.0123456789),
        Observation(GroupTest("inside", (0, 1, 2, 3), (0, 1, 2, 3), 1 << 28), 0.5),
    ]
    path = tmp_path / "m.yaml"
    path.write_text(written(seen, cluster, "dgx-a100"))
    findings = read_findings([path])
    again = cluster_of(findings)
    assert (again.hosts, again.gpus, again.nics, findings.cluster.machine) == (cluster.hosts, 4, 2, "dgx-a100")
    assert observations_of(findings, again) == seen


def test_a_table_has_a_test_or_a_rank_a_row(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("host,gpu,time_us\na,0,100\na,1,101\nb,0,150\n")
    findings = read_findings([path])
    cluster = cluster_of(findings)
    seen = observations_of(findings, cluster)
    assert cluster.gpus == 2
    assert [(each.test.scope, each.test.hosts, each.test.gpus) for each in seen][2] == ("inside", (1,), (0,))
    path.write_text("hosts,busbw_GBps,size_bytes\na b,50,1073741824\nall,25,1073741824\n")
    findings = read_findings([path])
    seen = observations_of(findings, cluster_of(findings))
    assert seen[1].seconds == pytest.approx(2 * seen[0].seconds)


BROKEN = {
    "x.yaml": [
        ("hosts: [a]\ngpu: 3\n", r"x.yaml:2:1 gpu: found the unknown key 'gpu', did you mean 'gpus'"),
        ("measurements: [{hosts: all}]\n", "found no result, expected time or busbw"),
        ("hosts: a,b\nmeasurements: [{hosts: c, time: 1 ms}]\n", "found 'c', which is none of the hosts"),
        ("hosts: a,b\ngpus: 2\nmeasurements: [{gpus: 5, time: 1 ms}]\n", r"found GPU 5, expected one of 0..1"),
        ("hosts: a,b\nleaves: [a]\n", "leaves: found 'b' under none"),
        ("hosts: a,b\nleaves: [a, 'b,c']\n", "leaves: found 'c', which is none of the hosts"),
        ("hosts: 3\n", "expected names of hosts"),
        ("a: &x [*x]\n", "x.yaml:1"),
    ],
    "x.csv": [
        ("a,b\n1,2\n", "found the columns a, b, expected some of hosts"),
        ("hosts,time_us\na,x\n", r"x.csv:2:1: .*found 'x us'"),
        ("hosts,time_us\na a,3\n", "found the host 'a' twice"),
        ("hosts,gpus,time_us\na,-1,3\n", r"x.csv:2:1: found -1"),
        ("", "found the columns none"),
    ],
    "x.log": [
        ("", "found an empty file, expected the log of a run"),
        ("\0\0\0", "found binary data, expected the log of a run"),
        ("# commsim doctor: {}[]\n", "found no run with its rows"),
        (
            '# commsim doctor: {"hosts": 3}\n' + log(("a", 0, 0), ("b", 0, 0)),
            "that is not as our scripts write it",
        ),
        (log(("a", 0, 0), ("b", 0, 0), nbytes=65536), "expected 1 MiB at least"),
    ],
}


@pytest.mark.parametrize(("name", "text", "message"), [(n, *case) for n, cases in BROKEN.items() for case in cases])
def test_what_cannot_be_read_is_said_with_its_place(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(CommsimError, match=message):  # noqa: PT012 - either of the three may see it
        findings = read_findings([path])
        observations_of(findings, cluster_of(findings))


def test_defaults_of_a_measurement() -> None:
    spec = MeasurementSpec.model_validate({"time": "1 ms"})
    assert (spec.hosts, spec.size, spec.collective) == (("all",), 1 << 30, "all_reduce")
