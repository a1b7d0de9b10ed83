"""What noise costs calls whose messages follow one another on lines: chains of ranks, sends between pairs, PAT.

A line hands on a message when it has come, when the one before has gone, and when a slot is free: the message as many
slots before has left the next line. Messages come in the order in which they were sent. Draws only add.
"""

from __future__ import annotations

from collections import deque
from math import ceil, log2

import numpy as np

from commsim.collectives.semantics import ROOTED
from commsim.engine.variation import Jitter, Variation
from commsim.nccl.chain import chain_steps
from commsim.nccl.channels import Call
from commsim.nccl.lower import Float64, Int64
from commsim.nccl.p2p import chunk_of
from commsim.nccl.pat import lowered
from commsim.nccl.predict import Prediction, Predictor
from commsim.nccl.protocols import STEPS

MOST_DRAWS = 200_000_000
"""Messages of all channels and runs of a call at one size: some seconds."""

MOST_AT_ONCE = 1 << 20
"""Figures of a step that are held at once."""

_IN_A_ROW = 4
"""Calls back to back of which the mean counts: what delays one is in part there before the next needs it."""


def lines_end(
    service: Float64, hop: Float64, pieces: int, slots: int, jitter: Jitter | None, rng: np.random.Generator
) -> Float64:
    """When the last of so many pieces has gone down each chain of lines, (chains,).

    `service` (chains, lines) are the seconds that a piece holds each line, `hop` those until it is at the next, of at
    least two `slots` between them.
    """
    shape = service.shape
    line, finish, arrived = np.arange(shape[1]), np.zeros(shape), np.zeros(shape)
    past: deque[tuple[Float64, Float64]] = deque(maxlen=max(2, slots))
    come, end = np.zeros(shape), np.zeros(shape[0])
    for step in range(pieces + shape[1] - 1):
        piece = step - line  # that each line has now
        here = (piece >= 0) & (piece < pieces)
        begun = np.maximum(come, finish)
        if len(past) == past.maxlen:
            # Its slot is free when the next line has handed on what was there, or the last has delivered it.
            freed, delivered = past[1][0][:, 1:], past[0][1][:, -1:]
            begun = np.where(piece >= slots, np.maximum(begun, np.concatenate([freed, delivered], axis=1)), begun)
        finish = np.where(here, begun + service, finish)
        arrival = finish + hop
        if jitter is not None:
            arrival = arrival + jitter.draws(rng, arrival.size).reshape(shape)
        arrived = np.where(here, np.maximum(arrived, arrival), arrived)
        past.append((finish, arrived))
        come = np.concatenate([np.zeros((shape[0], 1)), arrived[:, :-1]], axis=1)
        end = arrived[:, -1]
    return np.asarray(end)


def chain_messages(model: Predictor, call: Call, runs: int, *, jitter: bool) -> int:
    """Messages of all runs of a broadcast or reduce."""
    steps = chain_steps(model.nodes, call)
    channels = call.split.channels if jitter else len(steps.chains)
    return steps.pieces * _calls(model) * (model.system.ranks - 1) * channels * runs


def _calls(model: Predictor) -> int:
    return 1 if model.options.mode == "single" else _IN_A_ROW


def chain_later(model: Predictor, variation: Variation, call: Call, factors: Float64) -> Float64:
    """Seconds by which a broadcast or reduce is later, (runs,), by `factors` of its nodes, (runs, nodes)."""
    steps, runs, calls = chain_steps(model.nodes, call), len(factors), _calls(model)
    channels = call.split.channels if variation.jitter is not None else len(steps.chains)
    rng, comm = variation.generator(0, call.nbytes % (1 << 32)), model.nodes.comm
    each, pieces = steps.transfer_s / steps.pieces, steps.pieces * calls
    many = max(1, MOST_AT_ONCE // comm.ranks)
    later = np.zeros(runs)
    for channel in range(channels):
        order = channel % len(steps.chains)
        node = comm.node_of[steps.chains[order]]
        hop = np.maximum(np.diff(steps.way[order]) - each, 0.0)
        slow = np.maximum(factors[:, node[:-1]], factors[:, node[1:]])
        plain = lines_end(np.full((1, node.size - 1), each), hop, pieces, steps.slots, None, rng)[0]
        ends = [
            lines_end(each * slow[k : k + many], hop, pieces, steps.slots, variation.jitter, rng)
            for k in range(0, runs, many)
        ]
        later = np.maximum(later, (np.concatenate(ends) - plain) / calls)
    return later


def sends_of(model: Predictor, collective: str, got: Prediction) -> tuple[Int64, Int64, int]:
    """The nodes at both ends of every connection of a call of sends, and the messages of each."""
    comm, n = model.nodes.comm, model.system.ranks
    nbytes = round(got.nbytes / n) if collective == "all_to_all_v" else got.nbytes
    if collective == "send_recv":
        src, each = np.arange(n), float(nbytes)
        dst = np.roll(src, -1)
    elif collective in ROOTED:
        dst, each = np.arange(1, n), nbytes / n
        src = np.zeros_like(dst)
    else:
        src, dst = np.nonzero(~np.eye(n, dtype=bool))
        each = nbytes / n
    chunk = chunk_of(model.system, model.machine)
    of = np.repeat(np.stack([comm.node_of[src], comm.node_of[dst]]), max(1, got.channels), axis=1)
    return of[0], of[1], max(1, ceil(each / max(1, got.channels) / chunk))


def sends_later(
    model: Predictor, variation: Variation, collective: str, got: Prediction, factors: Float64
) -> Float64:  # fmt: skip
    """The same of sends, all of whose connections share what limits them, each message late for itself."""
    src, dst, messages = sends_of(model, collective, got)
    rng = variation.generator(0, got.nbytes % (1 << 32))
    many, each = max(1, MOST_AT_ONCE), got.busy_s / messages
    later = np.zeros(len(factors))
    for run, factor in enumerate(factors):
        for first in range(0, src.size, many):
            ends = slice(first, first + many)
            service = each * np.maximum(factor[src[ends]], factor[dst[ends]])[:, None]
            end = lines_end(service, np.zeros(1), messages, STEPS, variation.jitter, rng)
            later[run] = max(later[run], float(end.max()) - got.busy_s)
    return later


def pat_messages(model: Predictor, call: Call, channels: int, runs: int) -> int:
    """Messages of all runs of PAT."""
    sent = lowered(model.system, model.machine, model.parameters, call)
    return sent.loops * len(sent.service_s) * model.system.ranks * channels * runs


def pat_later(model: Predictor, variation: Variation, call: Call, factors: Float64) -> Float64:
    """The same of PAT: a rank sends in turn, and what doubles its reach when the transfer before has come to it."""
    sent = lowered(model.system, model.machine, model.parameters, call)
    n, runs = model.system.ranks, len(factors)
    channels = call.split.channels if variation.jitter is not None else 1
    rng = variation.generator(0, call.nbytes % (1 << 32))
    of_rank = factors[:, model.nodes.comm.node_of]

    def end(slow: Float64, jitter: Jitter | None) -> Float64:
        free, last = np.zeros(slow.shape), np.zeros(len(slow))
        come = [np.zeros(slow.shape) for _ in range(sent.loops)]
        doubling = ceil(log2(n))
        first = len(sent.service_s) - doubling
        for k, seconds in enumerate(sent.service_s):
            reach = max(0, k - first)
            held = seconds + sent.bytes_s[k] * (slow - 1.0)  # a node's pace is that of its bytes
            for loop in range(sent.loops):
                free = np.maximum(free, come[loop] if k >= first else 0.0) + held
                arrival = free + sent.hop_s
                if jitter is not None:
                    arrival = arrival + jitter.draws(rng, arrival.size).reshape(slow.shape)
                come[loop] = np.maximum(come[loop], np.roll(arrival, 1 << reach, axis=1))
                last = np.maximum(last, arrival.max(axis=1))
        return last

    plain, later = end(np.ones((1, n)), None)[0], np.zeros(runs)
    many = max(1, MOST_AT_ONCE // n)
    for _ in range(channels):
        ends = [end(of_rank[k : k + many], variation.jitter) for k in range(0, runs, many)]
        later = np.maximum(later, np.concatenate(ends) - plain)
    return later
