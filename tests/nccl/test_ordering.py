from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.errors import ScenarioError
from commsim.nccl.lower import Turn
from commsim.nccl.ordering import NO_ORDERING, Ordering, ordering
from commsim.nccl.predict import Options, Predictor
from commsim.topology.presets import load_preset

NEW = (2, 27, 3)
ADAPTIVE = "NCCL_IB_ADAPTIVE_ROUTING"
PAIRS, SPLIT, FROM = "NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_SPLIT_DATA_ON_QPS", "NCCL_IB_AR_THRESHOLD"


@pytest.mark.parametrize(
    ("preset", "nodes", "version", "env", "expected"),
    [
        ("hgx-h100-ndr400", 1, NEW, {}, NO_ORDERING),
        ("hgx-h100-ndr400", 2, NEW, {}, Ordering(8192, 1, True)),
        ("hgx-h100-ndr400", 2, NEW, {ADAPTIVE: "0"}, NO_ORDERING),
        ("hgx-h100-ndr400", 2, NEW, {ADAPTIVE: "-2"}, Ordering(8192, 1, True)),
        ("hgx-h100-ndr400", 2, NEW, {FROM: "65536"}, Ordering(65536, 1, True)),
        ("hgx-h100-ndr400", 2, NEW, {FROM: "0"}, Ordering(0, 1, True)),
        ("hgx-h100-ndr400", 2, NEW, {PAIRS: "2"}, Ordering(8192, 2, True)),
        ("hgx-h100-ndr400", 2, NEW, {PAIRS: "2", SPLIT: "1"}, Ordering(8192, 1, True)),
        ("hgx-h100-ndr400", 2, (2, 19, 3), {PAIRS: "2"}, Ordering(8192, 1, True)),
        ("hgx-h100-ndr400", 2, (2, 19, 3), {PAIRS: "2", SPLIT: "0"}, Ordering(8192, 2, True)),
        ("dgx-a100-hdr200", 2, NEW, {}, NO_ORDERING),  # HDR
        ("dgx-a100-hdr200", 2, NEW, {ADAPTIVE: "1"}, Ordering(8192, 1, True)),
        ("hgx-h100-roce400", 2, NEW, {}, NO_ORDERING),
        ("hgx-h100-roce400", 2, NEW, {ADAPTIVE: "1", PAIRS: "4"}, Ordering(8192, 4, True)),
        ("aws-p5", 2, NEW, {}, Ordering(8192)),
        ("aws-p5", 2, NEW, {ADAPTIVE: "0", PAIRS: "4"}, Ordering(8192)),  # not NCCL's own transport
        ("gcp-a3-mega", 2, NEW, {}, Ordering(8192)),
        ("polaris", 2, NEW, {ADAPTIVE: "1"}, NO_ORDERING),
    ],
)
def test_the_rule(
    preset: str, nodes: int, version: tuple[int, int, int], env: dict[str, str], expected: Ordering
) -> None:  # fmt: skip
    assert ordering(load_preset(preset, nodes=nodes), version, env) == expected


@pytest.mark.parametrize("name", [ADAPTIVE, PAIRS, SPLIT, FROM])
def test_a_variable_that_holds_no_number_is_told(name: str) -> None:
    with pytest.raises(ScenarioError, match=name):
        ordering(load_preset("hgx-h100-ndr400", nodes=2), NEW, {name: "yes"})


def test_a_message_waits_for_the_one_before_to_be_acknowledged() -> None:
    # 100 kB at 50 GB/s take 2 us, and 8 us until they are acknowledged.
    turn = Turn(3e-6, 0.0, 2e-6, ordered_bytes=8192, ordered_s=8e-6, line_s_per_byte=1 / 50e9)
    assert turn.seconds(8192) == pytest.approx(3e-6)
    assert turn.seconds(100_000) == pytest.approx(10e-6)
    assert replace(turn, queues=2).seconds(100_000) == pytest.approx(5e-6)
    assert replace(turn, queues=4).seconds(100_000) == pytest.approx(3e-6)


@given(st.floats(1, 1e8), st.floats(0, 1e-4), st.integers(1, 8))
def test_ordering_never_makes_a_turn_shorter(nbytes: float, wait: float, queues: int) -> None:
    free = Turn(1e-6, 1e-12, 2e-6)
    ordered = replace(free, ordered_bytes=8192, ordered_s=wait, line_s_per_byte=2e-11, queues=queues)
    assert ordered.seconds(nbytes) >= free.seconds(nbytes)
    assert replace(ordered, ordered_bytes=inf).seconds(nbytes) == free.seconds(nbytes)


def _time(preset: str, nodes: int, nbytes: int, env: dict[str, str]) -> float:
    return Predictor(load_preset(preset, nodes=nodes), Options((2, 29, 2), env)).predict("all_gather", nbytes).time_s


def test_rings_of_80_h100_over_ndr() -> None:
    # A public run (xxrjun_h100_n10x8_allgather of the measured set): 33.5 MB in 682 us, 67 MB in 737, LL128.
    for nbytes, measured in ((33_553_920, 682.2e-6), (67_107_840, 736.6e-6)):
        assert _time("hgx-h100-ndr400", 10, nbytes, {}) == pytest.approx(measured, rel=0.15)
        free = _time("hgx-h100-ndr400", 10, nbytes, {ADAPTIVE: "0"})
        assert free < 0.6 * measured
        assert free <= _time("hgx-h100-ndr400", 10, nbytes, {PAIRS: "2"}) < 0.7 * measured


def test_small_messages_do_not_wait() -> None:
    assert _time("hgx-h100-ndr400", 10, 1 << 16, {}) == _time("hgx-h100-ndr400", 10, 1 << 16, {ADAPTIVE: "0"})


def test_channels_that_keep_step_cost_bandwidth() -> None:
    # 1 MiB of each of two channels takes 42 us, and both wait for 8; with two queue pairs each, they need not.
    assert 1.03 < _time("hgx-h100-ndr400", 10, 1 << 34, {}) / _time("hgx-h100-ndr400", 10, 1 << 34, {PAIRS: "2"}) < 1.2


def test_over_efa_one_channel_sends_while_another_waits() -> None:
    def seconds(wait: float, nbytes: int) -> float:
        model = Predictor(load_preset("aws-p5", nodes=4), Options((2, 28, 7)))
        network = model.parameters.network.model_copy(update={"ordering": wait})
        model.parameters = model.parameters.model_copy(update={"network": network})
        return model.predict("all_gather", nbytes).time_s

    assert seconds(8e-6, 1 << 34) == pytest.approx(seconds(0.0, 1 << 34), rel=0.01)
    assert seconds(8e-6, 1 << 25) > 1.1 * seconds(0.0, 1 << 25)
