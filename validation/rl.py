"""Scores steps of reinforcement learning against published ones: `python validation/rl.py [ID ...]`.

Rows are those of `validation/rl`; with ``--report`` docs/accuracy-rl.md is written. ``--assumed`` scores the steps with
other values of what no source prints.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from commsim.files import write_atomically
from study.rl import step_scores
from study.rl_assumed import assumed_lines
from study.rl_chat import chat_scores
from study.rl_report import lines, page

PAGE = Path(__file__).resolve().parents[1] / "docs" / "accuracy-rl.md"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ids", nargs="*", metavar="ID", help="rows, or what their ids begin with; left out: all")
    parser.add_argument("--report", action="store_true", help="write docs/accuracy-rl.md")
    parser.add_argument("--assumed", action="store_true", help="what the steps depend on that no source prints")
    chosen = parser.parse_args()
    if chosen.assumed:
        for line in assumed_lines(chosen.ids):
            print(line, flush=True)
        return
    steps, chat = step_scores(chosen.ids), chat_scores(chosen.ids)
    for line in lines(steps, chat):
        print(line)
    if chosen.report:
        write_atomically(PAGE, page(steps, chat))


if __name__ == "__main__":
    main()
