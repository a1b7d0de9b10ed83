"""Dispatchers of experts: counts of distinct nodes and ranks, laws of their times, values by hand, measured kernels."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.training.accelerator import accelerator
from commsim.training.columns import Columns
from commsim.training.dispatch import (
    BF16_BYTES,
    FP8_BYTES,
    KINDS,
    MEASURED,
    Dispatcher,
    DispatchTerms,
    ExpertExchange,
    RankLinks,
    beyond_measured,
    combine_seconds,
    dispatch_parameters,
    dispatch_seconds,
    dispatch_values,
    kind_seconds,
    low_latency_sms,
)
from commsim.training.experts_reached import distinct_groups, distinct_nodes, distinct_ranks
from commsim.units import GIGA

CHECKOUT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("COMMSIM_SHARED_DATA", CHECKOUT.parent / "shared" / "data")) / "silicon"

H100 = RankLinks.of(accelerator("H100"), 50 * GIGA)
V3 = ExpertExchange(tokens=4096, hidden=7168, top_k=8, experts=256, ranks=32, inside=8, node_limit=4)


def both(d: Dispatcher, e: ExpertExchange, links: RankLinks = H100) -> tuple[float, float]:
    return float(dispatch_seconds(d, e, links)), float(combine_seconds(d, e, links))


# -- what was measured ---------------------------------


@pytest.mark.parametrize(
    ("kind", "generation", "nodes", "says"),
    [
        ("deepep", "hopper", 8, None),
        (
            "deepep",
            "hopper",
            16,
            "not measured on 16 nodes of hopper GPUs, but on 1, 2, 4, 8 nodes of hopper and 1 node",
        ),
        ("deepep", "ampere", 1, "not measured on 1 node of ampere GPUs"),
        ("deepep_low_latency", "blackwell", 2, "not measured on 2 nodes of blackwell GPUs"),
        ("hybrid", "blackwell", 1, "but on none: its times are extrapolated"),
        ("nvlink", "hopper", 1, "but on 1 node of blackwell"),
        ("nccl", "volta", 64, None),
    ],
)
def test_what_was_not_measured_is_said(kind: str, generation: str, nodes: int, says: str | None) -> None:
    sentence = beyond_measured(kind, generation, nodes)
    assert sentence is None if says is None else says in (sentence or "")


@pytest.mark.parametrize(
    ("kind", "table"),
    [("deepep", "deepep_normal"), ("deepep_low_latency", "deepep_low_latency"), ("nvlink", "mnnvl_all_to_all")],
)
def test_what_was_measured_is_what_the_tables_have(kind: str, table: str) -> None:
    path = SHARED / f"{table}.csv"
    if not path.exists():
        pytest.skip("no shared data beside the checkout")
    rows = pd.read_csv(path)
    names = {"h100_sxm": "hopper", "b200_sxm": "blackwell", "gb200": "blackwell"}
    nodes = rows.get("node_num", 1)
    pairs = set(zip(rows["system"].map(names), np.broadcast_to(nodes, len(rows)).tolist(), strict=True))
    assert pairs == {(generation, n) for generation, counts in MEASURED[kind].items() for n in counts}


# -- counts ---------------------------------


def drawn(nodes: int, inside: int, experts: int, top_k: int, limit: int) -> tuple[float, float]:
    """Mean distinct nodes and ranks of 20,000 tokens, whose router keeps the nodes of the best experts."""
    scores = np.random.default_rng(7).random((20_000, experts))
    best = scores.reshape(len(scores), nodes, -1).max(axis=2)
    kept = np.zeros_like(best, np.bool_)
    np.put_along_axis(kept, np.argsort(-best, axis=1)[:, : limit or nodes], True, axis=1)
    scores = np.where(np.repeat(kept, experts // nodes, axis=1), scores, -1.0)
    chosen = np.argpartition(-scores, top_k - 1, axis=1)[:, :top_k]

    def distinct(groups: int) -> float:
        hit = np.zeros((len(scores), groups), np.bool_)
        np.put_along_axis(hit, chosen // (experts // groups), True, axis=1)
        return float(hit.sum(axis=1).mean())

    return distinct(nodes), distinct(nodes * inside)


@pytest.mark.parametrize(
    ("nodes", "inside", "experts", "top_k", "limit"),
    [(8, 8, 256, 8, 0), (8, 8, 256, 8, 4), (8, 4, 64, 6, 3), (4, 8, 128, 4, 2), (2, 8, 16, 1, 1), (16, 2, 64, 10, 5)],
)
def test_distinct_nodes_and_ranks_are_those_of_drawn_tokens(
    nodes: int, inside: int, experts: int, top_k: int, limit: int
) -> None:
    of_nodes, of_ranks = drawn(nodes, inside, experts, top_k, limit)
    assert distinct_nodes(nodes, experts, top_k, limit) == pytest.approx(of_nodes, rel=0.01)
    assert distinct_ranks(nodes, inside, experts, top_k, limit) == pytest.approx(of_ranks, rel=0.03)


def test_two_experts_of_four_on_two_nodes() -> None:
    """Of the six pairs two lie on one node."""
    assert distinct_groups(2, 4, 2) == pytest.approx((2 * 1 + 4 * 2) / 6)
    assert distinct_nodes(2, 4, 2, 1) == pytest.approx(1.0)


def test_counts_of_a_table_are_those_of_its_rows() -> None:
    nodes, limit, top_k = np.array([1, 2, 4, 8, 8]), np.array([0, 0, 4, 3, 4]), np.array([1, 2, 8, 4, 8])
    table = distinct_nodes(nodes, 64, top_k, limit)
    assert table == pytest.approx([distinct_nodes(*row) for row in zip(nodes, [64] * 5, top_k, limit, strict=True)])


# -- laws ---------------------------------

EXCHANGES = st.builds(
    lambda tokens, hidden, top_k, per_rank, nodes, inside, limit, imbalance: ExpertExchange(
        tokens, hidden, top_k, per_rank * nodes * inside, nodes * inside, inside, limit, imbalance
    ),
    tokens=st.integers(1, 65_536),
    hidden=st.sampled_from([1024, 2048, 7168]),
    top_k=st.integers(1, 10),
    per_rank=st.integers(8, 24),
    limit=st.sampled_from([0, 2, 4]),
    nodes=st.sampled_from([1, 2, 4, 8]),
    inside=st.sampled_from([2, 4, 8]),
    imbalance=st.floats(1.0, 3.0),
)
DISPATCHERS = st.builds(
    Dispatcher, st.sampled_from(KINDS), st.sampled_from([0.5625, FP8_BYTES, 2.0]), st.just(2.0), st.integers(4, 32)
)


@given(d=DISPATCHERS, e=EXCHANGES, name=st.sampled_from(["tokens", "hidden", "top_k", "imbalance"]))
def test_more_to_send_never_takes_less(d: Dispatcher, e: ExpertExchange, name: str) -> None:
    more = dataclasses.replace(e, **{name: getattr(e, name) + 1})
    for less_s, more_s in zip(both(d, e), both(d, more), strict=True):
        assert more_s >= less_s * (1 - 1e-9)


@given(d=DISPATCHERS, e=EXCHANGES)
def test_no_exchange_is_faster_than_its_bytes(d: Dispatcher, e: ExpertExchange) -> None:
    """The least that can leave: a copy to each distinct node, or to each distinct rank of one."""
    away = e.distinct_nodes * (1 - 1 / e.nodes) / H100.nic_bytes_per_s
    least = max(away, e.distinct_ranks * (1 - 1 / e.inside) / H100.nvlink_bytes_per_s * (e.nodes == 1))
    dispatch_s, combine_s = both(d, e)
    assert dispatch_s >= e.tokens * e.hidden * d.dispatch_bytes * least
    assert combine_s >= e.tokens * e.hidden * d.combine_bytes * least


@given(d=DISPATCHERS, e=EXCHANGES)
def test_faster_links_never_take_longer(d: Dispatcher, e: ExpertExchange) -> None:
    faster = dataclasses.replace(H100, nvlink_bytes_per_s=2 * H100.nvlink_bytes_per_s, nic_bytes_per_s=100 * GIGA)
    assert all(f <= s * (1 + 1e-9) for f, s in zip(both(d, e, faster), both(d, e), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_one_node_has_no_rdma(kind: str) -> None:
    one = dataclasses.replace(V3, ranks=8)
    slow = dataclasses.replace(H100, nic_bytes_per_s=1.0)
    assert both(Dispatcher(kind), one, slow) == both(Dispatcher(kind), one)


@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_sends_nothing(kind: str) -> None:
    assert both(Dispatcher(kind), dataclasses.replace(V3, ranks=1, inside=1)) == (0.0, 0.0)


@settings(max_examples=20)
@given(rows=st.lists(st.tuples(DISPATCHERS, EXCHANGES), min_size=1, max_size=6))
def test_a_table_has_the_times_of_its_rows(rows: list[tuple[Dispatcher, ExpertExchange]]) -> None:
    def column(objects: list[Any], name: str) -> Any:
        return np.array([getattr(o, name) for o in objects])

    dispatchers, exchanges = [d for d, _ in rows], [e for _, e in rows]
    d = Dispatcher(
        Columns([x.kind for x in dispatchers]),
        **{name: column(dispatchers, name) for name in ("dispatch_bytes", "combine_bytes", "sms")},
    )
    e = ExpertExchange(**{f.name: column(exchanges, f.name) for f in dataclasses.fields(ExpertExchange)})
    expected = np.array([both(*row) for row in rows])
    assert dispatch_seconds(d, e, H100) == pytest.approx(expected[:, 0])
    assert combine_seconds(d, e, H100) == pytest.approx(expected[:, 1])


# -- values by hand ---------------------------------


def test_terms_by_hand() -> None:
    """100 tokens of 1000 bytes, each to all of 4 ranks in 2 nodes: 200 copies over the NIC would be 1 per node."""
    e = ExpertExchange(tokens=100, hidden=1000, top_k=4, experts=4, ranks=4, inside=2)
    links = RankLinks(nvlink_bytes_per_s=1e9, nic_bytes_per_s=1e8, sms=100, latency=2.0)
    terms = DispatchTerms(launch=1.0, start=2.0, peer=0.5, expert=0.25, byte=1e-3, hop=3.0, message=0.125)
    start = 1.0 + 2.0 * (2.0 + 0.5 + 4 * 0.25 + 1000 * 1e-3) + 3.0 + 0.125 * 4 * 0.5
    seconds = kind_seconds("deepep", terms, 1000.0, Dispatcher(), e, links)
    nvlink, nic = 100 * 4 * 0.5 * 1000 / 1e9, 100 * 2 * 0.5 * 1000 / 1e8
    assert seconds == pytest.approx(start + (nvlink**8 + nic**8) ** (1 / 8))


def test_nccl_sends_a_copy_to_every_expert() -> None:
    v = dispatch_values()
    e = dataclasses.replace(V3, ranks=8)
    nbytes = 4096 * 8 * 7168 * BF16_BYTES * 7 / 8
    assert combine_seconds(Dispatcher("nccl"), e, H100) == pytest.approx(
        v["alpha"] + nbytes / (450 * GIGA * v["nvlink"])
    )


def test_low_latency_kernels_run_on_one_sm_for_a_group_of_experts() -> None:
    assert [low_latency_sms(experts, 132) for experts in (8, 128, 160, 256, 384)] == [8, 128, 80, 128, 128]


def test_a_copy_to_each_node_is_less_than_one_to_each_expert() -> None:
    assert both(Dispatcher("deepep"), V3) < both(Dispatcher("nccl"), V3)


def test_more_sms_send_faster_and_are_taken_from_compute() -> None:
    one = dataclasses.replace(V3, ranks=8)
    assert both(Dispatcher("deepep", sms=8), one) > both(Dispatcher("deepep", sms=20), one)
    assert both(Dispatcher("deepep"), one) == both(Dispatcher("deepep", sms=20), one)
    assert [Dispatcher(kind).sms_taken(H100) for kind in KINDS] == [24, 20, 0, 16, 132, 132]


def test_blackwell_waits_longer_for_flags_and_sends_faster() -> None:
    b200 = RankLinks.of(accelerator("B200"), 50 * GIGA)
    one, few = dataclasses.replace(V3, ranks=8), dataclasses.replace(V3, ranks=8, tokens=1)
    assert both(Dispatcher("deepep_low_latency"), few, b200) > both(Dispatcher("deepep_low_latency"), few)
    assert both(Dispatcher("deepep_low_latency"), one, b200) < both(Dispatcher("deepep_low_latency"), one)


def test_links_of_a_column_of_accelerators() -> None:
    names = ("H100", "B200", "A100")
    links = RankLinks.of(Columns([accelerator(name) for name in names]), 50 * GIGA)
    singly = [RankLinks.of(accelerator(name), 50 * GIGA) for name in names]
    assert links.latency.tolist() == [one.latency for one in singly]
    assert links.sms.tolist() == [one.sms for one in singly]


def test_every_parameter_has_a_term_and_a_source() -> None:
    terms = {f.name for f in dataclasses.fields(DispatchTerms)}
    for p in dispatch_parameters():
        assert p.source, p.name
        assert p.name.startswith("latency.") or p.name.rpartition(".")[2] in terms, p.name


# -- measured kernels ---------------------------------


@pytest.mark.parametrize(("generation", "gpus"), [("blackwell", ("b200_sxm", "gb200")), ("ampere", ("a100_sxm",))])
def test_latencies_are_those_of_small_nccl_calls(generation: str, gpus: tuple[str, ...]) -> None:
    def small(gpu: str) -> dict[str, float]:
        """Mean logarithm of times up to 4 KiB by ranks and collective."""
        times: dict[str, list[float]] = {}
        for path in (CHECKOUT / "validation" / "silicon").glob(f"silicon_{gpu}_x*_half_*.csv"):
            curve = pd.read_csv(path)
            name = path.name.removeprefix(f"silicon_{gpu}_").partition("_half_")[0]
            times.setdefault(name, []).append(np.log(curve.oop_time_us[curve.size_bytes <= 4096].median()))
        return {name: float(np.mean(of_name)) for name, of_name in times.items()}

    hopper = small("h100_sxm")
    means = [np.mean([of_call - hopper[name] for name, of_call in small(gpu).items()]) for gpu in gpus]
    assert dispatch_values()[f"latency.{generation}"] == pytest.approx(np.exp(np.mean(means)), rel=0.02)


needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="no shared data beside the checkout")


@needs_shared
def test_shipped_values_meet_measured_kernels() -> None:
    import fit_dispatch

    for pair in fit_dispatch.everything():
        for m in pair:
            rows = m.taken(fit_dispatch.trusted(m))
            assert np.median(rows.error(dispatch_values())) < 0.10, (m.kind, m.phase)


@needs_shared
@pytest.mark.slow
def test_node_counts_and_gpus_that_no_fit_saw() -> None:
    """Bars of 10 and 20 %. One node of DeepEP, and its normal kernels on 8, miss theirs, as the page says."""
    import fit_dispatch

    for pair in (
        (fit_dispatch.deepep("dispatch"), fit_dispatch.deepep("combine")),
        (
            fit_dispatch.deepep_low_latency("dispatch"),
            fit_dispatch.deepep_low_latency("combine"),
        ),
    ):
        for nodes in (2, 4) if pair[0].kind == "deepep" else (2, 4, 8):
            assert max(fit_dispatch.held_out(pair, "nodes", nodes)) < 0.105, (pair[0].kind, nodes)
        for gpu in fit_dispatch.PRESETS:
            assert max(fit_dispatch.held_out(pair, "system", gpu)) < 0.20, (pair[0].kind, gpu)
