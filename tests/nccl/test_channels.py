"""Channels per call against what NCCL logs print (``channel{Lo..Hi}``)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.nccl.channels import split
from commsim.nccl.protocols import LL, LL128, PROTOCOLS, SIMPLE, Protocol

NEW, OLD = (2, 26, 2), (2, 18, 1)


@pytest.mark.parametrize(
    ("protocol", "nbytes", "channels"),
    [
        (LL, 4 << 10, 1),
        (LL, 64 << 10, 2),
        (LL, 128 << 10, 4),
        (LL, 256 << 10, 8),
        (LL, 512 << 10, 16),
        (LL, 1 << 20, 24),
        (SIMPLE, 1 << 20, 22),
        (SIMPLE, 64 << 20, 24),
    ],
)
def test_channels_of_eight_h100(protocol: Protocol, nbytes: int, channels: int) -> None:
    assert split(24, nbytes, "ring", protocol, 8, NEW).channels == channels


def test_before_2_22_the_channels_left_share_evenly() -> None:
    got = split(24, 1 << 20, "ring", LL, 8, OLD)
    assert (got.channels, got.channel_bytes) == (24, 43_691)


def test_threads_are_halved_only_on_the_last_channel() -> None:
    assert split(24, 2048, "ring", LL128, 8, NEW).threads == 320
    assert split(24, 2048, "tree", LL128, 8, NEW).threads == 640


@given(
    st.integers(1, 64),
    st.integers(0, 1 << 34),
    st.sampled_from(sorted(PROTOCOLS)),
    st.sampled_from([NEW, OLD]),
    st.integers(2, 4096),
)
def test_the_fullest_channel_times_the_channels_covers_the_call(
    limit: int, nbytes: int, protocol: str, version: tuple[int, int, int], ranks: int
) -> None:
    got = split(limit, nbytes, "ring", PROTOCOLS[protocol], ranks, version)
    assert 1 <= got.channels <= limit
    assert got.channel_bytes <= nbytes <= got.channels * got.channel_bytes or nbytes == 0
