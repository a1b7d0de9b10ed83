"""Published training rows as steps: what is read, what is missing, how rates become times."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.accuracy.training_rows import MEASURED, RowReader, read_rows
from commsim.errors import LogFormatError
from study.training_rows import apart, fitted, flops_per_token, row_of
from study.training_sources import source_of, sources

SC21 = {
    "id": "sc21-0003",
    "source": "Narayanan et al. SC'21 (arXiv:2104.04473)",
    "table": "Table 1",
    "model": "megatron-7.5b",
    "params_B": "7.466",
    "layers": "36",
    "hidden": "4096",
    "ffn_hidden": "16384",
    "heads": "32",
    "kv_heads": "32",
    "vocab": "51200",
    "seq_len": "2048",
    "global_batch_seqs": "512",
    "micro_batch": "16",
    "gpu_model": "A100-SXM4-80GB",
    "n_gpus": "128",
    "gpus_per_node": "8",
    "inter_node_net": "HDR InfiniBand 200Gb/s x8 per node (Selene)",
    "tp": "4",
    "pp": "1",
    "vpp": "1",
    "dp": "32",
    "cp": "1",
    "sp": "no",
    "recompute": "full",
    "precision": "fp16",
    "tflops_per_gpu": "142",
    "notes": "",
}
BRIDGE = SC21 | {
    "id": "mbridge-0001",
    "source": "NVIDIA-NeMo/Megatron-Bridge docs/performance-summary*.md",
    "model": "DeepSeekV3",
    "layers": "61",
    "hidden": "7168",
    "heads": "128",
    "kv_heads": "128",
    "ffn_hidden": "18432",
    "vocab": "129280",
    "seq_len": "4096",
    "global_batch_seqs": "4096",
    "micro_batch": "1",
    "gpu_model": "GB300-NVL72",
    "n_gpus": "256",
    "gpus_per_node": "4",
    "inter_node_net": "",
    "tp": "1",
    "pp": "2",
    "vpp": "",
    "dp": "99",
    "ep": "32",
    "sp": "",
    "recompute": "",
    "precision": "mxfp8",
    "tflops_per_gpu": "",
    "tokens_per_s_per_gpu": "6288",
    "notes": "container 26.08",
}


def test_a_row_is_a_step() -> None:
    row = row_of(SC21)
    assert row.step is not None
    assert (row.step.tp, row.step.dp, row.step.num_microbatches, row.step.recompute) == (4, 32, 1, "full")
    assert (row.step.flash_attention, row.step.zero_stage, row.step.overlap_dp) == (False, 0, False)
    assert row.step.nic_bytes_per_s == 25e9
    assert fitted(row)


def test_blank_columns_follow_the_rules_of_their_source() -> None:
    row = row_of(BRIDGE)
    assert row.step is not None
    step = row.step
    assert step.dp == 128  # from the ranks, whatever is printed
    assert step.virtual_stages == 31  # one layer per chunk, the multi-token-prediction module counted
    assert step.model.layers == 62
    assert (step.model.moe is not None, step.cuda_graphs, step.precision.gemm) == (True, True, "fp8")
    before = row_of(BRIDGE | {"notes": "container 26.04"}).step
    assert before is not None
    assert not before.cuda_graphs


def test_measured_columns_are_not_read() -> None:
    for cells in (SC21, BRIDGE):
        blank = {k: ("" if k in MEASURED else v) for k, v in cells.items()}
        assert row_of(blank).step == row_of(cells).step
        assert row_of(blank).measured_s is None


def test_rates_become_times_by_the_convention_of_the_source() -> None:
    """96 B s L h^2 (1 + s/6h + V/16Lh) / (142 TFLOP/s * 128) = 3.70 s: equation 3 of the paper."""
    flops = 96 * 512 * 2048 * 36 * 4096**2 * (1 + 2048 / (6 * 4096) + 51200 / (16 * 36 * 4096))
    assert row_of(SC21).measured_s == pytest.approx(flops / (142e12 * 128), rel=1e-12)
    assert row_of(SC21 | {"iteration_time_s": "3.5"}).measured_s == 3.5
    assert row_of(BRIDGE).measured_s == pytest.approx(4096 * 4096 / 256 / 6288, rel=1e-12)


def test_conventions_are_in_their_order() -> None:
    step = row_of(SC21).step
    assert step is not None
    causal, full, hardware = (flops_per_token(step, c) for c in ("causal", "full", "hardware"))
    assert causal < full < hardware
    assert hardware / full == pytest.approx(4 / 3, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"global_batch_seqs": "", "tp": ""}, "missing: global_batch_seqs, tp"),
        ({"gpu_model": "MI300X"}, "MI300X"),
        ({"gpu_model": ""}, "missing: gpu_model"),
        ({"model": "Unheard 9T", "layers": "", "hidden": ""}, "layers, hidden, heads"),
        ({"model": "Some-MoE-100B"}, "no preset of this model name"),
        ({"n_gpus": "100", "tp": "8"}, "does not divide n_gpus = 100"),
        ({"tp": "x"}, "tp = 'x', expected a number"),
        ({"n_gpus": "nan"}, "expected a number"),
        ({"precision": "int3"}, "int3"),
    ],
)
def test_rows_that_cannot_be_steps_say_why(changes: dict[str, str], reason: str) -> None:
    row = row_of(SC21 | changes)
    assert row.step is None
    assert reason in row.reason
    assert row.measured_s is None


def test_an_unknown_source_is_predicted_by_the_defaults() -> None:
    row = row_of(SC21 | {"source": "A paper of next year", "recompute": "", "micro_batch": ""})
    assert row.step is not None
    assert row.source.name == "A paper of"
    assert RowReader(row.cells).row().step == row.step
    assert (row.step.recompute, row.step.micro_batch_size) == ("none", 1)


def test_zero3_of_2021_is_reported_apart() -> None:
    row = row_of(SC21 | {"zero_stage": "3", "tp": "1"})
    assert apart(row)
    assert not fitted(row)


def test_every_source_has_its_reason_and_a_pattern_of_its_own() -> None:
    names = [s.name for s in sources()]
    assert len(set(names)) == len(names)
    assert all(s.why and s.pattern for s in sources())
    assert source_of("").name == "unnamed"


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("id,time\n1,2\n")
    with pytest.raises(LogFormatError, match="expected also source, gpu_model"):
        read_rows(path)
    path.write_text("")
    with pytest.raises(LogFormatError, match="expected also"):
        read_rows(path)
    with pytest.raises(LogFormatError, match="no such file"):
        read_rows(tmp_path / "none.csv")


CELLS = st.sampled_from(["", "0", "1", "8", "3", "-1", "1e9", "1e400", "nan", "x", "fp8", "yes", "1.5", "GB300-NVL72"])


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(BRIDGE)), CELLS, max_size=6), st.sampled_from([SC21, BRIDGE]))
def test_no_cell_breaks_a_row(changes: dict[str, str], base: dict[str, str]) -> None:
    row = row_of(base | changes)
    assert (row.step is None) == bool(row.reason)
    time = row.measured_s
    assert time is None or 0 < time < float("inf")
