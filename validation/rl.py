"""Scores steps of reinforcement learning against published ones: ``python validation/rl.py [--report] [--rows ID ...]``.

Rows of `validation/rl/steps.csv` and `deepspeed_chat.csv`; ``--report`` writes ``docs/accuracy-rl.md``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))


def main() -> None:
    """Score, print, and write the page where asked for."""
    from validation.study.rl import chat_scores, step_scores
    from validation.study.rl_report import page, table

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="*", default=[], help="ids of rows, or their beginnings; left out: all")
    parser.add_argument("--report", action="store_true", help="write docs/accuracy-rl.md")
    given = parser.parse_args()
    steps, chat = step_scores(given.rows), chat_scores(given.rows)
    print(table(steps, chat))
    if given.report:
        (ROOT / "docs" / "accuracy-rl.md").write_text(page(steps, chat), encoding="utf-8")


if __name__ == "__main__":
    main()
