"""Published training rows as steps: what is read, what is missing, how rates become times."""

from __future__ import annotations

from pathlib import Path

import pytest
from fill_facts import filled_table
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.accuracy.facts import FACTS, entries, filled, framework_of
from commsim.accuracy.flops import FLOPS, flops_per_token
from commsim.accuracy.training_rows import MEASURED, RowReader, read_rows
from commsim.errors import LogFormatError
from study.paths import DOCS
from study.training import training_steps
from study.training_rows import PUBLICATIONS, apart, fitted, group_of, publication_of, read_published, row_of
from study.training_simulated import machine_of

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


def test_commas_between_thousands_are_no_decimals() -> None:
    plain = row_of(BRIDGE | {"global_batch_seqs": "4096", "tokens_per_s_per_gpu": "16288.5"})
    assert row_of(BRIDGE | {"global_batch_seqs": "4,096", "tokens_per_s_per_gpu": "16,288.5"}).step == plain.step
    assert row_of(BRIDGE | {"tokens_per_s_per_gpu": "16,288.5"}).measured_s == plain.measured_s


def test_a_batch_printed_in_round_numbers_is_the_nearest_that_ranks_share() -> None:
    """500 sequences on 32 ranks, one each: 16 micro-batches are 512; the time of a rate is that of 500."""
    near = row_of(SC21 | {"global_batch_seqs": "500", "micro_batch": "1"})
    assert near.step is not None
    assert near.step.global_batch_size == 512
    assert near.measured_s == pytest.approx(500 / 512 * (row_of(SC21).measured_s or 0.0))


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
        ({"iteration_time_s": "~3"}, "iteration_time_s = '~3', expected a positive number, or a blank for none"),
        ({"tflops_per_gpu": "-1"}, "tflops_per_gpu = '-1', expected a positive number"),
        ({"global_batch_seqs": "4"}, "global_batch_seqs = 4, expected a multiple of micro_batch * dp = 512"),
        ({"global_batch_seqs": "1,7,70"}, "global_batch_seqs = '1,7,70', expected a number"),
    ],
)
def test_rows_that_cannot_be_steps_say_why(changes: dict[str, str], reason: str) -> None:
    row = row_of(SC21 | changes)
    assert row.step is None
    assert reason in row.reason
    assert row.measured_s is None


def test_an_unknown_source_is_predicted_by_the_defaults() -> None:
    row = row_of(
        SC21 | {"source": "A paper of next year", "precision": "", "recompute": "", "sp": "", "micro_batch": ""}
    )
    assert row.step is not None
    assert row.source == "A paper of"
    assert RowReader(row.cells).row().step == row.step
    assert (row.step.recompute, row.step.micro_batch_size, row.step.overlap_tp) == ("none", 1, True)


def test_zero3_of_2021_is_reported_apart() -> None:
    row = row_of(SC21 | {"zero_stage": "3", "tp": "1", "table": "Table 2 (ZeRO-3 without model parallelism)"})
    assert apart(row)
    assert not fitted(row)


def test_every_publication_has_its_reason_and_a_pattern_of_its_own() -> None:
    known = entries(PUBLICATIONS)
    assert all(entry["why"] and entry["pattern"] for entry in known.values())
    assert publication_of("") == "unnamed"


def test_every_row_of_the_project_says_what_ran_whatever_its_source_is_called() -> None:
    """With another name of the source a row is the same step of the same group: its facts stand in its columns."""
    for row in read_published(training_steps()):
        other = row_of(dict(row.cells) | {"source": "somebody else"})
        assert (other.step, other.measured_s) == (row.step, row.measured_s)
        assert (fitted(other), apart(other)) == (fitted(row), apart(row))
        assert group_of(other).removeprefix("somebody else") == group_of(row).removeprefix(row.source)


def test_the_table_carries_the_facts_of_its_publications() -> None:
    assert filled_table(training_steps()) == training_steps().read_text(encoding="utf-8")


BARE = {"id": "x-1", "source": "", "notes": ""}


@pytest.mark.parametrize(
    ("cells", "framework"),
    [
        ({}, ""),
        ({"framework": "TorchTitan", "source": "NeMo"}, "torchtitan"),
        ({"source": "NVIDIA-NeMo/Megatron-Bridge docs"}, "megatron-bridge"),
        ({"notes": "container 24.07"}, "nemo"),
        ({"notes": "container 26.02"}, "megatron-bridge"),
        ({"notes": "measured with Megatron-DeepSpeed"}, "megatron-deepspeed"),
        ({"precision": "fp16"}, "megatron-lm"),
        ({"precision": "fp16", "zero_stage": "1"}, "megatron-deepspeed"),
        ({"zero_stage": "3"}, "fsdp"),
    ],
)
def test_the_framework_is_named_or_told_by_the_row(cells: dict[str, str], framework: str) -> None:
    assert framework_of(BARE | cells) == framework


def test_a_framework_implies_columns_by_its_release() -> None:
    new, old, oldest = (
        filled(BARE | {"framework": "megatron-lm", "release": release}) for release in ("2024-07", "2022-09", "2021-04")
    )
    assert (new["attention"], old["attention"], oldest["attention"]) == ("vendor", "unfused", "unfused")
    assert (new["flops"], old["flops"], oldest["flops"]) == ("full", "full", "hardware")
    assert (new["recompute"], oldest["recompute"]) == ("none layerwise full", "full")
    own = filled(BARE | {"framework": "megatron-lm", "release": "2021-04", "recompute": "selective", "sp": "yes"})
    assert (own["recompute"], own["sp"]) == ("selective", "yes")
    assert filled(BARE | {"framework": "torchtitan", "recompute": "selective"})["recompute"] == "layerwise"


@pytest.mark.parametrize(
    ("column", "text", "message"),
    [
        ("framework", "torchtitn", "expected torchtitan"),
        ("flops", "half", "expected one of hardware, full, causal, six"),
        ("attention", "fast", "expected one of unfused, vendor, open"),
        ("overlap", "dp, all", "'all', expected some of dp, params, tp, ep, pp, or none"),
        ("gradients", "int8", "expected one of fp32, bf16, fp16"),
        ("stack", "quick", "expected one of tuned, compiled, eager"),
        ("lora", "maybe", "expected one of yes, no"),
        ("imbalance", "much", "expected a number"),
        ("expert_dispatch", "post", "expert_dispatch = 'post'"),
        ("expert_dispatch", "deepep post", "expert_dispatch = 'post'"),
        ("recompute", "none some", "recompute = 'some', expected some of none, selective, layerwise, full"),
        ("cuda_graphs", "some", "expected one of yes, no, experts"),
        ("schedule", "fast", "schedule = 'fast', expected one of"),
        ("release", "-1", "release = '-1', expected such as 25.09"),
        ("imbalance", "0.5", "expected at least 1"),
        ("power_limit_w", "1", "power_limit_w = 1, expected watts near those of GB300"),
        ("tp", "2.5", "tp = 2.5, expected a whole number"),
        ("n_gpus", "0", "n_gpus = 0, expected at least 1"),
        ("inter_node_net", "0 Gb/s", "expected a rate such as 400 Gb/s"),
    ],
)
def test_facts_that_are_none_say_so(column: str, text: str, message: str) -> None:
    row = row_of(BRIDGE | {"tokens_per_s_per_gpu": "", "tflops_per_gpu": "900", column: text})
    assert row.step is None
    assert message in row.reason


def test_what_does_not_fit_was_recomputed() -> None:
    """Llama 3 70B over 8 GPUs by FSDP keeps over 300 GiB of activations of two sequences; with less it fits."""
    cells = BRIDGE | {
        "framework": "fsdp", "model": "Llama 3 70B", "layers": "80", "hidden": "8192", "heads": "64", "kv_heads": "8",
        "ffn_hidden": "28672", "vocab": "128256", "gpu_model": "H100-SXM5-80GB", "n_gpus": "64", "gpus_per_node": "8",
        "global_batch_seqs": "128", "micro_batch": "2", "pp": "1", "ep": "1", "precision": "bf16",
    }  # fmt: skip
    by_length = {seq: row_of(cells | {"seq_len": str(seq)}).step for seq in (256, 2048, 4096)}
    assert [step and step.recompute for step in by_length.values()] == ["none", "layerwise", "full"]
    own = row_of(cells | {"recompute": "none"}).step
    assert own is not None
    assert own.recompute == "none"


def test_a_release_is_compared_with_its_like() -> None:
    """Megatron-Core's own versions and NVIDIA's containers are no years."""
    for release in ("0.12", "core_r0.14.0", "25.09", "2024-07", ""):
        assert filled(BARE | {"framework": "megatron-lm", "release": release})["attention"] == "vendor"


def test_a_named_schedule_is_that_schedule() -> None:
    for word, schedule, chunks in (
        ("zb_v", "zb_v", 2), ("DualPipe", "dualpipe", 1), ("1F1B", "1f1b", 1), ("none", "interleaved_1f1b", 31),
    ):  # fmt: skip
        step = row_of(BRIDGE | {"schedule": word}).step
        assert step is not None
        assert (step.schedule, step.virtual_stages) == (schedule, chunks)


@pytest.mark.parametrize("pp", [1, 2, 4, 5, 6, 8, 16])
def test_a_blank_number_of_chunks_fits_the_layers(pp: int) -> None:
    cells = BRIDGE | {"model": "Llama 3 8B", "layers": "32", "n_gpus": str(8 * pp), "pp": str(pp), "ep": ""}
    row = row_of(cells | {"global_batch_seqs": str(16 * pp), "framework": "nemo", "mtp": "no"})
    assert row.reason == ""


def test_a_preset_beside_its_own_sizes_is_the_preset() -> None:
    bare = BRIDGE | {"model": "llama-3-8b", "pp": "1", "ep": "", "kv_heads": "", "vocab": "", "ffn_hidden": ""}
    named = row_of(bare | {"layers": "", "hidden": "", "heads": ""}).step
    sized = row_of(bare | {"layers": "32", "hidden": "4096", "heads": "32"}).step
    assert named == sized


def test_facts_change_the_step() -> None:
    facts = {
        "framework": "megatron-lm", "stack": "eager", "attention": "open", "gradients": "bf16", "overlap": "dp tp",
        "expert_dispatch": "nccl hybrid", "expert_tp": "yes", "imbalance": "1.5", "context_parallel": "all_gather",
        "cuda_graphs": "yes", "lora": "yes", "power_limit_w": "500", "mtp": "no", "tp": "2",
    }  # fmt: skip
    step = row_of(BRIDGE | facts | {"tp": "2", "ep": "8"}).step
    assert step is not None
    assert (step.stack, step.attention_kernel, step.flash_attention) == ("eager", "open", True)
    assert (step.overlap_dp, step.overlap_tp, step.overlap_pp, step.overlap_param_gather) == (True, True, False, False)
    assert (step.expert_dispatch, step.expert_tp, step.imbalance) == ("hybrid", 2, 1.5)  # GB300 is a rack
    assert (step.context_parallel, step.cuda_graphs, step.frozen_weights) == ("all_gather", True, True)
    assert (step.accelerator.tdp_w, step.model.layers, step.precision.gradient) == (500, 61, "bf16")


@pytest.mark.parametrize(
    ("facts", "chunk"),
    [
        ({"pp": "4"}, 2 << 20),  # Megatron-Bridge sets it where there is a pipeline
        ({"pp": "1"}, 0),
        ({"pp": "4", "framework": "megatron-lm"}, 0),
        ({"pp": "4", "framework": "megatron-lm", "pipeline_chunk": "524288"}, 524288),
        ({"pp": "1", "framework": "megatron-lm", "send_chunk": "524288"}, 524288),
        ({"pp": "1", "framework": "nemo", "release": "24.03"}, 2 << 20),  # NeMo 1's scripts set it for all
        ({"pp": "1", "framework": "nemo", "release": "25.02"}, 0),
    ],
)
def test_recipes_of_nvidia_size_the_chunks_of_pipelines(facts: dict[str, str], chunk: int) -> None:
    row = row_of(BRIDGE | facts)
    assert row.step is not None
    assert row.send_chunk == chunk
    machine = machine_of(row.step, row.send_chunk)
    assert machine is not None
    assert machine.chunk == chunk


def test_every_fact_is_documented() -> None:
    guide = (DOCS / "guides" / "validate.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in guide for name in FACTS)
    assert all(name in guide for name in entries() if name != "usual")
    assert all(f"`{word}`" in guide for word in FLOPS)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("id,time\n1,2\n")
    with pytest.raises(LogFormatError, match="expected also source, gpu_model"):
        read_rows(path)
    path.write_text("id,source,gpu_model,n_gpus,seq_len,global_batch_seqs\n")
    with pytest.raises(LogFormatError, match="found no row below the names"):
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
