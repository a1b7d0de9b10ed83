"""Fits the channel model's parameters to measured one-node all_reduce curves; writes commsim/nccl/generations.

    python validation/fit_parameters.py            show the fit and its errors
    python validation/fit_parameters.py --write    also write the parameter files
    python validation/fit_parameters.py --loo      leave-one-curve-out: refit without each curve, score on it

Robust least squares on log(predicted / measured) (soft-L1 of scale 0.1), every curve with the same weight, parameters
as start * exp(x) with a Gaussian prior on x that says how well the start is known. What no curve determines stays at
its start. The launch costs belong to the host and are shared by all generations.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from scipy.optimize import least_squares

from commsim.measure.parsers import read_measured
from commsim.nccl.parameters import GENERATIONS, Parameters, load_parameters
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.version import parse_version
from commsim.topology.presets import load_preset

HERE = Path(__file__).resolve().parent
CASES = HERE / "cases" / "all_reduce_one_node.yaml"
MEASURED = HERE / "measured"
TARGET = HERE.parent / "commsim" / "nccl" / "generations"

PROTOCOLS = ("LL", "LL128", "Simple")

# Starting values in us and GB/s with the width of the prior (in log). NCCL's own tables (src/graph/tuning.cc 2.30.7)
# for base and hops; block rates and channel costs from an earlier study of the same curves.
_COMMON: dict[str, tuple[float, float]] = {
    "base.LL": (6.6, 0.3),
    "base.LL128": (14.0, 0.3),
    "base.Simple": (12.0, 0.3),
    "channel_cost": (0.3, 0.7),
    "channel_cost_before_2_22": (1.3, 0.7),
    "first_pass": (1.0, 0.7),
    "ring_hop.nvlink.LL": (0.6, 0.3),
    "ring_hop.nvlink.LL128": (1.9, 0.3),
    "ring_hop.nvlink.Simple": (2.5, 0.3),
    "efficiency.nvlink_switch": (0.80, 0.2),
    "efficiency.nvlink_direct": (0.85, 0.2),
}
# GB/s of one thread block for LL, LL128, Simple. One node has more blocks than its NVLinks need, so one-node curves
# say little of Simple's; hence its narrow prior, from nodes with fewer blocks: 8 x H100 nodes reach 320 GB/s of busbw
# with 16 (gj_h100ndr_n8x8_allreduce), 2 x 8 A100 178 GB/s with 16 at 1 GiB (sophia_dgxa100_n2x8).
_RATES = {
    "volta": (2.5, 5.1, 14.0),
    "turing": (2.5, 5.1, 14.0),
    "ampere": (4.0, 7.0, 16.0),
    "ada": (4.0, 7.0, 16.0),
    "hopper": (6.5, 16.0, 22.0),
    "blackwell": (8.0, 20.0, 25.0),
}
_LAUNCH = {"launch.one_process": (4.0, 0.3), "launch.process_per_gpu": (7.0, 0.3)}

# Not fitted here: no one-node curve determines them. us; NCCL 2.30.7 src/graph/tuning.cc hwLat, but LL's tree hop over
# a network (5.0 there), message_cost and the network's efficiency: an earlier study of multi-node InfiniBand curves.
_FIXED = {
    "ring_hop.pcie": (1.0, 2.5, 5.7),
    "tree_hop.nvlink": (0.6, 1.25, 4.0),
    "tree_hop.pcie": (1.0, 1.9, 4.0),
}
# A study of the same curves: nvls as a share of the NVLink rate, us per call and round, us and GB/s of a channel.
_OTHER: dict[str, object] = {
    "efficiency.pcie": 1.0,
    "efficiency.nvls": 0.75,
    "nvls.latency": "25 us",
    "nvls.round": "5 us",
    "nvls.tree_latency": "40 us",
    "nvls.tree_round": "10 us",
    "point_to_point.base": "12 us",
    "launch.grouped_one_process": "6.3 us",
    "launch.grouped_process_per_gpu": "12 us",
}
_CHANNEL_RATE = {"volta": 10, "turing": 10, "ampere": 13, "ada": 13, "hopper": 20, "blackwell": 25}


@dataclass
class Case:
    """One measured curve and the predictor of the machine it was measured on."""

    curve: str
    generation: str
    predictor: Predictor
    nbytes: list[int]
    time_s: np.ndarray


def load_cases(path: Path = CASES) -> list[Case]:
    """The curves of a case file with their predictors."""
    cases = []
    for row in yaml.safe_load(path.read_text())["cases"]:
        curve = read_measured(MEASURED / f"{row['curve']}.csv")[0]
        topology = load_preset(row["preset"], nodes=row.get("nodes", 1), gpus_per_node=row["gpus_per_node"])
        options = Options(parse_version(row["version"]), row.get("env", {}), row["launch"], algorithm="ring")
        start = parameters(topology.gpu.generation, {})
        predictor = Predictor(topology, options, start)
        cases.append(
            Case(
                row["curve"],
                topology.gpu.generation,
                predictor,
                [int(s) for s in curve.size_bytes],
                curve.time_s,
            )
        )
    return cases


def starts(generations: Iterable[str]) -> dict[tuple[str, str], tuple[float, float]]:
    """Start and prior width by (generation or "launch", parameter)."""
    table = {("launch", name): value for name, value in _LAUNCH.items()}
    for generation in generations:
        table |= {(generation, name): value for name, value in _COMMON.items()}
        table |= {
            (generation, f"block_rate.{p}"): (rate, 0.5) for p, rate in zip(PROTOCOLS, _RATES[generation], strict=True)
        }
    return table


def parameters(generation: str, fitted: dict[tuple[str, str], float]) -> Parameters:
    """The Parameters of a generation: the fitted values, the starts for the rest."""
    network = load_parameters(generation).network.model_dump()
    data = tree(generation, fitted, "validation/fit_parameters.py", digits=17)
    return Parameters.model_validate(data | {"network": network})


def tree(generation: str, fitted: dict[tuple[str, str], float], provenance: str, digits: int = 4) -> dict[str, object]:
    """The same as nested dictionaries of quantity strings, as the files hold it, to `digits` significant digits."""
    out: dict[str, object] = {"generation": generation, "provenance": provenance}

    def put(path: str, value: object) -> None:
        *folders, leaf = path.split(".")
        at: dict[str, object] = out
        for folder in folders:
            at = at.setdefault(folder, {})  # type: ignore[assignment]
        at[leaf] = value

    for (scope, name), (start, _) in starts([generation]).items():
        value = fitted.get((scope, name), start)
        if name.startswith("efficiency"):
            put(name, float(f"{value:.{digits}g}"))
        elif name.startswith("block_rate"):
            put(name, f"{value:.{digits}g} GB/s")
        else:
            put(name, f"{value:.{digits}g} us")
    for name, values in _FIXED.items():
        for protocol, value in zip(PROTOCOLS, values, strict=True):
            put(f"{name}.{protocol}", f"{value:g} us")
    for name, other in _OTHER.items():
        put(name, other)
    put("point_to_point.channel_rate", f"{_CHANNEL_RATE[generation]} GB/s")
    return out


def residuals(case: Case, p: Parameters) -> np.ndarray:
    """ln(predicted / measured) for every size of a curve."""
    case.predictor.parameters = p
    predicted = np.array([case.predictor.predict("all_reduce", n).time_s for n in case.nbytes])
    return np.asarray(np.log(predicted / case.time_s))


def fit(cases: Sequence[Case]) -> dict[tuple[str, str], float]:
    """The fitted value of every parameter, by (generation or "launch", name)."""
    generations = sorted({c.generation for c in cases})
    table = starts(generations)
    keys = list(table)
    start = np.array([table[k][0] for k in keys])
    width = np.array([table[k][1] for k in keys])

    def cost(x: np.ndarray) -> np.ndarray:
        fitted = dict(zip(keys, start * np.exp(x), strict=True))
        models = {g: parameters(g, fitted) for g in generations}
        parts = [residuals(c, models[c.generation]) / math.sqrt(len(c.nbytes)) / 0.1 for c in cases]
        return np.concatenate([*parts, 0.3 * x / width])

    solution = least_squares(cost, np.zeros(len(keys)), loss="soft_l1", diff_step=1e-4)
    return dict(zip(keys, start * np.exp(solution.x), strict=True))


def score(case: Case, fitted: dict[tuple[str, str], float]) -> dict[str, float]:
    """MAPE in percent, overall and by band, and the median signed log ratio."""
    log_ratio = residuals(case, parameters(case.generation, fitted))
    error = np.abs(np.exp(log_ratio) - 1) * 100
    size = np.array(case.nbytes)
    bands = {
        "all": size > 0,
        "<=32K": size <= 32 << 10,
        "32K-16M": (size > 32 << 10) & (size <= 16 << 20),
        ">16M": size > 16 << 20,
        ">64M": size > 64 << 20,
    }
    figures = {name: float(error[keep].mean()) if keep.any() else math.nan for name, keep in bands.items()}
    return figures | {"median ln": float(np.median(log_ratio))}


def show(name: str, figures: dict[str, float]) -> None:
    """One line of the table of errors."""
    print(f"{name:45s}" + "".join(f"{k:>9s} {v:6.2f}" for k, v in figures.items()))


def write(fitted: dict[tuple[str, str], float], cases: Sequence[Case]) -> None:
    """Write one file per generation."""
    for generation in GENERATIONS:
        used = [c.curve for c in cases if c.generation == generation]
        if used:
            source = (
                "Fitted by validation/fit_parameters.py to the curves "
                + ", ".join(used)
                + " of validation/measured; launch to the curves of all generations. Hops over PCIe and networks "
                "and tree hops: NCCL 2.30.7 src/graph/tuning.cc. Network efficiency and message cost: an earlier study."
            )
        else:
            source = "No measured curve of this generation was fitted: starting values of validation/fit_parameters.py."
        text = "# Written by validation/fit_parameters.py --write; do not edit by hand.\n" + yaml.safe_dump(
            tree(generation, fitted, source), sort_keys=False, width=110
        )
        (TARGET / f"{generation}.yaml").write_text(text)


def main() -> int:
    """Run the fit from the command line."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--write", action="store_true", help="write commsim/nccl/generations/*.yaml")
    arguments.add_argument("--loo", action="store_true", help="leave-one-curve-out errors")
    chosen = arguments.parse_args()
    cases = load_cases()
    fitted = fit(cases)
    for case in cases:
        show(case.curve, score(case, fitted))
    if chosen.loo:
        print("leave one curve out")
        for case in cases:
            show(case.curve, score(case, fit([c for c in cases if c is not case])))
    if chosen.write:
        write(fitted, cases)
    return 0


if __name__ == "__main__":
    sys.exit(main())
