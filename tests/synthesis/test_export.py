"""Synthesized schedules for MSCCL, and as a library would run them."""

from __future__ import annotations

import numpy as np
import pytest

from commsim.collectives.check import check
from commsim.collectives.msccl import parse_msccl
from commsim.errors import ScheduleError
from commsim.nccl.predict import Options, Predictor
from commsim.synthesis.aim import Aim
from commsim.synthesis.export import for_msccl
from commsim.synthesis.library import best_of_registry, library_best, library_run
from commsim.synthesis.machine import machine_network
from commsim.synthesis.network import network_of
from commsim.synthesis.search import TreeSearch
from commsim.topology.presets import load_preset


@pytest.mark.parametrize(
    "collective", ["all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "all_to_all"]
)
def test_what_is_written_for_msccl_is_read_again(collective: str) -> None:
    network = machine_network(load_preset("dgx-1v"))
    best = TreeSearch(Aim(network, collective, 2**20, itemsize=4)).run()
    one, text = for_msccl(best)
    check(one.laid.schedule)
    back = parse_msccl(text, one.question.size)
    check(back)
    ours, theirs = one.laid.schedule, back
    assert (theirs.world_size, theirs.nbytes, theirs.rows) == (ours.world_size, ours.nbytes, ours.rows)
    assert np.array_equal(theirs.sent_bytes(), ours.sent_bytes())
    assert text.count("<gpu ") == 8


def test_what_switches_copy_cannot_be_written() -> None:
    links = [(a, b, 1e9, 0.0) for rank in "abcd" for a, b in ((rank, "sw"), ("sw", rank))]
    network = network_of(links, list("abcd"), copies=["sw"])
    best = TreeSearch(Aim(network, "broadcast", 2**10)).run()
    assert best.forest.in_switches
    with pytest.raises(ScheduleError, match="more than its ranks"):
        for_msccl(best)


def test_a_library_is_never_slower_than_with_the_registry() -> None:
    topology = load_preset("hgx-a100-4")
    model = Predictor(topology, Options())
    network = machine_network(topology)
    for collective in ("all_reduce", "all_gather"):
        one = TreeSearch(Aim(network, collective, 2**14, itemsize=4)).run()
        best = library_best(one, topology, model)
        known = best_of_registry(collective, 2**14, topology, model, itemsize=4)
        assert best is not None
        assert known is not None
        assert best.seconds <= known[0].seconds


def test_more_bytes_take_longer_in_a_library() -> None:
    topology = load_preset("hgx-a100-4")
    model, network = Predictor(topology, Options()), machine_network(topology)
    runs = []
    for size in (2**12, 2**22):
        one = TreeSearch(Aim(network, "all_gather", size, itemsize=4)).run()
        runs.append(library_run(one.laid.schedule, topology, model).seconds)
    assert runs[0] < runs[1]


def test_large_arrays_have_pieces_for_more_channels_in_a_library() -> None:
    topology = load_preset("hgx-h100")
    one = TreeSearch(Aim(machine_network(topology), "all_reduce", 2**30, itemsize=4)).run()
    best = library_best(one, topology, Predictor(topology, Options()))
    assert best is not None
    assert best.pieces > one.pieces
    assert best.channels > 2
    assert best.seconds < 1.5 * one.limit_s
