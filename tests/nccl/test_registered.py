"""Registered buffers: what runs in place of the tuner's choice, its time, what has no effect, and published runs."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import machine

from commsim.bounds import lower_bound_s
from commsim.nccl.environment import OF_REGISTERED
from commsim.nccl.memory import WINDOW as MEMORY_OF_WINDOWS
from commsim.nccl.memory import communicator_memory
from commsim.nccl.operation import Operation
from commsim.nccl.predict import Options, Prediction, Predictor
from commsim.nccl.registered import policy
from commsim.nccl.symmetric_pace import MEMORY_S, START_S, switch_port
from commsim.topology.presets import load_preset

NEW = (2, 30, 7)
WINDOW = Options(NEW, registered="window")
BUFFER = Options(NEW, registered="buffer")
ZERO = {"NCCL_CTA_POLICY": "ZERO"}
MIB = 1 << 20


def of(preset: str, options: Options, ranks: int | None = None) -> Predictor:
    return Predictor(load_preset(preset), options, None, None if ranks is None else list(range(ranks)))


def kind(got: Prediction) -> tuple[str, str, int]:
    return got.algorithm, got.protocol, got.channels


@pytest.mark.parametrize("preset", ["hgx-h100", "dgx-a100", "hgx-b200", "rtx4090", "hgx-h100-ndr400"])
def test_nothing_changes_unless_buffers_are_registered(preset: str) -> None:
    """The variables of registered buffers have no effect without them, and that is said."""
    env = dict.fromkeys(OF_REGISTERED, "1") | {"NCCL_CTA_POLICY": "ZERO", "NCCL_SYM_KERNEL": "AllReduce_AGxLL_R"}
    plain, other = of(preset, Options(NEW)), of(preset, Options(NEW, env))
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "all_to_all_v"):
        for nbytes in (8, 64 * 1024, 16 * MIB, 1 << 30):
            assert plain.predict(collective, nbytes) == other.predict(collective, nbytes)
    assert plain.warnings == []
    assert sum("without library.registered" in text for text in other.warnings) == len(OF_REGISTERED)


@pytest.mark.parametrize(
    ("preset", "options", "collectives"),
    [
        ("dgx-a100", BUFFER, ("all_reduce", "all_gather", "broadcast", "all_to_all")),
        ("hgx-h100", BUFFER, ("broadcast", "reduce", "all_to_all", "send_recv")),
        ("hgx-h100", replace(BUFFER, launch="one_process"), ("all_reduce",)),
        ("hgx-h100", replace(BUFFER, version=(2, 18, 3)), ("all_reduce",)),
        ("hgx-h100", replace(BUFFER, operation=Operation("float32", "avg")), ("all_reduce",)),
        ("gb200-nvl72", BUFFER, ("all_reduce",)),
        ("rtx4090", WINDOW, ("all_reduce", "all_gather")),
        ("dgx-1v", WINDOW, ("all_reduce",)),
        ("hgx-h100", WINDOW, ("broadcast", "all_to_all")),
    ],
)
def test_what_has_no_effect_says_so(preset: str, options: Options, collectives: tuple[str, ...]) -> None:
    plain = of(preset, replace(options, registered="none"))
    for collective in collectives:
        registered = of(preset, options)
        for nbytes in (8, MIB, 1 << 28):
            assert registered.predict(collective, nbytes) == plain.predict(collective, nbytes)
        assert any("library.registered" in text and collective in text for text in registered.warnings)


def test_over_nodes_registered_buffers_take_two_copies_from_the_latency_of_nvls_tree() -> None:
    """As in a node, on fewer channels; rings gain nothing, and that is said."""
    topology = machine(preset="hgx-h100-ndr400", nodes=2)
    plain, own = (Predictor(topology, Options(NEW, registered=kind)) for kind in ("none", "buffer"))
    p = plain.parameters
    one, other = plain.predict("all_reduce", 1 << 28), own.predict("all_reduce", 1 << 28)
    assert one.kernel_s - other.kernel_s == pytest.approx(2 * (p.first_pass + p.pause.Simple))
    assert (other.algorithm, other.channels, one.channels) == ("nvls_tree", 6, 16)
    assert own.predict("all_gather", 1 << 28).time_s == plain.predict("all_gather", 1 << 28).time_s
    (text,) = own.warnings
    assert "buffer has no effect on all_gather: over nodes rings run it" in text
    window = Predictor(topology, WINDOW)
    assert window.predict("all_reduce", 1 << 28).time_s == other.time_s
    assert any("inside one NVLink domain" in text for text in window.warnings)


def test_lines_cost_a_start_a_hop_and_the_bytes_of_all() -> None:
    """AGxLLMC_R of 8 H100: each takes in 8 times the array, twice as many bytes with its flags."""
    model = of("hgx-h100", WINDOW)
    got = model.predict("all_reduce", 8192)
    p = model.parameters
    link = 450e9 * p.efficiency.nvlink_switch
    assert kind(got) == ("symmetric", "AGxLLMC_R", 5)
    assert got.kernel_s == pytest.approx(START_S + p.ring_hop.nvlink.LL + 2 * 8 * 8192 / link)


def test_a_gather_through_the_switch_stores_the_whole_array_once() -> None:
    model = of("hgx-h100", WINDOW)
    got = model.predict("all_gather", 128 * MIB)
    p = model.parameters
    assert kind(got) == ("symmetric", "STMC", 2)
    expected = START_S + 3 * p.ring_hop.nvlink.LL + 128 * MIB / (450e9 * p.efficiency.nvlink_switch)
    assert got.kernel_s == pytest.approx(expected)


def test_a_reduction_in_the_switch_waits_for_a_load_and_goes_on_at_the_switchs_rate() -> None:
    model = of("hgx-h100", WINDOW)
    got, p = model.predict("all_reduce", 1 << 30), model.parameters
    hop = p.ring_hop.nvlink.LL
    rate = switch_port(model.system, model.machine, p) / (1 + 1 / 8)
    assert kind(got) == ("symmetric", "RSxLDMC_AGxSTMC", 2)
    assert got.kernel_s == pytest.approx(START_S + 3 * hop + 2 * hop + MEMORY_S + (1 << 30) / rate, rel=2e-4)
    plain = of("hgx-h100", replace(WINDOW, registered="none")).predict("all_reduce", 1 << 33)
    assert rate == pytest.approx((1 << 33) / plain.kernel_s, rel=0.01)  # that of NVLS in the long run


def test_two_gpus_read_each_other() -> None:
    """RSxLD_AGxST: rounds of 32 KiB a block, a trip and a warp's own bytes each, then the stores of the last."""
    model = of("hgx-h100", WINDOW, 2)
    got, p = model.predict("all_reduce", 4 * MIB), model.parameters
    hop, part = p.ring_hop.nvlink.LL, 2 * MIB
    rounds = ceil(part / (got.channels * 32 * 1024))
    of_round = part / rounds / (450e9 * p.efficiency.nvlink_switch)
    data = rounds * (2 * hop + MEMORY_S + of_round / (16 * got.channels)) + hop + of_round
    assert (got.protocol, got.limit) == ("RSxLD_AGxST", "thread block")
    assert got.kernel_s == pytest.approx(START_S + 2 * hop + data, rel=0.01)


def test_more_thread_blocks_are_never_slower() -> None:
    last = inf
    for blocks in (1, 2, 4, 8, 16):
        got = of("hgx-b200", replace(WINDOW, env={"NCCL_SYM_CTAS": str(blocks)})).predict("all_reduce", 1 << 30)
        assert got.channels == blocks
        assert got.kernel_s <= last
        last = got.kernel_s
    one = of("hgx-b200", replace(WINDOW, env={"NCCL_SYM_CTAS": "1"})).predict("all_reduce", 1 << 30)
    assert (one.bottleneck, got.bottleneck) == ("thread block", "NVLink")


@settings(max_examples=60, deadline=None)
@given(
    preset=st.sampled_from(["hgx-h100", "hgx-b200", "dgx-a100", "gb200-nvl72", "h800"]),
    ranks=st.sampled_from([2, 3, 4, 8]),
    collective=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]),
    nbytes=st.integers(1, 1 << 34),
    env=st.sampled_from([{}, ZERO]),
)
def test_no_time_is_below_its_bound(preset: str, ranks: int, collective: str, nbytes: int, env: dict[str, str]) -> None:
    topology = load_preset(preset)
    part = list(range(min(ranks, topology.world_size)))
    got = Predictor(topology, replace(WINDOW, env=env), None, part).predict(collective, nbytes)
    least = lower_bound_s(collective, nbytes, topology, in_network=topology.gpu.sm >= 90, ranks=part)
    assert got.kernel_s >= least.seconds


@pytest.mark.parametrize(
    ("version", "env", "collective", "copied"),
    [
        (NEW, ZERO, "all_gather", True),
        (NEW, {"NCCL_CTA_POLICY": "2"}, "all_to_all", True),
        ((2, 28, 3), ZERO, "gather", True),
        (NEW, ZERO, "all_reduce", False),
        (NEW, ZERO, "all_to_all_v", False),  # which a program builds of sends and receives
        (NEW, {}, "all_gather", False),
        ((2, 27, 7), ZERO, "all_gather", False),
    ],
)
def test_copy_engines_by_policy(
    version: tuple[int, int, int], env: dict[str, str], collective: str, copied: bool
) -> None:
    got = of("hgx-h100", Options(version, env, registered="window")).predict(collective, 64 * MIB)
    assert (got.algorithm == "copy_engine") == copied
    assert (got.channels == 0) == copied


def test_copies_cost_three_calls_of_the_host() -> None:
    plain, copied = of("hgx-h100", WINDOW), of("hgx-h100", replace(WINDOW, env=ZERO))
    assert copied.predict("all_gather", 8).launch_s == pytest.approx(3 * plain.predict("all_gather", 8).launch_s)
    assert copied.predict("all_gather", 8).kernel_s > plain.predict("all_gather", 8).kernel_s


def test_blackwell_copies_large_gathers_unasked() -> None:
    """From 2.29 on, above 8 Mi elements of a rank: 32 MiB of float32, 16 MiB of bfloat16."""
    model = of("hgx-b200", WINDOW)
    assert kind(model.predict("all_gather", 8 * 32 * MIB))[0] == "symmetric"
    assert kind(model.predict("all_gather", 8 * 32 * MIB + 64))[0] == "copy_engine"
    half = of("hgx-b200", replace(WINDOW, operation=Operation("bfloat16")))
    assert kind(half.predict("all_gather", 8 * 16 * MIB + 64))[0] == "copy_engine"
    low = of("hgx-b200", replace(WINDOW, env={"NCCL_SYM_CE_THRESHOLD": "0"}))
    assert kind(low.predict("all_gather", 1024))[0] == "copy_engine"
    for other in (of("hgx-h100", WINDOW), of("hgx-b200", replace(WINDOW, version=(2, 28, 9)))):
        assert kind(other.predict("all_gather", 1 << 30))[0] == "symmetric"


@pytest.mark.parametrize(
    ("version", "preset", "ranks", "collective", "channels"),
    [
        ((2, 19, 3), "hgx-h100", 8, "all_reduce", 4),
        ((2, 22, 3), "hgx-h100", 8, "reduce_scatter", 5),
        ((2, 26, 6), "hgx-b200", 8, "all_gather", 8),
        ((2, 27, 7), "hgx-h100", 8, "all_reduce", 4),
        ((2, 27, 7), "hgx-h100", 4, "all_reduce", 8),
        (NEW, "hgx-b200", 8, "all_reduce", 8),
        (NEW, "hgx-b200", 8, "all_gather", 4),
        (NEW, "hgx-b200", 8, "reduce_scatter", 6),
    ],
)
def test_channels_of_nvls_on_registered_buffers(
    version: tuple[int, int, int], preset: str, ranks: int, collective: str, channels: int
) -> None:
    options = Options(version, {"NCCL_ALGO": "NVLS"}, registered="buffer")
    got = of(preset, options, ranks if ranks < 8 else None).predict(collective, 64 * MIB)
    assert (got.algorithm, got.channels) == ("nvls", channels)


def test_registered_buffers_take_two_copies_from_the_latency_of_nvls() -> None:
    env = {"NCCL_ALGO": "NVLS"}
    plain, own = (of("hgx-h100", Options(NEW, env, registered=r)).predict("all_reduce", 1) for r in ("none", "buffer"))
    p = of("hgx-h100", BUFFER).parameters
    saved = p.first_pass + p.pause.Simple
    assert plain.kernel_s - own.kernel_s == pytest.approx(2 * saved)


def test_efficiency_takes_nvls_where_it_needs_fewer_channels() -> None:
    env = {"NCCL_CTA_POLICY": "EFFICIENCY"}
    model = of("hgx-h100", replace(BUFFER, env=env))
    assert model.choose("all_gather", 64 * MIB) == ("nvls", "Simple")
    assert model.choose("all_gather", 8)[0] == "ring"  # of one channel
    assert of("hgx-h100", BUFFER).choose("all_gather", 64 * MIB)[0] == "ring"
    assert of("hgx-h100", replace(BUFFER, env=env | {"NCCL_ALGO": "Ring"})).choose("all_gather", MIB)[0] == "ring"
    assert of("hgx-h100", replace(BUFFER, env=env)).choose("all_reduce", 64 * MIB)[0] == "nvls"


@pytest.mark.parametrize(
    ("value", "asked"),
    [
        ("", "default"),
        ("0", "default"),
        ("1", "efficiency"),
        ("zero", "zero"),
        ("EFFICIENCY|ZERO", "zero"),
        ("9", "default"),
    ],
)
def test_policies(value: str, asked: str) -> None:
    assert policy({"NCCL_CTA_POLICY": value}) == asked


def test_a_window_that_nccl_has_no_kernel_for_is_a_registered_buffer() -> None:
    largest = Operation("float32", "max")
    window, buffer = (of("hgx-h100", replace(o, operation=largest)) for o in (WINDOW, BUFFER))
    assert window.predict("all_reduce", 64 * MIB) == buffer.predict("all_reduce", 64 * MIB)
    assert any("do no max of float32" in text for text in window.warnings)


def test_releases_after_those_read_are_warned_of() -> None:
    model = of("hgx-h100", replace(WINDOW, version=(2, 31, 2)))
    assert any("2.31.2 is outside the versions modelled" in text for text in model.warnings)


def test_windows_take_memory_and_connect_no_ring() -> None:
    """10 MiB on 8 ranks (`tests/nccl/test_communicator_memory.py`), and none where buffers are not in windows."""
    model = of("hgx-h100", WINDOW)
    calls = [("all_reduce", model.choose("all_reduce", MIB)[0])]
    held = communicator_memory(model, calls)
    assert held.gpu_at(MEMORY_OF_WINDOWS) == 10 * MIB
    assert "ring connections" not in {each.kind for each in held.held}
    assert communicator_memory(of("hgx-h100", BUFFER), calls).gpu_at(MEMORY_OF_WINDOWS) == 0


def test_variables_that_count_for_memory_alone_say_so() -> None:
    warnings = of("hgx-h100", Options(env={"NCCL_CUMEM_ENABLE": "0", "NCCL_WIN_ENABLE": "0"})).warnings
    assert "NCCL_CUMEM_ENABLE has no effect on times without library.registered: buffer or window" in warnings
    assert "NCCL_WIN_ENABLE has no effect without library.registered: buffer or window" in warnings
