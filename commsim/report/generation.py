"""Generation: waits, rates, causes and memory as text, CSV, pictures and sections of a page, and all read back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from commsim.report.generation_plots import (
    MEANING,
    GenerationFigures,
    figures_of,
    load_charts,
    plot_load,
    plot_queue,
    plot_token,
    plot_waits,
    queue_chart,
    token_chart,
    waits_chart,
)
from commsim.report.generation_words import each_words, user_words
from commsim.report.page import Code, Part, Section, Text, plot, table
from commsim.report.tables import aligned, csv_text, folded, records_csv
from commsim.report.view import PictureKind, Shown, View
from commsim.units import GIB, format_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from commsim.generation.replica import Replica
    from commsim.scenario.generation_result import GenerationItem

MOST_REQUEST_ROWS = 200_000
"""Of more requests their own rows are not saved."""

_WAITS = (("ttft", "time to first token"), ("tpot", "time per output token"), ("latency", "time to last token"))


def mesh_words(replica: Replica) -> str:
    """``tp 8``, ``tp 1, attention_dp 8, ep 8``."""
    words = [f"tp {replica.tp}"]
    words += [f"{name} {getattr(replica, name)}" for name in ("pp", "attention_dp") if getattr(replica, name) > 1]
    return ", ".join([*words, *([f"ep {replica.moe_ep}"] if replica.moe_ep > 1 else [])])


def engine_words(item: GenerationItem) -> str:
    """Who answers: ``llama3-70b by vllm 0.24.0, 1 replica of tp 8, bf16``."""
    replica, engine = item.replica, item.replica.engine
    release = ".".join(map(str, engine.release))
    formats, pools = replica.formats, ""
    if item.reader is not None:
        pools = f", prompts by {_count(item.readers)} of {mesh_words(item.reader)}"
    experts = "" if replica.model.moe is None else f", experts {formats.experts.name}"
    who = f"{replica.model.name} by {engine.framework} {release}"
    cut = f"{_count(item.replicas)} of {mesh_words(replica)}{pools}"
    return f"{who}, {cut}, {formats.weights.name}{experts}, cache {formats.cache}"


def _count(replicas: int) -> str:
    return f"{replicas} replica{'s' if replicas != 1 else ''}"


def generation_table(item: GenerationItem, heading: Iterable[str] = ()) -> str:
    """The answer for a terminal; lines that start with ``#`` are no figures."""
    run = item.run
    lines = [f"# {text}".rstrip() for text in (*heading, engine_words(item), item.said)]
    figures = run.figures()
    columns = ("mean", "p50", "p90", "p99", "max")
    rows = [["#", *columns]]
    rows += [[f"  {words}", *(each_words(figures[name][key]) for key in columns)] for name, words in _WAITS]
    lines += ["#", *aligned(rows, spare=[5, 2])]
    lines += [
        "#",
        f"  tokens/s/GPU           {item.tokens_per_s_per_gpu:>10,.1f}  (with those of prompts: "
        f"{run.total_tokens_per_s / item.gpus:,.1f})",
        f"  GPU-hours/M tokens     {1e6 / 3600 / item.tokens_per_s_per_gpu:>10.3f}  (of answers; times the price of a "
        "GPU-hour: their cost)",
        f"  tokens/s/user          {user_words(item.tokens_per_s_per_user):>10}",
        f"  requests/s             {run.requests_per_s:>10.3f}  (all in {format_time(run.duration_s)})",
        f"  sequences in a step    {item.decode_steps.mean_sequences:>10.1f}",
    ]
    if item.reader is not None:
        lines.append(f"  cache on its way       {format_time(float(run.sent_s.mean())):>10}")
    if run.preemptions:
        lines.append(f"  preemptions            {run.preemptions:>10,}  (the cache was full; read again)")
    lines += ["#", "# where the time goes (mean engine" + (" that decodes)" if item.reader is not None else ")")]
    lines += aligned([[f"  {n}", format_time(s), f"{share:.1%}", m] for n, s, share, m in _causes(item)], (0, 3))
    lines += ["#", *_memory_lines(item)]
    if len(item.loads) > 1:
        lines += ["#", "# at other loads (a closed loop of so many clients)", *_load_lines(item)]
    return "\n".join(folded(lines)) + "\n"


def _causes(item: GenerationItem) -> list[tuple[str, float, float, str]]:
    """(cause, seconds, share, what it is) of the causes that take time."""
    seconds = item.causes | {"idle": item.idle_s}
    total = sum(seconds.values()) or 1.0
    return [(n, s, s / total, MEANING[n]) for n, s in seconds.items() if s > 5e-4 * total]


def _memory_lines(item: GenerationItem) -> list[str]:
    memory = item.memory
    tokens = "" if memory.cache_bytes_per_token == 0 else f", {memory.most_tokens:,} tokens of a replica"
    weights, cache = memory.weights_bytes / GIB, memory.cache_room_bytes / GIB
    held = f"{item.cache_share:.1%} of it was full at most"
    return [f"# memory of one GPU: weights {weights:.1f} GiB, cache {cache:.1f} GiB{tokens}; {held}"]


def _load_lines(item: GenerationItem) -> list[str]:
    rows = [["# clients", "first token", "per token", "tokens/s/user", "tokens/s/GPU"]]
    rows += [
        [f"  {p.clients}", format_time(p.ttft_s), each_words(p.tpot_s), user_words(p.tokens_per_s_per_user),
         f"{p.tokens_per_s_per_gpu:.1f}"]
        for p in item.loads
    ]  # fmt: skip
    return aligned(rows, spare=[1, 2])


def _sections(item: GenerationItem, figures: GenerationFigures, alone: bool) -> list[Section]:
    before = "" if alone else f"{item.name}: "
    waits = item.run.figures()
    rows = [
        (words, *(1e3 * waits[name][key] or "-" for key in ("mean", "p50", "p90", "p99", "max")))
        for name, words in _WAITS
    ]
    causes = [(name, seconds, 100 * share, meaning) for name, seconds, share, meaning in _causes(item)]
    made = [
        Section(
            f"{before}What users wait for",
            (
                table(["", "mean (ms)", "p50 (ms)", "p90 (ms)", "p99 (ms)", "max (ms)"], rows),
                plot(waits_chart(figures), "Which share of requests waits how long."),
                plot(queue_chart(figures), "The queue over the run: means over equal spans of it."),
            ),
        ),
        Section(
            f"{before}Where the time goes",
            (
                plot(token_chart(figures), "Time of the mean engine by cause."),
                table(["cause", "time of the mean engine (s)", "share (%)", "what"], causes),
            ),
        ),
        Section(f"{before}All figures", (Code(generation_table(item)),)),
    ]
    if len(item.loads) > 1:
        loads = [
            (p.clients, 1e3 * p.ttft_s, 1e3 * p.tpot_s or "-", p.tokens_per_s_per_user or "-", p.tokens_per_s_per_gpu)
            for p in item.loads
        ]
        columns = ["clients", "time to first token (ms)", "time per output token (ms)", "tokens/s/user", "tokens/s/GPU"]
        front, waited = load_charts(figures)
        shown = (
            plot(front, "What a user gets against what a GPU gives, at loads that double."),
            plot(waited, "What users wait for against the load."),
        )
        made.insert(0, Section(f"{before}At other loads", (*shown, table(columns, loads))))
    return made


class GenerationView(View["GenerationItem"]):
    """Requests that were answered."""

    question: ClassVar[str] = "How fast are requests answered?"
    kinds: ClassVar[dict[str, PictureKind]] = {
        "load": PictureKind.of_each(
            "tokens/s of a GPU against those of a user, and waits, over the load",
            lambda saved: [one for one in saved.of_kind("generations") if len(one.loads) > 1],
            plot_load,
        ),
        "queue": PictureKind.of_each(
            "requests that decode and wait, prompts and cache over a run",
            lambda saved: saved.of_kind("generations"),
            plot_queue,
        ),
        "waits": PictureKind.of_each(
            "which share of requests waits how long", lambda saved: saved.of_kind("generations"), plot_waits
        ),
        "token": PictureKind.of_each(
            "where the time of engines goes", lambda saved: saved.of_kind("generations"), plot_token
        ),
    }

    def table(self, shown: Shown, answer: GenerationItem) -> str:
        return generation_table(answer, [shown.heading, shown.machine, ""])

    def csv(self, shown: Shown, answers: Sequence[GenerationItem]) -> dict[str, str]:
        """Figures, every request, and the queue over time."""
        return {
            "generation.csv": records_csv([item.record() for item in answers]),
            "requests.csv": _requests_csv(answers),
            "queue.csv": _queue_csv(answers),
        }

    def draw(self, shown: Shown, answer: GenerationItem) -> dict[str, Figure]:
        figures, signed = self.keep(answer), shown.provenance
        drawn = {"queue": plot_queue(figures, signed), "waits": plot_waits(figures, signed)}
        drawn |= {"token": plot_token(figures, signed)}
        return drawn | ({"load": plot_load(figures, signed)} if len(figures.loads) > 1 else {})

    def sentences(self, shown: Shown, answers: Sequence[GenerationItem]) -> list[str]:
        lines = []
        for item in answers:
            run, waits, each, user = item.run, item.run.figures(), "", ""
            if run.tpot.size:
                each = f"{format_time(run.tpot_s)} per output token (99 % of requests at most "
                each += f"{format_time(waits['tpot']['p99'])}), "
                user = f", a user gets {item.tokens_per_s_per_user:,.1f}"
            lines += [
                f"{item.name}: {engine_words(item)}.",
                f"{item.said}: {each}{format_time(run.ttft_s)} to the first one (99 %: "
                f"{format_time(waits['ttft']['p99'])}).",
                f"A GPU gives {item.tokens_per_s_per_gpu:,.0f} tokens/s{user}.",
                f"At most {item.cache_share:.0%} of the cache was full"
                + (f"; {run.preemptions:,} times a request lost its place." if run.preemptions else "."),
            ]
        return lines

    def sections(self, shown: Shown, answers: Sequence[GenerationItem]) -> list[Section]:
        alone = len(shown.of_kind("generations")) == 1
        return [section for item in answers for section in _sections(item, self.keep(item), alone)]

    def sureness(self, shown: Shown, answers: Sequence[GenerationItem]) -> list[Part]:
        text = (
            "How far off predicted waits are, over published runs: page Accuracy of generation "
            "(docs/accuracy-generation.md), counted by commsim validate generation."
        )
        return [Text(text)]

    def keep(self, answer: GenerationItem) -> GenerationFigures:
        return figures_of(answer.to_dict())

    def read(
        self, records: list[dict[str, Any]], document: dict[str, Any], folder: Path | None
    ) -> list[GenerationFigures]:
        return [figures_of(record) for record in records]


def _requests_csv(items: Iterable[GenerationItem]) -> str:
    """A row per request: when it came, its first token, its end; items counted from 1."""
    rows: list[tuple[Any, ...]] = [("item", "prompt", "answer", "arrival_s", "first_s", "end_s")]
    for number, item in enumerate(items, 1):
        run = item.run
        if run.count <= MOST_REQUEST_ROWS:
            columns = (run.prompt, run.answer, run.arrival_s, run.first_s, run.end_s)
            rows += [(number, *row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    return csv_text(rows)


def _queue_csv(items: Iterable[GenerationItem]) -> str:
    """The timeline of every item, a row per span."""
    rows: list[tuple[Any, ...]] = []
    for number, item in enumerate(items, 1):
        timeline = item.timeline()
        rows = rows or [("item", *timeline)]
        rows += [(number, *row) for row in zip(*timeline.values(), strict=True)]
    return csv_text(rows)


VIEW = GenerationView()
