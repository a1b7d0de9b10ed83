"""Which machine a log is of: settled by what it names, asked where it names too little, never by its times."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log_text import log_text

from commsim.accuracy.contradictions import contradictions, other_machine
from commsim.accuracy.from_log import LogMachine, source_of
from commsim.accuracy.gpu_name import gpu_name, is_gpu
from commsim.accuracy.log_facts import facts_of
from commsim.accuracy.log_machine import candidates
from commsim.accuracy.which_machine import Question, machines_for
from commsim.errors import LogFormatError
from commsim.measure.parsers import read_measured
from commsim.measure.records import Curve

AWS = ("ip-10-0-0-1", "ip-10-0-0-2")


def curve_of(folder: Path, text: str, name: str = "log") -> Curve:
    path = folder / f"{name}.log"
    path.write_text(text)
    return read_measured(path)[0]


def nobody(question: Question) -> None:
    """Nobody is at the terminal."""


@pytest.mark.parametrize(
    ("printed", "described", "same"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM5", True),
        ("NVIDIA H100 PCIe", "H100 SXM5", False),
        ("NVIDIA H100 NVL", "H100 NVL", True),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM4", True),
        ("NVIDIA A100-SXM-64GB", "A100 SXM4", False),
        ("NVIDIA A100-SXM-64GB", "A100 SXM 64 GB", True),
        ("Tesla V100-SXM3-32GB", "V100 SXM2", False),
        ("Tesla V100-PCIE-32GB", "V100 PCIe", True),
        ("GeForce RTX 2080 Ti", "GeForce RTX 2080 Ti", True),
        ("NVIDIA GeForce RTX 4090 D", "GeForce RTX 4090", True),
        ("NVIDIA GH200 120GB", "GH200", True),
        ("NVIDIA H200", "H200 SXM", True),
        ("NVIDIA Graphics Device", "GB200", False),
    ],
)
def test_a_name_of_the_driver_is_that_of_a_description(printed: str, described: str, same: bool) -> None:
    assert is_gpu(printed, described) == same


@given(st.text(max_size=80))
def test_any_text_is_a_gpu_or_none(text: str) -> None:
    assert gpu_name(text) is None or all(isinstance(part, str) for part in gpu_name(text) or ())


@pytest.mark.parametrize(
    ("gpu", "hosts", "each", "machine"),
    [
        ("NVIDIA H100 80GB HBM3", ("n0",), 8, "hgx-h100"),
        ("Tesla V100-SXM3-32GB", ("n0",), 12, "dgx-2"),
        ("NVIDIA GH200 120GB", ("n0",), 4, "gh200x4"),
        ("Tesla V100-SXM2-32GB", AWS, 8, "aws-p3dn"),
        ("NVIDIA A100-SXM4-80GB", AWS, 8, "aws-p4d"),
        ("NVIDIA H100 80GB HBM3", AWS, 8, "aws-p5"),
    ],
)
def test_a_log_settles_its_machine(tmp_path: Path, gpu: str, hosts: tuple[str, ...], each: int, machine: str) -> None:
    curve = curve_of(tmp_path, log_text(gpu, hosts, each))
    (settled,) = machines_for([curve], None, nobody)
    assert settled.name == machine
    assert settled.block["nodes"] == len(hosts)
    assert settled.block["gpus_per_node"] == each
    assert settled.said[0].startswith(f"machine: {machine}, ")


@pytest.mark.parametrize(
    ("gpu", "hosts", "each", "candidate"),
    [
        ("NVIDIA H100 80GB HBM3", ("a", "b"), 8, "hgx-h100-ndr400"),  # whose network?
        ("NVIDIA A100-SXM4-40GB", ("a",), 4, "hgx-a100-4"),  # or half of eight
        ("NVIDIA B200", ("a", "b"), 1, "gcp-a4"),  # an eighth of two nodes
        ("NVIDIA Graphics Device", ("a", "b"), 8, "hgx-h100-ndr400"),  # no name yet
    ],
)
def test_what_a_log_does_not_settle_is_asked(
    tmp_path: Path, gpu: str, hosts: tuple[str, ...], each: int, candidate: str
) -> None:
    curve = curve_of(tmp_path, log_text(gpu, hosts, each))
    with pytest.raises(LogFormatError, match="which machine is this") as refused:
        machines_for([curve], None, nobody)
    seen: list[Question] = []

    def choose(question: Question) -> str:
        seen.append(question)
        return candidate

    (chosen,) = machines_for([curve], None, choose)
    assert chosen.name == candidate
    assert candidate in {name for c, _ in seen[0].every for name in (c.name, *c.alike)}
    for shown, _ in seen[0].choices:
        assert f"--on {shown.name}" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (log_text("NVIDIA GeForce RTX 4090", ("a", "b"), 8), "no preset is 2 nodes of 8 x NVIDIA GeForce RTX 4090"),
        (log_text("AMD Instinct MI300X", ("a",), 8), "no preset is 1 nodes of 8 x AMD Instinct MI300X; the closest"),
        (log_text("Tesla T4", ("a", "b"), 1), "no preset is"),
        (log_text().replace("device  1 [0000:11:00]", "device  0 [0000:10:00]"), "found 8 ranks on 7 GPUs"),
        (log_text().replace("11:00] NVIDIA H100 80GB HBM3", "11:00] NVIDIA A100-SXM4-40GB"), "GPUs of several kinds"),
    ],
)
def test_what_no_preset_is_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(LogFormatError, match=message):
        machines_for([curve_of(tmp_path, text)], None, nobody)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(factor=st.floats(0.05, 50.0))
def test_times_never_choose_a_machine(tmp_path: Path, factor: float) -> None:
    times = [(1 << 20, 60.0 * factor), (1 << 26, 400.0 * factor), (1 << 30, 4500.0 * factor)]
    facts = facts_of(curve_of(tmp_path, log_text(hosts=("a", "b"), times_us=times)))
    assert candidates(facts) == candidates(facts_of(curve_of(tmp_path, log_text(hosts=("a", "b")))))


def test_one_log_settles_the_machine_of_the_others(tmp_path: Path) -> None:
    named = curve_of(tmp_path, log_text(hosts=AWS), "named")
    silent = curve_of(tmp_path, log_text(hosts=("a", "b", "c", "d")), "silent")
    machines = machines_for([silent, named], None, nobody)
    assert [m.name for m in machines] == ["aws-p5", "aws-p5"]
    assert [m.block["nodes"] for m in machines] == [4, 2]


def test_the_lines_of_nccl_name_the_network(tmp_path: Path) -> None:
    cards = " ".join(f"[{i}]mlx5_{i}:1/RoCE" for i in range(8))
    extra = [
        f"a:1:2 [0] NCCL INFO NET/IB : Using {cards} [RO]; OOB eth0:10.0.0.1<0>",
        "NCCL version 2.21.5+cuda12.4",
    ]
    curve = curve_of(tmp_path, log_text(hosts=("a", "b"), extra=extra))
    facts = facts_of(curve)
    assert (facts.network, facts.nics, facts.version, facts.launch) == ("roce", 8, (2, 21, 5), "process_per_gpu")
    assert machines_for([curve], None, nobody)[0].name == "hgx-h100-roce400"


def test_an_instance_that_a_plugin_names_is_the_machine(tmp_path: Path) -> None:
    line = "a:1:2 [0] NCCL INFO NET/OFI Running on p5en.48xlarge platform, Setting NCCL_TOPO_FILE"
    curve = curve_of(tmp_path, log_text("NVIDIA H200", ("a", "b"), extra=[line]))
    assert machines_for([curve], None, nobody)[0].name == "aws-p5en"


def test_what_a_log_says_against_its_scenario_comes_the_gravest_first(tmp_path: Path) -> None:
    extra = ["NCCL version 2.18.5+cuda12.2", "a:1:2 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>"]
    curve = curve_of(tmp_path, log_text("NVIDIA A100-SXM4-80GB", ("a", "b"), processes=False, extra=extra))
    machine = LogMachine("x", {"preset": "hgx-h100-4-ndr400", "nodes": 4}, ())
    source, _ = source_of(curve, machine)
    assert source.scenario is not None
    library = source.scenario.library.model_copy(update={"version": "2.26.2", "launch_mode": "process_per_gpu"})
    said = contradictions(source.scenario.model_copy(update={"library": library}), curve)
    assert said == [
        "the log is of NVIDIA A100-SXM4-80GB, the prediction of H100 SXM5",
        "the log is of 2 hosts with 8 ranks each, the prediction of 4 nodes with 4",
        "NCCL says in the log that it uses TCP sockets, the prediction is of infiniband",
        "the log is of NCCL 2.18.5, the prediction of 2.26.2",
        "the log is of one process for all GPUs of a node, the prediction of a process or thread for each GPU "
        "(library.launch_mode=one_process)",
    ]
    assert other_machine(source.scenario, curve) == said[0]


def test_a_log_does_not_contradict_its_own_machine(tmp_path: Path) -> None:
    curve = curve_of(tmp_path, log_text(processes=False, extra=["NCCL version 2.18.5"]))
    source, taken = source_of(curve, machines_for([curve], None, nobody)[0])
    assert source.scenario is not None
    assert contradictions(source.scenario, curve) == []
    assert other_machine(source.scenario, curve) == ""
    assert taken == ()
