"""What `commsim validate collectives` prints: only what there is, and why the rest is not."""

from __future__ import annotations

from typing import Any

from study.collectives_report import summary

FIGURES = ("mape", "mape_small", "mape_mid", "mape_large")


def medians(logs: int) -> dict[str, Any]:
    part = {"n_logs": logs, "logs": dict.fromkeys(FIGURES, 10.0), "systems": dict.fromkeys(FIGURES, 11.0)}
    empty = {"n_logs": 0, "logs": dict.fromkeys(FIGURES), "systems": dict.fromkeys(FIGURES)}
    return {"by_class": {"one node": part if logs else empty, "IB/RoCE": empty}}


def found(scored: int, unscored: int) -> dict[str, Any]:
    logs = [{"slug": f"good{i}", "mape": 10.0, "reason": "as it is", "healthy": "yes"} for i in range(scored)]
    rest = [{"slug": f"bad{i}", "mape": None, "reason": "no machine is known for the GPU 'X'"} for i in range(unscored)]
    mode = {"per_log": logs + rest, "medians": medians(scored)}
    return {
        "mode": "zero-shot",
        "modes": {"zero-shot": mode},
        "per_log": logs + rest,
        "baselines": {"tuner": medians(scored)},
        "worst": logs[:10],
    }


def test_where_nothing_is_scored_the_reasons_stand_alone() -> None:
    text = summary(found(0, 12))
    assert text.startswith("zero-shot: 0 of 12 logs scored\nnot scored, zero-shot\n  bad0: no machine is known")
    assert text.endswith("  and 2 more (--json names all)\n")
    assert len(text.splitlines()) == 13


def test_classes_without_logs_are_left_out() -> None:
    text = summary(found(2, 1))
    assert "one node" in text
    assert "IB/RoCE" not in text
    assert "  bad0: no machine" in text
    assert "more (--json" not in text


def test_degraded_logs_are_counted_and_what_stands_beside_a_mode_is_named() -> None:
    document = found(3, 0)
    document["modes"]["zero-shot"]["per_log"][0]["healthy"] = "no"
    for part in (document["modes"]["zero-shot"]["medians"], both := {"theirs": medians(2), "ours": medians(2)}):
        for each in part.values() if part is both else [part]:
            each["all"] = {"n_logs": 2}
    document["modes"]["zero-shot"]["beside"] = {"line": both}
    text = summary(document)
    assert text.startswith("zero-shot: 3 of 3 logs scored, 1 known degraded and in no median; medians")
    assert "\n  no model: the straight line through these sizes\n" in text
    assert "fitted parameters alone" not in text
