"""What a prediction may have seen of the machine it is scored on: four modes, each with its fit and its scored sizes.

* ``zero-shot``: everything fitted is refitted without any log of the scored system;
* ``few``: from there, on the three sizes of the curve itself nearest 256 B, 1 MiB and 1 GiB; scored on its others;
* ``transfer``: from there, on one all_reduce log of the system; scored on its other logs;
* ``calibrated``: from there, on every second size of all logs of the system, and from there on those of the log
  itself (its allocation of nodes, library and plugin versions are its own); scored on the other sizes.

Where sizes of the scored curve itself were fitted (`DRAWN`), its prediction is drawn through them, beside what was
predicted without them and a straight line (`study.anchors`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commsim.accuracy.curve_fit import Rows
from commsim.units import GIB
from study.pooled_fit import POOLED, Float64, Log, fit, weights

MOST_NODES = 64
"""Logs of more nodes are fitted to by themselves only: their slopes cost minutes and say what those of fewer say."""

MODES = ("zero-shot", "few", "transfer", "calibrated")
DRAWN = ("few", "calibrated")

FEW = (256, 2**20, int(GIB))
"""Sizes whose nearest neighbours in a curve are taken as measured."""


@dataclass(frozen=True, eq=False)
class Plan:
    """Where every log is predicted (ln of fields; None: not at all) and which of its sizes are scored.

    `reason` says why none of them is; `fitted` are the logs that the mode's own fits have seen sizes of.
    """

    at: list[Float64 | None]
    scored: list[npt.NDArray[np.bool_]]
    reason: list[str]
    fitted: frozenset[int] = frozenset()


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

    def plan(self, mode: str, zero: dict[str, Float64], listed: Collection[int] | None = None) -> Plan:
        """The plan of a mode, given the zero-shot fields of every system; for the listed logs, where not for all."""
        wanted = range(len(self.logs)) if listed is None else listed
        every = [np.ones(len(entry.nbytes), bool) for entry in self.logs]
        blank = [""] * len(self.logs)
        if mode == "zero-shot":
            return Plan([zero[s] for s in self.systems], every, blank)
        if mode == "few":
            return self._few(zero, wanted)
        members: dict[str, list[int]] = {self.systems[i]: [] for i in wanted}
        for i, system in enumerate(self.systems):
            members.get(system, []).append(i)
        return self._transfer(zero, members) if mode == "transfer" else self._calibrated(zero, members)

    def _few(self, zero: dict[str, Float64], wanted: Collection[int]) -> Plan:
        at: list[Float64 | None] = [None] * len(self.logs)
        scored = []
        for i, entry in enumerate(self.logs):
            known = nearest(entry.nbytes, FEW)
            scored.append(~np.isin(np.arange(len(entry.nbytes)), known))
            if i in wanted:
                use = self.rows.of_logs([i])[known]
                at[i] = fit(self.rows, use, np.ones(use.size), center=zero[entry.case.system])
        return Plan(at, scored, [""] * len(self.logs), frozenset(wanted))

    def _transfer(self, zero: dict[str, Float64], members_of: dict[str, list[int]]) -> Plan:
        at: list[Float64 | None] = [None] * len(self.logs)
        scored = [np.ones(len(entry.nbytes), bool) for entry in self.logs]
        reason = ["the system has no all_reduce log to fit"] * len(self.logs)
        fitted = []
        for system, members in members_of.items():
            known = reference(self.logs, members)
            if known is None:
                continue
            fitted.append(known)
            x = self._alike([self.rows.of_logs([known])], zero[system])
            for i in members:
                at[i], reason[i] = x, ""
            scored[known][:], reason[known] = False, "the log that the system was fitted on"
        return Plan(at, scored, reason, frozenset(fitted))

    def _calibrated(self, zero: dict[str, Float64], members_of: dict[str, list[int]]) -> Plan:
        at: list[Float64 | None] = [None] * len(self.logs)
        second = [np.arange(len(entry.nbytes)) % 2 == 1 for entry in self.logs]
        seen = [self.rows.of_logs([i])[~second[i]] for i in range(len(self.logs))]
        fitted = {i for m in members_of.values() for i in m if self.logs[i].case.healthy != "no"}
        for system, members in members_of.items():
            healthy = [i for i in members if i in fitted]
            common = [seen[i] for i in healthy if self.logs[i].case.nodes <= MOST_NODES]
            shared = self._alike(common, zero[system]) if common else zero[system]
            for i in members:
                at[i] = self._alike([seen[i]], shared) if i in healthy else shared
        return Plan(at, second, [""] * len(self.logs), frozenset(fitted))

    def _alike(self, curves: Sequence[npt.NDArray[np.int64]], center: Float64) -> Float64:
        """The fit on rows of several curves of one machine, each of weight 1."""
        use, weight = np.concatenate(curves), np.concatenate([np.full(c.size, 1 / c.size) for c in curves])
        return fit(self.rows, use, weight, center=center)


def nearest(nbytes: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Indices of the sizes nearest (in ratio) to the wanted ones, each once, ascending."""
    size = np.log(np.asarray(nbytes, np.float64))
    return sorted({int(np.argmin(np.abs(size - np.log(w)))) for w in wanted})


def reference(logs: Sequence[Log], members: Sequence[int]) -> int | None:
    """The all_reduce log that stands for a system.

    Not degraded, on at most `MOST_NODES`, its ranks nearest (in ratio) to the median of such logs, then most sizes,
    then the first slug: a fit to the smallest or the largest job would have to be carried farthest.
    """
    good = [i for i in members if logs[i].case.healthy != "no" and logs[i].case.nodes <= MOST_NODES]
    if not good:
        return None
    middle = float(np.median([np.log(logs[i].case.n_ranks) for i in good]))

    def order(i: int) -> tuple[float, int, str]:
        away = round(abs(float(np.log(logs[i].case.n_ranks)) - middle), 6)
        return away, -len(logs[i].nbytes), logs[i].case.slug

    return min((i for i in good if logs[i].case.collective == "all_reduce"), key=order, default=None)
