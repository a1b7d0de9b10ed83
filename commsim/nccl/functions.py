"""The collectives that have kernels of their own in NCCL. All others are groups of sends and receives.

all_to_all, gather and scatter have calls of their own since 2.28, which become sends and receives too
(`commsim.nccl.p2p`).
"""

from __future__ import annotations

FUNCTIONS = ("broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce")
"""In NCCL's order (ncclFunc_t of src/include/nccl_common.h, 2.26.2): the tuner chooses how to do them."""
