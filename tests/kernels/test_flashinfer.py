"""FlashInfer's rules as its sources state them by release, and what a run and a tuning say of kernels no row is of."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from commsim.kernels.choice import KernelCall, choose
from commsim.kernels.costs import KERNELS
from commsim.kernels.device import kernel_device
from commsim.kernels.predict import beyond_rules, host_name, kernel_time
from commsim.planner.kernels import SIZES, KernelTuning, kernel_tuning, notes_of, tuning_document
from commsim.report.kernel_tables import kernel_tables
from commsim.scenario.load import load_scenarios
from commsim.scenario.result import Result
from commsim.scenario.run import run
from commsim.training.accelerator import accelerator

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def call(nbytes: int = 4096, gpu: str = "H100", ranks: int = 8, release: str = "0.6.17", **more: Any) -> KernelCall:
    a, b, c = map(int, release.split("."))
    return KernelCall("flashinfer", (a, b, c), kernel_device(accelerator(gpu)), ranks, nbytes, **more)


def last_one_shot(ranks: int, release: str, **more: Any) -> int:
    """The largest size of one shot, by bisection over multiples of 16 B; it and the next are of one kernel family."""
    low, high = 1, GIB // 16
    while high - low > 1:
        middle = (low + high) // 2
        one = choose(call(16 * middle, ranks=ranks, release=release, **more)).kernel.endswith("one_shot")
        low, high = (middle, high) if one else (low, middle)
    families = {choose(call(16 * at, ranks=ranks, release=release, **more)).kernel.split(".")[0] for at in (low, high)}
    assert len(families) == 1
    return 16 * low


@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 32, 64])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_one_shot_multicasts_up_to_a_mebibyte_of_all_ranks(ranks: int, dtype: str) -> None:
    """comm/trtllm_mnnvl_ar.py: num_tokens * hidden_dim * tp_size * elem_size <= 64 * 1024 * 8 * 2."""
    most = 64 * 1024 * 8 * 2 // ranks
    for release in ("0.6.0", "0.6.17"):
        assert last_one_shot(ranks, release, gpu="GB200", dtype=dtype) == most
        assert choose(call(most, "GB200", ranks, release)).kernel == "multicast.one_shot"


@pytest.mark.parametrize(("ranks", "mib"), [(2, 512), (4, 64), (8, 42)])
def test_one_shot_over_ipc_memory_goes_by_bytes_since_0_5(ranks: int, mib: int) -> None:
    """comm/trtllm_ar.py: token_num * hidden_dim * 2 * world_size * itemsize / 1024 / 1024 <= {2: 512, 4: 64, 8: 42}."""
    most = last_one_shot(ranks, "0.5.3")
    assert most * 2 * ranks / 1024 / 1024 <= mib < (most + 16) * 2 * ranks / 1024 / 1024
    assert last_one_shot(ranks, "0.6.17", multicast=False) == last_one_shot(ranks, "0.5.0", dtype="float32") == most


@pytest.mark.parametrize(("dtype", "most"), [("bfloat16", 128 * 4096 * 2), ("float32", 128 * 4096 * 4)])
def test_before_0_5_one_shot_is_up_to_128_tokens(dtype: str, most: int) -> None:
    assert {last_one_shot(ranks, "0.4.1", dtype=dtype) for ranks in (2, 4, 8)} == {most}


@pytest.mark.parametrize(
    ("release", "multicast", "expected"),
    [
        ("0.5.3", True, "lamport.one_shot"),  # its callers name the kernels over IPC memory
        ("0.5.3", False, "lamport.one_shot"),
        ("0.6.0", True, "multicast.one_shot"),
        ("0.6.15", False, "nccl"),  # multicast is taken for granted
        ("0.6.16", False, "lamport.one_shot"),
        ("0.6.16", True, "multicast.one_shot"),
    ],
)
def test_what_is_chosen_between_differs_by_release(release: str, multicast: bool, expected: str) -> None:
    assert choose(call(release=release, multicast=multicast)).kernel == expected


@pytest.mark.parametrize(
    ("of", "why"),
    [
        (call(gpu="A100"), "compiled for Hopper and later, not for A100"),
        (call(gpu="A100", release="0.5.0"), "compiled for Hopper and later"),
        (call(ranks=6), "the kernel is for 2, 4, 8, 16, 32 or 64 GPUs, not 6"),
        (call(ranks=6, release="0.5.0"), "the kernel is for 2, 4 or 8 GPUs, not 6"),
        (call(ranks=16), "NVLink joins 8 GPUs, not 16"),
        (call(gpu="GB200", release="0.5.0"), "several hosts (4 GPUs each), its memory on one"),
        (call(multicast=False, release="0.6.9"), "before 0.6.16 it takes kernels that multicast"),
        (call(nbytes=4104), "no multiple of 16 B"),
        (call(dtype="int8"), "not int8"),
    ],
)
def test_where_it_has_no_kernel_its_callers_run_nccl(of: KernelCall, why: str) -> None:
    choice = choose(of)
    assert choice.kernel == "nccl"
    assert why in choice.why


def test_two_shots_end_where_memory_and_counts_do() -> None:
    """Twice the tokens, rounded up to one more a rank, in 2**32 - 1 bytes; 2**31 - 1 elements over IPC memory."""
    assert choose(call(2 * GIB - 8 * 4096 * 2)).kernel == "multicast.two_shot"
    assert choose(call(2 * GIB - 8 * 4096 * 2 + 16)).why == "above the 2147418112 B that its buffers may hold"
    assert choose(call(4 * GIB - 16, release="0.5.0")).kernel == "lamport.two_shot"
    assert "can count" in choose(call(4 * GIB, release="0.5.0")).why
    assert choose(call(4 * GIB, release="0.5.0", dtype="float32")).kernel == "lamport.two_shot"


def test_every_kernel_that_its_rules_name_has_costs() -> None:
    taken = {
        choose(call(16 << k, ranks=ranks, release=release)).kernel
        for k in range(26)
        for ranks in (2, 4, 8)
        for release in ("0.4.0", "0.5.0", "0.6.17")
    }
    assert taken == {"lamport.one_shot", "lamport.two_shot", "multicast.one_shot", "multicast.two_shot"} <= {*KERNELS}


def test_a_kernel_over_ipc_memory_takes_what_tensorrt_llm_s_takes() -> None:
    own = call(512 * KIB, release="0.5.3")
    theirs = KernelCall("tensorrt_llm", (1, 3, 0), own.device, 8, own.nbytes)
    times = [kernel_time(of, "lamport.one_shot", cuda_graph=True).time_s for of in (own, theirs)]
    assert times[0] == times[1]
    assert host_name(own) == "host.push"


# -- scenarios ---------------------------------

TEXT = """
name: n
topology: {topology}
library: {{name: custom_all_reduce, framework: flashinfer{more}}}
workload: [{{collective: all_reduce, dtype: bfloat16, sizes: 64 KiB .. 256 KiB x2}}]
"""


def answered(folder: Path, topology: str = "{preset: hgx-h100}", more: str = "") -> Result:
    path = folder / "s.yaml"
    path.write_text(TEXT.format(topology=topology, more=more))
    return run(load_scenarios(path)[0])


def test_a_run_says_whose_parameters_its_times_have_and_gives_no_band(tmp_path: Path) -> None:
    result = answered(tmp_path)
    rows = result.items[0].rows
    assert [row.algorithm for row in rows] == ["one_shot", "one_shot", "two_shot"]
    expected = kernel_time(call(128 * KIB), "multicast.one_shot", cuda_graph=True).time_s
    assert rows[1].time_s == pytest.approx(expected)
    assert all(row.low_s is None and row.high_s is None for row in rows)
    (text,) = [text for text in result.warnings if "outside what was measured" in text]
    assert text.startswith("kernels of flashinfer are outside what was measured: their times are by the parameters of")
    assert not [text for text in result.warnings if "chooses by tokens" in text]


def test_over_trays_it_multicasts_and_says_both(tmp_path: Path) -> None:
    result = answered(tmp_path, "{preset: gb200-nvl72, gpus_per_node: 16}")
    assert [row.algorithm for row in result.items[0].rows] == ["one_shot", "two_shot", "two_shot"]
    said = [text for text in result.warnings if "outside what was measured" in text]
    assert len(said) == 2


def test_where_nccl_runs_nothing_is_said_of_parameters(tmp_path: Path) -> None:
    result = answered(tmp_path, "{preset: dgx-a100}")
    assert all(row.algorithm.startswith("nccl ") for row in result.items[0].rows)
    assert [text for text in result.warnings if "flashinfer falls back to NCCL" in text]
    assert not [text for text in result.warnings if "parameters" in text]


def test_releases_that_were_not_read_take_the_nearest_rules(tmp_path: Path) -> None:
    assert "whose sources were read (0.4.0 to 0.6.17)" in beyond_rules("flashinfer", (0, 3, 1))
    assert not beyond_rules("flashinfer", (0, 4, 0)) + beyond_rules("flashinfer", (0, 6, 17))
    assert beyond_rules("flashinfer", (0, 24, 0)).endswith("vllm has such a release")
    old = answered(tmp_path, more=", version: 0.4")
    assert "version: 0.4.0" in old.resolved
    assert "flashinfer chooses by tokens: they are taken as of 4096 elements" in old.warnings


def tuned(folder: Path, *overrides: str) -> KernelTuning:
    path = folder / "s.yaml"
    path.write_text(TEXT.format(topology="{preset: hgx-h100}", more=""))
    return kernel_tuning(load_scenarios(path, list(overrides))[0])[-1]


def test_a_tuning_has_its_thresholds_and_says_that_no_row_is_of_it(tmp_path: Path) -> None:
    eight = tuned(tmp_path)
    assert [(s.low, s.kernel) for s in eight.shipped["flashinfer"]] == [
        (SIZES[0], "multicast.one_shot"),
        (256 * KIB, "multicast.two_shot"),  # 128 KiB is the last of one shot
    ]
    own = {s.kernel for s in eight.best["flashinfer"]}
    assert own <= {"lamport.one_shot", "lamport.two_shot", "multicast.one_shot", "multicast.two_shot", "nccl"}
    document = tuning_document([eight])
    assert document["releases"]["flashinfer"] == "0.6.17"
    rules = document["by_number_of_gpus"]["8"]["frameworks"]["flashinfer"]
    assert all(a["from_bytes"] < b["from_bytes"] for a, b in pairwise(rules["shipped"]))
    assert any(text.startswith("kernels of flashinfer are outside") for text in notes_of([eight]))
    assert "flashinfer ships: multicast.one_shot, multicast.two_shot from 256 KiB" in kernel_tables([eight])


def test_a_tuning_of_an_older_release_has_the_kernels_of_that(tmp_path: Path) -> None:
    eight = tuned(tmp_path, "library.version=0.5.3")
    assert [(s.low, s.kernel) for s in eight.shipped["flashinfer"]] == [
        (SIZES[0], "lamport.one_shot"),
        (4 * MIB, "lamport.two_shot"),  # 2.625 MiB is the last of one shot
    ]
    assert not [s for s in eight.best["flashinfer"] if s.kernel.startswith("multicast")]


def test_beyond_tensorrt_llm_s_sizes_its_kernels_count_only_where_the_rules_take_them(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(TEXT.format(topology="{preset: hgx-h100, gpus_per_node: 2}", more=""))
    (two,) = kernel_tuning(load_scenarios(path)[0])
    assert max(s.low for s in two.best["flashinfer"] if s.kernel.startswith("lamport")) < 16_000_000
    assert {s.kernel for s in two.best["flashinfer"] if s.low > 16_000_000} == {"nccl"}
    (old,) = kernel_tuning(load_scenarios(path, ["library.version=0.5.3"])[0])
    assert [s.low for s in old.shipped["flashinfer"]] == [SIZES[0], 256 * MIB]  # 128 MiB is the last of one shot
