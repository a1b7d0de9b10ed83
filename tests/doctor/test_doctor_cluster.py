"""Hosts as people write them, and what of a cluster may be slow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.doctor.cluster import HostCluster, hostlist
from commsim.doctor.suspect import PartKind, suspects_of
from commsim.errors import CommsimError


@given(first=st.integers(0, 900), count=st.integers(1, 60), digits=st.integers(1, 5))
def test_a_range_of_hosts_is_each_of_them(first: int, count: int, digits: int) -> None:
    low, high = str(first).zfill(digits), str(first + count - 1).zfill(digits)
    names = [f"n{i:0{len(low)}d}" for i in range(first, first + count)]
    assert hostlist(f"n[{low}-{high}]") == tuple(names)
    assert hostlist(",".join(names)) == tuple(names)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found no host"),
        ("a,a", "found the host 'a' twice"),
        ("n[1-", "expected a list such as"),
        ("n[9-1]", "the first one first"),
        ("n[1-99999999]", "at most 4,096 hosts"),
        ("a b", "expected letters, digits"),
        ("-oProxyCommand", "expected letters, digits"),
        ("a;rm", "expected letters, digits"),
        ("n[x]", "expected a list such as"),
    ],
)
def test_what_is_no_list_of_hosts_is_refused(text: str, message: str) -> None:
    with pytest.raises(CommsimError, match=message):
        hostlist(text)


def test_suspects_are_the_parts_that_a_cluster_has() -> None:
    whole = suspects_of(HostCluster(("a", "b", "c", "d"), 8, 4, np.array([0, 0, 1, 1]), rails=True))
    assert np.bincount(whole.place).tolist() == [4, 16, 32, 8]
    assert whole.name(4) == "a: network card 0, its cable or port"
    assert whole.name(len(whole.place) - 1) == "leaf switch 1 of rail 3: its uplinks"
    plain = suspects_of(HostCluster(("a", "b"), 1, 1))
    assert set(plain.place.tolist()) == {PartKind.NODE}
    assert plain.name(1) == "b: its network card, cable or port"
