from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.nccl.channels import Call, Split
from commsim.nccl.messages import ORDERED_BYTES, Turn, message_turn, ordered_turn
from commsim.nccl.parameters import NETWORKS, load_parameters
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.protocols import PROTOCOLS
from commsim.topology.presets import load_preset

NEW = (2, 28, 7)


def test_only_networks_of_many_paths_order_messages() -> None:
    ordered = {name for name in NETWORKS if load_parameters("hopper", name).network.ordering > 0}
    assert ordered == {"efa", "efa_v1", "tcpx"}


def test_a_message_waits_for_the_one_before_to_be_acknowledged() -> None:
    # 100 kB at 50 GB/s take 2 us, and 8 us until they are acknowledged.
    turn = Turn(3e-6, 0.0, 2e-6, ordered_bytes=8192, ordered_s=8e-6, line_s_per_byte=1 / 50e9)
    assert turn.seconds(8192) == pytest.approx(3e-6)
    assert turn.seconds(100_000) == pytest.approx(10e-6)


@pytest.mark.parametrize(("protocol", "factor"), [("LL128", 128 / 120), ("Simple", 1.0), ("LL", None)])
def test_the_size_is_that_on_the_wire(protocol: str, factor: float | None) -> None:
    model = Predictor(load_preset("aws-p5", nodes=10), Options(NEW))
    call = Call("all_gather", 1 << 26, "ring", PROTOCOLS[protocol], Split(16, 1 << 22, 640), 4 << 20, True)
    ordered, free = (make(model.machine, model.parameters, call) for make in (ordered_turn, message_turn))
    assert free.ordered_bytes == inf
    if factor is None:
        assert ordered == free
        return
    assert ordered.ordered_bytes == pytest.approx(ORDERED_BYTES / factor)
    rate = model.topology.nic_bandwidth * model.parameters.network.efficiency
    expected = model.parameters.network.ordering + 1e5 * factor / rate
    assert ordered.seconds(1e5) == pytest.approx(expected, rel=1e-3)
    assert ordered.seconds(ordered.ordered_bytes) == free.seconds(ordered.ordered_bytes)


def _seconds(wait: float, nodes: int, nbytes: int, algorithm: str = "Ring", collective: str = "all_gather") -> float:
    model = Predictor(load_preset("aws-p5", nodes=nodes), Options(NEW, {"NCCL_ALGO": algorithm}))
    network = model.parameters.network.model_copy(update={"ordering": wait})
    model.parameters = model.parameters.model_copy(update={"network": network})
    return model.predict(collective, nbytes).time_s


@given(nodes=st.sampled_from([2, 3, 10]), nbytes=st.integers(1, 1 << 32), algorithm=st.sampled_from(["Ring", "Tree"]))
@settings(max_examples=30, deadline=None)
def test_ordering_never_makes_a_call_quicker_and_never_touches_trees(nodes: int, nbytes: int, algorithm: str) -> None:
    free, ordered = (_seconds(wait, nodes, nbytes, algorithm, "all_reduce") for wait in (0.0, 8e-6))
    assert ordered >= free * (1 - 1e-9)
    if algorithm == "Tree":
        assert ordered == free


def test_half_the_latency_halves_the_wait() -> None:
    parameters = load_parameters("hopper", "efa")
    assert parameters.scaled(latency=0.5).network.ordering == pytest.approx(parameters.network.ordering / 2)


def test_small_messages_do_not_wait() -> None:
    assert _seconds(8e-6, 10, 1 << 16) == _seconds(0.0, 10, 1 << 16)


def test_one_channel_sends_while_another_waits() -> None:
    assert _seconds(8e-6, 4, 1 << 34) == pytest.approx(_seconds(0.0, 4, 1 << 34), rel=0.01)
    assert _seconds(8e-6, 4, 1 << 25) > 1.1 * _seconds(0.0, 4, 1 << 25)
