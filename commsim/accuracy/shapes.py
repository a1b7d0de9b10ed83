"""Curves of one machine on several of its shapes: which topology each belongs to, and how far a fit carries.

A shape is a number of nodes and of GPUs that a job takes of each. What a calibration is worth on a shape that nobody
has measured is the error of a fit that had not seen that shape; beside it stands what one would do without a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from commsim.collectives.semantics import busbw_factor
from commsim.errors import CalibrationError, CommsimError
from commsim.fitting.calibration import fit_curves, mean_error
from commsim.fitting.models import CurveModel, Float64
from commsim.measure.records import Curve
from commsim.scenario.schema import Scenario
from commsim.topology.graph import Topology
from commsim.topology.presets import load_topology


@dataclass(frozen=True, order=True)
class Shape:
    """Nodes of a job, and GPUs of each."""

    nodes: int
    gpus: int

    @property
    def ranks(self) -> int:
        """Its GPUs."""
        return self.nodes * self.gpus

    def __str__(self) -> str:
        return f"{self.nodes} x {self.gpus} GPUs"


@dataclass(frozen=True)
class LeftOut:
    """Errors, as fractions, of curves that a fit had not seen: those of a shape or of a collective.

    `low`, `high`: factors on the fit's times that held eight of ten measured ones, 1 between them.
    `copied`: with the bus bandwidth of the measured shape nearest in ranks; `interpolated`: the time over the ranks of
    the two nearest, and on beyond them; None where that says nothing of one of the curves.
    """

    name: str
    fitted: float
    shipped: float
    copied: float | None
    interpolated: float | None
    low: float = 1.0
    high: float = 1.0


def shape_of(curve: Curve, topology: Topology, whole: int) -> Shape:
    """The shape that a curve was measured on; CalibrationError where the machine has none of so many ranks.

    A log that names its hosts says it. Otherwise as many ranks as `topology` has are that, as many as a `whole` node
    has GPUs, or fewer, are of one node, and more are of whole nodes.
    """
    ranks, stated = curve.n_ranks or topology.world_size, curve.conditions.get("n_nodes", "")
    if ranks == topology.world_size and stated in ("", str(topology.nodes)):
        return Shape(topology.nodes, topology.ranks_per_node)
    nodes = int(stated) if stated.isdecimal() and int(stated) else -(-ranks // whole)
    if ranks % nodes:
        raise CalibrationError(
            f"{curve.source or curve.name}: measured on {ranks} ranks, which {nodes} nodes of up to "
            f"{whole} GPUs do not share evenly"
        )
    return Shape(nodes, ranks // nodes)


def leave_out(
    curves: Sequence[Curve],
    shapes: Sequence[Shape],
    keys: Sequence[Any],
    model: Callable[[Sequence[int]], CurveModel],
    progress: Callable[[str], None] = lambda text: None,
) -> list[LeftOut]:
    """Of each group of curves by key: its error under a fit to all others; none where all are of one group.

    `model`: that of some of the curves, by their indices.
    """
    out = []
    for name, left, seen in groups_of(keys):
        progress(f"fitting without {name}")
        some = [curves[i] for i in left]
        both = carried(curves, left, seen, model)
        fitted, shipped = (mean_error(some, seconds) for seconds in both)
        others = [(curves[i], shapes[i]) for i in seen]
        one, two = (_baseline(some, [shapes[i] for i in left], others, rule) for rule in (copied, interpolated))
        low, high = band_of(some, both[0])
        out.append(LeftOut(name, fitted, shipped, one, two, low, high))
    return out


def band_of(curves: Sequence[Curve], predicted_s: Float64) -> tuple[float, float]:
    """The 10 % and 90 % quantile of measured over predicted times of curves, 1 between them."""
    ratio = np.concatenate([c.undisturbed_s() for c in curves]) / predicted_s
    return min(1.0, float(np.quantile(ratio, 0.1))), max(1.0, float(np.quantile(ratio, 0.9)))


def groups_of(keys: Sequence[Any]) -> Iterator[tuple[str, list[int], list[int]]]:
    """(name, indices of the group, those of all others) of every group of equal keys; nothing where there is one."""
    groups = sorted(set(keys))
    for group in groups if len(groups) > 1 else ():
        left = [i for i, key in enumerate(keys) if key == group]
        yield str(group), left, [i for i, key in enumerate(keys) if key != group]


def carried(
    curves: Sequence[Curve], left: Sequence[int], seen: Sequence[int], model: Callable[[Sequence[int]], CurveModel]
) -> tuple[Float64, Float64]:
    """Seconds of some curves under a fit to others, and as shipped, which stands where the others determine nothing."""
    of_left = model(left)
    try:
        x = fit_curves(model(seen), [curves[i] for i in seen]).x
    except CalibrationError:
        x = of_left.center
    return of_left.times(x), of_left.times(of_left.center)


# -- without a model --------------------------------------------------


def _baseline(
    left: Sequence[Curve],
    shapes: Sequence[Shape],
    seen: Sequence[tuple[Curve, Shape]],
    rule: Callable[[Curve, int, Sequence[tuple[Curve, int]]], Float64 | None],
) -> float | None:
    """The mean error of a rule; None where it can say nothing of one of the curves.

    Of one node other shapes of one node speak, of several those of several: a network is no slower NVLink.
    """
    times = [
        rule(curve, shape.ranks, [(c, s.ranks) for c, s in seen if (s.nodes > 1) == (shape.nodes > 1)])
        for curve, shape in zip(left, shapes, strict=True)
    ]
    known = [seconds for seconds in times if seconds is not None]
    return mean_error(left, np.concatenate(known)) if len(known) == len(left) else None


def copied(curve: Curve, ranks: int, seen: Sequence[tuple[Curve, int]]) -> Float64 | None:
    """Seconds of a curve's sizes with the bus bandwidth of the same call on the number of ranks nearest in ratio.

    `seen`: curves with their ranks; None where none is of the same collective and type on other ranks.
    """
    same = _same_call(curve, ranks, seen)
    if not same:
        return None
    away = [round(abs(float(np.log(n / ranks))), 9) for _, n in same]
    nearest = [pair for pair, distance in zip(same, away, strict=True) if distance == min(away)]
    each = [_at_sizes(other, curve.size_bytes) / busbw_factor(curve.collective, n) for other, n in nearest]
    return np.asarray(np.mean(each, axis=0) * busbw_factor(curve.collective, ranks))


def interpolated(curve: Curve, ranks: int, seen: Sequence[tuple[Curve, int]]) -> Float64 | None:
    """The same, straight in the logarithms of time and ranks through the two nearest, and on beyond them."""
    nearest: dict[int, Curve] = {}
    for other, n in sorted(_same_call(curve, ranks, seen), key=lambda pair: abs(np.log(pair[1] / ranks))):
        nearest.setdefault(n, other)
    if len(nearest) < 2:
        return None
    (a, first), (b, second) = list(nearest.items())[:2]
    low, high = (np.log(_at_sizes(c, curve.size_bytes)) for c in (first, second))
    return np.asarray(np.exp(low + (high - low) * np.log(ranks / a) / np.log(b / a)))


def _same_call(curve: Curve, ranks: int, seen: Sequence[tuple[Curve, int]]) -> list[tuple[Curve, int]]:
    call = curve.collective, curve.dtype
    return [(other, n) for other, n in seen if (other.collective, other.dtype) == call and n != ranks]


def _at_sizes(curve: Curve, size_bytes: npt.NDArray[np.int64]) -> Float64:
    return replace(curve, time_s=curve.undisturbed_s()).seconds_at(size_bytes)


def topologies_of(scenario: Scenario, topology: Topology, curves: Sequence[Curve]) -> tuple[Topology, ...]:
    """The topology of each curve, in the shape that it was measured on; CalibrationError with every misfit.

    `topology` is the scenario's, which may use a part of a node.
    """
    spec, base = scenario.topology, scenario.base_dir
    whole = load_topology(spec.model_copy(update={"gpus_per_node": None}), base).ranks_per_node
    made: dict[Shape, Topology] = {Shape(topology.nodes, topology.ranks_per_node): topology}
    out, faults = [], []
    for curve in curves:
        try:
            shape = shape_of(curve, topology, whole)
            if shape not in made:
                knobs = {"nodes": shape.nodes, "gpus_per_node": shape.gpus}
                made[shape] = load_topology(spec.model_copy(update=knobs), base)
            out.append(made[shape])
        except CalibrationError as error:
            faults.append(str(error))
        except CommsimError as error:
            faults.append(
                f"{curve.source or curve.name}: measured on {curve.n_ranks} ranks, a shape that {topology.name} cannot "
                f"have: {str(error).splitlines()[0]}"
            )
    if faults:
        raise CalibrationError("\n".join(dict.fromkeys(faults)))
    return tuple(out)
