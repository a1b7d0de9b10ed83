"""`library: custom_all_reduce` in a scenario: rows of kernels and of NCCL, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from commsim.errors import ScenarioError
from commsim.kernels.choice import KernelCall
from commsim.kernels.device import kernel_device
from commsim.kernels.predict import kernel_time
from commsim.scenario.item import Item
from commsim.scenario.load import find_scenario, load_scenarios
from commsim.scenario.measured import RunOptions, run_of
from commsim.scenario.result import Result
from commsim.scenario.run import run
from commsim.training.accelerator import accelerator

SCENARIO = """
name: decoding
topology: {topology}
library: {{name: custom_all_reduce{library}}}
workload: [{{collective: {collective}, dtype: bfloat16, sizes: {sizes}}}]
{more}
"""


def answered(
    folder: Path,
    topology: str = "{preset: hgx-h100}",
    library: str = ", framework: vllm",
    collective: str = "all_reduce",
    sizes: str = "4 KiB .. 256 MiB x2",
    more: str = "",
) -> Result:
    path = folder / "s.yaml"
    path.write_text(SCENARIO.format(topology=topology, library=library, collective=collective, sizes=sizes, more=more))
    return run(load_scenarios(path)[0])


def item(result: Result) -> Item:
    return result.items[0]


def test_rows_are_the_kernels_until_the_framework_falls_back(tmp_path: Path) -> None:
    result = answered(tmp_path)
    rows = {row.size_bytes: row for row in item(result).rows}
    assert [rows[1 << k].algorithm for k in (12, 17, 18, 26)] == ["one_shot", "one_shot", "multimem", "multimem"]
    assert rows[1 << 27].algorithm == "nccl nvls"
    assert any("falls back to NCCL 2.27.5: above the kernels' 64 MiB" in text for text in result.warnings)
    for row in rows.values():
        assert row.lower_bound_s is not None
        assert row.low_s is not None
        assert row.high_s is not None
        assert row.lower_bound_s <= row.low_s <= row.time_s <= row.high_s
        assert row.busbw == pytest.approx(1.75 * row.size_bytes / row.time_s)


def test_a_row_is_the_time_of_its_kernel(tmp_path: Path) -> None:
    (row,) = item(answered(tmp_path, sizes="64 KiB")).rows
    call = KernelCall("vllm", (0, 24, 0), kernel_device(accelerator("H100")), 8, 65536)
    assert row.time_s == pytest.approx(kernel_time(call, "peer.one_shot", cuda_graph=True).time_s)


def test_nccl_s_rows_are_those_of_library_nccl(tmp_path: Path) -> None:
    (row,) = item(answered(tmp_path, sizes="1 GiB")).rows
    path = tmp_path / "nccl.yaml"
    text = (tmp_path / "s.yaml").read_text()
    path.write_text(text.replace("custom_all_reduce, framework: vllm", "nccl, version: 2.27.5"))
    (by_nccl,) = run(load_scenarios(path)[0]).items[0].rows
    assert row.time_s == by_nccl.time_s
    assert row.algorithm == f"nccl {by_nccl.algorithm}"


def test_from_python_the_host_limits_small_calls_of_both(tmp_path: Path) -> None:
    eager = ", framework: sglang, version: 0.5.10, cuda_graph: false"
    rows = item(answered(tmp_path, library=eager)).rows
    assert rows[0].bottleneck == "launch"
    assert rows[0].time_s == rows[0].launch_s > rows[0].kernel_s
    assert rows[-1].bottleneck == "NVLink"


@pytest.mark.parametrize(
    ("topology", "collective", "reason"),
    [
        ("{preset: hgx-h100-ndr400, nodes: 2}", "all_reduce", "several nodes"),
        ("{preset: hgx-h100}", "all_gather", "for all_reduce with sum"),
        ("{preset: hgx-h100, gpus_per_node: 5}", "all_reduce", "2, 4, 6 or 8 GPUs, not 5"),
        ("{preset: h100-pcie}", "all_reduce", "NVLink does not join all"),
        ("{preset: gb200-nvl72, gpus_per_node: 8}", "all_reduce", "on several hosts"),
    ],
)
def test_where_the_framework_takes_nccl_so_does_the_prediction(
    tmp_path: Path, topology: str, collective: str, reason: str
) -> None:
    result = answered(tmp_path, topology, collective=collective, sizes="1 MiB")
    assert item(result).rows[0].algorithm.startswith("nccl ")
    assert [text for text in result.warnings if reason in text]


def test_tensorrt_llm_has_kernels_over_trays_of_a_rack(tmp_path: Path) -> None:
    rack, library = "{preset: gb200-nvl72, gpus_per_node: 16}", ", framework: tensorrt_llm"
    rows = item(answered(tmp_path, rack, library, sizes="16 KiB .. 64 KiB x2")).rows
    assert [row.algorithm for row in rows] == ["one_shot", "one_shot", "two_shot"]


@pytest.mark.parametrize(
    ("library", "topology", "more", "expected"),
    [
        ("", "{preset: hgx-h100}", "", "found no framework .* vllm or sglang or tensorrt_llm or flashinfer"),
        (", framework: lmdeploy", "{preset: hgx-h100}", "", "framework"),
        (", framework: vllm, env: {NCCL_ALGO: Ring}", "{preset: hgx-h100}", "", "found env with library custom_all"),
        (", framework: vllm", "{preset: rtx4090, gpus_per_node: 2}", "", "without NVLink two GPUs run"),
        (", framework: vllm", "{preset: dgx-2}", "", "volta"),
        (", framework: vllm", "{preset: hgx-h100}", "engine: event", "expected auto: its times are closed forms"),
        (", framework: vllm", "{preset: hgx-h100}", "params: p.yaml", "found params with library custom_all_reduce"),
        (
            ", framework: vllm, measured: {all_reduce: {8B: 23us}}",
            "{preset: hgx-h100}",
            "",
            "found measured with library custom_all_reduce",
        ),
        (
            ", framework: vllm",
            "{preset: hgx-h100}",
            "variation: {stragglers: [{ranks: [0], delay: 1 us}]}",
            "found variation with library custom_all_reduce",
        ),
    ],
)
def test_what_does_not_apply_is_refused_at_its_place(
    tmp_path: Path, library: str, topology: str, more: str, expected: str
) -> None:
    with pytest.raises(ScenarioError, match=rf"s\.yaml:\d+:\d+ .*{expected}"):
        answered(tmp_path, topology, library, more=more)


@pytest.mark.parametrize("value", ["true", "false"])
def test_options_of_the_kernels_are_refused_with_nccl(tmp_path: Path, value: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        f"name: n\ntopology: {{preset: hgx-h100}}\nlibrary: {{name: nccl, cuda_graph: {value}}}\n"
        "workload: [{collective: all_reduce, sizes: 1 MiB}]\n"
    )
    with pytest.raises(ScenarioError, match="found cuda_graph with library nccl, expected it only with library custom"):
        load_scenarios(path)


def test_training_and_measurements_know_no_such_library(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "name: n\ntopology: {preset: hgx-h100}\nlibrary: {name: custom_all_reduce, framework: vllm}\n"
        "workload:\n  - training: {model: llama-3-8b, mesh: {tp: 8}, global_batch_size: 8}\n"
    )
    with pytest.raises(ScenarioError, match="with library custom_all_reduce, expected library nccl or gloo"):
        load_scenarios(path)
    with pytest.raises(ScenarioError, match="library: found custom_all_reduce, expected nccl, gloo or none for a meas"):
        run_of(load_scenarios(find_scenario("custom-all-reduce"))[0], RunOptions(backend="gloo"))


def test_a_degraded_nvlink_counts(tmp_path: Path) -> None:
    slow = "{preset: hgx-h100, node: {nvlink: {links: 9}}}"
    (half,), (whole,) = (item(answered(tmp_path, t, sizes="64 MiB")).rows for t in (slow, "{preset: hgx-h100}"))
    assert 1.5 < half.time_s / whole.time_s <= 2.0


@pytest.mark.parametrize(
    ("framework", "written", "release"),
    [
        ("tensorrt_llm", "1.3", "1.3.0"),
        ("tensorrt_llm", "'1.0'", "1.0.0"),
        ("vllm", "0.24", "0.24.0"),
        ("vllm", "'0.20'", "0.20.0"),
        ("sglang", "0.5.10", "0.5.10"),
    ],
)
def test_a_framework_s_release_may_have_two_numbers(tmp_path: Path, framework: str, written: str, release: str) -> None:
    result = answered(tmp_path, library=f", framework: {framework}, version: {written}", sizes="4 KiB")
    assert f"version: {release}" in result.resolved
    assert not [text for text in result.warnings if "releases measured" in text]


@pytest.mark.parametrize(
    ("library", "expected"),
    [
        (
            ", framework: vllm, version: 0.20",
            r"found the number 0\.2, which 0\.20 would be, too: .* 0\.2\.0 or 0\.20\.0",
        ),
        (", framework: vllm, version: new", r"expected a release of vllm of two or three numbers, such as 0\.24\.0"),
        (", framework: tensorrt_llm, version: 1", r"found 1, expected a release of tensorrt_llm"),
    ],
)
def test_what_is_no_release_is_refused_by_the_framework_s_name(tmp_path: Path, library: str, expected: str) -> None:
    with pytest.raises(ScenarioError, match=expected):
        answered(tmp_path, library=library)


def test_another_framework_s_release_is_said_to_be_that(tmp_path: Path) -> None:
    result = answered(tmp_path, library=", framework: sglang, version: 0.24.0", sizes="4 KiB")
    (text,) = [text for text in result.warnings if "releases measured" in text]
    assert "newer than the releases measured (0.5.9 to 0.5.14)" in text
    assert text.endswith("vllm has such a release")


@pytest.mark.parametrize(
    ("framework", "dtype"), [("vllm", "int32"), ("sglang", "float64"), ("tensorrt_llm", "int8"), ("flashinfer", "int8")]
)
def test_other_types_fall_back_to_nccl_with_the_reason(tmp_path: Path, framework: str, dtype: str) -> None:
    answered(tmp_path, library=f", framework: {framework}")
    path = tmp_path / "s.yaml"
    path.write_text(path.read_text().replace("dtype: bfloat16", f"dtype: {dtype}"))
    result = run(load_scenarios(path)[0])
    assert all(row.algorithm.startswith("nccl ") for row in item(result).rows)
    assert [text for text in result.warnings if f"bfloat16, float16 and float32, not {dtype}" in text]


@pytest.mark.parametrize(
    ("topology", "library", "outside"),
    [
        ("{preset: gb200-nvl72}", ", framework: tensorrt_llm", "kernels on 72 GPUs over several trays are outside"),
        ("{preset: hgx-h100, gpus_per_node: 6}", ", framework: vllm", "kernels on 6 GPUs are outside"),
        ("{preset: hgx-h100, gpus_per_node: 3}", ", framework: sglang", "kernels on 3 GPUs are outside"),
        ("{preset: gh200x4}", ", framework: vllm", "kernels on GPUs that no NVSwitch joins are outside"),
        ("{preset: hgx-h100, gpus_per_node: 4}", ", framework: vllm", ""),
        ("{preset: gb200-nvl72, gpus_per_node: 4}", ", framework: vllm", ""),
    ],
)
def test_kernels_beyond_what_was_measured_are_said_to_be(
    tmp_path: Path, topology: str, library: str, outside: str
) -> None:
    result = answered(tmp_path, topology, library, sizes="64 KiB")
    assert not item(result).rows[0].algorithm.startswith("nccl")
    said = [text for text in result.warnings if "outside what was measured" in text]
    assert len(said) == bool(outside)
    assert all(text.startswith(outside) for text in said)


def test_superchips_of_a_node_are_one_host(tmp_path: Path) -> None:
    """Four GH200 of a Quad node: one host, whose NVLink joins them all."""
    result = answered(tmp_path, "{preset: gh200x4}", sizes="64 KiB")
    assert item(result).rows[0].algorithm == "one_shot"
    assert not [text for text in result.warnings if "hosts" in text]


def test_a_single_call_in_a_graph_is_said_to_take_no_longer(tmp_path: Path) -> None:
    single, usual = (answered(tmp_path, sizes="64 KiB", more=more) for more in ("mode: single", ""))
    assert item(single).rows[0].time_s == item(usual).rows[0].time_s
    (text,) = set(single.warnings) - set(usual.warnings)
    assert text.startswith("mode single has no effect on kernels in a CUDA graph")
    eager = answered(tmp_path, library=", framework: vllm, cuda_graph: false", sizes="64 KiB", more="mode: single")
    assert not [text for text in eager.warnings if "mode single" in text]
