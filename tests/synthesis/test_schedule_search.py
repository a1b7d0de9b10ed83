"""Synthesized schedules: proven, near the limit, and never below it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from flow_networks import networks
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.collectives.check import check
from commsim.collectives.schedule import Op
from commsim.engine.program import Program, pointers
from commsim.engine.simulate import simulate
from commsim.errors import ScheduleError
from commsim.synthesis.aim import COLLECTIVES, Aim
from commsim.synthesis.flat import paired
from commsim.synthesis.forest import Tree
from commsim.synthesis.front import front
from commsim.synthesis.in_steps import run_in_steps
from commsim.synthesis.machine import machine_network
from commsim.synthesis.network import FlowNetwork, network_of
from commsim.synthesis.search import Synthesis, TreeSearch, laid_out
from commsim.synthesis.timing import program_of, seconds_of
from commsim.topology.presets import load_preset

PAIR = network_of([("a", "b", 1e9, 1e-6), ("b", "a", 1e9, 1e-6)], ["a", "b"])


@pytest.mark.parametrize(
    ("collective", "seconds"), [("all_gather", 0.5e-3), ("broadcast", 1e-3), ("all_to_all", 0.5e-3)]
)
def test_two_ranks_by_hand(collective: str, seconds: float) -> None:
    one = TreeSearch(Aim(PAIR, collective, 10**6)).run()
    check(one.laid.schedule)
    assert one.limit_s == pytest.approx(seconds)
    assert one.seconds == pytest.approx(seconds + 1e-6)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(networks(6), st.sampled_from(COLLECTIVES), st.data())
def test_schedules_of_any_network_are_proven_and_near_the_limit(
    network: FlowNetwork, collective: str, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, network.n - 1))
    one = TreeSearch(Aim(network, collective, 2**16, root)).run()
    check(one.laid.schedule)
    assert 1 - 1e-9 <= one.ratio < 1.02


@settings(max_examples=15, deadline=None)
@given(networks(4, acting=True), st.sampled_from(("all_gather", "all_reduce", "reduce")))
def test_schedules_with_acting_switches_are_proven(network: FlowNetwork, collective: str) -> None:
    one = TreeSearch(Aim(network, collective, 640), budget_s=2).run()
    check(one.laid.schedule)
    assert one.ratio >= 1 - 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_of_a_machine(collective: str) -> None:
    network = machine_network(load_preset("dgx-1v"))
    one = TreeSearch(Aim(network, collective, 2**26, 3, 4)).run()
    assert one.ratio < 1.02
    check(laid_out(one.question, one.forest, 16).schedule)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [("hgx-h100-ndr400", 4), ("oci-a100", 4)])
def test_trees_of_one_root_among_nodes_come_near_the_limit(machine: tuple[str, int]) -> None:
    network = machine_network(load_preset(machine[0], nodes=machine[1]))
    assert TreeSearch(Aim(network, "broadcast", 2**30, itemsize=4)).run().ratio < 1.01


def test_small_sizes_take_short_ways() -> None:
    network = machine_network(load_preset("dgx-1v"))
    one = TreeSearch(Aim(network, "all_gather", 1024)).run()
    assert one.ratio < 1.05
    assert one.forest.depth == 2


def test_a_front_is_never_slower_for_less() -> None:
    network = machine_network(load_preset("hgx-a100-4"))
    many = front(Aim(network, "all_reduce", 1, itemsize=4), [1 << 10, 1 << 16, 1 << 22])
    assert [one.question.size for one in many] == [1 << 10, 1 << 16, 1 << 22]
    assert many[0].seconds < many[1].seconds < many[2].seconds


def test_blocks_may_differ() -> None:
    one = TreeSearch(Aim(PAIR, "all_gather", 1000, blocks=(900, 100))).run()
    check(one.laid.schedule)
    assert one.limit.bandwidth_s(1000) == pytest.approx(0.9e-6)


def test_links_serve_one_message_at_a_time_and_data_comes_first() -> None:
    network = machine_network(load_preset("dgx-1v"))
    one = TreeSearch(Aim(network, "reduce_scatter", 2**20)).run()
    laid = laid_out(one.question, one.forest, 8)
    program = program_of(laid, network)
    start, end = run_in_steps(program)
    for row in range(program.rows):
        after = program.succ_idx[slice(*program.succ_ptr[[row, row + 1]])]
        assert (start[after] >= end[row] * (1 - 1e-12)).all()
    # Links of one GPU to another are ways of one link each: their bytes fit between the first start and the last end.
    for edge in range(network.edges):
        rows = np.flatnonzero([laid.ways[w] == (edge,) for w in laid.way])
        order = rows[np.argsort(start[rows])]
        busy = program.nbytes[order] / program.link_bandwidth[edge]
        assert (start[order][1:] >= (start[order] + busy)[:-1] * (1 - 1e-9)).all()


def test_without_contention_the_order_of_steps_is_that_of_the_event_engine() -> None:
    one = TreeSearch(Aim(PAIR, "broadcast", 10**5)).run()
    program = program_of(one.laid, PAIR)
    assert run_in_steps(program)[1].max() == pytest.approx(simulate(program).makespan_s)


def over(ways: list[list[int]], nbytes: list[int], rates: list[float], latency: list[float]) -> Program:
    """Rows that wait for none, each on its way over some links."""
    rows = len(ways)
    return Program(
        nbytes=np.array(nbytes),
        route=np.arange(rows, dtype=np.int32),
        delay_s=np.zeros(rows),
        succ_ptr=np.zeros(rows + 1, np.int64),
        succ_idx=np.zeros(0, np.int32),
        route_ptr=pointers([len(way) for way in ways]),
        route_link=np.array([link for way in ways for link in way], np.int32),
        link_bandwidth=np.array(rates),
        link_latency=np.array(latency),
    )


def test_a_slow_link_does_not_hold_the_fast_one_behind_it() -> None:
    start, end = run_in_steps(over([[0, 2], [1, 2], [1, 2], [1, 2]], [8] * 4, [1.0, 4.0, 4.0], [0.0] * 3))
    assert start.tolist() == [0, 0, 2, 4]
    assert end.tolist() == [8, 2, 4, 6]  # a link held for what comes slowly would send the others from 8 on


@given(st.data())
def test_no_link_carries_more_than_it_can(data: st.DataObject) -> None:
    rates = data.draw(st.lists(st.sampled_from([1.0, 3.0, 4.0, 10.0]), min_size=4, max_size=4))
    latency = data.draw(st.lists(st.sampled_from([0.0, 0.5]), min_size=4, max_size=4))
    way = st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True)
    ways = data.draw(st.lists(way, min_size=1, max_size=12))
    nbytes = data.draw(st.lists(st.integers(1, 20), min_size=len(ways), max_size=len(ways)))
    start, end = run_in_steps(over(ways, nbytes, rates, latency))
    for i, own in enumerate(ways):
        alone = nbytes[i] / min(rates[link] for link in own) + sum(latency[link] for link in own)
        assert end[i] >= start[i] + alone * (1 - 1e-12)
    for link in range(4):
        begin = sorted((start[i], nbytes[i]) for i, own in enumerate(ways) if own[0] == link)
        for (now, sent), (after, _) in pairwise(begin):
            assert after - now >= sent / rates[link] * (1 - 1e-9)
        stop = sorted((end[i], nbytes[i]) for i, own in enumerate(ways) if own[-1] == link)
        for (now, _), (after, sent) in pairwise(stop):
            assert after - now >= sent / rates[link] * (1 - 1e-9)


@pytest.mark.parametrize(
    ("collective", "nbytes", "message"),
    [("barrier", 8, "expected one of"), ("all_gather", 0, "expected 1 or more")],
)
def test_questions_that_make_no_sense(collective: str, nbytes: int, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        Aim(PAIR, collective, nbytes)


@pytest.mark.parametrize("collective", ["all_gather", "gather", "all_to_all"])
def test_every_rank_has_a_block(collective: str) -> None:
    with pytest.raises(ScheduleError, match="found 1 B, expected 2 B or more"):
        Aim(PAIR, collective, 1)


def test_no_piece_is_empty() -> None:
    network = machine_network(load_preset("dgx-1v"))
    one = TreeSearch(Aim(network, "all_reduce", 1024, itemsize=4), budget_s=3).run()
    assert one.laid.schedule.chunk_bytes.min() > 0


def test_an_array_that_does_not_divide_evenly_is_not_below_its_limit() -> None:
    """The root of a gather keeps a block that is a byte longer than the others."""
    ring = network_of([(str(k), str((k + 1) % 3), 1.0, 0.0) for k in range(3)], ["0", "1", "2"])
    one = TreeSearch(Aim(ring, "gather", 100, root=0)).run()
    assert 1.0 <= one.ratio < 1.02


def test_an_interrupted_search_gives_the_best_so_far() -> None:
    question = Aim(machine_network(load_preset("dgx-1v")), "all_gather", 1 << 22, itemsize=4)

    def interrupt(_: Synthesis) -> None:
        raise KeyboardInterrupt

    search = TreeSearch(question)
    one = search.run(interrupt)
    assert search.interrupted
    assert one is search.best
    check(one.laid.schedule)


def test_an_all_reduce_in_phases_adds_all_before_it_spreads() -> None:
    """Trees of reduce_scatter, then trees of all_gather: proven, and as long as both together."""
    network = machine_network(load_preset("dgx-1v"))
    trees, share, phases_s = list[Tree](), list[float](), 0.0
    for phase in ("reduce_scatter", "all_gather"):
        one = TreeSearch(Aim(network, phase, 1 << 30, itemsize=4)).run()
        trees += one.forest.into or one.forest.out
        share += one.forest.share.tolist()
        phases_s += one.seconds
    question = Aim(network, "all_reduce", 1 << 30, itemsize=4)
    laid = laid_out(question, paired(network, trees, share, apart=True), 256)
    check(laid.schedule)
    adds = laid.schedule.op == Op.REDUCE
    assert laid.schedule.step[adds].max() <= laid.schedule.step[~adds].min()
    assert seconds_of(laid, network) == pytest.approx(phases_s, rel=0.03)


def test_a_forest_whose_time_is_up_is_cut_into_the_likeliest_pieces() -> None:
    """After the first trial, of one piece each, no time is left for the next of four."""
    network = machine_network(load_preset("dgx-a100-hdr200", nodes=2))
    search = TreeSearch(Aim(network, "all_reduce", 64 << 20, itemsize=4))
    forest = next(search.forests())
    search._until = search.started
    search._cut(forest)
    assert search.best is not None
    assert search.best.pieces > 1
    assert search.best.ratio < 1.2
