"""Lengths of answers with a long tail, of which the mean is known after the longest were cut.

What a training log prints is the mean over answers that ended by themselves or at the limit of tokens. The drawn
lengths of `commsim.generation.requests` have the mean of those that nothing cuts.
"""

from __future__ import annotations

import math

import numpy as np

from commsim.errors import ScenarioError
from commsim.generation.requests import MOST_TOKENS, Int64, Lengths, Requests

USUAL_CV = 0.7
"""Standard deviation over the mean of answers to questions of mathematics that nothing cuts: assumed, between those of
GSM8K (0.35, from the least, mean and most of 5,120 answers, verl-project/verl#2060) and of chats (about 1)."""

ALIKE = 0.5
"""Share of the variance of logarithms that answers to one prompt have in common, since hard questions take long:
assumed."""


def capped_mean(mean: float, cv: float, most: float) -> float:
    """The mean of log-normal lengths of a mean and deviation, those above `most` counted as `most`.

    >>> round(capped_mean(1000.0, 0.7, 1e6)), round(capped_mean(1000.0, 0.7, 1000.0))
    (1000, 752)
    """
    spread = math.sqrt(math.log1p(cv * cv))
    middle = math.log(mean) - spread * spread / 2.0
    above = (math.log(most) - middle) / spread
    return mean * _below(above - spread) + most * (1.0 - _below(above))


def _below(deviations: float) -> float:
    """Share of a normal distribution that lies below."""
    return 0.5 * (1.0 + math.erf(deviations / math.sqrt(2.0)))


def lengths_of(mean: float, most: int, cv: float = USUAL_CV) -> Lengths:
    """Lengths whose mean is `mean` after those above `most` were cut; all alike where `cv` is 0 or the mean is `most`.

    ScenarioError where the mean lies above the limit.

    >>> lengths_of(256, 256).fixed
    True
    """
    if not 1 <= mean <= most:
        raise ScenarioError(f"found a mean of {mean:g} tokens, expected 1 to the most tokens, {most}")
    if cv == 0.0 or mean > 0.999 * most:
        return Lengths(round(mean), most=most)
    low, high = mean, 1e4 * most
    for _ in range(100):  # the capped mean grows with the mean: bisection on its logarithm
        middle = math.sqrt(low * high)
        low, high = (middle, high) if capped_mean(middle, cv, most) < mean else (low, middle)
    return Lengths(round(high), cv=cv, most=most)


def asked(
    prompt_len: int,
    answer: Lengths,
    prompts: int,
    samples: int,
    *,
    blocks: int = 0,
    alike: float = ALIKE,
    seed: int = 0,
) -> Requests:
    """The requests of a rollout, so many samples of every prompt, in the order in which a queue deals them to engines.

    ``blocks``: each of so many engines gets a block of the batch, the samples of a prompt together; 0: each gets the
    next sample in turn.

    >>> asked(10, Lengths(5), 4, 2, blocks=2).count
    8
    """
    answers = _grouped(answer, prompts, samples, alike, seed)
    count = prompts * samples
    if not blocks:
        return Requests(np.full(count, prompt_len), answers)
    cut = [block.tolist() for block in np.array_split(np.arange(count), blocks)]
    turns = [block[i] for i in range(max(map(len, cut))) for block in cut if i < len(block)]
    return Requests(np.full(count, prompt_len), answers[turns])


def _grouped(answer: Lengths, prompts: int, samples: int, alike: float, seed: int) -> Int64:
    """Lengths of answers, (prompts * samples,), those of a prompt beside each other."""
    generator = np.random.default_rng([seed, 1])
    if answer.cv == 0.0:
        return answer.draw(prompts * samples, generator)
    common, own = generator.standard_normal((prompts, 1)), generator.standard_normal((prompts, samples))
    spread = math.sqrt(math.log1p(answer.cv**2))
    deviations = math.sqrt(alike) * common + math.sqrt(1.0 - alike) * own
    drawn = np.rint(answer.tokens * np.exp(spread * deviations - spread * spread / 2.0)).reshape(-1)
    cut: Int64 = np.clip(drawn, 1, answer.most or MOST_TOKENS).astype(np.int64)
    return cut
