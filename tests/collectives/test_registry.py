"""Every algorithm by name, and the laws that all of them obey."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.collectives import registry
from commsim.collectives.check import check
from commsim.collectives.execute import verify
from commsim.collectives.prove import proof_bytes
from commsim.collectives.registry import ALGORITHMS, ALIASES, build, entry, names
from commsim.collectives.semantics import COLLECTIVES, bandwidth_bytes, latency_steps
from commsim.errors import ScheduleError

IN_NETWORK = {"nvls", "nvls_tree", "collnet_direct", "collnet_chain", "sharp", "parameter_server"}


@st.composite
def combinations(draw: st.DrawFn, largest: int = 20) -> dict[str, Any]:
    collective, algorithm = draw(st.sampled_from(names()))
    n = draw(st.integers(1, largest))
    options: dict[str, Any] = {"collective": collective, "algorithm": algorithm, "world_size": n}
    takes = entry(collective, algorithm).takes
    if "root" in takes:
        options["root"] = draw(st.integers(0, n - 1))
    if "ranks_per_node" in takes:
        options["ranks_per_node"] = draw(st.sampled_from([None, *(d for d in range(1, n + 1) if n % d == 0)]))
    return options


def test_every_collective_has_algorithms_and_they_know_their_names() -> None:
    assert {collective for collective, _ in names()} == set(COLLECTIVES)
    for collective, algorithm in names():
        s = build(collective, algorithm, 6, 72)
        assert (s.collective, s.algorithm, s.world_size, s.nbytes) == (collective, algorithm, 6, 72)
    assert [a for _, a in names("send_recv")] == ["direct"]


def test_aliases_lead_to_known_algorithms_and_hide_none() -> None:
    for (collective, alias), algorithm in ALIASES.items():
        assert (collective, algorithm) in ALGORITHMS
        assert (collective, alias) not in ALGORITHMS
        assert build(collective, alias, 4, 16).algorithm == algorithm


@given(where=combinations(), channels=st.integers(1, 3), chunks=st.integers(1, 3), size=st.integers(0, 200))
@settings(max_examples=150)
def test_any_schedule_is_correct_at_any_size(where: dict[str, Any], channels: int, chunks: int, size: int) -> None:
    n, equal = where["world_size"], COLLECTIVES[where["collective"]].equal_blocks
    nbytes = 4 * (size - size % n if equal else size)
    s = build(**where, nbytes=nbytes, channels=channels, chunks=chunks, itemsize=4)
    check(s)
    assert s.nbytes == nbytes
    assert (s.chunk_bytes % 4 == 0).all()
    assert s.sent_bytes().sum() == s.received_bytes().sum()


@given(
    where=combinations(12),
    channels=st.integers(1, 2),
    chunks=st.integers(1, 2),
    kind=st.sampled_from(["f4", "f8", "i4"]),
    op=st.sampled_from(["sum", "max"]),
    seed=st.integers(0, 99),
)
@settings(max_examples=150)
def test_arrays_become_what_the_collective_promises(
    where: dict[str, Any], channels: int, chunks: int, kind: str, op: Any, seed: int
) -> None:
    dtype, n = np.dtype(kind), where["world_size"]
    elements = proof_bytes(where["collective"], n)
    s = build(**where, nbytes=elements * dtype.itemsize, channels=channels, chunks=chunks, itemsize=dtype.itemsize)
    inputs = (np.random.default_rng(seed).normal(size=(n, elements)) * 1000).astype(dtype)
    verify(s, inputs, "max" if where["collective"] == "barrier" else op)


@given(where=combinations(40), size=st.integers(1, 50))
@settings(max_examples=150)
def test_no_schedule_beats_the_lower_bounds(where: dict[str, Any], size: int) -> None:
    collective, n = where["collective"], where["world_size"]
    nbytes = size * n * n
    s = build(**where, nbytes=nbytes)
    busiest = max(s.sent_bytes()[:n].max(), s.received_bytes()[:n].max())
    bound = bandwidth_bytes(collective, n, nbytes, in_network=where["algorithm"] in IN_NETWORK)
    assert busiest >= math.floor(bound * (1 - 1e-12))
    assert s.steps >= latency_steps(collective, n, one_port=False)


@pytest.mark.parametrize(("collective", "algorithm"), names())
def test_one_step_to_one_partner_at_a_time_needs_log2_n_steps(collective: str, algorithm: str) -> None:
    s = build(collective, algorithm, 12, 12 * 12)
    messages = np.unique(np.stack([s.step, s.src, s.dst], axis=1)[s.src != s.dst], axis=0)
    one_port = s.endpoints == 12 and all(
        np.unique(messages[:, [0, side]], axis=0).shape == messages[:, [0, side]].shape for side in (1, 2)
    )
    if one_port:
        assert s.steps >= latency_steps(collective, 12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            ("all_reduce", "rign", 4, 8),
            "unknown algorithm 'rign' of all_reduce, did you mean 'ring'.*expected one of ring",
        ),
        (("allreduce", "ring", 4, 8), "unknown collective 'allreduce', did you mean 'all_reduce'.*broadcast"),
        (("broadcast", "zzz", 4, 8), "unknown algorithm 'zzz' of broadcast, expected one of chain, binomial"),
        (("all_reduce", "ring", 4, 8, 2), "ring all_reduce has no root, found root 2"),
        (("broadcast", "flat", 4, 8, 4), "root 4 is not one of the ranks 0..3"),
        (("all_reduce", "ring", 0, 8), "ranks is 0, expected at least 1"),
        (("all_to_all", "bruck", 4, 10), "10 bytes are no 4 equal blocks of whole elements; 12 bytes would be"),
    ],
)
def test_what_cannot_be_built_says_why(call: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        build(*call)


def test_nodes_must_be_whole() -> None:
    assert entry("all_reduce", "hierarchical").applicable(12, 5) == "12 ranks are no whole number of nodes of 5 ranks"
    with pytest.raises(ScheduleError, match="hierarchical all_reduce is not applicable: 12 ranks are no whole"):
        build("all_reduce", "hierarchical", 12, 24, ranks_per_node=5)
    with pytest.raises(ScheduleError, match="ranks_per_node is 0"):
        build("all_reduce", "hierarchical", 12, 24, ranks_per_node=0)


def test_options_that_an_algorithm_does_not_take_do_not_reach_it() -> None:
    ring, same = build("all_reduce", "ring", 4, 64), build("all_reduce", "ring", 4, 64, ranks_per_node=2)
    assert np.array_equal(ring.src, same.src)
    assert registry.canonical("broadcast", "ring") == "chain"


@pytest.mark.parametrize(
    ("collective", "algorithm", "n", "nbytes", "sent", "steps"),
    [
        ("reduce_scatter", "bruck", 5, 500, [400] * 5, 3),
        ("reduce_scatter", "direct", 4, 400, [300] * 4, 1),
        ("reduce_scatter", "pat", 5, 500, [400] * 5, 4),
        ("reduce_scatter", "recursive_halving", 4, 400, [300] * 4, 2),
        ("reduce_scatter", "swing", 8, 800, [700] * 8, 3),
        ("all_gather", "swing", 8, 800, [700] * 8, 3),
        ("all_gather", "nvls", 4, 400, [100] * 4 + [1600], 2),
        ("all_reduce", "chain", 3, 100, [100, 200, 100], 4),
        ("all_reduce", "recursive_doubling", 6, 100, [100, 300, 100, 300, 200, 200], 4),
        ("all_reduce", "rabenseifner", 4, 400, [600] * 4, 4),
        ("all_reduce", "swing", 8, 800, [1400] * 8, 6),
        ("all_reduce", "swing_latency", 8, 100, [300] * 8, 3),
        ("all_reduce", "torus_2d", 16, 6400, [12000] * 16, 12),
        ("reduce", "binomial", 8, 100, [0] + [100] * 7, 3),
        ("broadcast", "double_binary_tree", 5, 100, [100, 50, 100, 100, 50], 3),
    ],
)
def test_small_schedules_have_the_bytes_and_steps_of_their_papers(
    collective: str, algorithm: str, n: int, nbytes: int, sent: list[int], steps: int
) -> None:
    s = build(collective, algorithm, n, nbytes)
    assert (s.sent_bytes().tolist(), s.steps) == (sent, steps)
