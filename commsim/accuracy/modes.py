"""What a prediction may have seen of the machine it is scored on: four modes, each with its fit and its scored sizes.

* ``zero-shot``: everything fitted is refitted without any log of the scored system;
* ``few``: from there, on the three sizes of the curve itself nearest 256 B, 1 MiB and 1 GiB; scored on its others;
* ``transfer``: from there, on one all_reduce log of the system; scored on its other logs;
* ``calibrated``: from there, on every second size of all logs of the system; scored on the other sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commsim.accuracy.calibrate import POOLED, Float64, Log, Rows, fit, weights

MODES = ("zero-shot", "few", "transfer", "calibrated")

FEW = (256, 2**20, 2**30)
"""Sizes whose nearest neighbours in a curve are taken as measured."""

_FEW_WEIGHT, _SYSTEM_WEIGHT = 1.0, 1.0
"""Weight of a size in `few`, and of a curve in `transfer` and `calibrated`, against the prior around zero-shot."""


@dataclass(frozen=True, eq=False)
class Plan:
    """Where every log is predicted (ln of fields) and which of its sizes are scored; None where it is not scored."""

    at: list[Float64 | None]
    scored: list[npt.NDArray[np.bool_]]
    reason: list[str]


@dataclass(frozen=True, eq=False)
class Study:
    """Logs with their planes; `train` are the logs that a fit of several systems may use."""

    logs: Sequence[Log]
    rows: Rows
    train: frozenset[int]

    @property
    def systems(self) -> list[str]:
        """The system of every log."""
        return [entry.case.system for entry in self.logs]

    def everything(self) -> Float64:
        """The fit on all training logs: what ships."""
        return self._fit(self.train)

    def zero_shot(self, systems: Sequence[str]) -> dict[str, Float64]:
        """By system, the fit on the training logs of all other systems, begun at the starts: nothing of it leaks in."""
        all_of = self.systems
        held = {all_of[i] for i in self.train}
        whole = self.everything()
        return {
            s: self._fit(frozenset(i for i in self.train if all_of[i] != s)) if s in held else whole for s in systems
        }

    def _fit(self, logs: frozenset[int]) -> Float64:
        use = self.rows.of_logs(logs)
        return fit(self.rows, use, weights(self.rows, use, self.systems), prior=POOLED)

    def plan(self, mode: str, zero: dict[str, Float64]) -> Plan:
        """The plan of a mode, given the zero-shot fields of every system."""
        every = [np.ones(len(entry.nbytes), bool) for entry in self.logs]
        blank = [""] * len(self.logs)
        if mode == "zero-shot":
            return Plan([zero[s] for s in self.systems], every, blank)
        if mode == "few":
            return self._few(zero)
        return self._transfer(zero) if mode == "transfer" else self._calibrated(zero)

    def _few(self, zero: dict[str, Float64]) -> Plan:
        at: list[Float64 | None] = []
        scored = []
        for i, entry in enumerate(self.logs):
            known = nearest(entry.nbytes, FEW)
            scored.append(~np.isin(np.arange(len(entry.nbytes)), known))
            use = self.rows.of_logs([i])[known]
            at.append(fit(self.rows, use, np.full(use.size, _FEW_WEIGHT), center=zero[entry.case.system]))
        return Plan(at, scored, [""] * len(self.logs))

    def _transfer(self, zero: dict[str, Float64]) -> Plan:
        at: list[Float64 | None] = [None] * len(self.logs)
        reason = ["the system has no all_reduce log to fit"] * len(self.logs)
        for system in set(self.systems):
            members = [i for i, s in enumerate(self.systems) if s == system]
            known = reference(self.logs, members)
            if known is None:
                continue
            use = self.rows.of_logs([known])
            x = fit(self.rows, use, np.full(use.size, _SYSTEM_WEIGHT / use.size), center=zero[system])
            for i in members:
                at[i], reason[i] = (x, "") if i != known else (None, "the log that the system was fitted on")
        return Plan(at, [np.ones(len(entry.nbytes), bool) for entry in self.logs], reason)

    def _calibrated(self, zero: dict[str, Float64]) -> Plan:
        at: list[Float64 | None] = [None] * len(self.logs)
        second = [np.arange(len(entry.nbytes)) % 2 == 1 for entry in self.logs]
        for system in set(self.systems):
            members = [i for i, s in enumerate(self.systems) if s == system]
            healthy = [i for i in members if self.logs[i].case.healthy != "no"]
            if healthy:
                use = np.concatenate([self.rows.of_logs([i])[~second[i]] for i in healthy])
                count = np.bincount(self.rows.log[use])
                w = _SYSTEM_WEIGHT / count[self.rows.log[use]]
                x = fit(self.rows, use, w, center=zero[system])
            else:
                x = zero[system]
            for i in members:
                at[i] = x
        return Plan(at, second, [""] * len(self.logs))


def nearest(nbytes: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Indices of the sizes nearest (in ratio) to the wanted ones, each once, ascending."""
    size = np.log(np.asarray(nbytes, np.float64))
    return sorted({int(np.argmin(np.abs(size - np.log(w)))) for w in wanted})


def reference(logs: Sequence[Log], members: Sequence[int]) -> int | None:
    """The all_reduce log that stands for a system: not degraded, most ranks, then most sizes, then the first slug."""
    good = [i for i in members if logs[i].case.collective == "all_reduce" and logs[i].case.healthy != "no"]
    return min(good, key=lambda i: (-logs[i].case.n_ranks, -len(logs[i].nbytes), logs[i].case.slug), default=None)
