"""Fits the parameters of all-reduce kernels to measured rows: times are sums of amounts times parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from commsim.kernels.choice import choose
from commsim.kernels.costs import LATENCIES, TWO_DIES
from commsim.kernels.predict import host_name, kernel_costs, kernel_parameters, kernel_values
from commsim.training.compute import Values
from study.kernel_rows import KernelRow

Float64 = npt.NDArray[np.float64]

PRIOR = 0.1
"""Weight of a parameter's logarithm over its start, in its spread: decides only what rows leave open."""

ROBUST = 0.1
"""Logarithmic error from which on a row counts less (soft L1)."""

NO_MULTICAST = {
    ("vllm", (0, 14, 0), "H100-SXM5-80GB"),
    ("vllm", (0, 19, 0), "GB200-NVL72"),
    ("vllm", (0, 24, 0), "GB200-NVL72"),
    ("sglang", (0, 5, 9), "GB200-NVL72"),
}
"""Collections on machines that did not multicast: vLLM's own kernel ran where symmetric memory would have (2 to 8 MiB
on GB200, 256 KiB to 4 MiB on H100), and NCCL takes 1.1 to 2.7 times as long for 1 GiB. Only the fit knows it."""


@dataclass(frozen=True, eq=False)
class Design:
    """Amounts of all parameters by row, `(rows, parameters)`: latencies in clocks of the reference apart from bytes."""

    waits: Float64
    rates: Float64
    hosts: Float64  # 1 where a parameter is a factor of the host's seconds; no 1 in a row of a graph
    two_dies: Float64  # (rows,), 1 or 0
    nccl_s: Float64
    seconds: Float64

    def predicted(self, x: Float64) -> Float64:
        """Seconds by logarithms of all parameters."""
        return np.asarray(self._both(x)[0], np.float64)

    def _both(self, x: Float64) -> tuple[Float64, Float64, Float64, Float64]:
        p = np.exp(x)
        factor = 1.0 + self.two_dies * (p[_AT[TWO_DIES]] - 1.0)
        waits = self.waits @ p * factor
        gpu = self.nccl_s + waits + self.rates @ p
        host = np.where(self.hosts.any(axis=1), np.exp(self.hosts @ x), 0.0)
        return np.maximum(gpu, host), gpu, waits, factor

    def slopes(self, x: Float64) -> Float64:
        """Of ln(seconds) by the logarithm of each parameter."""
        _, gpu, waits, factor = self._both(x)
        out = (self.waits * factor[:, None] + self.rates) * np.exp(x) / gpu[:, None]
        out[:, _AT[TWO_DIES]] = waits * self.two_dies * np.exp(x[_AT[TWO_DIES]]) / factor / gpu
        by_host = self.hosts.any(axis=1) & (np.exp(self.hosts @ x) > gpu)
        return np.asarray(np.where(by_host[:, None], self.hosts, out), np.float64)

    def taken(self, chosen: npt.NDArray[np.bool_]) -> Design:
        """Some of the rows."""
        return Design(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))


NAMES = tuple(p.name for p in kernel_parameters() if p.spread)
_AT = {name: i for i, name in enumerate(NAMES)}
_STARTS = np.log([p.start for p in kernel_parameters() if p.spread])
_SPREADS = np.array([p.spread for p in kernel_parameters() if p.spread])


FACTORS = (TWO_DIES, "host.amd", "host.arm")
NOTHING = np.log(1e-30)
MOST_STEPS, LEAST_SLOPE = 200, 1e-8


def design(rows: Sequence[KernelRow]) -> Design:
    """What the model needs of the rows."""
    shape = len(rows), len(NAMES)
    waits, rates, hosts = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for i, row in enumerate(rows):
        d = row.call.device
        costs = kernel_costs(row.call, row.choice.kernel, cuda_graph=row.cuda_graph, copied=row.copied)
        for name, amount in costs.items():
            into, unit = (waits, d.cycle) if name in LATENCIES else (rates, 1.0)
            into[i, _AT[name]] += amount * unit
        if not row.cuda_graph:
            hosts[i, _AT[host_name(row.call)]] = 1.0
            if d.host != "intel":
                hosts[i, _AT[f"host.{d.host}"]] = 1.0
    return Design(
        waits,
        rates,
        hosts,
        np.array([float(row.call.device.two_dies) for row in rows]),
        np.array([row.nccl_s for row in rows]),
        np.array([row.seconds for row in rows]),
    )


def with_facts(rows: Sequence[KernelRow]) -> list[KernelRow]:
    """Rows that a fit may see, with what their machines can't do; rows that NCCL would then run are left out."""
    out = []
    for row in rows:
        if (row.call.framework, row.call.release, row.call.device.name) not in NO_MULTICAST:
            out.append(row)
            continue
        call = replace(row.call, multicast=False)
        choice = choose(call)
        if choice.kernel != "nccl":
            out.append(replace(row, call=call, choice=choice))
    return out


def fitted(rows: Design, without: str = "") -> Values:
    """The parameters by name, fitted to rows; those that no row has keep their starts.

    `without`: one that is not there: what it is a latency or the bytes of costs nothing, what it is a factor of stays.
    """
    starts, measured = _STARTS.copy(), np.log(rows.seconds)
    held = np.array([name == without for name in NAMES])
    starts[held] = 0.0 if without in FACTORS else NOTHING
    x = _least(rows, measured, starts, np.where(held, 1.0 / PRIOR, PRIOR / _SPREADS) ** 2)
    return {**kernel_values(), **dict(zip(NAMES, np.exp(x).tolist(), strict=True))}


def _least(rows: Design, measured: Float64, starts: Float64, prior: Float64) -> Float64:
    """Logarithms of least cost, by a trust region on the normal equations of the 29 parameters.

    scipy's least_squares decomposes all rows in each step: seconds where its threads wait for a processor.
    """

    def off(x: Float64) -> Float64:
        return np.log(rows.predicted(x)) - measured

    def cost(x: Float64) -> float:
        robust = 2.0 * ROBUST**2 * (np.sqrt(1.0 + (off(x) / ROBUST) ** 2) - 1.0)
        return float(robust.sum() + (prior * (x - starts) ** 2).sum())

    def weighted(x: Float64) -> Float64:
        return np.asarray(rows.slopes(x) / np.sqrt(1.0 + (off(x) / ROBUST) ** 2)[:, None], np.float64)

    def slope(x: Float64) -> Float64:
        return np.asarray(2.0 * (off(x) @ weighted(x) + prior * (x - starts)), np.float64)

    def bend(x: Float64) -> Float64:
        return np.asarray(2.0 * (rows.slopes(x).T @ weighted(x) + np.diag(prior)), np.float64)

    options = {"maxiter": MOST_STEPS, "gtol": LEAST_SLOPE}
    return np.asarray(minimize(cost, starts, jac=slope, hess=bend, method="trust-exact", options=options).x, np.float64)


def predicted(rows: Design, v: Values) -> Float64:
    """Seconds of the rows by values of the parameters."""
    return rows.predicted(np.log([v[name] for name in NAMES]))
