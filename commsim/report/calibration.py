"""A calibration as a table, as a parameter file, and as a picture of its residuals."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import commsim
from commsim.fitting.calibration import LARGE_BYTES, Calibration, Value
from commsim.nccl.parameters import network_of
from commsim.report import style
from commsim.report.chart import Axis, Chart, Panel, Series, Shade
from commsim.report.chart_figure import draw
from commsim.scenario.seen import machine_of, version_words
from commsim.units import format_bandwidth, format_bytes, format_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.figure import Figure

    from commsim.accuracy.shapes import LeftOut
    from commsim.scenario.schema import Scenario
    from commsim.topology.graph import Topology


_LEAST, _MOST = 20.0, 100.0
"""Percent that the picture of the residuals spans either way: all of the fit's, and half of those as shipped."""


def calibration_table(c: Calibration, left_out: Mapping[str, Sequence[LeftOut]] | None = None) -> str:
    """What was found, first the errors of what a fit had not seen; ends with a newline.

    `left_out`: of the shapes of the machine, and of the collectives, each left out.
    """
    rows = sum(len(curve) for curve in c.curves)
    curves = f"{len(c.curves)} curve{'s' if len(c.curves) != 1 else ''}"
    lines = [line for name, parts in (left_out or {}).items() for line in _left_out(name, parts)]
    lines.append(f"# error on sizes left out: {_errors(c, 0)} ({curves}, {rows} sizes)")
    if {bool(above) for curve in c.curves for above in curve.size_bytes > LARGE_BYTES} == {False, True}:
        lines.append(f"# above 64 KiB: {_errors(c, LARGE_BYTES)}")
    spread = "unknown, every size was measured once (commsim measure --repeats 5 tells it)"
    if (share := c.spread()) is not None:
        spread = f"{100 * share:.1f} % (median over sizes of half of highest less lowest)"
        above = c.spread(LARGE_BYTES)
        spread += f"; above 64 KiB: {100 * above:.1f} %" if above is not None else ""
    lines.append(f"# spread of repeats: {spread}")
    width = max(map(len, ["parameter", *(v.path for v in c.values)]))
    lines.append(f"# {'parameter':<{width}}  {'shipped':>12}  {'fitted':>12}  95 % interval")
    for v in c.values:
        low, high = _text(v, v.low), _text(v, v.high)
        lines.append(f"  {v.path:<{width}}  {_text(v, v.shipped):>12}  {_text(v, v.value):>12}  {low} .. {high}")
    lines += [f"# kept as shipped: {path} ({why})" for path, why in c.kept.items()]
    lines += [f"# look at this: {text}" for text in c.suspects]
    return "\n".join(lines) + "\n"


_WITHOUT = ("bus bandwidth copied", "time interpolated over ranks")
"""What one would do without a model."""


def _left_out(name: str, parts: Sequence[LeftOut]) -> list[str]:
    """The mean error over all groups left out, and that of each; no line where there is one group only."""
    if not parts:
        return []

    def words(fitted: float, shipped: float, *without: float | None) -> str:
        beside = [f"{label} {100 * e:.1f} %" for label, e in zip(_WITHOUT, without, strict=True) if e is not None]
        return "; ".join([f"{100 * fitted:.1f} %", f"as shipped {100 * shipped:.1f} %", *beside])

    def mean(errors: Sequence[float | None]) -> float | None:
        known = [e for e in errors if e is not None]
        return float(np.mean(known)) if len(known) == len(errors) else None

    fitted, shipped = (float(np.mean(errors)) for errors in ([p.fitted for p in parts], [p.shipped for p in parts]))
    without = mean([p.copied for p in parts]), mean([p.interpolated for p in parts])
    width = max(len(p.name) for p in parts)
    return [
        f"# error on {name} left out, one after another: {words(fitted, shipped, *without)}",
        *(f"#   {p.name:<{width}}  {words(p.fitted, p.shipped, p.copied, p.interpolated)}" for p in parts),
    ]


def _errors(c: Calibration, above: int) -> str:
    """Errors at sizes above so many bytes in percent."""
    held_out, fitted, shipped = (c.error(p, above) for p in (c.held_out_s, c.fitted_s, c.before_s))
    return f"{100 * held_out:.1f} %; of the fit: {100 * fitted:.1f} %; as shipped: {100 * shipped:.1f} %"


def _text(v: Value, value: float) -> str:
    if "rate" in v.path:
        return format_bandwidth(float(f"{value:.4g}"))
    return format_time(float(f"{value:.4g}")) if v.is_time else f"{value:.4g}"


def params_yaml(
    c: Calibration,
    scenario: Scenario,
    on: Sequence[Topology],
    left_out: Mapping[str, Sequence[LeftOut]] | None = None,
    slower: Sequence[str] = (),
) -> str:
    """The parameter file: fitted values with intervals, what was kept and why, what it holds for, where it comes from.

    `on`: the shape that each curve was measured on; `left_out`: what is known of shapes and of collectives left out;
    `slower`: sentences on logs that are slow for such a machine.
    """
    import yaml

    topology = max(on, key=lambda shape: (shape.nodes, shape.world_size))
    version = version_words(scenario.library.named_version) if scenario.library.name == "nccl" else ""
    now = datetime.now(UTC).strftime("%Y-%m-%d")
    names = ", ".join(dict.fromkeys(Path(curve.source).name or curve.name for curve in c.curves))
    document: dict[str, Any] = {
        "library": scenario.library.name,
        "provenance": f"fitted by commsim {commsim.__version__} on {now} to {names[:300]}",
        "conditions": {
            **machine_of(topology),
            "ranks": topology.world_size,
            "nodes": topology.nodes,
            **({"network": network_of(topology, scenario.library.env)} if scenario.library.name == "nccl" else {}),
            **({"version": version} if version else {}),
            "smallest_bytes": int(min(curve.size_bytes[0] for curve in c.curves)),
            "largest_bytes": int(max(curve.size_bytes[-1] for curve in c.curves)),
        },
        "files": [_file(Path(source)) for source in dict.fromkeys(curve.source for curve in c.curves) if source],
        "values": {v.path: {name: _exact(v, getattr(v, name)) for name in ("value", "low", "high")} for v in c.values},
        "kept": dict(c.kept),
    }
    if c.band is not None:
        document["held_out_mape"] = float(f"{c.error(c.held_out_s):.4g}")
        document["band"] = {"low": float(f"{c.band[0]:.4g}"), "high": float(f"{c.band[1]:.4g}")}
    if errors := _mean_errors(c, left_out or {}):
        document["errors"] = errors
    if slower:
        document["slower"] = list(slower)
    if shapes := (left_out or {}).get("shapes"):
        low, high = min(part.low for part in shapes), max(part.high for part in shapes)
        document["band_left_out"] = {"low": float(f"{low:.4g}"), "high": float(f"{high:.4g}")}
    head = "# Fitted parameters: name this file under `params:` of a scenario, or give params=FILE to `commsim run`.\n"
    seen = yaml.safe_dump({"seen": _seen(c, on)}, sort_keys=False, width=110, default_flow_style=None)
    return head + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110) + seen


def _seen(c: Calibration, on: Sequence[Topology]) -> list[dict[str, Any]]:
    """Every curve's call, sizes, and those of them where the fit is off by more than its band."""
    ends = np.cumsum([len(curve) for curve in c.curves])[:-1]
    ratios = np.split(c.measured_s / c.fitted_s, ends)
    out = []
    for curve, topology, ratio in zip(c.curves, on, ratios, strict=True):
        call: dict[str, Any] = {
            "collective": curve.collective,
            "nodes": topology.nodes,
            "gpus": topology.ranks_per_node,
            "smallest_bytes": int(curve.size_bytes[0]),
            "largest_bytes": int(curve.size_bytes[-1]),
        }
        if c.band is not None:
            off = (ratio < c.band[0]) | (ratio > c.band[1])
            call |= {"sizes_bytes": curve.size_bytes.tolist(), "off_bytes": curve.size_bytes[off].tolist()}
        out.append(call)
    return out


def _mean_errors(c: Calibration, left_out: Mapping[str, Sequence[LeftOut]]) -> dict[str, dict[str, float]]:
    """Errors of what was left out, by the fit and as shipped; without any where nothing could be."""
    pairs = {"sizes": (c.error(c.held_out_s), c.error(c.before_s))} if c.band is not None else {}
    for name, parts in left_out.items():
        if parts:
            pairs[name] = (float(np.mean([p.fitted for p in parts])), float(np.mean([p.shipped for p in parts])))
    keys = ("fitted", "shipped")
    return {name: {key: float(f"{e:.4g}") for key, e in zip(keys, pair, strict=True)} for name, pair in pairs.items()}


def _file(path: Path) -> dict[str, str | int]:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return {"name": path.name, "bytes": stream.tell(), "sha256": digest}


def _exact(v: Value, value: float) -> str | float:
    if v.is_time:
        return f"{value:.6g} s"
    return f"{value:.6g} B/s" if "rate" in v.path else float(f"{value:.6g}")


def calibration_document(c: Calibration, left_out: Mapping[str, Sequence[LeftOut]]) -> dict[str, Any]:
    """The figures of a calibration as plain values; errors are fractions."""
    large = c.error(c.held_out_s, LARGE_BYTES)
    return {
        "held_out_mape": c.error(c.held_out_s),
        "fitted_mape": c.error(c.fitted_s),
        "shipped_mape": c.error(c.before_s),
        "held_out_mape_above_64_kib": None if np.isnan(large) else large,
        "spread": c.spread(),
        "spread_above_64_kib": c.spread(LARGE_BYTES),
        "values": {v.path: {"value": v.value, "low": v.low, "high": v.high} for v in c.values},
        "kept": c.kept,
        "left_out": {name: [asdict(part) for part in parts] for name, parts in left_out.items()},
        "suspects": list(c.suspects),
    }


def known_table(c: Calibration, doubts: Sequence[str]) -> str:
    """What a number or two said: how the parameters that they touch moved; `doubts` about them; ends with a newline."""
    (curve,) = c.curves
    columns = (curve.size_bytes, curve.time_s, c.fitted_s, c.before_s)
    lines = [
        f"# {curve.collective}, {format_bytes(n)}: {format_time(t)} known, {format_time(f)} now, "
        f"{format_time(b)} as shipped"
        for n, t, f, b in zip(*(column.tolist() for column in columns), strict=True)
    ]
    lines += [f"# look at this: {text}" for text in doubts]
    lines.append("# all parameters that they touch move together; no size is left that could tell the error")
    width = max((len(v.path) for v in c.values), default=0)
    lines += [f"  {v.path:<{width}}  {_text(v, v.shipped):>12}  {_text(v, v.value):>12}" for v in c.values]
    return "\n".join(lines) + "\n"


def residuals_chart(c: Calibration, title: str) -> Chart:
    """Error of the predicted time against message size: as shipped, and of the fit that had not seen the size."""
    held_out, as_shipped = (100 * (p / c.measured_s - 1) for p in (c.held_out_s, c.before_s))
    limit = min(_MOST, max(_LEAST, 1.2 * float(np.max(np.abs(held_out))), float(np.median(np.abs(as_shipped)))))
    ends = np.cumsum([len(curve) for curve in c.curves])[:-1]
    series = []
    for i, (curve, held, shipped) in enumerate(
        zip(c.curves, np.split(held_out, ends), np.split(as_shipped, ends), strict=True)
    ):
        colour = style.MEASURED_COLOURS[i % len(style.MEASURED_COLOURS)]
        name = curve.name if curve.collective in curve.name else f"{curve.collective}: {curve.name}"
        sizes = tuple(float(size) for size in curve.size_bytes)
        for what, errors, shade in ((name, held, colour), (f"{name}, as shipped", shipped, style.paler(colour, 0.55))):
            notes = tuple(f"{error:+.1f} %" for error in errors)  # what stands at the edge is beyond it
            drawn = tuple(np.clip(errors, -limit, limit).tolist())
            series.append(Series(what, sizes, drawn, shade, "points", notes=notes))
    y = Axis("error of the predicted time (%)", low=-1.05 * limit, high=1.05 * limit)
    shades = (Shade(-15.0, 15.0, "#F0F0F0", "within 15 %"), Shade(-5.0, 5.0, "#DDDDDD", "within 5 %"))
    panel = Panel(y, tuple(series), shades=shades, height=1.3)
    note = "of the fit: one that had not seen the size; at the edge: beyond it"
    return Chart(title, Axis("message size", "log", "bytes"), (panel,), note=note)


def plot_residuals(c: Calibration, title: str) -> Figure:
    """The figure of `residuals_chart`."""
    return draw(residuals_chart(c, title))
