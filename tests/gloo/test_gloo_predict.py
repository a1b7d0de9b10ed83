"""Times of gloo collectives: by hand where one thing decides, laws, and the scenario around them."""

from __future__ import annotations

import csv
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from commsim import memory
from commsim.bounds import lower_bound_s
from commsim.cli import app
from commsim.engine.simulate import simulate
from commsim.errors import CommsimError, InfeasibleError
from commsim.gloo.lower import BYTES_PER_OP, SOCKET_BYTES, links_of, lower, ops_of_call, torch_copies
from commsim.gloo.parameters import GlooParameters, shipped_parameters
from commsim.gloo.predict import EVEN, RUN_AHEAD, SETTLING, GlooPredictor
from commsim.gloo.schedules import gloo_schedule, messages
from commsim.topology.presets import load_preset

ONE = GlooParameters.model_validate(
    {
        "provenance": "by hand",
        "call": "10 us",
        "message": "5 us",
        "wake": "20 us",
        "copy_rate": "1 GB/s",
        "reduce_rate": "2 GB/s",
        "memory_rate": "4 GB/s",
        "goodput": 1.0,
    }
)


def _two(cores: int = 8, **knobs: Any) -> GlooPredictor:
    topology = load_preset("loopback", gpus_per_node=2, cpu={"cores": cores})
    return GlooPredictor(topology, ONE, **knobs)


def test_a_small_broadcast_by_hand() -> None:
    # half a call, the sender's message, 8 bytes through two threads, wake, the receiver's message, half a call
    expected = 5e-6 + 5e-6 + 2 * 8e-9 + 20e-6 + 5e-6 + 5e-6
    assert _two(4096, mode="single").predict("broadcast", 8).time_s == pytest.approx(expected, rel=1e-3)


def test_large_pieces_overlap_in_sender_and_receiver() -> None:
    # 32 pieces through two threads at 1 GB/s: one thread's time and one piece more; then the receiver is woken.
    expected = (64 << 20) / 1e9 * 33 / 32 + 40e-6
    assert _two(4096, mode="single").predict("broadcast", 64 << 20).time_s == pytest.approx(expected, rel=5e-3)


def test_in_a_loop_the_root_does_not_run_ahead_of_those_who_are_not_ready() -> None:
    one, row = _two(mode="single").predict("broadcast", 8), _two().predict("broadcast", 8)
    assert one.bottleneck == "latency"
    assert row.time_s == pytest.approx(one.time_s, rel=0.05)


SLOW = ONE.model_copy(update={"call": 1e-6, "message": 1e-6, "wake": 1e-6, "copy_rate": 1e12})


@pytest.mark.parametrize("size", [64 << 10, 1 << 20, 4 << 20])
@pytest.mark.parametrize(("preset", "nodes", "sent"), [("testbed-star", 4, 2), ("testbed-ring", 6, 3)])
def test_broadcasts_in_a_row_keep_the_port_of_the_root_busy(preset: str, nodes: int, sent: int, size: int) -> None:
    """The root sends to the ranks 1, 2, 4 before it returns; while those pass it on, it is in its next call."""
    topology = load_preset(preset, nodes=nodes)
    time = GlooPredictor(topology, SLOW).predict("broadcast", size).time_s
    assert time == pytest.approx(sent * size / topology.nic_bandwidth, rel=0.02)


def test_broadcasts_in_a_row_keep_the_narrowest_uplink_busy() -> None:
    """Two hosts below a leaf: of the seven messages four leave the leaf of the root, 0 to 2 and 4, 1 to 3 and 5."""
    topology = load_preset("testbed-tree", nodes=8)
    uplink = 2 * topology.nic_bandwidth / 2  # two hosts, 2:1
    time = GlooPredictor(topology, SLOW).predict("broadcast", 256 << 10).time_s
    assert time == pytest.approx(4 * (256 << 10) / uplink, rel=0.02)


ENDS = Path(__file__).resolve().parents[2] / "validation" / "runs" / "testbed" / "broadcast_ends.csv"


def _paces() -> dict[tuple[str, int, int], float]:
    """Seconds per broadcast, from the end of the third to that of the seventh of eight in a row, median of repeats."""
    ends: dict[tuple[str, int, int], dict[str, list[list[float]]]] = {}
    with ENDS.open() as stream:
        for row in csv.DictReader(stream):
            key = row["topology"], int(row["ranks"]), int(row["size_bytes"])
            ends.setdefault(key, {}).setdefault(row["repeat"], []).append([float(row[f"call_{k}_s"]) for k in (3, 7)])
    return {
        key: float(np.median([(max(e for _, e in ranks) - max(b for b, _ in ranks)) / 4 for ranks in repeats.values()]))
        for key, repeats in ends.items()
    }


def test_the_pace_of_broadcasts_is_as_measured() -> None:
    """On three networks of known rates, whose bytes alone decide; the parameters of the processor hardly matter."""
    errors = []
    for (preset, nodes, size), measured in _paces().items():
        model = GlooPredictor(load_preset(preset, nodes=nodes), shipped_parameters(), one_host=True)
        errors.append(model.predict("broadcast", size).time_s / measured - 1)
    assert len(errors) == 12
    assert np.abs(errors).max() < 0.13
    assert np.abs(errors).mean() < 0.08


def test_a_socket_holds_what_was_measured() -> None:
    """What is under way when rank 1 of the star returns arrives at rank 3 alone on its link, at the link's rate."""
    rate = load_preset("testbed-star", nodes=4).nic_bandwidth
    with ENDS.open() as stream:
        rows = [row for row in csv.DictReader(stream) if row["topology"] == "testbed-star"]
    held = []
    for row in rows:
        if row["rank"] == "1" and int(row["size_bytes"]) >= 1 << 20:
            same = [r for r in rows if (r["size_bytes"], r["repeat"]) == (row["size_bytes"], row["repeat"])]
            last = next(r for r in same if r["rank"] == "3")
            held += [rate * (float(last[f"call_{k}_s"]) - float(row[f"call_{k}_s"])) for k in range(1, 8)]
    assert len(held) == 63
    assert pytest.approx(float(np.median(held)), rel=0.2) == SOCKET_BYTES


@pytest.mark.parametrize("collective", ["broadcast", "all_to_all", "all_reduce", "all_gather", "reduce", "gather"])
def test_the_pace_is_that_of_a_long_row(collective: str) -> None:
    """Calls 5 to 17 of 20: twelve, a multiple of the periods in which paces repeat."""
    topology, n, size = load_preset("testbed-star", nodes=4), 4, 1 << 20
    links = links_of(topology, ONE, one_host=False)
    schedule = gloo_schedule(collective, n, size)
    ends = simulate(lower(schedule, topology, ONE, links, torch_copies(collective, size, n), 20)).end_s.reshape(20, -1)
    long = float(ends[16].max() - ends[4].max()) / 12
    assert GlooPredictor(topology, ONE).predict(collective, size).time_s == pytest.approx(long, rel=0.02)


@pytest.mark.parametrize("size", [256 << 30, 1 << 50])
def test_what_does_not_fit_is_refused_before_it_is_built(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "machine_bytes", lambda: 16 << 30)
    tracemalloc.start()
    with pytest.raises(
        InfeasibleError, match=r"3 calls of gloo's all_reduce of .*: take a smaller size, or fewer ranks"
    ):
        GlooPredictor(load_preset("testbed-star", nodes=4), ONE).predict("all_reduce", size)
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("collective", "n", "size"),
    [("all_reduce", 4, 1 << 29), ("reduce", 6, 1 << 28), ("all_gather", 24, 1 << 28), ("all_to_all", 16, 1 << 28)],
)
def test_a_prediction_takes_no_more_memory_than_estimated(collective: str, n: int, size: int) -> None:
    model = GlooPredictor(load_preset("testbed-star", nodes=n), ONE)
    model.predict(collective, 1 << 10)  # what is loaded and compiled once
    row = SETTLING if collective in RUN_AHEAD else EVEN
    ops = row.calls * ops_of_call(n, *messages(collective, n, size))
    tracemalloc.start()
    model.predict(collective, size)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 0.2 * BYTES_PER_OP * ops < peak < BYTES_PER_OP * ops


def test_few_cores_are_the_bottleneck() -> None:
    many, few = _two(), _two(cores=1)
    assert many.predict("all_reduce", 8 << 20).bottleneck in {"socket copy", "worker"}
    assert few.predict("all_reduce", 8 << 20).bottleneck == "cores"
    # Two ranks: half the array goes out and in at both, in either pass, and is added once at both.
    assert few.predict("all_reduce", 8 << 20).time_s == pytest.approx((8 << 20) * (4 + 0.5) / 1e9, rel=0.1)


def test_a_slow_network_is_the_bottleneck() -> None:
    topology = load_preset("ethernet-hosts", nodes=4, nic_bandwidth="100 Mb/s", cpu={"cores": 2})
    found = GlooPredictor(topology, ONE, one_host=True).predict("all_reduce", 8 << 20)
    assert found.bottleneck == "NIC"
    assert found.time_s == pytest.approx(1.5 * (8 << 20) / 12.5e6, rel=0.05)


def test_an_exchange_of_two_takes_as_long_as_one_after_the_other() -> None:
    """Each sends half the array to the other; a ring of more than two has a connection per direction."""
    slow = load_preset("ethernet-hosts", nodes=2, nic_bandwidth="100 Mb/s", cpu={"cores": 2})
    exchange = GlooPredictor(slow, ONE, one_host=True).predict("all_to_all", 8 << 20).time_s
    assert exchange == pytest.approx((8 << 20) / 12.5e6, rel=0.05)
    same = GlooPredictor(slow, ONE, one_host=True).predict("all_to_all_v", 16 << 20)  # what both send to both
    assert same.time_s == pytest.approx(exchange, rel=0.01)


@settings(max_examples=25)
@given(
    collective=st.sampled_from(["all_reduce", "reduce_scatter", "broadcast", "all_to_all", "all_to_all_v", "reduce"]),
    n=st.integers(2, 6),
    size=st.integers(1, 1 << 22),
    factor=st.floats(1.5, 8),
)
def test_laws(collective: str, n: int, size: int, factor: float) -> None:
    topology = load_preset("loopback", gpus_per_node=n, cpu={"cores": 2})
    time = GlooPredictor(topology, ONE, mode="single").predict(collective, size).time_s
    assert time >= lower_bound_s(collective, max(4 * n, size // (4 * n) * 4 * n), topology).seconds * (1 - 1e-6)
    slower = {k: getattr(ONE, k) * factor for k in ("call", "message", "wake")}
    slower |= {k: getattr(ONE, k) / factor for k in ("copy_rate", "reduce_rate", "memory_rate")}
    # Everything but the memory bus, which bounds nothing here, scales: so does the time.
    scaled = GlooPredictor(topology, ONE.model_copy(update=slower), mode="single").predict(collective, size).time_s
    assert scaled == pytest.approx(time * factor, rel=0.05)


def test_one_rank_pays_the_call_only() -> None:
    topology = load_preset("loopback", gpus_per_node=1)
    assert GlooPredictor(topology, ONE).predict("all_reduce", 1 << 20).time_s == ONE.call


def test_shipped_parameters_say_where_they_come_from() -> None:
    assert len(shipped_parameters().provenance) > 20


SCENARIO = """
name: Two processes
topology: {{preset: loopback, gpus_per_node: 2, cpu: {{cores: 2}}}}
library: gloo
workload: [{{collective: all_reduce, sizes: 1 KiB .. 1 MiB x32}}]
{more}
"""


def _run(tmp_path: Path, more: str, *words: str) -> Any:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO.format(more=more))
    return CliRunner().invoke(app, ["run", str(path), "--no-files", *words])


def test_run_takes_parameters_from_a_file(tmp_path: Path) -> None:
    params = tmp_path / "params.yaml"
    params.write_text("library: gloo\nprovenance: by hand\nvalues: {wake: {value: 5 ms}}\nband: {low: 0.5, high: 2}\n")
    plain, named = _run(tmp_path, ""), _run(tmp_path, "params: params.yaml")
    override = _run(tmp_path, "", f"params={params}")
    assert plain.exit_code == named.exit_code == override.exit_code == 0
    assert "gloo_ring" in plain.output
    assert named.output.split("(us)", 2)[2] == override.output.split("(us)", 2)[2] != plain.output.split("(us)", 2)[2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("library: nccl\nprovenance: x\nvalues: {}\n", "holds parameters of nccl, but the library is gloo"),
        (
            "library: gloo\nprovenance: x\nvalues: {wak: {value: 5 ms}}\n",
            "found the parameter 'wak', which this version of commsim does not have; did you mean 'wake'",
        ),
        ("library: gloo\nprovenance: x\nvalues: {wake: {value: 5 GB}}\n", "expected a time"),
        ("library: gloo\nprovenance: x\nvalue: {}\n", "did you mean 'values'"),
    ],
)
def test_a_wrong_parameter_file_is_said(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "params.yaml").write_text(text)
    result = _run(tmp_path, "params: params.yaml")
    assert isinstance(result.exception, CommsimError)
    assert message in str(result.exception)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("params: gone.yaml", "found no file 'gone.yaml'"),
        ("engine: fold", "expected auto or event"),
        ("contention: fair", "expected it only with library none"),
    ],
)
def test_what_gloo_does_not_know_is_said(tmp_path: Path, more: str, message: str) -> None:
    result = _run(tmp_path, more)
    assert isinstance(result.exception, CommsimError)
    assert message in str(result.exception)
