"""Fits the closed form of training steps to the published rows; writes commsim/training/parameters.yaml.

    python validation/fit_training.py            show what moved
    python validation/fit_training.py --write    also write the values

The fit is that of `commsim validate training`, on the rows of every source that its rules allow. Starting values and
spreads are in the same file and stay.
"""

from __future__ import annotations

import re
import sys

from commsim.files import write_atomically
from commsim.training.parameters import PATH, parameters
from study.training import shipped_fit


def yaml_number(value: float) -> str:
    """A number to four digits that every YAML reader takes for one."""
    text = f"{value:.4g}"
    return re.sub(r"^(\d+)e", r"\1.0e", text)


def main() -> int:
    """Show the fit, write it where asked."""
    values = shipped_fit()
    text = PATH.read_text(encoding="utf-8")
    for p in parameters():
        number = yaml_number(values[p.name])
        print(f"{p.name:24s} start {p.start:10.4g}   ships {p.value:10.4g}   fit {number}")
        pattern = re.compile(rf"^({re.escape(p.name)}:\n(?:  .*\n)*?  value: ).*$", re.MULTILINE)
        text, hits = pattern.subn(rf"\g<1>{number}", text)
        if hits != 1:
            raise SystemExit(f"{PATH}: found {hits} entries of {p.name}, expected one")
    if "--write" in sys.argv[1:]:
        print(f"wrote {write_atomically(PATH, text)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
