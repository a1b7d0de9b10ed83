"""Slingshot whose messages a processor matches: what it copies takes its turn with what it posts."""

from __future__ import annotations

from math import inf

import pytest

from commsim.errors import ScenarioError
from commsim.nccl.channels import Call, Split
from commsim.nccl.messages import message_turn, ring_turn
from commsim.nccl.parameters import load_parameters, of_job
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.protocols import LL, SIMPLE
from commsim.topology.presets import load_preset

SOFTWARE = {"FI_CXI_RX_MATCH_MODE": "software", "NCCL_CROSS_NIC": "1"}
LIMIT = "FI_CXI_SAFE_DEVMEM_COPY_THRESHOLD"


def _model(**env: str) -> Predictor:
    return Predictor(load_preset("polaris", nodes=8), Options((2, 18, 5), {**SOFTWARE, **env}))


def _call(channels: int) -> Call:
    return Call("all_gather", 1 << 20, "ring", LL, Split(channels, 1 << 18, 512), 4 << 20, True)


def test_a_nic_copies_what_a_ring_brings_in_turn_with_what_it_posts() -> None:
    model = _model()
    network = model.parameters.network
    # One channel comes by one NIC and leaves by the other (Polaris' rings cross); two load both with both.
    for channels, posts, copies in ((1, 0, 1), (2, 1, 1), (4, 2, 2)):
        turn = ring_turn(model.system, model.machine, model.parameters, _call(channels))
        both = posts * network.message_cost.LL + copies * network.rendezvous
        assert turn.post_s + turn.copies_s == pytest.approx(both)
        limit = network.eager / LL.wire_factor
        assert turn.seconds(limit) == message_turn(model.machine, model.parameters, _call(channels)).seconds(limit)
        check = turn.check_s_per_byte * (limit + 1)
        assert turn.seconds(limit + 1) == pytest.approx(max(network.connection_cost.LL, both + check))


def test_nothing_is_copied_where_a_nic_matches_nor_of_simple() -> None:
    by_nic = Predictor(load_preset("polaris", nodes=8), Options((2, 18, 5), {"NCCL_CROSS_NIC": "1"}))
    assert ring_turn(by_nic.system, by_nic.machine, by_nic.parameters, _call(4)).copied_bytes == inf
    model = _model()
    simple = Call("all_gather", 1 << 20, "ring", SIMPLE, Split(4, 1 << 18, 512), 4 << 20, True)
    assert ring_turn(model.system, model.machine, model.parameters, simple).copied_bytes == inf


# validation/measured/polaris_a100_n8x4_allgather_nccl218_env5: one, two and four channels of 4 KiB a step.
@pytest.mark.parametrize(("nbytes", "us"), [(131_072, 278), (262_144, 572), (524_288, 896), (1_048_576, 960)])
def test_rings_of_polaris_take_as_long_as_measured(nbytes: int, us: float) -> None:
    assert _model().predict("all_gather", nbytes).time_s * 1e6 == pytest.approx(us, rel=0.27)


@pytest.mark.parametrize(("value", "eager"), [("16777216", 16 << 10), ("8192", 8192), ("0", 0)])
def test_a_variable_moves_what_a_processor_stores_itself(value: str, eager: int) -> None:
    assert _model(**{LIMIT: value}).parameters.network.eager == eager
    shipped = load_parameters("ampere", "slingshot")
    assert of_job(shipped, {LIMIT: value}) is shipped


def test_the_limit_outlives_other_parameters() -> None:
    model = _model(**{LIMIT: "16384"})
    model.parameters = load_parameters("ampere", "slingshot_software")
    assert model.parameters.network.eager == 16 << 10
    # 8 KiB on the wire a message, which the processor then stores itself.
    assert model.predict("all_gather", 524_288).time_s < 0.7 * _model().predict("all_gather", 524_288).time_s


def test_a_limit_that_is_no_number_is_refused() -> None:
    with pytest.raises(ScenarioError, match=LIMIT):
        _model(**{LIMIT: "much"})
