"""What `commsim validate` does: score, then write and print what was asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import typer

from commsim.cli.say import say
from commsim.errors import Fault, LogFormatError, ScenarioError
from commsim.files import check_writable, write_atomically
from commsim.report.page import Page
from commsim.report.page import html as page_text

R = TypeVar("R")


@dataclass(frozen=True)
class Output:
    """What a validation writes and how it ends: files of figures and of a page, the project's pages, exit status 1."""

    json_path: Path | None
    html: Path | None
    report: bool
    check: bool

    @property
    def files(self) -> list[Path]:
        """The files asked for; ``-`` is stdout."""
        return [path for path in (self.json_path, self.html) if path is not None and str(path) != "-"]


def collectives(
    folders: Sequence[Path],
    cases: Sequence[Path],
    asked: Sequence[str],
    only: Sequence[str] | None,
    workers: int,
    output: Output,
) -> None:
    """Score the logs of the folders (default: the project's) in the modes asked for; the first heads the figures."""
    from study.collectives_report import summary, write_report
    from study.modes import MODES
    from study.pages import collectives_page
    from study.record import compare_medians, document, recorded
    from study.validate import training_folder, validate

    for path in output.files:
        check_writable(path)
    if only is not None and not any(name.strip() for name in only):
        raise ScenarioError(f"--only: found {','.join(only)!r}, expected patterns of slugs, such as 'alps_*,gj_*'")
    for name in asked:
        _check_mode(name, (*MODES, "all"), f"{', '.join(MODES)} or all")
    modes = tuple(m for m in MODES if "all" in asked or output.report or m in asked)
    data = folders or [training_folder()]
    validation = validate(data, modes, cases, only, workers, _progress, reasons=not output.check)
    figures = document(validation, asked[0])
    _publish(
        output,
        figures,
        summary=lambda: summary(figures),
        page=lambda: collectives_page(validation, figures),
        report=lambda: write_report(validation, figures),
        worse=lambda: compare_medians(recorded(), figures),
    )


def terms(folders: Sequence[Path], only: Sequence[str] | None, workers: int, output: Output) -> None:
    """Say what every term of the model is worth over the logs of the folders (default: all of the project's)."""
    from study.pages import terms_page
    from study.terms import all_logs, document, gains, harmful, summary, write_report

    if output.report and (folders or only):
        raise ScenarioError("--report: the page is about all of the project's logs; leave --data and --only out")
    for path in output.files:
        check_writable(path)
    figures = document(gains(all_logs(folders, only), workers, _progress))
    _publish(
        output,
        figures,
        summary=lambda: summary(figures, harm=not output.check),  # which a check says itself
        page=lambda: terms_page(figures),
        report=lambda: write_report(figures),
        worse=lambda: harmful(figures),
        fault="does harm",
    )


def degraded(pairs: Path | None, output: Output) -> None:
    """Predict what stated causes cost on machines that were measured healthy and degraded (default: the project's)."""
    from study.degraded import document, outcomes, pairs_file, read_pairs
    from study.degraded_report import summary, write_report

    if output.report and pairs is not None:
        raise ScenarioError("--report: the page is about the project's pairs; leave --pairs out")
    for path in output.files:
        check_writable(path)
    figures = document(outcomes(read_pairs(pairs or pairs_file())))
    _publish(output, figures, summary=lambda: summary(figures), report=lambda: write_report(figures))


def kernels(data: Path | None, output: Output) -> None:
    """Score measured all-reduces of serving frameworks (default: the project's)."""
    from study.kernels import document, score
    from study.kernels_report import summary, write_report

    if output.report and data is not None:
        raise ScenarioError("--report: the page is about the project's rows; leave --data out")
    for path in output.files:
        check_writable(path)
    figures = document(score(data))
    if not figures["n_scored"]:
        reasons = [f"{of['reason']} ({of['rows']} rows of {of['device']})" for of in figures["not_predicted"]]
        more = [f"and {len(reasons) - 10} more"] if len(reasons) > 10 else []
        text = "\n".join([f"found no row that can be predicted of {figures['n_rows']:,}:", *reasons[:10], *more])
        raise LogFormatError([Fault(str(data), 0, 0, "", text)])
    _publish(output, figures, summary=lambda: summary(figures), report=lambda: write_report(figures))


def generation(runs: Path | None, mode: str, workers: int, output: Output) -> None:
    """Score measured runs of serving frameworks (default: the project's), the architecture or the GPU left out."""
    from study.generation import MODES, document, score
    from study.generation_report import summary, write_report

    _check_mode(mode, MODES, " or ".join(MODES))
    if output.report and runs is not None:
        raise ScenarioError("--report: the page is about the project's runs; leave --runs out")
    for path in output.files:
        check_writable(path)
    figures = document(score(runs, mode, workers, _progress))
    if not figures["n_answered"]:
        reasons = [f"{of['reason']} ({of['rows']} rows)" for of in figures["not_answered"]]
        more = [f"and {len(reasons) - 10} more"] if len(reasons) > 10 else []
        text = "\n".join([f"found no row that can be answered of {figures['n_rows']:,}:", *reasons[:10], *more])
        raise LogFormatError([Fault(str(runs), 0, 0, "", text)])

    def report() -> list[Path]:
        both = {name: figures if name == mode else document(score(None, name, workers, _progress)) for name in MODES}
        return write_report(both["leave-model"], both["leave-gpu"])

    _publish(output, figures, summary=lambda: summary(figures), report=report)


def training(steps: Path | None, memory: Path | None, mode: str, engine: str, workers: int, output: Output) -> None:
    """Score published training steps (default: the project's), and memory figures where a table of them is named."""
    from study.pages import training_page
    from study.training import ENGINES, MODES, document, training_steps, validate_training
    from study.training_memory import memory_document, memory_of_steps, read_memory
    from study.training_record import compare_sources, recorded
    from study.training_report import summary, write_report

    _check_mode(mode, MODES, ", ".join(MODES))
    if engine not in ENGINES:
        raise ScenarioError(f"--engine: found {engine!r}, expected one of {', '.join(ENGINES)}")
    if output.report and engine != ENGINES[0]:
        raise ScenarioError("--report: the page holds both engines; leave --engine out")
    if output.report and steps is not None:
        raise ScenarioError("--report: the page is about the project's rows; leave --steps out")
    for path in output.files:
        check_writable(path)
    figures_of_memory = read_memory(memory) if memory is not None else []
    validation = validate_training(steps or training_steps(), mode, engine=engine, workers=workers, progress=_progress)
    figures = document(validation)
    if memory is not None:
        figures["memory"] = memory_document([*figures_of_memory, *memory_of_steps(validation.rows)])
    _publish(
        output,
        figures,
        summary=lambda: summary(validation, figures),
        page=lambda: training_page(validation, figures),
        report=lambda: write_report(validation, _progress, workers),
        worse=lambda: compare_sources(recorded()["engines"][engine][mode], figures["per_source"]),
    )


def _check_mode(name: str, known: Sequence[str], expected: str) -> None:
    if name not in known:
        raise ScenarioError(f"--mode: found {name!r}, expected one of {expected}")


def _publish(
    output: Output,
    figures: dict[str, Any],
    *,
    summary: Callable[[], str],
    report: Callable[[], list[Path]],
    page: Callable[[], Page] | None = None,
    worse: Callable[[], list[str]] | None = None,
    fault: str = "worse than recorded",
) -> None:
    """Write and print what was asked for; exit status 1 where a median is worse than recorded and that is checked."""
    text = json.dumps(figures, indent=1, allow_nan=False) + "\n"
    if output.json_path is not None and str(output.json_path) != "-":
        write_atomically(output.json_path, text)
    written = [write_atomically(output.html, page_text(page()))] if output.html is not None and page else []
    if output.report:
        written += report()
    for path in written:
        say(f"# wrote {path}", err=True)
    say(text if str(output.json_path) == "-" else summary(), nl=False)
    lines = worse() if output.check and worse else []
    for line in lines:
        say(f"{fault}: {line}", err=True)
    if lines:
        raise typer.Exit(1)


def _progress(items: Iterable[R], label: str, total: int) -> Iterable[R]:
    return _bar(items, label, total) if sys.stderr.isatty() else items


def _bar(items: Iterable[R], label: str, total: int) -> Iterator[R]:
    from rich.console import Console
    from rich.progress import track

    yield from track(items, f"{label:12s}", total=total, console=Console(stderr=True), transient=True)
