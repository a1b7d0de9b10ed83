"""Published times of NCCL on registered buffers beside the model's: `validation/registered`, a row per point.

Part of the points were used to choose two figures of `commsim.nccl.symmetric_pace` and one rule of `commsim.nccl.nvls`;
the column `fitted` names them. The error is |predicted - measured| / measured.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from commsim.nccl.operation import SUM
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.version import parse_version
from commsim.topology.presets import load_topology
from commsim.topology.spec import TopologySpec

FOLDER = Path(__file__).resolve().parents[1] / "registered"

_COPY_START_S = 2.0e-6
"""Start and end of the kernel by which a framework copies an array into a window."""

Cells = dict[str, str]


@dataclass(frozen=True)
class Point:
    """A published time and the predicted one, seconds."""

    slug: str
    nbytes: int
    measured_s: float
    predicted_s: float
    algorithm: str
    kernel: str
    fitted: bool

    @property
    def error(self) -> float:
        """The error of the prediction as a share of the measured time."""
        return abs(self.predicted_s - self.measured_s) / self.measured_s


def points(folder: Path = FOLDER) -> Iterator[Point]:
    """All points of a folder in its order, predicted.

    A run in CUDA graphs, or a kernel's own time, waits for no launch of the host. Where a framework copies the array
    into the window first, the copy is added.
    """
    index = {row["slug"]: row for row in _rows(folder / "INDEX.csv")}
    models: dict[tuple[str, str], Predictor] = {}
    for row in _rows(folder / "points.csv"):
        about, key = index[row["slug"]], (row["slug"], row["env"])
        if key not in models:
            models[key] = _model(about, row["env"])
        model, nbytes = models[key], int(row["size_bytes"])
        got = model.predict(about["collective"], nbytes)
        seconds = got.time_s if about["timing"] == "eager" else got.kernel_s
        if about["copied"] == "yes":
            seconds += _COPY_START_S + nbytes / model.parameters.copy_rate
        measured = float(row["time_us"]) * 1e-6
        yield Point(row["slug"], nbytes, measured, seconds, got.algorithm, got.protocol, row["fitted"] == "yes")


def medians(scored: list[Point]) -> dict[str, tuple[int, float]]:
    """Number of points and their median error by curve; under ``unseen`` of all points that nothing was chosen by."""
    by_curve: dict[str, list[float]] = {}
    for point in scored:
        by_curve.setdefault(point.slug, []).append(point.error)
    by_curve["unseen"] = [point.error for point in scored if not point.fitted]
    return {slug: (len(errors), median(errors)) for slug, errors in by_curve.items()}


def _model(about: Cells, env: str) -> Predictor:
    topology = load_topology(TopologySpec(preset=about["machine"], nodes=1), Path())
    variables = dict(part.split("=", 1) for part in env.split(";") if part)
    options = Options(parse_version(about["nccl_version"]), variables, registered=about["registered"], operation=SUM)
    ranks = list(range(int(about["n_ranks"])))
    return Predictor(topology, options, None, ranks if len(ranks) < topology.world_size else None)


def _rows(path: Path) -> list[Cells]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
