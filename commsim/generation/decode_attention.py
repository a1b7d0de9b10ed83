"""Seconds of attention of one new token per sequence over its cache.

A kernel gives every pair of a sequence and a head of keys to a block of threads, and cuts its keys among several where
pairs are fewer than SMs (flash-decoding; Dao et al. 2023). Blocks pass over keys and values once; those of few pairs
are limited by what one SM can have in flight, those of many by the GPU's memory, those of many query heads per head
of keys (latent attention) by tensor cores.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commsim.generation.terms import Terms
from commsim.training.columns import Number, where
from commsim.training.kernels import Throughput

QUERY_ROWS = 16
"""Query heads that a tensor core takes at least: a block pads those of one head of keys to a multiple (m16n8k16)."""


@dataclass(frozen=True, eq=False)
class DecodeAttention:
    """A rank's sequences: ``pairs`` of a sequence and a head of keys, each with so many query heads and keys."""

    pairs: Number
    queries: Number
    keys: Number
    widths: Number  # elements of a key and of a value that a query is multiplied with, together
    key_bytes: Number  # of a key and its value in the cache, read once

    @property
    def nbytes(self) -> Number:
        """What is read of the cache."""
        return self.pairs * self.keys * self.key_bytes

    @property
    def key_flops(self) -> Number:
        """Of a key of a pair, rows of padding counted."""
        return 2.0 * np.ceil(self.queries / QUERY_ROWS) * QUERY_ROWS * self.widths


@dataclass(frozen=True, eq=False)
class DecodeTerms:
    """What a decode kernel costs beside its bytes."""

    start: Number  # of a block: its queries, its first keys on their way, its results
    sm: Number  # bytes/s of one SM over its share of the memory's
    split_keys: Number  # that a part of a sequence has at least
    combine: Number  # seconds of summing the parts


def decode_attention_seconds(a: DecodeAttention, gpu: Throughput, terms: DecodeTerms) -> Number:
    """Seconds of the kernel: blocks over the SMs, each at an SM's rate, and all of them at the memory's.

    Eight sequences of 4096 tokens, one head of keys: 64 MiB at most, a sixteenth of them on each of 128 SMs.

    >>> a = DecodeAttention(pairs=8, queries=8, keys=4096, widths=256, key_bytes=512)
    >>> gpu = Throughput(1e15, 3e12, 128)
    >>> round(float(decode_attention_seconds(a, gpu, DecodeTerms(0.0, 1.0, 64, 0.0))) * 1e6, 1)
    7.9
    """
    most = np.maximum(np.ceil(a.keys / terms.split_keys), 1.0)
    parts = np.clip(np.floor(gpu.sms / np.maximum(a.pairs, 1.0)), 1.0, most)
    key = np.maximum(
        a.key_bytes * gpu.sms / (gpu.bytes_per_s * terms.sm), a.key_flops * gpu.sms / gpu.flop_per_s
    )  # SM-seconds
    block = terms.start + a.keys / parts * key
    waves = np.maximum(a.pairs * parts / gpu.sms, 1.0)
    blocks = waves * block
    memory = a.nbytes / gpu.bytes_per_s
    return np.sqrt(blocks * blocks + memory * memory) + where(parts > 1.0, terms.combine, 0.0)


def decode_kernel_seconds(a: DecodeAttention, peak: Number, memory: Number, sms: Number, t: Terms) -> Number:
    """Seconds on a GPU of so many 16-bit FLOP/s, bytes/s and SMs, without the launch."""
    terms = DecodeTerms(t["start"], t["sm"], t["split_keys"], t["combine"])
    return decode_attention_seconds(a, Throughput(t["rate"] * peak, t["memory"] * memory, sms), terms)
