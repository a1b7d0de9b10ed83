"""Prints the errors of the model on published runs with registered buffers: `python validation/registered.py`.

With ``--json FILE`` the points are written too.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from commsim.files import write_atomically
from study.registered import medians, points


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all points with their errors")
    chosen = parser.parse_args()
    scored = list(points())
    for slug, (count, error) in medians(scored).items():
        print(f"{slug:32} {count:4} points  median error {100 * error:5.1f} %")
    if chosen.json:
        rows = [{**asdict(point), "error": point.error} for point in scored]
        write_atomically(chosen.json, json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
