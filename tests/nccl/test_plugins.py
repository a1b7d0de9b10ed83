"""What the network plugins of clouds set: on the presets, in jobs, and the same for logs of today."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest

from commsim.errors import TopologyError
from commsim.nccl.parameters import network_of
from commsim.nccl.plugins import PLUGINS, for_groups, of_machine, plugin_note, variables
from commsim.nccl.predict import Options, Predictor
from commsim.report.topology_tables import topology_sheet
from commsim.scenario.load import load_scenarios
from commsim.scenario.setting import build_topology
from commsim.scenario.training_run import comm_times
from commsim.topology.presets import load_preset, preset_names
from study.cases import case_of

VERSION = (2, 28, 7)
P5 = "hgx-h100-efa3200"
CHUNKS = {"NCCL_NVLSTREE_MAX_CHUNKSIZE": "524288", "NCCL_NVLS_CHUNKSIZE": "524288"}
P5_SETS = CHUNKS | {"NCCL_BUFFSIZE": "8388608"}
TUNED = P5_SETS | {"NCCL_TUNER_PLUGIN": "libnccl-ofi-tuner.so"}

FEW_NICS = {"NCCL_CROSS_NIC": "0", "NCCL_NET_GDR_LEVEL": "PIX"}
EIGHT = {"NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "8"}
TCPXO = {
    "NCCL_PROTO": "Simple,LL128", "NCCL_MIN_NCHANNELS": "4", "NCCL_NVLS_ENABLE": "0", "NCCL_BUFFSIZE": "8388608"
}  # fmt: skip


@pytest.mark.parametrize(
    ("preset", "knobs", "sets"),
    [
        (P5, {"nodes": 16}, TUNED),
        ("aws-p5en", {"nodes": 3}, TUNED),
        ("aws-p6-b200", {"nodes": 2}, P5_SETS),
        ("aws-p6-b200", {"nodes": 1}, P5_SETS),
        (P5, {"nodes": 4, "gpus_per_node": 4}, P5_SETS),  # the tuner would have no say
        ("aws-p4d", {"nodes": 2}, {"NCCL_PROTO": "Simple"}),
        ("aws-p3dn", {"nodes": 2}, {"NCCL_PROTO": "Simple"}),
        ("aws-p4d", {"nodes": 1}, {}),
        ("gcp-a3-high", {"nodes": 2}, FEW_NICS | EIGHT | {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}),
        ("gcp-a3-mega", {"nodes": 2}, FEW_NICS | TCPXO),
        ("gcp-a3-mega", {"nodes": 1}, {}),
        ("gcp-a3-ultra", {"nodes": 2}, {"NCCL_NVLS_CHUNKSIZE": "524288"}),
        ("gcp-a4", {"nodes": 1}, {"NCCL_NVLS_CHUNKSIZE": "524288"}),
        ("hgx-h100-ndr400", {"nodes": 4}, {}),
    ],
)
def test_presets(preset: str, knobs: dict[str, int], sets: dict[str, str]) -> None:
    topology = load_preset(preset, **knobs)
    assert of_machine(topology, VERSION) == sets
    model = Predictor(topology, Options(VERSION))
    assert model.options.env == sets
    assert [w for w in model.warnings if "fabric.plugin" in w] == ([plugin_note(topology, VERSION)] if sets else [])
    assert all(f"{name}={value}" in topology_sheet(topology) for name, value in sets.items())
    bare = load_preset(preset, **knobs, fabric={"plugin": "none"})
    assert Predictor(bare, Options(VERSION)).options.env == {}
    assert "fabric.plugin" not in topology_sheet(bare)


def test_every_cloud_preset_names_its_plugin() -> None:
    with_one = {name for name in preset_names() if load_preset(name, nodes=1).plugin in PLUGINS}
    assert with_one == {name for name in preset_names() if name.startswith(("aws", "gcp"))} | {P5}


def test_the_job_has_the_last_word() -> None:
    topology = load_preset(P5, nodes=16)
    model = Predictor(topology, Options(VERSION, {"NCCL_BUFFSIZE": "4194304", "NCCL_TUNER_PLUGIN": "none"}))
    assert model.options.env == TUNED | {"NCCL_BUFFSIZE": "4194304", "NCCL_TUNER_PLUGIN": "none"}
    assert model.choose("all_reduce", 256 << 20) == ("nvls_tree", "Simple")  # NCCL's own
    assert not any("no effect" in w or "NCCL_BUFFSIZE" in w for w in model.warnings)
    assert Predictor(topology, Options(VERSION)).choose("all_reduce", 256 << 20) == ("tree", "LL128")  # the tuner's


def test_a_tuner_needs_an_nccl_that_loads_it() -> None:
    topology = load_preset(P5, nodes=4)
    assert of_machine(topology, (2, 18, 6)) == P5_SETS
    assert of_machine(topology, (2, 19, 1)) == TUNED


def test_a_plugin_belongs_to_its_network() -> None:
    assert load_preset(P5, nodes=2, fabric={"network": "infiniband"}).plugin == "none"
    for network in ("efa", "efa_v1"):
        assert load_preset(P5, nodes=2, fabric={"network": network}).plugin == "aws-ofi-nccl"
    assert load_preset(P5, nodes=2, fabric={"network": "roce"}).plugin == "none"
    assert load_preset(P5, nodes=2, fabric={"kind": "fat_tree"}).plugin == "aws-ofi-nccl"
    assert load_preset("hgx-h100-roce400", nodes=2, fabric={"plugin": "gib"}).plugin == "gib"
    assert load_preset("gcp-a4", nodes=1, nics_per_node=0).plugin == "none"
    for preset, plugin, network in [("aws-p4d", "gib", "roce"), ("hgx-h100-ndr400", "tcpxo", "tcpx")]:
        with pytest.raises(TopologyError, match=f"fabric.plugin: {plugin} is for network {network}; found network"):
            load_preset(preset, nodes=2, fabric={"plugin": plugin})


@pytest.mark.parametrize(
    ("plugin", "gpu", "day", "name", "before", "since"),
    [
        ("aws-ofi-nccl", "A100", date(2023, 3, 31), "NCCL_PROTO", None, "Simple"),
        ("aws-ofi-nccl", "H100", date(2025, 6, 1), "NCCL_BUFFSIZE", None, "8388608"),
        ("aws-ofi-nccl", "H100", date(2024, 8, 1), "NCCL_NVLS_CHUNKSIZE", None, "524288"),
        ("tcpxo", "H100", date(2025, 7, 1), "NCCL_PROTO", "Simple", "Simple,LL128"),
    ],
)
def test_plugins_of_a_day(plugin: str, gpu: str, day: date, name: str, before: str | None, since: str) -> None:
    assert variables(plugin, gpu, 2, day - timedelta(days=1)).get(name) == before
    assert variables(plugin, gpu, 2, day).get(name) == variables(plugin, gpu, 2).get(name) == since


def test_groups_inside_a_node_have_the_environment_of_the_job(checkout: Path) -> None:
    path = checkout / "scenarios" / "training" / "llama-3-70b-512-h100.yaml"
    preset = "topology.preset=gcp-a3-mega"

    def seconds(*overrides: str) -> tuple[float, list[str]]:
        (scenario,) = load_scenarios(path, [preset, *overrides])
        times = comm_times(scenario, build_topology(scenario))
        return times("all_reduce", 1 << 30, np.arange(8)), [w for w in times.warnings if "fabric.plugin" in w]

    bare = "topology.fabric.plugin=none"
    (own, told), (plain, untold) = seconds(), seconds(bare)
    assert own > 1.2 * plain  # NVLS is off
    assert own == pytest.approx(seconds(bare, "library.env.NCCL_NVLS_ENABLE='0'")[0], rel=0.02)
    assert (len(told), untold) == (1, [])


@pytest.mark.parametrize(
    ("preset", "row"),
    [
        (P5, {"machine": "hgx-h100", "network": "efa", "nics_per_node": "32", "nic_gbps": "100"}),
        ("aws-p5en", {"machine": "hgx-h200", "network": "efa", "nics_per_node": "16", "nic_gbps": "200"}),
        ("aws-p6-b200", {"machine": "hgx-b200", "network": "efa", "nics_per_node": "8", "nic_gbps": "400"}),
        ("aws-p4d", {"machine": "dgx-a100", "network": "efa", "nics_per_node": "4", "nic_gbps": "100"}),
        ("gcp-a3-high", {"machine": "hgx-h100", "network": "tcpx", "nics_per_node": "4", "nic_gbps": "200"}),
        ("gcp-a3-mega", {"machine": "gcp-a3-mega"}),
        ("gcp-a4", {"machine": "gcp-a4", "network": "roce"}),
    ],
)
@pytest.mark.parametrize("nodes", [2, 4])
def test_a_log_of_today_and_a_preset_have_the_same(
    preset: str, row: dict[str, str], nodes: int, tmp_path: Path
) -> None:
    named = {"slug": "new", "collective": "all_reduce", "launch": "process_per_gpu", "nodes": str(nodes)}
    case = case_of(named | {"n_ranks": str(8 * nodes), "gpus_per_node": "8", "date": "2099-12-31"} | row, tmp_path)
    assert case.fault == ""
    assert case.env == of_machine(load_preset(preset, nodes=nodes), VERSION)
    assert case.topology().plugin == "none"  # and nothing is set twice


@pytest.mark.parametrize(
    ("preset", "collective", "version", "sizes_us"),
    [
        # validation/measured: aws_p4de_a100_n2x8_allreduce and gcp_a3mega_h100_n2x8_allgather, both of 2026
        ("aws-p4d", "all_reduce", (2, 29, 7), {2**10: 165.0, 2**17: 229.7, 2**20: 309.4, 2**23: 762.8, 2**30: 26217}),
        (
            "gcp-a3-mega",
            "all_gather",
            (2, 29, 7),
            {2**16: 96.98, 2**18: 129.67, 2**20: 133.87, 2**22: 148.45, 2**25: 290.54},
        ),
    ],
)
def test_curves_of_clouds_come_out_nearer(
    preset: str, collective: str, version: tuple[int, int, int], sizes_us: dict[int, float]
) -> None:
    def error(plugin: dict[str, object]) -> float:
        model = Predictor(load_preset(preset, nodes=2, **plugin), Options(version))
        return sum(abs(1e6 * model.predict(collective, n).time_s / us - 1) for n, us in sizes_us.items()) / len(
            sizes_us
        )

    assert error({}) < 0.8 * error({"fabric": {"plugin": "none"}})


@pytest.mark.parametrize(
    ("nodes", "env", "mode"),
    [(4, {}, "hardware"), (64, {}, "software"), (64, {"FI_CXI_RX_MATCH_MODE": "hardware"}, "hardware")],
)
def test_who_matches_messages_of_a_group_is_a_matter_of_its_job(nodes: int, env: dict[str, str], mode: str) -> None:
    found, _ = for_groups(load_preset("polaris", nodes=nodes), VERSION, env)
    assert found == {"FI_CXI_RX_MATCH_MODE": mode}
    pair = load_preset("polaris", nodes=2)
    assert network_of(pair, found) == ("slingshot" if mode == "hardware" else "slingshot_software")
    assert for_groups(load_preset("hgx-h100-ndr400", nodes=nodes), VERSION, {})[0] == {}
