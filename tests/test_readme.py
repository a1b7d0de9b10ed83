"""The figures of the README are those that the program prints today, and reach what they promise."""

from __future__ import annotations

import readme


def test_the_table_of_the_readme_is_current() -> None:
    text = readme.README.read_text(encoding="utf-8")
    assert text == readme.with_table(text, readme.table(readme.answers())), "run `make readme`"


def test_the_three_curves_stay_within_their_bars() -> None:
    # 15 % over all sizes and 5 % above 64 MiB, each.
    for _, comparisons in readme.answers():
        for c in comparisons:
            above = c.band_mape("above_64mib")
            assert above is not None
            assert (c.mape <= 0.15, above <= 0.05) == (True, True), c.measured.name
