"""What noise costs a call of NCCL: each message late by a draw, each node slower by one, in many repeated runs.

A ring channel is stepped as `commsim.nccl.timing` steps it, all channels of all runs at once; a pair of trees is
simulated by the event engine for each pair of channels of each run. Every channel has draws of its own, and a call
ends with its last channel. Draws only add to what a channel waits for, so that no run is quicker than the plain one.
The rounds of NVLS and NVLSTree go up and down the tree of the nodes, a message of each head and channel at a time;
chains, sends and PAT are lines of messages (`noise_lines`). Of other algorithms (CollNet, NVLS over nodes, kernels on
windows) no message is known: a slow node costs them the busy part of their time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from commsim.collectives.semantics import CHAINED
from commsim.collectives.tree import double_binary_tree
from commsim.engine.simulate import simulate
from commsim.engine.variation import Jitter, Variation
from commsim.errors import ScenarioError
from commsim.nccl.channels import Call
from commsim.nccl.environment import ALGORITHM_NAMES
from commsim.nccl.lower import Float64, Int64, RingPlan, lower_ring
from commsim.nccl.noise_lines import (
    MOST_AT_ONCE,
    MOST_DRAWS,
    chain_later,
    chain_messages,
    pat_later,
    pat_messages,
    sends_later,
    sends_of,
)
from commsim.nccl.nvls import Rounds, rounds_of
from commsim.nccl.predict import Prediction, Predictor
from commsim.nccl.protocols import heads
from commsim.nccl.tree import TREE_NODES, piece_bytes, tree_chunk
from commsim.nccl.tree_rows import PAIR
from commsim.units import format_bytes

MOST_EVENTS = 20_000_000
"""The same of trees, whose messages the event engine takes one by one."""

_MOST_PIECES = 32
"""Pieces into which a channel's share of a tree call is cut: each is one message of a hop."""


def noise_of(
    model: Predictor, variation: Variation, collective: str, got: Prediction, factors: Float64 | None = None
) -> Float64:
    """Seconds that the kernel of a predicted call takes longer in each of the repeated runs, (repeats,).

    `factors` (repeats, nodes) say how many times as long each node takes, where they are drawn already. ScenarioError
    where messages vary of an algorithm that tells none apart, or more of them than can be stepped.
    """
    if not variation.draws:
        return np.zeros(variation.repeats)
    later = _by_messages(model, variation, collective, got, factors)
    if later is not None:
        return np.maximum(later, 0.0)
    if factors is not None:
        return np.asarray(got.busy_s * (factors.max(axis=1) - 1.0))
    rng = variation.generator(1, got.nbytes % (1 << 32))
    slowest = [variation.slowest(model.nodes.count, chance) for chance in rng.random(variation.repeats)]
    return got.busy_s * (np.array(slowest) - 1.0)


def _by_messages(
    model: Predictor, variation: Variation, collective: str, got: Prediction, factors: Float64 | None
) -> Float64 | None:
    """The same of algorithms whose messages are known; None where nodes alone vary and it is too much, or of others."""
    jitter, runs = variation.jitter is not None, variation.repeats
    if model.system.ranks == 1:
        return np.zeros(runs) if jitter else None
    if got.algorithm == "send_recv":
        if not jitter:
            return None
        src, _, messages = sends_of(model, collective, got)
        _too_many(variation, collective, got.nbytes, src.size * messages * runs, MOST_DRAWS)
        drawn = _factors(model, variation, got.nbytes) if factors is None else factors
        return sends_later(model, variation, collective, got, drawn)
    stepped = {"ring": _ring, "tree": _tree, "nvls_tree": _nvls, "pat": _pat}
    if model.nodes.count == 1:
        stepped["nvls"] = _nvls
    if collective in CHAINED:
        stepped = {"ring": _chain}
    if got.algorithm not in stepped:
        if jitter:
            raise ScenarioError(_no_messages(collective, got))
        return None
    call = model.lowered(collective, got.nbytes, got.algorithm, got.protocol)
    drawn = _factors(model, variation, got.nbytes) if factors is None else factors
    return stepped[got.algorithm](model, variation, call, drawn)


def _no_messages(collective: str, got: Prediction) -> str:
    name = ALGORITHM_NAMES.get(got.algorithm, got.algorithm)
    ask = "library.env.NCCL_ALGO=Ring, Tree or NVLSTree, or " if collective == "all_reduce" else ""
    return (
        f"found jitter of {collective} of {format_bytes(got.nbytes)}, which NCCL runs by {name}: its time is a closed "
        f"form, in which no message is told apart; expected {ask}node_spread alone, which every algorithm knows"
    )


def _too_many(variation: Variation, collective: str, nbytes: int, messages: int, most: int) -> bool:
    """Whether a call has more messages than are stepped; a ScenarioError where that matters, as each is late."""
    if messages <= most or variation.jitter is None:
        return messages > most
    few = most * variation.repeats // messages
    raise ScenarioError(
        f"found {messages:,} messages of all runs of {collective} of {format_bytes(nbytes)}, expected up to "
        f"{most:,}, which take seconds: ask for fewer repeats, a smaller size or a smaller machine"
        + (f" (variation.repeats={few} of this one)" if few else "")
    )


def _factors(model: Predictor, variation: Variation, nbytes: int) -> Float64:
    """How many times as long each node takes in each run, (repeats, nodes)."""
    rng = variation.generator(1, nbytes % (1 << 32))
    return variation.node_factors(rng, (variation.repeats, model.nodes.count))


def _ring(model: Predictor, variation: Variation, call: Call, factors: Float64) -> Float64 | None:
    """Of rings: the last channel of each run, less what a channel takes without noise; None: too many messages."""
    plan, runs = lower_ring(model.nodes, call), variation.repeats
    channels = 1 if variation.jitter is None else call.split.channels  # which are alike without
    steps = sum(loop.count * loop.slices for loop in plan.loops) * plan.steps
    messages = steps * plan.ranks * channels * runs
    if _too_many(variation, call.collective, call.nbytes, messages, MOST_DRAWS):
        return None
    if not plan.loops:
        return np.zeros(runs)
    still = replace(variation, jitter=None)
    plain = ring_ends(plan, still, np.ones((1, plan.ranks)), variation.generator())
    factors = factors[:, model.nodes.comm.node_of]
    rng = variation.generator(0, call.nbytes % (1 << 32))
    slices = max(loop.slices for loop in plan.loops)
    many = max(1, MOST_AT_ONCE // (slices * plan.ranks))
    of_way = np.repeat(np.arange(runs), channels)
    parts = (factors[of_way[first : first + many]] for first in range(0, of_way.size, many))
    ends = np.concatenate([ring_ends(plan, variation, part, rng) for part in parts])
    return np.asarray(ends.reshape(runs, channels).max(axis=1) - plain[0])


def ring_ends(plan: RingPlan, variation: Variation, factors: Float64, rng: np.random.Generator) -> Float64:
    """When each of some ring channels ends, (ways,), each with a factor on what its ranks' slices take, (ways, ranks).

    Without jitter and with factors of 1 it is what `ring_wavefront` gives.
    """
    free, shape, jitter = np.zeros(factors.shape), factors.shape, variation.jitter
    for loop in plan.loops:
        service, hop = plan.service_of(loop) * factors, plan.hop_of(loop)
        keep, staging = plan.keep_of(loop) * factors, plan.staging_of(loop)
        for _ in range(loop.count):
            held = [free.copy() for _ in range(loop.slices)]
            for step in range(plan.steps):
                for s in range(loop.slices):
                    np.maximum(held[s], free, out=free)
                    free += service
                    if not step:
                        free += staging
                    arrival = free + hop
                    if jitter is not None:
                        arrival += jitter.draws(rng, factors.size).reshape(shape)
                    held[s] = np.roll(arrival, 1, axis=1)
            for s in range(loop.slices):
                np.maximum(held[s], free, out=free)
                free += keep
    return np.asarray(free.max(axis=1))


def _tree(model: Predictor, variation: Variation, call: Call, factors: Float64) -> Float64 | None:
    """Of trees: the last pair of channels of each run, less what a pair takes without noise; None as of rings."""
    if not call.nbytes:
        return np.zeros(variation.repeats)
    if model.nodes.count > TREE_NODES:  # of which fewer stand for all
        if variation.jitter is None:
            return None
        raise ScenarioError(f"found jitter of trees of {model.nodes.count:,} nodes, expected up to {TREE_NODES:,}")
    nodes = model.nodes.at_farthest(call.split.channels)
    fine = -(-call.split.channel_bytes // piece_bytes(nodes.system, call))
    pieces = min(fine, _MOST_PIECES)
    pairs = 1 if variation.jitter is None else -(-call.split.channels // PAIR)
    rows = 2 * PAIR * pieces * (model.system.ranks - 1)  # up and down each tree of a pair
    if _too_many(variation, call.collective, call.nbytes, rows * pairs * variation.repeats, MOST_EVENTS):
        return None
    program = model.tree.program(nodes, call, pieces)
    plain = simulate(program, in_order=False).makespan_s
    # Lines of LL and LL128 are pieces of a message: all of a chunk are late together.
    chunks = min(pieces, -(-call.split.channel_bytes // tree_chunk(nodes.system, call)))
    message = program.route.astype(np.int64) * chunks + model.tree.pieces_of(pieces) * chunks // pieces
    rng, links = variation.generator(0, call.nbytes % (1 << 32)), model.tree.node_of_links
    count = int(message.max()) + 1

    def runs() -> Iterator[float]:
        for factor in factors:
            bandwidth = program.link_bandwidth / factor[links]
            ends = []
            for _ in range(pairs):
                late = np.zeros(count) if variation.jitter is None else variation.jitter.draws(rng, count)
                noisy = replace(program, link_bandwidth=bandwidth, delay_s=program.delay_s + late[message])
                ends.append(simulate(noisy, in_order=False).makespan_s)
            yield max(ends)

    return np.array(list(runs())) - plain


def _chain(model: Predictor, variation: Variation, call: Call, factors: Float64) -> Float64 | None:
    """Of the chains of broadcast and reduce; None as of rings."""
    messages = chain_messages(model, call, variation.repeats, jitter=variation.jitter is not None)
    if _too_many(variation, call.collective, call.nbytes, messages, MOST_DRAWS):
        return None
    return chain_later(model, variation, call, factors)


def _pat(model: Predictor, variation: Variation, call: Call, factors: Float64) -> Float64 | None:
    """Of PAT; None as of rings."""
    channels = 1 if variation.jitter is None else call.split.channels
    messages = pat_messages(model, call, channels, variation.repeats)
    if _too_many(variation, call.collective, call.nbytes, messages, MOST_DRAWS):
        return None
    return pat_later(model, variation, call, factors)


def _nvls(model: Predictor, variation: Variation, call: Call, factors: Float64) -> Float64 | None:
    """Of the rounds of NVLS and NVLSTree: the last head and channel of each run, less what they take without noise."""
    nodes, channels = model.nodes, call.split.channels
    tree = (nodes.tree_rate(channels),) if nodes.count > 1 else ()
    kinds = nodes.at_farthest(channels).kinds
    each = max((rounds_of(model.system, model.machine, k.parameters, call, *tree) for k in kinds), key=lambda r: r.pace)
    count, runs = -(-max(1, call.nbytes) // each.nbytes), variation.repeats
    trees = double_binary_tree(nodes.count).parent[: min(2, channels)]
    lines = 1 if variation.jitter is None else heads(model.system) * -(-channels // len(trees))
    messages = 2 * max(1, nodes.count - 1) * count * lines * len(trees) * runs
    if _too_many(variation, call.collective, call.nbytes, messages, MOST_DRAWS):
        return None
    rng = variation.generator(0, call.nbytes % (1 << 32))
    of_line = np.repeat(np.arange(runs), lines)
    many = max(1, MOST_AT_ONCE // nodes.count)
    later = np.zeros(runs)
    for parent in trees:
        plain = rounds_end(parent, each, count, np.ones((1, nodes.count)), None, rng)[0]
        parts = [factors[of_line[first : first + many]] for first in range(0, of_line.size, many)]
        ends = np.concatenate([rounds_end(parent, each, count, part, variation.jitter, rng) for part in parts])
        later = np.maximum(later, ends.reshape(runs, lines).max(axis=1) - plain)
    return later


def rounds_end(
    parent: Int64, each: Rounds, count: int, factors: Float64, jitter: Jitter | None, rng: np.random.Generator
) -> Float64:
    """When so many rounds have gone up and down a tree of nodes, (lines,), each line with factors on its nodes' pace.

    `factors` are (lines, nodes). A node alone has a message of each round to itself.
    """

    def hop(seconds: Float64) -> Float64:
        return seconds + each.hop + (0.0 if jitter is None else jitter.draws(rng, seconds.size).reshape(seconds.shape))

    pace, levels = each.pace * factors, _levels(parent)
    up, down, end = np.zeros(factors.shape), np.zeros(factors.shape), np.zeros(len(factors))
    for _ in range(count):
        ready = np.zeros(factors.shape)
        for level in reversed(levels):
            begun = np.maximum(ready[:, level], up[:, level])
            up[:, level] = begun + pace[:, level]
            ready[:, level] = begun
            if level is not levels[0]:
                np.maximum.at(ready.T, parent[level], hop(begun).T)
        got = ready[:, levels[0]] if parent.size > 1 else hop(ready)
        for level, below in zip(levels, [*levels[1:], None], strict=True):
            begun = np.maximum(got, down[:, level])
            down[:, level] = begun + pace[:, level]
            end = np.maximum(end, begun.max(axis=1))
            if below is not None:
                place = np.searchsorted(level, parent[below])
                got = hop(begun[:, place])
    return end


def _levels(parent: Int64) -> list[Int64]:
    """The nodes of a tree by their depth, each level in rising order."""
    level, levels = np.flatnonzero(parent < 0), list[Int64]()
    while level.size:
        levels.append(level)
        level = np.flatnonzero(np.isin(parent, level))
    return levels
