"""Closed forms against rows, at every rank count, root and node size; the two formulas everybody knows; the table."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from commsim.collectives import registry, traffic_forms
from commsim.collectives.grid import usual_node
from commsim.collectives.registry import build, names
from commsim.collectives.traffic import FORMS, page, row_count, traffic, units
from commsim.errors import ScheduleError


def node_sizes(collective: str, algorithm: str, n: int) -> list[int | None]:
    if "ranks_per_node" not in registry.entry(collective, algorithm).takes:
        return [None]
    return [None, *(d for d in range(1, n + 1) if n % d == 0)]


def levels_of_eight(n: int) -> int:
    """Levels of switches with eight ports down above n ranks."""
    return 0 if n == 1 else 1 + levels_of_eight(-(-n // 8))


def test_every_algorithm_has_a_closed_form() -> None:
    assert list(FORMS) == names(), "FORMS of commsim/collectives/traffic.py: one for each, in the registry's order"


@pytest.mark.parametrize(("collective", "algorithm"), names())
def test_sent_and_received_bytes_equal_the_closed_form(collective: str, algorithm: str) -> None:
    rooted = "root" in registry.entry(collective, algorithm).takes
    for n in (1, 2, 3, 4, 5, 7, 8, 12, 13, 24):
        for node in node_sizes(collective, algorithm, n):
            for root in {0, n // 2, n - 1} if rooted else {0}:
                nbytes = 3 * units(collective, algorithm, n, root, ranks_per_node=node).parts
                s = build(collective, algorithm, n, nbytes, root, ranks_per_node=node)
                sent, received = traffic(collective, algorithm, n, nbytes, root, ranks_per_node=node)
                assert sent.dtype == np.int64
                assert np.array_equal(s.sent_bytes(), sent), (n, root, node)
                assert np.array_equal(s.received_bytes(), received), (n, root, node)


@pytest.mark.parametrize(("collective", "algorithm"), names())
def test_the_total_in_the_table_is_the_total_of_the_form(collective: str, algorithm: str) -> None:
    for n in (1, 2, 3, 6, 8, 20, 33):
        for node in node_sizes(collective, algorithm, n):
            form = units(collective, algorithm, n, ranks_per_node=node)
            g = node or (1 if algorithm == "tree" else usual_node(n))
            p = 1 << (n.bit_length() - 1)
            symbols = {"n": Fraction(n), "g": g, "M": n // g, "p": p, "e": n - p, "k": p.bit_length() - 1}
            symbols |= {"L": (n - 1).bit_length(), "B": sum(d.bit_count() for d in range(n)), "some": int(n > 1)}
            symbols |= {"s": form.sent.size - n, "P": levels_of_eight(n)}
            symbols |= {f"H{k}": int((traffic_forms.knomial_below(n, k) - 1).sum()) for k in (2, 4)}
            expected = eval(FORMS[collective, algorithm].total, {}, symbols)  # our own table, in letters
            assert expected == Fraction(int(form.sent.sum()), form.parts), (n, node)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 40, 1000])
def test_ring_all_reduce_sends_two_parts_less_two_blocks(n: int) -> None:
    size = 10**12 * n
    sent, received = traffic("all_reduce", "ring", n, size)
    assert set(sent.tolist()) == set(received.tolist()) == {2 * (n - 1) * 10**12}
    assert sent.sum() == 2 * (n - 1) * size


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 40])
def test_a_parameter_server_gets_and_sends_every_array_once(n: int) -> None:
    sent, received = traffic("all_reduce", "parameter_server", n, 1000)
    assert (sent[n], received[n]) == (n * 1000, n * 1000)
    sent, received = traffic("all_reduce", "flat", n, 1000, root=n - 1)
    assert (sent[n - 1], received[n - 1]) == ((n - 1) * 1000, (n - 1) * 1000)


def every_block_moves_alike(collective: str, algorithm: str) -> bool:
    if (collective, algorithm) not in FORMS:  # told by the first test
        return False
    form = units(collective, algorithm, 6)
    return form.sent.sum() % form.parts == 0 and collective not in {"all_to_all", "all_to_all_v", "scatter", "gather"}


@pytest.mark.parametrize(("collective", "algorithm"), [key for key in names() if every_block_moves_alike(*key)])
def test_totals_hold_for_sizes_that_cannot_be_cut_evenly(collective: str, algorithm: str) -> None:
    form = units(collective, algorithm, 6)
    for nbytes in (1, 5, 97):
        assert build(collective, algorithm, 6, nbytes).sent_bytes().sum() == form.sent.sum() // form.parts * nbytes


def test_a_size_that_cannot_be_cut_is_refused() -> None:
    with pytest.raises(
        ScheduleError, match="traffic of ring all_reduce is known for arrays of 3 equal parts, found 10"
    ):
        traffic("all_reduce", "ring", 3, 10)
    with pytest.raises(ScheduleError, match="not applicable: 3 ranks are no whole number"):
        traffic("all_reduce", "tree", 3, 12, ranks_per_node=2)


def test_the_page_of_the_documentation_is_the_table_as_it_is(checkout: Path) -> None:
    shown = (checkout / "docs" / "reference" / "traffic.md").read_text(encoding="utf-8")
    assert shown == page(), "write it anew: make reference"


@pytest.mark.parametrize(("collective", "algorithm"), names())
def test_rows_are_counted_without_building_them(collective: str, algorithm: str) -> None:
    rooted = "root" in registry.entry(collective, algorithm).takes
    for n in (1, 2, 3, 5, 8, 12):
        for node in node_sizes(collective, algorithm, n):
            for channels, chunks in ((1, 1), (2, 3)):
                cut = registry.Cut(channels=channels, chunks=chunks, ranks_per_node=node)
                nbytes = 24 * units(collective, algorithm, n, ranks_per_node=node).parts
                s = build(collective, algorithm, n, nbytes, n - 1 if rooted else 0, **cut)
                assert row_count(collective, algorithm, n, **cut) == s.rows, (n, node, channels, chunks)
