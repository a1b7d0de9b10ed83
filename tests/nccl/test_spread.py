"""The slowest of several ways between nodes: what it adds, and to which calls."""

from __future__ import annotations

import pytest

from commsim.fitting.fields import replaced
from commsim.nccl.predict import Options, Predictor
from commsim.topology.presets import load_preset

SPREAD = 3e-6


def added_us(preset: str, nodes: int, collective: str, nbytes: int, **env: str) -> tuple[float, int]:
    """What a spread of 3 us adds to the kernel's time in us, and the channels of the call."""
    model = Predictor(load_preset(preset, nodes=nodes), Options((2, 26, 2), env, "process_per_gpu"))
    times = []
    for spread in (0.0, SPREAD):
        model.parameters = replaced(model.parameters, {"network.spread": spread})
        prediction = model.predict(collective, nbytes)
        times.append(prediction.kernel_s)
    return 1e6 * (times[1] - times[0]), prediction.channels


@pytest.mark.parametrize(
    ("nbytes", "channels", "doublings"), [(4 << 10, 1, 0), (8 << 10, 2, 1), (32 << 10, 8, 3), (64 << 10, 16, 3)]
)
def test_calls_of_ll_wait_longer_with_every_doubling_up_to_the_gpus_of_a_node(
    nbytes: int, channels: int, doublings: int
) -> None:
    env = {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"}
    added, used = added_us("hgx-h100-ndr400", 2, "all_reduce", nbytes, **env)
    assert added == pytest.approx(3 * doublings)
    assert used == channels


def test_hops_of_other_protocols_are_stated_for_all_nics() -> None:
    env = {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL128"}
    assert added_us("hgx-h100-ndr400", 2, "all_reduce", 8 << 20, **env)[0] == pytest.approx(0.0)
    added, channels = added_us("hgx-h100-ndr400", 2, "all_reduce", 1 << 10, **env)
    assert added == pytest.approx(-9.0)
    assert channels == 1
    assert added_us("aws-p4d", 2, "all_gather", 256 << 20, NCCL_ALGO="Ring", NCCL_PROTO="Simple")[0] == 0.0


def test_one_node_and_chains_have_none() -> None:
    assert added_us("hgx-h100-ndr400", 1, "all_reduce", 64 << 10)[0] == 0.0
    assert added_us("hgx-h100-ndr400", 2, "broadcast", 64 << 10, NCCL_PROTO="LL")[0] == 0.0


def test_the_most_channels_of_a_call_are_those_that_its_hops_are_stated_for() -> None:
    env = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
    assert added_us("hgx-h100-ndr400", 2, "all_gather", 256 << 20, **env, NCCL_MAX_NCHANNELS="2")[0] == 0.0
    model = Predictor(load_preset("hgx-h100-ndr400", nodes=2), Options((2, 26, 2), env, channels=2))
    fewer = Predictor(model.topology, Options((2, 26, 2), env | {"NCCL_MAX_NCHANNELS": "2"}))
    sizes = [1 << 10, 1 << 20, 256 << 20]
    assert [model.predict("all_gather", n).channels for n in sizes] == [
        fewer.predict("all_gather", n).channels for n in sizes
    ]


def test_ways_are_no_more_than_nics() -> None:
    # A p4d has eight GPUs and four NICs.
    env = {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"}
    assert added_us("aws-p4d", 2, "all_reduce", 64 << 10, **env)[0] == pytest.approx(6.0)


@pytest.mark.parametrize("protocol", ["LL", "LL128", "Simple"])
@pytest.mark.parametrize("preset", ["hgx-h100-efa3200", "gcp-a3-mega", "hgx-h100-ndr400"])
def test_an_empty_call_takes_its_base(preset: str, protocol: str) -> None:
    model = Predictor(load_preset(preset, nodes=2), Options((2, 26, 2), {"NCCL_PROTO": protocol}, "process_per_gpu"))
    assert model.predict("all_reduce", 0).kernel_s >= model.parameters.base.of(protocol)


def test_a_slower_fabric_spreads_its_ways_farther() -> None:
    model = Predictor(load_preset("hgx-h100-ndr400", nodes=2), Options((2, 26, 2)))
    assert model.parameters.scaled(latency=2.0).network.spread == pytest.approx(2 * model.parameters.network.spread)
