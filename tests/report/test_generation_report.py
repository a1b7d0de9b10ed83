"""Generation on the terminal, in files and pictures, on a page."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import commsim as cs
from commsim.report.explain import result_page
from commsim.report.generation import VIEW, generation_table
from commsim.report.generation_plots import figures_of, plot_load, plot_queue, plot_token, plot_waits
from commsim.report.generation_words import generation_words
from commsim.report.kinds import kinds_of, pictures
from commsim.report.page import html
from commsim.report.read_saved import read_saved, saved_of
from commsim.report.run_files import compared, write_files
from commsim.report.view import Shown

ITEM = {"model": "llama-3-8b", "mesh": {"tp": 4}, "prompt": 256, "answer": 32, "batch": 4}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    apart = {**ITEM, "prefill": {"replicas": 1, "mesh": {"tp": 4}}}
    scenario = {
        "name": "two <items>",
        "topology": {"preset": "hgx-h100-ndr400"},
        "workload": [{"generation": ITEM}, {"generation": apart}],
    }
    path = tmp_path_factory.mktemp("generation") / "s.yaml"
    path.write_text(json.dumps(scenario))
    return compared(cs.run(path))


def test_the_table_says_who_answers_what_and_where_the_time_goes(shown: Shown) -> None:
    one, apart = (generation_table(item) for item in shown.of_kind("generations"))
    assert "llama3-8b by vllm 0.24.0, 2 replicas of tp 4, bf16, cache bf16" in one
    assert "80 requests of 256 tokens in, 32 out, 8 at a time" in one
    assert "1 replica of tp 4, prompts by 1 replica of tp 4" in apart
    assert "cache on its way" in apart
    assert "cache on its way" not in one
    for words in ("time per output token", "tokens/s/user", "collectives", "at other loads", "memory of one GPU"):
        assert words in one


def test_answers_of_one_token_have_no_time_per_output_token() -> None:
    one = {"model": "llama-3-8b", "mesh": {"tp": 8}, "prompt": 1, "answer": 1, "batch": 2}
    shown = compared(
        cs.run({"name": "one", "topology": {"preset": "hgx-h100-ndr400"}, "workload": [{"generation": one}]})
    )
    (item,) = shown.of_kind("generations")
    lines = {line.split("  ")[1]: line.split() for line in generation_table(item).splitlines() if line[:2] == "  "}
    assert lines["time per output token"][-5:] == ["-"] * 5
    assert lines["tokens/s/user"][-1] == "-"
    assert lines["2"][-2] == "-"
    words = [*VIEW.sentences(shown, [item]), *generation_words(item)]
    assert not any("0 ns" in line or "gets" in line or " each" in line for line in words)
    assert html(result_page(shown.result, (), [])).count("<td>-</td>") >= 5


def test_files_hold_every_request_and_read_back_whole(shown: Shown, tmp_path: Path) -> None:
    write_files(shown, tmp_path)
    with (tmp_path / "requests.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 80 + 40
    assert all(float(row["arrival_s"]) < float(row["first_s"]) <= float(row["end_s"]) for row in rows)
    assert {"generation.csv", "queue.csv"} <= {file.name for file in tmp_path.iterdir()}
    saved, kept = read_saved(tmp_path), saved_of(shown.result)
    assert [vars(one) for one in saved.answers] == [vars(one) for one in kept.answers]
    assert {"load", "queue", "waits", "token"} <= set(kinds_of(saved))
    assert [name for name, _ in pictures(saved, "token")] == ["-1", "-2"]


@pytest.mark.slow  # sixteen pictures
def test_every_picture_is_written(shown: Shown, tmp_path: Path) -> None:
    write_files(shown, tmp_path, plot=True)
    drawn = {file.name for file in tmp_path.iterdir() if file.suffix in (".png", ".svg")}
    kinds = ("queue", "waits", "token", "load")
    assert drawn == {f"{kind}-{i}.{form}" for kind in kinds for i in (1, 2) for form in ("png", "svg")}


@pytest.mark.slow  # four pictures
def test_the_page_answers_first_and_escapes_names(tmp_path: Path) -> None:
    scenario = {"name": "two <items>", "topology": {"preset": "hgx-h100"}, "workload": [{"generation": ITEM}]}
    (tmp_path / "s.yaml").write_text(json.dumps(scenario))
    page = result_page(cs.run(tmp_path / "s.yaml"), (), [])
    text = html(page)
    assert page.question == "How fast are requests answered?"
    assert any("tokens/s, a user gets" in sentence for sentence in page.answer)
    assert "two &lt;items&gt;" in text
    assert "<items>" not in text


def _record(**changes: Any) -> dict[str, Any]:
    return {
        "item": "x", "model": "m", "framework": "vllm", "gpus": 8, "said": "1 request", "clients": 1, "ttft_ms": 3.0,
        "tpot_ms": 0.0, "tokens_per_s_per_gpu": 1.0, "loads": [], "idle_s": 0.0,
        "quantiles": {"ttft_s": [1.0, 2.0], "tpot_s": [], "latency_s": [1.0, 2.0]},
        "timeline": {n: [1.0] for n in ("end_s", "sequences", "waiting", "prompt_tokens_per_s", "cache_share")},
    } | changes  # fmt: skip


def test_pictures_of_next_to_nothing_are_drawn() -> None:
    """One request of one token has no time per output token; nothing took time."""
    figures = figures_of(_record())
    for draw in (plot_queue, plot_token, plot_waits):
        assert draw(figures).axes
    load = {"clients": 1, "ttft_s": 1.0, "tpot_s": 0.01, "tokens_per_s_per_gpu": 5.0, "tokens_per_s_per_user": 100.0}
    assert plot_load(figures_of(_record(loads=[load]))).axes
