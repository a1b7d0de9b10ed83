"""Fits what hosts and graphs take to measured runs: parameters of `commsim/generation/parameters.yaml` with a spread.

Residuals are logarithms of times per output token with a robust loss, by the closed form of a steady loop; a parameter
is held to its start by its spread. Every architecture weighs as much as the square root of its runs. `first_seconds`
then says what servers need before the queue, by what it leaves of times to the first token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from commsim.generation.memory import replica_memory
from commsim.generation.parameters import generation_parameters, generation_values
from commsim.generation.replica import Replica
from commsim.generation.steady import ClosedLoop, SteadyTimes, steady_times
from commsim.generation.step import StepModel
from commsim.generation.terms import Kernels, kernels
from commsim.training.compute import Values
from study.serving_rows import ServingRow

Float64 = npt.NDArray[np.float64]

PRIOR = 0.06
"""Weight of a parameter's logarithm over its start, in its spread."""

ROBUST = 0.1
"""Logarithmic error from which on a row counts less (soft L1)."""

PARTS, ALIKE = ("step", "sequence", "request", "kernel"), 0.5
"""Of the host of vLLM and SGLang, both schedulers in Python, what is taken to be alike where runs do not say otherwise,
and the deviation of the logarithm of their ratio."""


class Predictions:
    """Times of loops by parameters; what kernels take is computed once for each replica and batch."""

    def __init__(self, terms: Kernels | None = None) -> None:
        self._terms = terms or kernels()
        self._models: dict[Replica, StepModel] = {}

    def times(self, replica: Replica, loop: ClosedLoop, values: Values) -> SteadyTimes:
        """Of a replica under a load."""
        if replica not in self._models:
            self._models[replica] = StepModel(replica, kernels=self._terms)
        return steady_times(self._models[replica].with_values(values), loop)

    def of_rows(self, rows: Sequence[ServingRow], values: Values) -> list[SteadyTimes]:
        """Of rows, those of one replica and load once."""
        known: dict[tuple[Replica, ClosedLoop], SteadyTimes] = {}
        for row in rows:
            key = (row.replica, row.loop)
            if key not in known:
                known[key] = self.times(*key, values)
        return [known[row.replica, row.loop] for row in rows]


def free_parameters() -> tuple[str, ...]:
    """The names of those that are fitted."""
    return tuple(p.name for p in generation_parameters() if p.spread)


def fitted(rows: Sequence[ServingRow], predictions: Predictions) -> Values:
    """The parameters that rows say; others as shipped."""
    from scipy.optimize import least_squares

    rows = some_runs([row for row in rows if has_room(row)])
    of = {p.name: p for p in generation_parameters()}
    names = free_parameters()
    starts = np.log([of[name].start for name in names])
    spreads = np.array([of[name].spread for name in names])
    weight = _weights(rows)
    measured = np.log([row.each_s for row in rows])

    def residuals(z: Float64) -> Float64:
        x = starts + spreads * (z - 1.0)
        times = predictions.of_rows(rows, values_of(names, x))
        off = weight * (np.log([t.each_s for t in times]) - measured)
        apart = [x[names.index(f"host.{part}.vllm")] - x[names.index(f"host.{part}.sglang")] for part in PARTS]
        return np.concatenate([_robust(off), PRIOR * (x - starts) / spreads, PRIOR / ALIKE * np.array(apart)])

    begin = np.ones(len(names))  # in spreads beside the start, from 1: a relative step is one of spreads then
    fit = least_squares(residuals, begin, diff_step=0.02, xtol=1e-4, ftol=1e-4, max_nfev=12)
    return values_of(names, starts + spreads * (fit.x - 1.0))


def _robust(off: Float64) -> Float64:
    """Residuals whose squares are the soft L1 loss."""
    return np.asarray(np.sign(off) * ROBUST * np.sqrt(2.0 * (np.sqrt(1.0 + (off / ROBUST) ** 2) - 1.0)), np.float64)


def values_of(names: Sequence[str], x: Float64) -> Values:
    """Values by name, those named in logarithms."""
    shipped: Mapping[str, float] = generation_values()
    return {**shipped, **dict(zip(names, np.exp(x).tolist(), strict=True))}


def _weights(rows: Sequence[ServingRow]) -> Float64:
    """Of rows: runs listed several times count once, architectures by the square root of their rows."""
    same = Counter((row.replica, row.loop) for row in rows)
    runs = Counter(row.architecture for row in {(row.replica, row.loop): row for row in rows}.values())
    mean = np.mean([n**0.5 for n in runs.values()])
    return np.array([(mean / runs[row.architecture] ** 0.5 / same[row.replica, row.loop]) ** 0.5 for row in rows])


MOST_RUNS = 25
"""Of an architecture, framework and GPU, drawn with a fixed seed: what a fit looks at."""


def some_runs(rows: Sequence[ServingRow]) -> list[ServingRow]:
    """Rows of at most `MOST_RUNS` runs of each kind."""
    kinds: dict[tuple[str, str, str], dict[tuple[Replica, ClosedLoop], None]] = {}
    for row in rows:
        kinds.setdefault((row.architecture, row.framework, row.system), {})[row.replica, row.loop] = None
    chosen = set()
    for runs in kinds.values():
        listed = list(runs)
        order = np.random.default_rng(0).permutation(len(listed))[:MOST_RUNS]
        chosen |= {listed[i] for i in order}
    return [row for row in rows if (row.replica, row.loop) in chosen]


def has_room(row: ServingRow) -> bool:
    """Whether the cache holds all requests of a run at once: what waits for room is the queue's."""
    memory = replica_memory(row.replica)
    return memory.most_sequences(row.loop.isl + row.loop.osl) >= row.loop.concurrency


def first_seconds(rows: Sequence[ServingRow], queued_s: Sequence[float], framework: str) -> float:
    """Seconds before the queue with which the times to a framework's first token have the least mean error, in
    logarithms; NaN of no rows. Runs listed several times count once."""
    pairs = {
        (r.replica, r.loop, r.first_s): (q, r.first_s)
        for q, r in zip(queued_s, rows, strict=True)
        if r.framework == framework and r.first_s > 0 and q > 0
    }
    if not pairs:
        return float("nan")
    queued, measured = np.array(list(pairs.values())).T
    steps = np.arange(0.0, 0.5, 0.0025)
    off = [float(np.abs(np.log((queued + step) / measured)).mean()) for step in steps]
    return float(steps[int(np.argmin(off))])
