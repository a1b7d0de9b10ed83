"""Channels per call against what NCCL logs print (``channel{Lo..Hi}``)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.nccl.channels import nvls_channels, p2p_channels, p2p_start, split, traffic
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


@pytest.mark.parametrize(
    ("version", "channels"), [((2, 21, 5), 4), ((2, 22, 3), 4), ((2, 23, 4), 2), ((2, 28, 3), 2), ((2, 29, 7), 1)]
)
def test_the_least_traffic_of_a_channel_rose(version: tuple[int, int, int], channels: int) -> None:
    # A broadcast of 32 KiB with Simple, four channels of 64 threads; 2.29.7 prints {0..0}.
    assert split(4, 32 << 10, "ring", SIMPLE, 2, version, (1, 32 << 10), max_threads=64).channels == channels


@pytest.mark.parametrize(("version", "most"), [((2, 22, 3), 1_392), ((2, 23, 4), 2_048)])
def test_channels_are_cut_at_16_bytes_before_they_are_cut_at_the_least_traffic(
    version: tuple[int, int, int], most: int
) -> None:
    # 4160 B that each of 16 ranks holds, on three channels: 87 of 260 cells of 16 B, or 2 of 5 cells of 1 KiB.
    got = split(3, 4_160, "ring", SIMPLE, 16, version, (16, 4_160), max_threads=16)
    assert (got.channels, got.channel_bytes) == (3, most)


@pytest.mark.parametrize(("version", "channels"), [((2, 25, 1), 2), ((2, 26, 2), 4)])
def test_bytes_of_ll_count_four_times_since_2_26(version: tuple[int, int, int], channels: int) -> None:
    assert split(4, 32 << 10, "ring", LL, 2, version, (1, 32 << 10)).channels == channels


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


@pytest.mark.parametrize(
    ("arguments", "version", "channels"),
    [
        ((24, 1, 8, 18, 1, 50.0), (2, 27, 0), (32, 32)),  # 8 x H100: 32 and 32 per peer in public logs
        ((24, 1, 2, 12, 0, 0.0), (2, 27, 0), (32, 32)),  # a bridged pair of A100
        ((4, 2, 4, 0, 1, 3.125), (2, 27, 0), (4, 2)),  # two nodes of two V100 over RoCE
        ((2, 1, 2, 0, 0, 0.0), (2, 27, 0), (2, 2)),
        ((16, 2, 16, 18, 1, 50.0), (2, 28, 9), (16, 2)),
        ((16, 10, 80, 18, 1, 50.0), (2, 28, 9), (16, 1)),  # 160 would be over four times 16
        ((16, 10, 80, 18, 1, 50.0), (2, 18, 3), (16, 2)),
        ((16, 4, 32, 18, 1, 50.0), (2, 29, 2), (16, 4)),  # 50 GB/s over 14; 4 batches of 8 peers find room
        ((16, 10, 80, 18, 1, 50.0), (2, 29, 2), (16, 1)),  # 10 batches of 8 do not
        ((16, 2, 16, 18, 2, 50.0), (2, 29, 2), (16, 8)),
        ((4, 2, 4, 0, 1, 3.125), (2, 30, 0), (4, 1)),
        ((4, 10, 10, 0, 1, 50.0), (2, 29, 2), (4, 2)),  # one GPU a node: no peer over PCIe; two batches
        ((4, 2, 2, 0, 1, 25.0), (2, 16, 5), (4, 2)),
    ],
)
def test_channels_of_sends_and_receives(
    arguments: tuple[int, int, int, int, int, float], version: tuple[int, int, int], channels: tuple[int, int]
) -> None:
    assert p2p_channels(*arguments, version) == channels


def test_sends_start_on_fewer_channels_where_peers_are_many() -> None:
    assert p2p_start(32, 32, 8) == 4
    assert p2p_start(2, 16, 64) == 1


def test_nvls_channels_by_gpu_and_nodes() -> None:
    assert [nvls_channels(sm, n, (2, 27, 3), {}) for sm, n in ((90, 1), (100, 1), (100, 4))] == [16, 24, 32]
    assert nvls_channels(100, 4, (2, 24, 3), {}) == 16
    assert nvls_channels(100, 1, (2, 26, 2), {}) == 32  # one NVLink domain got fewer from 2.27
    assert nvls_channels(90, 2, NEW, {"NCCL_MAX_CTAS": "4"}) == 4
    assert nvls_channels(90, 2, NEW, {"NCCL_MIN_CTAS": "24"}) == 24
    assert nvls_channels(90, 2, NEW, {"NCCL_MAX_NCHANNELS": "4"}) == 16  # counts the others


def test_what_one_rank_holds_is_what_is_cut_into_cells() -> None:
    # Logged with 4 ranks and 4 channels: all_gather of 8 KiB per rank by LL takes 2 channels, of 16 KiB all 4.
    for held, channels in ((8 << 10, 2), (16 << 10, 4)):
        factor, own = traffic("all_gather", 4 * held, 4)
        assert own == held
        assert split(4, 4 * held, "ring", LL, 4, NEW, (factor, own)).channels == channels
