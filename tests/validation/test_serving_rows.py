"""Measured runs of serving frameworks: names, meshes and formats of their columns, and what can't be answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from commsim.errors import LogFormatError
from study.generation import PROJECT
from study.serving_rows import ServingTable, read_runs, served_model, system_gpu

HEADER = (
    "id,backend,backend_version,model_path,system,precision,mode,isl,osl,gemm_quant_mode,moe_quant_mode,batch_size,"
    "tp_size,pp_size,attention_dp_size,moe_tp_size,moe_ep_size,silicon_ttft_ms,silicon_tpot_ms,concurrency"
)
ROW = "s0,vllm,0.19.0,MiniMaxAI/MiniMax-M2.5,b200_sxm,fp8,agg,1024,1024,fp8,fp8,64.0,4.0,1.0,1.0,4.0,1.0,88.0,9.5,64.0"


def table_of(tmp_path: Path, *rows: str, header: str = HEADER) -> ServingTable:
    path = tmp_path / "runs.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return read_runs(path)


def row_with(**fields: str) -> str:
    values = dict(zip(HEADER.split(","), ROW.split(","), strict=True)) | fields
    return ",".join(values.values())


@pytest.mark.parametrize(
    ("path", "preset"),
    [
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("nvidia/DeepSeek-R1-0528-NVFP4", "deepseek-v3"),
        ("nvidia/DeepSeek-V3.1-NVFP4", "deepseek-v3"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "qwen3-235b-a22b"),
        ("Qwen/Qwen3.5-397B-A17B-FP8", "qwen3.5-397b-a17b"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama3.1-70b"),
        ("nvidia/Llama-3.1-405B-Instruct-FP8", "llama3.1-405b"),
        ("MiniMaxAI/MiniMax-M2.5", "minimax-m2"),
        ("zai-org/GLM-4.6-FP8", "glm-4.5"),
        ("moonshotai/Kimi-K2-Instruct", "kimi-k2"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("QWEN/qwen3-32b", "qwen3-32b"),
    ],
)
def test_models_are_known_by_the_last_part_of_their_path(path: str, preset: str) -> None:
    assert served_model(path).name == preset


@pytest.mark.parametrize(
    ("system", "gpu"),
    [
        ("h100_sxm", "H100-SXM5-80GB"),
        ("h200_sxm", "H200-SXM5-141GB"),
        ("b200_sxm", "B200-SXM-180GB"),
        ("b300_sxm", "B300-SXM-288GB"),
        ("gb200", "GB200-NVL72"),
        ("gb300", "GB300-NVL72"),
        ("a100_sxm", "A100-SXM4-80GB"),
        ("l40s", "L40S-48GB"),
        ("GB200_NVL72", "GB200-NVL72"),
    ],
)
def test_systems_are_gpus(system: str, gpu: str) -> None:
    assert system_gpu(system).name == gpu


MESHES = {  # columns: GPUs, tp, attention dp, moe tp, moe ep
    (4, 1, 4, 1): (4, 4, 1, 4, 1),
    (4, 1, 1, 4): (4, 4, 1, 1, 4),
    (16, 1, 4, 4): (4, 4, 1, 1, 4),  # tp times ep of the same four GPUs
    (64, 1, 8, 8): (8, 8, 1, 1, 8),
    (1, 64, 8, 8): (8, 1, 8, 1, 8),
    (1, 8, 1, 8): (8, 1, 8, 1, 8),
    (4, 4, 1, 16): (4, 4, 1, 1, 4),
}


@pytest.mark.parametrize("columns", MESHES)
def test_meshes_that_a_source_counts_twice_are_those_of_their_gpus(
    tmp_path: Path, columns: tuple[int, int, int, int]
) -> None:
    names = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    fields = {name: f"{n}.0" for name, n in zip(names, columns, strict=True)}
    model = {"model_path": "deepseek-ai/DeepSeek-R1"}
    (row,) = table_of(tmp_path, row_with(**fields, **model)).rows
    r = row.replica
    assert (r.gpus, r.tp, r.attention_dp, r.moe_tp, r.moe_ep) == MESHES[columns]


def test_a_missing_dp_is_told_by_the_concurrency_per_group(tmp_path: Path) -> None:
    fields = {"attention_dp_size": "", "tp_size": "8", "moe_tp_size": "1", "moe_ep_size": "8", "batch_size": "56"}
    (row,) = table_of(tmp_path, row_with(**fields, concurrency="448")).rows
    assert (row.replica.tp, row.replica.attention_dp) == (1, 8)


def test_formats_and_load(tmp_path: Path) -> None:
    (row,) = table_of(tmp_path, ROW).rows
    formats = row.replica.formats
    assert (formats.weights.name, formats.experts.name, formats.cache) == ("fp8_block", "fp8_block", "fp8")
    assert (row.loop.concurrency, row.loop.isl, row.first_s, row.each_s) == (64, 1024.0, 0.088, 0.0095)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"model_path": "acme/Unheard-9T"}, "found the model 'Unheard-9T'"),
        ({"system": "mi300x"}, "found the system 'mi300x', of whose GPU there is no datasheet"),
        ({"system": " "}, "it states no system"),
        ({"tp_size": "2.5"}, "found tp_size = 2.5, expected whole ranks"),
        ({"tp_size": "100000"}, "found tp_size = 100000, expected whole ranks up to 4,096"),
        ({"tp_size": "1024", "pp_size": "8"}, "found a replica of 8,192 GPUs, expected at most 4,096"),
        ({"tp_size": ""}, "it states no tp_size"),
        ({"attention_dp_size": "-1"}, "found attention_dp_size = -1, expected"),
        ({"batch_size": "nan"}, "found batch_size = nan, expected a number up to 1,000,000"),
        ({"concurrency": "inf"}, "found concurrency = inf, expected a number up to 1,000,000"),
        ({"concurrency": "1e7"}, "found concurrency = 1e7, expected a number up to 1,000,000"),
        ({"batch_size": "", "concurrency": ""}, "it states no concurrency"),
        ({"osl": "1"}, "an answer of one token has no time per output token"),
        ({"isl": "1e9"}, "found isl = 1e+09, expected 1 to 16,777,216 tokens"),
        ({"backend": "llama.cpp"}, "no model of the framework 'llama.cpp'"),
        ({"isl": ""}, "it states no isl"),
        ({"silicon_tpot_ms": "fast"}, "found silicon_tpot_ms = 'fast', expected a number"),
        ({"gemm_quant_mode": "fp3"}, "found the format 'fp3'"),
    ],
)
def test_a_row_that_cannot_be_answered_says_why(tmp_path: Path, fields: dict[str, str], reason: str) -> None:
    table = table_of(tmp_path, ROW, row_with(id="s1", **fields))
    assert (len(table.rows), table.count) == (1, 2)
    (refused,) = table.refused
    assert refused.id == "s1"
    assert reason in refused.reason


def test_all_of_the_projects_rows_can_be_answered() -> None:
    table = read_runs(PROJECT)
    assert (len(table.rows), table.refused) == (1465, ())


def test_unknown_columns_are_ignored_and_optional_ones_may_be_missing(tmp_path: Path) -> None:
    header = "model_path,backend,system,tp_size,isl,osl,batch_size,silicon_tpot_ms,colour"
    table = table_of(tmp_path, "Qwen/Qwen3-32B,vllm,h200_sxm,2,1000,500,8,10.5,green", header=header)
    (row,) = table.rows
    assert (row.id, row.first_s, row.replica.tp, row.mode) == ("0", 0.0, 2, "agg")


def test_a_file_that_is_no_table_of_runs_is_refused_by_its_place(tmp_path: Path) -> None:
    with pytest.raises(LogFormatError, match=r"runs.csv:1:1: found no column backend"):
        table_of(tmp_path, "1,2", header="a,b")
    with pytest.raises(LogFormatError, match="found no rows below the header"):
        table_of(tmp_path)
    with pytest.raises(LogFormatError, match="cannot be read"):
        read_runs(tmp_path / "nothing.csv")
