"""The NCCL_* variables: which are modelled, and how both syntaxes of the lists are read."""

from __future__ import annotations

import pytest

from commsim.errors import ScenarioError
from commsim.nccl.environment import ALGORITHM_NAMES, Allowed, over_sockets, path_level, unmodelled, whole
from commsim.nccl.predict import Options, Predictor
from commsim.topology.presets import load_preset

EVERY = set(ALGORITHM_NAMES)
PROTOCOLS = {"LL", "LL128", "Simple"}


@pytest.mark.parametrize(
    ("env", "algorithms", "protocols"),
    [
        ({}, EVERY, PROTOCOLS),
        ({"NCCL_ALGO": "Ring"}, {"ring"}, PROTOCOLS),
        ({"NCCL_ALGO": "^Ring,Tree"}, EVERY - {"ring", "tree"}, PROTOCOLS),
        ({"NCCL_ALGO": "allreduce:tree;allgather:ring"}, {"tree"}, PROTOCOLS),
        ({"NCCL_ALGO": "ring,nvls;allreduce:^nvls"}, EVERY - {"nvls"}, PROTOCOLS),
        ({"NCCL_ALGO": "ring;allgather:pat"}, {"ring"}, PROTOCOLS),
        ({"NCCL_PROTO": "^LL128"}, EVERY, {"LL", "Simple"}),
        ({"NCCL_PROTO": "LL,Simple;allreduce:^LL"}, EVERY, {"LL128", "Simple"}),
        ({"NCCL_ALGO": "NVLSTree,Ring"}, {"nvls_tree", "ring"}, PROTOCOLS),
        ({"NCCL_NVLS_ENABLE": "0"}, EVERY - {"nvls", "nvls_tree"}, PROTOCOLS),
    ],
)
def test_lists_of_algorithms_and_protocols(env: dict[str, str], algorithms: set[str], protocols: set[str]) -> None:
    rules = Allowed.from_env(env, "all_reduce")
    assert (set(rules.algorithms), set(rules.protocols)) == (algorithms, protocols)


def test_naming_ll128_forces_it() -> None:
    assert Allowed.from_env({"NCCL_PROTO": "LL128"}, "all_reduce").forced_ll128
    assert Allowed.from_env({"NCCL_PROTO": "^LL"}, "all_reduce").forced_ll128
    assert not Allowed.from_env({}, "all_reduce").forced_ll128


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"NCCL_ALGO": "rng"}, "NCCL_ALGO: unknown name 'rng'"),
        ({"NCCL_PROTO": "allreduc:LL"}, "NCCL_PROTO: unknown collective 'allreduc'"),
    ],
)
def test_unknown_names_are_errors(env: dict[str, str], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        Allowed.from_env(env, "all_reduce")


def test_numbers_and_levels() -> None:
    assert whole({"NCCL_MAX_CTAS": "8"}, "NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS") == 8
    assert whole({}, "NCCL_NTHREADS") is None
    assert whole({"NCCL_BUFFSIZE": "0x400000"}, "NCCL_BUFFSIZE") == 4 << 20
    assert whole({"NCCL_MIN_CTAS": "-2", "NCCL_MAX_CTAS": "8"}, "NCCL_MIN_CTAS", "NCCL_MAX_CTAS") == 8
    for text in ("0x", "-1", "8M", "1" * 5000, "\u0663"):
        with pytest.raises(ScenarioError, match="expected a whole number"):
            whole({"NCCL_BUFFSIZE": text}, "NCCL_BUFFSIZE")
    with pytest.raises(ScenarioError, match="NCCL_NTHREADS: found 'many', expected a whole number, 0 or more"):
        whole({"NCCL_NTHREADS": "many"}, "NCCL_NTHREADS")
    assert path_level({"NCCL_NET_GDR_LEVEL": "phb"}, "NCCL_NET_GDR_LEVEL", "PXB") == 8
    assert path_level({"NCCL_NET_GDR_LEVEL": "2"}, "NCCL_NET_GDR_LEVEL", "PXB") == 5
    with pytest.raises(ScenarioError, match="NCCL_NET_GDR_LEVEL"):
        path_level({"NCCL_NET_GDR_LEVEL": "far"}, "NCCL_NET_GDR_LEVEL", "PXB")


def test_variables_without_effect_are_listed() -> None:
    assert unmodelled({"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring", "PATH": "x"}) == ["NCCL_DEBUG"]
    assert unmodelled({"NCCL_NET": "IB"}) == ["NCCL_NET"]
    assert unmodelled({"NCCL_NET": "Socket"}) == []


@pytest.mark.parametrize(
    ("network", "env", "sockets"),
    [
        ("infiniband", {"NCCL_IB_DISABLE": "1"}, True),
        ("roce", {"NCCL_IB_DISABLE": "1"}, True),
        ("infiniband", {"NCCL_IB_DISABLE": "0"}, False),
        ("slingshot", {"NCCL_IB_DISABLE": "1"}, False),
        ("efa", {"NCCL_NET": "socket"}, True),
        ("efa", {"NCCL_NET": "AWS Libfabric"}, False),
        ("infiniband", {}, False),
    ],
)
def test_which_jobs_use_sockets(network: str, env: dict[str, str], sockets: bool) -> None:
    assert over_sockets(network, env) is sockets


@pytest.mark.parametrize(
    ("preset", "env"), [("abci-v100", {"NCCL_IB_DISABLE": "1"}), ("aws-p4d", {"NCCL_NET": "Socket"})]
)
def test_sockets_by_a_variable_are_those_of_an_ethernet(preset: str, env: dict[str, str]) -> None:
    """Also a plugin's variables go, and GPUDirect RDMA; the user is told whose rate was taken."""
    machine = load_preset(preset, nodes=2)
    ethernet = load_preset(preset, nodes=2, fabric={"network": "ethernet", "plugin": "none"})
    by_variable, by_network = Predictor(machine, Options(env=env)), Predictor(ethernet, Options())
    for nbytes in (8, 1 << 20, 1 << 30):
        assert by_variable.predict("all_reduce", nbytes) == by_network.predict("all_reduce", nbytes)
    plain = Predictor(machine, Options()).predict("all_reduce", 1 << 30)
    assert by_variable.predict("all_reduce", 1 << 30).time_s > plain.time_s
    assert any("TCP over the NICs of the network" in text for text in by_variable.warnings)


def test_sockets_are_nothing_to_one_node() -> None:
    machine = load_preset("hgx-h100", nodes=1)
    plain, sockets = (Predictor(machine, Options(env=env)) for env in ({}, {"NCCL_NET": "Socket"}))
    assert sockets.predict("all_reduce", 1 << 20) == plain.predict("all_reduce", 1 << 20)
    assert sockets.warnings == plain.warnings
