"""Parameter counts against the published ones, and models from files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commsim.errors import ScenarioError
from commsim.training.hf_config import read_hf_config
from commsim.training.model import Model, Moe, model, model_names
from commsim.training.names import model_key

# Elements of the weights of the published checkpoints (Hugging Face hub, safetensors metadata).
EXACT = {
    "gpt2-124m": 124_439_808,
    "llama-7b": 6_738_415_616,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-0.5b": 494_032_768,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "gpt-oss-120b": 116_829_156_672,
    "bloom-176b": 176_247_271_424,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_419_200,
    "opt-1.3b": 1_315_758_080,
    "gpt-neox-20b": 20_554_567_680,
}

# The source prints a size that its own layers, width and vocabulary do not give; by how much (percent).
ROUNDED = {
    "megatron-1.7b": -2.9,
    "megatron-3.6b": -1.1,
    "mcore-1.7b": 2.7,
    "mcore-16b": 0.7,
    "mcore-32b": -1.7,
    "opt-1.3b": 1.3,
    "opt-6.7b": -0.7,
    "opt-13b": -1.2,
    "opt-350m": 1.7,
    "llama-7b": 0.6,
    "llama2-34b": -0.8,
    "llama4-scout": -1.2,  # the vision encoder is not included
    "qwen3.5-35b-a3b": -1.0,  # the same
    "glm-4.5": -0.7,  # the MTP layer is not included
    "glm-4.5-air": 0.9,
    "minimax-m2": -0.6,
    "kimi-k2": 2.7,
    "qwen2.5-0.5b": 0.9,
    "qwen2.5-32b": 0.9,
    "qwen3-0.6b": -0.7,
    "qwen3-1.7b": 1.3,
    "qwen3-4b": 0.6,
    "bert-large": -0.6,
    "nemotron3-8b": 6.8,
    "nemotron3-22b": -3.4,
    "grok1-314b": 0.6,
}


@pytest.mark.parametrize(("name", "count"), EXACT.items())
def test_checkpoints_have_as_many_parameters(name: str, count: int) -> None:
    assert model(name).parameters() == pytest.approx(count, rel=2e-4)


@pytest.mark.parametrize("name", model_names())
def test_counts_are_the_published_ones(name: str) -> None:
    found = model(name)
    if found.published is None:
        pytest.skip("no published count")
    off = 100 * (found.parameters() / 1e9 / found.published - 1)
    limit = ROUNDED.get(name, 0.5)
    assert abs(off) <= abs(limit)
    assert name not in ROUNDED or off * limit > 0


def test_active_parameters_count_the_chosen_experts() -> None:
    assert model("mixtral-8x7b").active_parameters() == pytest.approx(12.88e9, rel=1e-3)
    assert model("deepseek-v3").active_parameters() == pytest.approx(37.55e9, rel=1e-3)
    assert model("llama3-8b").active_parameters() == model("llama3-8b").parameters()


# As their model cards print them, in 1e9: all parameters, those of a token, and how many of the two vocabulary matrices
# these count. gpt-oss: arXiv:2508.10925, table 1. GLM-4.5: arXiv:2508.06471. Others: Hugging Face hub.
PUBLISHED = {
    "gpt-oss-20b": (20.91, 3.61, 1),
    "gpt-oss-120b": (116.83, 5.13, 1),
    "glm-4.5": (355, 32, 0),
    "glm-4.5-air": (106, 12, 0),
    "minimax-m2": (230, 10, 0),
    "llama4-scout": (109, 17, 2),
    "llama4-maverick": (400, 17, 2),
    "deepseek-v3.2": (671, 37, 2),
    "gemma3-27b": (27, 27, 2),
    "qwen3-30b-a3b": (30.5, 3.3, 2),
    "qwen3-235b-a22b": (235, 22, 2),
    "qwen3-next-80b-a3b": (79.7, 3.25, 0),  # model card: 80B, 79B of them no embedding, 3B active
    "qwen3.5-397b-a17b": (397, 17.3, 2),
    "nemotron3-nano-30b-a3b": (31.6, 3.2, 1),  # 3.6 with the embedding
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_all_and_active_parameters_are_the_published_ones(name: str) -> None:
    every, active, matrices = PUBLISHED[name]
    preset = model(name)
    outside = (2 - matrices) * preset.vocab * preset.hidden
    assert preset.parameters() == pytest.approx(every * 1e9, rel=0.02)
    assert preset.active_parameters() - outside == pytest.approx(active * 1e9, rel=0.02)


SPELLINGS = {
    "LLAMA3_70B": "llama3-70b",
    "llama-3-70b": "llama3-70b",
    "Llama-3 405B": "llama3.1-405b",
    "Llama 3.1 405B": "llama3.1-405b",
    "meta-llama/Llama-3.1-405B-Instruct": "llama3.1-405b",
    "Meta-Llama-3-8B": "llama3-8b",
    "Llama-2-7b-chat-hf": "llama2-7b",
    "Llama 4 Scout": "llama4-scout",
    "Llama-4-Maverick-17B-128E-Instruct": "llama4-maverick",
    "Qwen3 MoE 30B": "qwen3-30b-a3b",
    "Qwen/Qwen3-30B-A3B-Instruct-2507": "qwen3-30b-a3b",
    "Qwen3 235B": "qwen3-235b-a22b",
    "Mixtral-8x7B": "mixtral-8x7b",
    "mistralai/Mixtral-8x7B-v0.1": "mixtral-8x7b",
    "Mixtral 8×22B": "mixtral-8x22b",
    "DeepSeek V3": "deepseek-v3",
    "DeepSeek-V3 (671B)": "deepseek-v3",
    "deepseek_r1": "deepseek-v3",
    "DeepSeek-V3.2": "deepseek-v3.2",
    "gpt-oss 120B": "gpt-oss-120b",
    "openai/gpt-oss-20b": "gpt-oss-20b",
    "GPT-3": "gpt3-175b",
    "GPT-3 175B": "gpt3-175b",
    "GPT3 175 billion": "gpt3-175b",
    "GLM-4.5": "glm-4.5",
    "GLM 4.5 Air": "glm-4.5-air",
    "MiniMax M2.5": "minimax-m2",
    "Kimi K2": "kimi-k2",
    "google/gemma-3-27b-it": "gemma3-27b",
    "OPT-13B": "opt-13b",
    "Qwen/Qwen3-Next-80B-A3B-Instruct": "qwen3-next-80b-a3b",
    "Qwen3.5 397B": "qwen3.5-397b-a17b",
    "Nemotron 3 Nano": "nemotron3-nano-30b-a3b",
    "nvidia/Nemotron-3-Nano-30B-A3B": "nemotron3-nano-30b-a3b",
}


@pytest.mark.parametrize("written", SPELLINGS)
def test_names_are_known_as_people_write_them(written: str) -> None:
    assert model(written).name == SPELLINGS[written]


def test_no_two_presets_are_spelt_alike() -> None:
    assert len({model_key(name) for name in model_names()}) == len(model_names())
    assert all(model(name).name == name for name in model_names())


@pytest.mark.parametrize("name", ["Nemotron 3 Super", "nvidia/Nemotron-3-Ultra"])
def test_a_model_of_other_layers_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ScenarioError, match="its experts work in a latent space"):
        model(name)


@pytest.mark.parametrize(("name", "meant"), [("llama3-71b", "llama3-70b"), ("grok", "grok1-314b")])
def test_an_unknown_name_is_answered_by_the_nearest_ones(name: str, meant: str) -> None:
    with pytest.raises(ScenarioError, match=meant):
        model(name)


def test_an_unknown_name_is_answered_by_at_most_three() -> None:
    assert sum(name.startswith("opt-") for name in model_names()) > 3
    with pytest.raises(ScenarioError, match=r"such as opt-\S+ or opt-\S+ or opt-[^ ,]+, or a config.json"):
        model("opt")


def test_a_model_that_cannot_be_names_every_fault() -> None:
    with pytest.raises(ScenarioError, match=r"layers = 0.*heads = 6, expected a multiple of kv_heads = 4.*top_k = 9"):
        Model("x", 0, 64, 256, 6, 4, 16, 100, 8, moe=Moe(8, 9, 64))
    with pytest.raises(ScenarioError, match=r"kv_heads = 0, expected at least 1$"):
        Model("x", 2, 64, 256, 6, 0, 16, 100, 8)


def _write(folder: Path, config: dict[str, object]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config, indent=2))
    return path


LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
}


def test_a_config_json_is_a_model(tmp_path: Path) -> None:
    assert read_hf_config(_write(tmp_path, LLAMA)).parameters() == model("llama3-8b").parameters()


def test_a_config_json_of_deepseek_v3(tmp_path: Path) -> None:
    config = LLAMA | {
        "model_type": "deepseek_v3",
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "num_hidden_layers": 61,
        "vocab_size": 129280,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "n_shared_experts": 1,
        "first_k_dense_replace": 3,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }
    assert read_hf_config(_write(tmp_path, config)).parameters() == model("deepseek-v3").parameters()


@pytest.mark.parametrize(
    ("name", "config"),
    [
        (
            "glm-4.5",
            {"model_type": "glm4_moe", "hidden_size": 5120, "intermediate_size": 12288, "num_attention_heads": 96}
            | {"num_hidden_layers": 92, "vocab_size": 151552, "head_dim": 128, "n_routed_experts": 160}
            | {"moe_intermediate_size": 1536, "n_shared_experts": 1, "first_k_dense_replace": 3},
        ),
        (
            "minimax-m2",
            {"model_type": "minimax_m2", "hidden_size": 3072, "intermediate_size": 1536, "num_attention_heads": 48}
            | {"num_hidden_layers": 62, "vocab_size": 200064, "head_dim": 128, "num_local_experts": 256},
        ),
    ],
)
def test_a_config_json_of_other_experts(tmp_path: Path, name: str, config: dict[str, object]) -> None:
    assert (
        read_hf_config(_write(tmp_path, LLAMA | config | {"num_experts_per_tok": 8})).parameters()
        == model(name).parameters()
    )


@pytest.mark.parametrize(("name", "experts", "step"), [("llama4-scout", 16, 1), ("llama4-maverick", 128, 2)])
def test_a_config_json_that_holds_a_language_model(tmp_path: Path, name: str, experts: int, step: int) -> None:
    text = LLAMA | {"model_type": "llama4_text", "hidden_size": 5120, "num_attention_heads": 40, "head_dim": 128}
    text |= {"intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_hidden_layers": 48, "vocab_size": 202048}
    text |= {"num_local_experts": experts, "num_experts_per_tok": 1, "interleave_moe_layer_step": step}
    read = read_hf_config(_write(tmp_path, {"model_type": "llama4", "text_config": text}))
    assert read.parameters() == model(name).parameters()
    assert ("alternate" in read.left_out) == (step > 1)
    assert read.left_out.endswith("what is no language model")


def test_a_fault_in_a_language_model_has_its_line(tmp_path: Path) -> None:
    path = _write(tmp_path, {"model_type": "gemma3", "text_config": LLAMA | {"hidden_size": "5376"}})
    with pytest.raises(ScenarioError, match=r"config\.json:5:\d+ text_config\.hidden_size: found '5376'"):
        read_hf_config(path)


@pytest.mark.parametrize(
    ("more", "left_out"),
    [
        ({"model_type": "deepseek_v32", "index_topk": 2048}, "choice of 2,048 tokens"),
        ({"model_type": "gemma3_text", "sliding_window": 1024}, ""),
        ({"model_type": "mistral", "sliding_window": None}, ""),
    ],
)
def test_patterns_of_attention_that_are_left_out_are_named(
    tmp_path: Path, more: dict[str, object], left_out: str
) -> None:
    read = read_hf_config(_write(tmp_path, LLAMA | {"max_position_embeddings": 8192} | more)).left_out
    assert left_out in read
    assert bool(left_out) == bool(read)


def test_a_wrong_config_json_names_every_fault_at_its_line(tmp_path: Path) -> None:
    path = _write(tmp_path, {"model_type": "llama", "hidden_size": "4096", "num_hidden_layers": -1})
    with pytest.raises(ScenarioError) as caught:
        read_hf_config(path)
    lines = str(caught.value).splitlines()
    assert any(f"{path}:3:18 hidden_size: found '4096'" in line for line in lines)
    assert any("num_hidden_layers: found -1" in line for line in lines)
    assert any("found no key 'vocab_size'" in line for line in lines)


@pytest.mark.parametrize(
    "text", ["", "[1, 2]", "{" * 5000, '{"model_type": "lstm"}', "\0", '{"model_type": ["llama"]}']
)
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=r"config\.json"):
        read_hf_config(path)


def test_what_a_family_takes_for_granted(tmp_path: Path) -> None:
    """The classes of GPT-NeoX take four times the width where no MLP is named; Llama's must name it."""
    without = {name: value for name, value in LLAMA.items() if name != "intermediate_size"}
    assert read_hf_config(_write(tmp_path, without | {"model_type": "gpt_neox"})).ffn_hidden == 4 * 4096
    with pytest.raises(ScenarioError, match="found no key 'intermediate_size'"):
        read_hf_config(_write(tmp_path, without))


@pytest.mark.parametrize(
    ("family", "gated"),
    [
        *((name, False) for name in ("gpt2", "opt", "bloom", "gpt_neox", "gptj", "falcon", "mpt", "phi", "starcoder2")),
        *((name, True) for name in ("llama", "qwen2", "gemma", "cohere", "gpt_oss", "phi3")),
    ],
)
def test_a_family_gates_its_mlp_or_not(tmp_path: Path, family: str, gated: bool) -> None:
    """As the class of the family in transformers has a gate_proj (or a fused one), or only an up-projection."""
    one = read_hf_config(_write(tmp_path, LLAMA | {"model_type": family}))
    assert one.gated_mlp is gated
    assert one.mlp_parameters == pytest.approx((3 if gated else 2) * 4096 * 14336, rel=2e-3)  # biases


@pytest.mark.parametrize(
    ("tied", "families"),
    [
        (True, "gpt2 opt gpt_bigcode gpt_neo bloom falcon mpt starcoder2 gemma gemma2 gemma3_text cohere"),
        (False, "llama mistral mixtral qwen2 qwen3 gpt_neox gptj phi phi3 nemotron gpt_oss deepseek_v3"),
    ],
)
def test_a_family_ties_its_embeddings_where_the_file_says_nothing(tmp_path: Path, tied: bool, families: str) -> None:
    """As the family's configuration class in transformers does by default."""
    without = {name: value for name, value in LLAMA.items() if name != "tie_word_embeddings"}
    for family in families.split():
        assert read_hf_config(_write(tmp_path, without | {"model_type": family})).tied_embeddings is tied, family


_GLOBAL, _LOCAL = "full_attention", "sliding_attention"


@pytest.mark.parametrize(
    ("more", "windows"),
    [
        ({"model_type": "gpt_oss"}, (128, 16)),  # every second of 32 layers
        ({"model_type": "gemma3_text"}, (128, 27)),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 4}, (128, 24)),
        ({"model_type": "gemma3_text", "layer_types": [_LOCAL] * 30 + [_GLOBAL] * 2}, (128, 30)),
        ({"model_type": "mistral"}, (128, 32)),
        ({"model_type": "mistral", "sliding_window": None}, (0, 0)),
        ({"model_type": "llama"}, (0, 0)),
        ({"model_type": "qwen3"}, (0, 0)),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 28}, (128, 4)),
        ({"model_type": "llama4_text", "attention_chunk_size": 8192}, (8192, 24)),
    ],
)
def test_layers_with_a_window_are_those_of_the_family_or_named(
    tmp_path: Path, more: dict[str, object], windows: tuple[int, int]
) -> None:
    read = read_hf_config(_write(tmp_path, LLAMA | {"sliding_window": 128} | more))
    assert (read.window, read.window_layers) == windows
    assert read.chunked == ("attention_chunk_size" in more)
    assert read.sinks == (more["model_type"] == "gpt_oss")


_QWEN3_NEXT = {
    "model_type": "qwen3_next", "hidden_size": 2048, "intermediate_size": 5120, "num_attention_heads": 16,
    "head_dim": 256, "num_key_value_heads": 2, "num_hidden_layers": 48, "vocab_size": 151936, "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
}  # fmt: skip

_NEMOTRON = {
    "model_type": "nemotron_h", "hidden_size": 2688, "intermediate_size": 1856, "num_attention_heads": 32,
    "head_dim": 128, "num_key_value_heads": 2, "num_hidden_layers": 52, "vocab_size": 131072, "n_routed_experts": 128,
    "num_experts_per_tok": 6, "moe_intermediate_size": 1856, "n_shared_experts": 1,
    "moe_shared_expert_intermediate_size": 3712, "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128,
    "n_groups": 8, "conv_kernel": 4, "chunk_size": 128, "hybrid_override_pattern": "ME" * 23 + "*" * 6,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (_QWEN3_NEXT, "qwen3-next-80b-a3b"),
        (_QWEN3_NEXT | {"layer_types": (["linear_attention"] * 3 + [_GLOBAL]) * 12}, "qwen3-next-80b-a3b"),
        (_NEMOTRON, "nemotron3-nano-30b-a3b"),
    ],
)
def test_a_config_json_of_other_mixers_is_the_preset(tmp_path: Path, config: dict[str, object], name: str) -> None:
    read, preset = read_hf_config(_write(tmp_path, config)), model(name)
    assert (read.linear, read.attending_layers, read.layers) == (preset.linear, preset.attending_layers, preset.layers)
    assert (read.parameters(), read.active_parameters()) == (preset.parameters(), preset.active_parameters())
    assert bool(read.left_out) == bool(preset.left_out)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"hybrid_override_pattern": "ME"}, "a letter of M"),
        ({"hybrid_override_pattern": "MX" * 26}, "a letter of M"),
        ({"hybrid_override_pattern": "MME*" * 13}, "as many MLPs as blocks of a mixer"),
        ({"moe_latent_size": 1024}, "experts in a latent space"),
    ],
)
def test_blocks_that_cannot_be_layers_are_refused(tmp_path: Path, more: dict[str, object], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        read_hf_config(_write(tmp_path, _NEMOTRON | more))


def test_blocks_with_plain_mlps_make_layers_with_them(tmp_path: Path) -> None:
    """Nemotron-H 8B: 24 Mamba-2 blocks, 4 of attention, 24 MLPs."""
    config = {k: v for k, v in _NEMOTRON.items() if "expert" not in k}
    read = read_hf_config(_write(tmp_path, config | {"hybrid_override_pattern": "M-" * 24 + "*" * 4}))
    assert (read.layers, read.attending_layers, read.moe) == (24, 4, None)
    assert read.linear is not None
    assert read.linear.layers == 24


def test_types_of_other_layers_than_there_are_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="expected a list of 32 types"):
        read_hf_config(_write(tmp_path, LLAMA | {"layer_types": [_LOCAL]}))


@pytest.mark.parametrize(
    ("config", "kv_heads"),
    [
        ({"model_type": "falcon"}, 1),
        ({"model_type": "falcon", "new_decoder_architecture": True}, 32),
        ({"model_type": "falcon", "multi_query": False}, 32),
        ({"model_type": "gpt_bigcode"}, 1),
        ({"model_type": "gpt_neox"}, 32),
    ],
)
def test_heads_of_keys_where_none_are_named(tmp_path: Path, config: dict[str, object], kv_heads: int) -> None:
    without = {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"}
    assert read_hf_config(_write(tmp_path, without | config)).kv_heads == kv_heads
