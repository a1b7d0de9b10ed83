"""What a run prints and writes: tables, the JSON document, CSV files, pictures, the page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commsim.files import write_atomically
from commsim.report.view import VIEWS, Shown, view_of

if TYPE_CHECKING:
    from commsim.planner.explain import Explanation
    from commsim.scenario.result import Result
    from commsim.scenario.run import Prepared


def compared(result: Result, *, raw: bool = False) -> Shown:
    """The result with every measured curve against the prediction at its sizes; `raw`: tables in bytes."""
    pairs = [pair for item in result.items for pair in zip(item.at_measured, item.measured, strict=True)]
    if not pairs:
        return Shown(result, raw=raw)
    from commsim.accuracy.compare import compare

    return Shown(result, [compare(predicted, measured) for predicted, measured in pairs], raw)


def document(shown: Shown, reasons: Sequence[Explanation] = ()) -> dict[str, Any]:
    """The JSON document of a result: what `--json` prints and result.json holds."""
    whole = shown.result.to_dict() | {"comparisons": [c.summary() for c in shown.comparisons]}
    if not reasons:
        return whole
    from commsim.report.explain import to_dict

    return whole | {"explanations": [to_dict(reason) for reason in reasons]}


def tables(shown: Shown) -> str:
    """The tables of all answers, each under a heading that says what was predicted and how; then what stands below."""
    answers = [(view_of(answer.kind), answer) for answer in shown.result.answers]
    known = shown.result.provenance.get("known")
    above = f"# {known}\n" if known else ""
    below = [line for view, answer in answers for line in view.lines(answer)]
    return (
        above
        + "\n".join(view.table(shown, answer) for view, answer in answers)
        + "".join(f"{line}\n" for line in below)
    )


def write_files(
    shown: Shown, folder: Path, *, plot: bool = False, html: bool = False, reasons: Sequence[Explanation] = ()
) -> list[Path]:
    """Writes the tables of every kind, result.json, scenario.yaml, the pictures and report.html; returns their paths.

    Every file is written under a temporary name and renamed, so none is ever half there.
    """
    from commsim.scenario.load import resolved_yaml

    result = shown.result
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "result.json": json.dumps(document(shown, reasons), indent=2, allow_nan=False) + "\n",
        "scenario.yaml": f"# Resolved scenario {result.scenario_hash}, commsim {result.provenance['commsim']}\n"
        + resolved_yaml(result.scenario, folder),
    }
    for view, answers in shown.kinds():
        texts |= view.csv(shown, answers)
    names = sorted(texts, key=lambda name: name != "result.csv")  # the rows come first, then in order
    written = [write_atomically(folder / name, texts[name]) for name in names]
    if plot:
        written += _draw(shown, folder)
    if html:
        from commsim.report.explain import result_page
        from commsim.report.page import html as page_text

        page = result_page(result, shown.comparisons, reasons)
        written.append(write_atomically(folder / "report.html", page_text(page)))
    _remove_stale(folder, written)
    return written


MOST_BYTES = 64 << 20
"""Of a result.json that is looked at for whose it is."""


def held_run(folder: Path, scenario_hash: str) -> str:
    """The name and hash of the other scenario whose run a folder holds; blank where it holds none, or this one."""
    path = folder / "result.json"
    try:
        if not path.is_file() or path.stat().st_size > MOST_BYTES:
            return ""
        of = json.loads(path.read_text(encoding="utf-8"))
        name, other = str(of["name"]), str(of["scenario_hash"])
    except (OSError, ValueError, KeyError, TypeError):
        return "of another program or version"
    return "" if other == scenario_hash else f"{name[:120]!r} (scenario {other[:12]})"


def _draw(shown: Shown, folder: Path) -> list[Path]:
    """Writes the pictures of every answer as PNG and SVG, numbered where there are several of its kind."""
    from commsim.report.plots import figure_bytes

    written = []
    for view, answers in shown.kinds():
        for number, answer in enumerate(answers, 1):
            for name, figure in view.draw(shown, answer).items():
                stem = name if len(answers) == 1 else f"{name}-{number}"
                written += [
                    write_atomically(folder / f"{stem}.{form}", figure_bytes(figure, form)) for form in ("png", "svg")
                ]
    return written


def _remove_stale(folder: Path, written: Sequence[Path]) -> None:
    """Removes what an earlier run left under the names of any kind: it would be read as this run's."""
    names = [name for _, files in VIEWS.values() for name in files.split()]
    patterns = ["report.html", *(name for name in names if "." in name)]
    pictures = [name for name in names if "." not in name]
    patterns += [f"{name}{more}.{form}" for name in pictures for more in ("", "-*") for form in ("png", "svg")]
    for pattern in patterns:
        for stale in set(folder.glob(pattern)) - set(written):
            stale.unlink()


def write_trace(prepared: Prepared, path: Path) -> list[str]:
    """Writes what the first item that can be traced does as a Chrome trace; returns lines on what it shows."""
    from commsim.report.perfetto import chrome_trace
    from commsim.scenario.run import traced

    shown = traced(prepared)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, chrome_trace(shown))
    return [f"# trace of {shown.title} in {path}; open it in https://ui.perfetto.dev"]
