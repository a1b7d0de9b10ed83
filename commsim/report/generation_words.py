"""What bounds requests that a model answers, in sentences and as plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commsim.units import format_time

if TYPE_CHECKING:
    from commsim.scenario.generation_result import GenerationItem

_NAMES = {
    "products": "matrix products, whose weights are read for few rows",
    "attention": "attention over the cache and of prompts",
    "experts": "the products of experts",
    "collectives": "collectives between the ranks of a replica",
    "dispatch": "sending tokens to their experts",
    "elementwise": "element-wise kernels",
    "sampling": "sampling",
    "host": "the host, for which the GPU waits",
}
_LONG_WAIT = 0.1
"""Share of the time to the last token from which on the wait for the first is worth a word."""


def each_words(seconds: float) -> str:
    """A time per output token; ``-`` where answers of one token have none."""
    return format_time(seconds) if seconds else "-"


def user_words(tokens_per_s: float) -> str:
    """What a user gets; ``-`` where there is no time per output token."""
    return f"{tokens_per_s:,.1f}" if tokens_per_s else "-"


def generation_words(item: GenerationItem) -> list[str]:
    """What the mean request spends its time on, and whether the cache or the queue binds."""
    run, shares = item.run, _shares(item)
    ordered = sorted((name for name in shares if shares[name] > 5e-3), key=lambda name: -shares[name])
    first, *rest = ordered or ["host"]
    others = "".join(f", {100 * shares[name]:.0f} % {name}" for name in rest)
    each = f"{format_time(run.tpot_s)} each, " if run.tpot.size else ""
    lines = [
        f"{item.name}: {format_time(float(run.latency.mean()))} to the last token, {each}"
        f"bound by {_NAMES[first]}: {100 * shares.get(first, 0.0):.0f} % of the time of steps{others}."
    ]
    wait = run.ttft_s / float(run.latency.mean())
    if wait > _LONG_WAIT:
        lines.append(f"The first token takes {100 * wait:.0f} % of that: prompts are long, or requests wait.")
    if run.preemptions:
        lines.append(f"The cache binds: {run.preemptions:,} times it was full and a request was read again.")
    elif item.cache_share > 0.9:
        lines.append(f"The cache binds: {item.cache_share:.0%} of it was full.")
    else:
        lines.append(f"The cache does not bind: {item.cache_share:.0%} of it was full at most.")
    return lines


def generation_bound(item: GenerationItem) -> dict[str, Any]:
    """The largest cause and the shares of all."""
    shares = _shares(item)
    return {"bound_by": max(shares, key=lambda name: shares[name]), "shares": shares}


def _shares(item: GenerationItem) -> dict[str, float]:
    total = sum(item.causes.values()) or 1.0
    return {name: seconds / total for name, seconds in item.causes.items()}
