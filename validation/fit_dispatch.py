"""Fits the dispatchers of experts to kernels measured one by one; writes commsim/training/dispatch.yaml.

    python validation/fit_dispatch.py              show what moved, held-out errors as the table of the docs
    python validation/fit_dispatch.py --ablation   the same errors without each term
    python validation/fit_dispatch.py --write      also write the values, and the table into docs/background/training.md

Reads `silicon/` of the shared data beside the checkout, or of COMMSIM_SHARED_DATA. Residuals are those of logarithms
with a robust loss; the rows of a GPU on so many nodes weigh together as much as those of any other.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from fit_training import yaml_number

from commsim.files import write_atomically
from commsim.training.accelerator import accelerator
from commsim.training.compute import Values
from commsim.training.dispatch import (
    BF16_BYTES,
    FP8_BYTES,
    NVFP4_BYTES,
    PATH,
    Dispatcher,
    DispatchTerms,
    ExpertExchange,
    Kind,
    Phase,
    RankLinks,
    dispatch_parameters,
    dispatch_values,
    kind_seconds,
)
from commsim.units import GIGA

CHECKOUT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("COMMSIM_SHARED_DATA", CHECKOUT.parent / "shared" / "data")) / "silicon"
PAGE = CHECKOUT / "docs" / "background" / "training.md"

PRESETS = {"h100_sxm": "H100-SXM5-80GB", "b200_sxm": "B200-SXM-180GB", "gb200": "GB200-NVL72"}
RANKS_PER_NODE = {"h100_sxm": 8, "b200_sxm": 8, "gb200": 4}
"""GPUs of a node of the source: `moe_all_to_all.csv` has 4 ranks on one node of GB200."""

NIC = 400.0 / 8.0 * GIGA
"""Bytes/s of a rank's NIC in the source's nodes of H100."""

NODE_LIMIT = 4
"""Nodes that the source's router chooses: DeepEP, `tests/test_internode.py`, num_topk_groups."""

ELEMENT_BYTES = {"bfloat16": BF16_BYTES, "fp8": FP8_BYTES, "nvfp4": NVFP4_BYTES}

PRIOR = 0.1
"""Weight of a parameter's logarithm over its start: decides only what rows leave open."""

MICRO = 1e-6

Float64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Measured:
    """Rows of one phase by one kind of kernels, and what the model takes for them."""

    kind: Kind
    phase: Phase
    rows: pd.DataFrame  # system, nodes, ranks, seconds
    dispatcher: Dispatcher
    exchange: ExpertExchange
    links: RankLinks
    token_bytes: Float64

    def seconds(self, v: Values) -> Float64:
        """What the model says."""
        terms = DispatchTerms.of(self.kind, self.phase, v)
        out = kind_seconds(self.kind, terms, self.token_bytes, self.dispatcher, self.exchange, self.links)
        return np.asarray(out, np.float64)

    def error(self, v: Values) -> Float64:
        """Relative errors of all rows."""
        return np.asarray(np.abs(self.seconds(v) / self.rows.seconds.to_numpy() - 1.0), np.float64)

    def taken(self, chosen: Bools) -> Measured:
        """Some of the rows."""
        return measured(self.kind, self.phase, self.rows[chosen])


def measured(kind: Kind, phase: Phase, rows: pd.DataFrame) -> Measured:
    """From a table with system, nodes, tokens, hidden, top_k, experts, sms, element_bytes, even and seconds."""
    gpus = [accelerator(PRESETS[name]) for name in rows.system]
    v = dispatch_values()
    links = RankLinks(
        np.array([g.nvlink_bytes_per_s for g in gpus]),
        NIC,
        np.array([float(g.sms) for g in gpus]),
        np.array([v[f"latency.{g.generation}"] for g in gpus]),
    )
    of = {name: rows[name].to_numpy(np.float64) for name in ("tokens", "hidden", "top_k", "experts", "ranks")}
    exchange = ExpertExchange(
        **of,
        inside=of["ranks"] / rows.nodes.to_numpy(np.float64),
        node_limit=NODE_LIMIT if kind == "deepep" else 0,
        even=rows.even.to_numpy(),
    )
    element = rows.element_bytes.to_numpy(np.float64)
    sms = rows.sms.to_numpy(np.float64)
    return Measured(kind, phase, rows, Dispatcher(kind, element, element, sms), exchange, links, element * of["hidden"])


# -- what was measured ---------------------------------


def _table(name: str) -> pd.DataFrame:
    names = {
        "node_num": "nodes",
        "hidden_size": "hidden",
        "num_topk": "top_k",
        "topk": "top_k",
        "num_experts": "experts",
    }
    return pd.read_csv(SHARED / name).rename(columns={**names, "num_token": "tokens", "num_tokens": "tokens"})


def deepep(phase: Phase) -> Measured:
    """DeepEP's normal kernels under SGLang: sending and what comes before it together; dispatch in fp8."""
    rows = _table("deepep_normal.csv")
    rows["seconds"] = (rows[f"{phase}_transmit_us"] + rows[f"{phase}_notify_us"]) * MICRO
    return _of_sglang("deepep", phase, rows.assign(sms=rows[f"{phase}_sms"]))


def deepep_low_latency(phase: Phase) -> Measured:
    """DeepEP's low-latency kernels under SGLang; dispatch in fp8."""
    rows = _table("deepep_low_latency.csv")
    return _of_sglang("deepep_low_latency", phase, rows.assign(sms=0.0, seconds=rows[f"{phase}_avg_t_us"] * MICRO))


def _of_sglang(kind: Kind, phase: Phase, rows: pd.DataFrame) -> Measured:
    rows["ranks"] = rows.nodes * rows.system.map(RANKS_PER_NODE)
    element = FP8_BYTES if phase == "dispatch" else BF16_BYTES
    return measured(kind, phase, rows.assign(element_bytes=element, even=False))


def nvlink(kind: Kind, phase: Phase) -> Measured:
    """TensorRT-LLM's kernels over multi-node NVLink; its balanced routing puts a token on as many ranks as it can."""
    rows = _table("mnnvl_all_to_all.csv").rename(columns={"moe_ep_size": "ranks"})
    source = {"nvlink": "NVLinkOneSided", "nvlink_two_sided": "NVLinkTwoSided"}[kind]
    rows = rows[rows.kernel_source == source]
    rows = rows.assign(nodes=1, sms=0.0, even=True, seconds=rows.latency * MICRO * 1000.0)
    at = ["moe_dtype", "ranks", "tokens"]
    before = rows[rows.op_name == "alltoall_prepare"].set_index(at).seconds
    rows = rows[rows.op_name == f"alltoall_{phase}"].reset_index(drop=True)
    if phase == "dispatch" and len(before):
        rows["seconds"] += before.loc[list(rows[at].itertuples(index=False, name=None))].to_numpy()
    element = rows.moe_dtype.map(ELEMENT_BYTES) if phase == "dispatch" else BF16_BYTES
    return measured(kind, phase, rows.assign(element_bytes=element))


def inside_other_software(kind: Kind, backend: str, phase: Phase) -> Measured:
    """The same kernels called by TensorRT-LLM and vLLM, with what these do around them; no fit sees them."""
    rows = _table("moe_all_to_all.csv").rename(columns={"ep_size": "ranks"})
    rows = rows[(rows.comm_backend == backend) & (rows.phase == phase)].reset_index(drop=True)
    types = {**ELEMENT_BYTES, "default": BF16_BYTES, "fp4": NVFP4_BYTES}
    element = rows.comm_dtype.map(types) if phase == "dispatch" else BF16_BYTES
    return measured(kind, phase, rows.assign(element_bytes=element, even=False, seconds=rows.latency * MICRO))


Pair = tuple[Measured, Measured]
"""Both phases of a kind, which share parameters and are fitted together."""


def everything() -> Iterator[Pair]:
    """All that is fitted."""
    yield deepep("dispatch"), deepep("combine")
    yield deepep_low_latency("dispatch"), deepep_low_latency("combine")
    kinds: tuple[Kind, ...] = ("nvlink", "nvlink_two_sided")
    for kind in kinds:
        yield nvlink(kind, "dispatch"), nvlink(kind, "combine")


# -- the fit ---------------------------------


def trusted(m: Measured) -> Bools:
    """Rows that a fit may see. Left out are normal kernels on 8 nodes: both phases together run at 16.5 GB/s per NIC, a
    third of what low-latency kernels reach on the same nodes and normal ones on 4. No term says why."""
    return np.asarray((m.kind != "deepep") | (m.rows.nodes < 8))


def free_names(kind: Kind, without: str = "") -> list[str]:
    """The parameters of a kind, which are fitted."""
    return [p.name for p in dispatch_parameters() if p.name.startswith(f"{kind}.") and p.name != without]


def fitted(pair: Pair, without: str = "") -> Values:
    """Values fitted to rows, by their starts where rows leave them open; `without`: a parameter that is not there."""
    from scipy.optimize import least_squares

    names = free_names(pair[0].kind, without)
    rest = {name: value for name, value in dispatch_values().items() if name != without}
    starts = np.log([p.start for p in dispatch_parameters() if p.name in names])
    measured_log = [np.log(m.rows.seconds.to_numpy(np.float64)) for m in pair]
    weights = [_weights(m) for m in pair]

    def values(x: Float64) -> Values:
        return {**rest, **dict(zip(names, np.exp(x).tolist(), strict=True))}

    def residuals(x: Float64) -> Float64:
        v = values(x)
        off = [w * (np.log(m.seconds(v)) - y) for m, y, w in zip(pair, measured_log, weights, strict=True)]
        return np.concatenate([*off, PRIOR * (x - starts)])

    return values(least_squares(residuals, starts, loss="soft_l1", f_scale=0.1).x)


def _weights(m: Measured) -> Float64:
    """Of rows, so that a GPU on so many nodes weighs as much as any other; squares are 1 on average."""
    groups = m.rows.groupby(["system", "nodes"]).seconds.transform("size").to_numpy(np.float64)
    return np.asarray(groups**-0.5 / np.sqrt(np.mean(1.0 / groups)), np.float64)


def held_out(pair: Pair, column: str, value: object, without: str = "") -> tuple[float, float]:
    """Median errors of both phases where a column has a value, fitted without these rows; on one node where a GPU is
    left out, since no other GPU was measured on several."""
    apart = [(m.rows[column] == value).to_numpy() for m in pair]
    v = fitted((pair[0].taken(~apart[0] & trusted(pair[0])), pair[1].taken(~apart[1] & trusted(pair[1]))), without)
    scored = [a & (m.rows.nodes == 1).to_numpy() if column == "system" else a for a, m in zip(apart, pair, strict=True)]
    dispatch, combine = (float(np.median(m.taken(s).error(v))) for m, s in zip(pair, scored, strict=True))
    return dispatch, combine


Scores = dict[str, tuple[float, float]]


def scores(pair: Pair, without: str = "") -> Scores:
    """Median errors of dispatch and combine: of the rows fitted, and of each node count, GPU or ranks left out."""
    seen = pair[0].taken(trusted(pair[0])), pair[1].taken(trusted(pair[1]))
    v = fitted(seen, without)
    out: Scores = {"fitted": (float(np.median(seen[0].error(v))), float(np.median(seen[1].error(v))))}
    for column in ("ranks",) if pair[0].kind.startswith("nvlink") else ("nodes", "system"):
        for value in sorted(pair[0].rows[column].unique()):
            name = value if column == "system" else f"{value} {column}"
            out[name] = held_out(pair, column, value, without)
    return out


def table(of_kinds: list[tuple[Pair, Scores]]) -> str:
    """The errors as Markdown."""
    lines = ["| kernels | phase | rows | fitted | left out: median error |", "|---|---|--:|--:|---|"]
    for pair, errors in of_kinds:
        for i, m in enumerate(pair):
            apart = ", ".join(f"{name} {100 * e[i]:.0f} %" for name, e in errors.items() if name != "fitted")
            seen = int(trusted(m).sum())
            lines.append(f"| `{m.kind}` | {m.phase} | {seen:,} | {100 * errors['fitted'][i]:.1f} % | {apart} |")
    return "\n".join(lines)


OTHER: tuple[tuple[Kind, str], ...] = (
    ("deepep", "trtllm_deepep_ht"),
    ("deepep", "deepep_ht"),
    ("deepep_low_latency", "trtllm_deepep_ll"),
    ("deepep_low_latency", "deepep_ll"),
)


def other_table(v: Values) -> str:
    """Predicted over measured times of the same kernels in other software, of the largest calls by GPU."""
    lines = ["| called by | phase | GPU | tokens | predicted / measured |", "|---|---|---|--:|--:|"]
    phases: tuple[Phase, ...] = ("dispatch", "combine")
    for kind, backend in OTHER:
        for phase in phases:
            m = inside_other_software(kind, backend, phase)
            for (system, tokens), rows in m.rows.groupby(["system", "tokens"]):
                if tokens == m.rows.tokens.max():
                    share = float(np.median(measured(kind, phase, rows).seconds(v) / rows.seconds))
                    lines.append(f"| `{backend}` | {phase} | {system} | {tokens:,} | {share:.2f} |")
    return "\n".join(lines)


def with_values(text: str, v: Values) -> str:
    """The text of `dispatch.yaml` with other values."""
    for p in dispatch_parameters():
        pattern = re.compile(rf"^({re.escape(p.name)}:\n(?:  .*\n)*?  value: ).*$", re.MULTILINE)
        text, hits = pattern.subn(rf"\g<1>{yaml_number(v[p.name])}", text)
        if hits != 1:
            raise SystemExit(f"{PATH}: found {hits} entries of {p.name}, expected one")
    return text


BEGIN, END = "<!-- dispatch: begin -->", "<!-- dispatch: end -->"


def with_table(page: str, rows: str) -> str:
    """The page with the table between its markers."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{rows}\n\n{END}{rest.split(END)[1]}"


def show_ablation(pair: Pair, errors: Scores) -> None:
    """Print the errors with all terms, and without each that can be left out."""

    def line(name: str, of: Scores) -> None:
        print(f"{name:36s}", *(f"{at} {100 * d:.1f}/{100 * c:.1f}" for at, (d, c) in of.items()), sep="  ", flush=True)

    line(pair[0].kind, errors)
    for name in free_names(pair[0].kind):
        if not name.endswith((".nvlink", ".nic", ".start")):
            line(f"- {name}", scores(pair, name))


def main() -> int:
    """Show the fit and its errors, write them where asked."""
    v, of_kinds = dict(dispatch_values()), []
    for pair in everything():
        seen = fitted((pair[0].taken(trusted(pair[0])), pair[1].taken(trusted(pair[1]))))
        v.update({name: seen[name] for name in free_names(pair[0].kind)})
        of_kinds.append((pair, scores(pair)))
        if "--ablation" in sys.argv[1:]:
            show_ablation(*of_kinds[-1])
    for p in dispatch_parameters():
        print(f"{p.name:40s} start {p.start:10.4g}   ships {p.value:10.4g}   fit {yaml_number(v[p.name])}")
    print(table(of_kinds), other_table(v), sep="\n\n")
    if "--write" in sys.argv[1:]:
        print(f"wrote {write_atomically(PATH, with_values(PATH.read_text(encoding='utf-8'), v))}")
        page = PAGE.read_text(encoding="utf-8")
        print(f"wrote {write_atomically(PAGE, with_table(page, table(of_kinds)))}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
