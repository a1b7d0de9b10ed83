"""Chunks by algorithm and size."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.nccl.environment import ALGORITHM_NAMES
from commsim.nccl.protocols import DEFAULT_BUFFER_BYTES, KIB, LL, LL128, SIMPLE, Part, Protocol, chunk_bytes, loops
from commsim.nccl.system import Graph, System

RING = Graph(12, 30.0, 30.0, "RING", "NVL", "PIX")
NODE = System(
    8, 1, 90, "intel", "x86_64", "NVL", "PIX", 0.0, RING, RING, Graph(8, 40.0, 60.0, "NVLS", "NVL", "PIX"), 24
)


@pytest.mark.parametrize(
    ("collective", "algorithm", "protocol", "part", "expected"),
    [
        ("all_reduce", "ring", SIMPLE, Part(1 << 30), 2048 * KIB),
        ("broadcast", "ring", SIMPLE, Part(1 << 30), 512 * KIB),
        ("all_reduce", "ring", LL, Part(1 << 30), 32 * KIB),
        ("all_reduce", "tree", SIMPLE, Part(1024), 512 * KIB),  # never shrunk from 2.20 on
        ("all_reduce", "tree", LL128, Part(1 << 30), 576_000),
        ("all_reduce", "nvls", SIMPLE, Part(1 << 30, 16), 128 * KIB),
        ("all_reduce", "nvls", SIMPLE, Part(63 << 20, 16), 32 * KIB),
        ("all_reduce", "nvls", SIMPLE, Part(1 << 20, 16), 16 * KIB),
        ("all_gather", "pat", SIMPLE, Part(1 << 20), 64 * KIB),
    ],
)
def test_chunks(collective: str, algorithm: str, protocol: Protocol, part: Part, expected: int) -> None:
    assert chunk_bytes(NODE, collective, algorithm, protocol, part, DEFAULT_BUFFER_BYTES) == expected


@pytest.mark.parametrize(
    ("nbytes", "expected"), [(28 << 20, 512), ((28 << 20) - 1, 256), ((7 << 20) - 1, 128), (1 << 20, 64), (1 << 18, 32)]
)
def test_old_trees_cut_chunks_until_enough_of_them_fill_the_way_up(nbytes: int, expected: int) -> None:
    # Eight GPUs are 7 hops deep: 8 * 7 chunks above 128 KiB, 4 * 7 above 64, 7 above 32.
    chunk = chunk_bytes(NODE, "all_reduce", "tree", SIMPLE, Part(nbytes), DEFAULT_BUFFER_BYTES, (2, 19, 4))
    assert chunk == expected * KIB


def test_trees_of_nvls_start_smaller_on_many_nodes() -> None:
    four = replace(NODE, ranks=32, nodes=4)
    two = replace(NODE, ranks=16, nodes=2)
    part = Part(1 << 30, 16)
    assert chunk_bytes(four, "all_reduce", "nvls_tree", SIMPLE, part, DEFAULT_BUFFER_BYTES) == 64 * KIB
    assert chunk_bytes(two, "all_reduce", "nvls_tree", SIMPLE, part, DEFAULT_BUFFER_BYTES) == 128 * KIB


def test_chunks_of_nvls_as_the_environment_has_them() -> None:
    system = replace(NODE, nvls_chunk=512 * KIB)

    def chunks(system: System, algorithm: str, *sizes: int) -> list[int]:
        parts = [Part(size, 16) for size in sizes]
        return [chunk_bytes(system, "all_reduce", algorithm, SIMPLE, p, DEFAULT_BUFFER_BYTES) // KIB for p in parts]

    assert chunks(system, "nvls", (4 << 30) - 1, 4 << 30) == [64, 512]
    assert chunks(NODE, "nvls", (1 << 30) - 1, 1 << 30) == [64, 128]
    small = chunk_bytes(system, "all_reduce", "nvls", SIMPLE, Part(16 << 30, 16), 2 << 20)
    assert small == 256 * KIB  # never more than a slot of the buffer
    four = replace(system, ranks=32, nodes=4)
    sizes = [(64 << 20) - 1, 64 << 20, 256 << 20, (2 << 30) - 1, 2 << 30]
    assert chunks(four, "nvls_tree", *sizes) == [64, 64, 64, 64, 64]
    assert chunks(replace(four, nvls_tree_chunk=512 * KIB), "nvls_tree", *sizes) == [64, 128, 128, 256, 512]
    assert chunks(replace(four, nvls_tree_chunk=256 * KIB, nvls_chunk=128 * KIB), "nvls_tree", 2 << 30) == [128]
    assert chunks(replace(four, ranks=16, nodes=2), "nvls_tree", 2 << 30) == [512]


def test_loops_count_a_chunk_per_rank_of_a_ring() -> None:
    assert loops(NODE, "ring", 32 << 20, 2 << 20) == 2
    assert loops(NODE, "tree", 32 << 20, 512 * KIB) == 64


@given(
    st.sampled_from(sorted(ALGORITHM_NAMES)),
    st.sampled_from([LL, LL128, SIMPLE]),
    st.integers(1, 1 << 34),
    st.integers(1, 64),
)
def test_a_chunk_is_whole_grains_and_fits_the_connection(
    algorithm: str, protocol: Protocol, nbytes: int, channels: int
) -> None:
    chunk = chunk_bytes(NODE, "all_reduce", algorithm, protocol, Part(nbytes, channels), DEFAULT_BUFFER_BYTES)
    assert chunk % protocol.grain_bytes == 0
    assert 0 < chunk <= 4 * protocol.step_bytes
