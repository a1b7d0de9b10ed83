"""Writes docs/images/ring.svg: the chunks of a ring all_reduce on their way, as a picture that moves by itself.

`python docs/animation.py` (or `make animation`). Every move is a row of the registry's schedule; a rank is a pie with a
slice for each chunk, which fills as the sum in it grows. Styles alone move it: no script runs, a reader who wants less
motion sees its first step, and it suits light and dark pages.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from commsim.collectives.registry import build
from commsim.collectives.schedule import Op, Schedule
from commsim.files import write_atomically
from commsim.report.schedule_plot import CHUNK_COLOURS

PICTURE = Path(__file__).resolve().parent / "images" / "ring.svg"
RANKS = 8

_STEP_S = 0.85
_REST_S = 2.0
"""How long the sums stand before it begins again."""
_TRAVEL = 0.8
"""The part of a step for which chunks are on their way; then they lie still, so that steps can be told apart."""
_CENTRE, _RING, _PIE, _HOLE, _CHUNK = 200.0, 148.0, 33.0, 12.0, 8.0

_STYLE = """
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,Helvetica,Arial,sans-serif;text-anchor:middle;fill:#24292f}
.q{fill:#57606a}.l{stroke:#b6bec7;stroke-width:2;fill:none}.p{fill:#fff;stroke:#8c959f;stroke-width:1.5}
.h{fill:#fff}.c{stroke:#fff;stroke-width:1.5;opacity:0}.s,.w{opacity:0}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.q{fill:#9da7b3}.l{stroke:#4b535d}
.p{fill:#161b22;stroke:#6e7681}.h{fill:#161b22}.c{stroke:#161b22}}
"""


@dataclass(frozen=True)
class Moving:
    """A schedule as a picture that moves."""

    schedule: Schedule

    @cached_property
    def seconds(self) -> float:
        """How long it takes until it begins again."""
        return self.schedule.steps * _STEP_S + _REST_S

    def svg(self) -> str:
        """The whole file."""
        body = [*self._links(), *self._pies(), *self._chunks(), *self._words()]
        shapes, rules = "\n".join(shape for shape, _ in body), "".join(rule for _, rule in body)
        moving = f".m{{animation-duration:{self.seconds:g}s;animation-iteration-count:infinite}}\n{rules}"
        title = f"{self.schedule.algorithm} {self.schedule.collective} on {self.schedule.world_size} ranks"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 400 400" role="img" aria-label="{title}">\n'
            f"<title>{title}</title>\n<style>{_STYLE}"
            f"@media (prefers-reduced-motion:no-preference){{\n{moving}}}\n"
            f"@media (prefers-reduced-motion:reduce){{.f{{opacity:1}}}}\n</style>\n{shapes}\n</svg>\n"
        )

    def _links(self) -> Iterator[tuple[str, str]]:
        s = self.schedule
        for src, dst in sorted({(int(a), int(b)) for a, b in zip(s.src, s.dst, strict=True)}):
            (x1, y1), (x2, y2) = self._place(src), self._place(dst)
            yield f'<path class="l" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>', ""

    def _pies(self) -> Iterator[tuple[str, str]]:
        chunks = range(int(self.schedule.chunk_bytes.size))
        slices = "".join(f'<path id="s{c}" fill="{self._colour(c)}" d="{self._slice(c)}"/>' for c in chunks)
        yield f"<defs>{slices}</defs>", ""
        for rank in range(self.schedule.world_size):
            x, y = self._place(rank)
            yield f'<circle class="p" cx="{x:.1f}" cy="{y:.1f}" r="{_PIE:g}"/>', ""
            for chunk, shares in enumerate(self.shares[rank]):
                name = f"r{rank}c{chunk}"
                yield (
                    f'<use href="#s{chunk}" x="{x:.1f}" y="{y:.1f}" class="m" style="animation-name:{name}" '
                    f'fill-opacity="{shares[0]:.3g}"/>',
                    self._filling(name, shares),
                )
            hole = f'<circle class="h" cx="{x:.1f}" cy="{y:.1f}" r="{_HOLE:g}"/>'
            yield f'{hole}<text x="{x:.1f}" y="{y + 5:.1f}" font-size="15" font-weight="600">{rank}</text>', ""

    def _filling(self, name: str, shares: list[float]) -> str:
        """Keyframes of a slice: its share of the sum after each step."""
        stops = [f"0%{{fill-opacity:{shares[0]:.3g}}}"]
        for step, (before, after) in enumerate(pairwise(shares)):
            if after != before:
                arrived = self._percent(step + _TRAVEL)
                stops += [
                    f"{arrived}%{{fill-opacity:{before:.3g}}}",
                    f"{arrived + 0.6:.4g}%{{fill-opacity:{after:.3g}}}",
                ]
        stops.append(f"100%{{fill-opacity:{shares[-1]:.3g}}}")
        return f"@keyframes {name}{{{''.join(stops)}}}\n"

    def _chunks(self) -> Iterator[tuple[str, str]]:
        s = self.schedule
        columns = (column.tolist() for column in (s.step, s.src, s.dst, s.src_chunk))
        for number, (step, src, dst, chunk) in enumerate(zip(*columns, strict=True)):
            (x1, y1), (x2, y2) = self._edge(src, dst), self._edge(dst, src)
            first = " f" if step == 0 else ""
            shape = (
                f'<circle class="c m{first}" style="animation-name:k{number}" fill="{self._colour(chunk)}" '
                f'cx="{(x1 + x2) / 2:.1f}" cy="{(y1 + y2) / 2:.1f}" r="{_CHUNK:g}"/>'
            )
            dx, dy = (x1 - x2) / 2, (y1 - y2) / 2
            left, arrived = self._percent(step), self._percent(step + _TRAVEL)
            at_start = f"transform:translate({dx:.1f}px,{dy:.1f}px)"
            at_end = f"transform:translate({-dx:.1f}px,{-dy:.1f}px)"
            rule = (
                f"@keyframes k{number}{{0%,{left}%{{opacity:0;{at_start}}}{left + 0.5:.4g}%{{opacity:1;{at_start}}}"
                f"{arrived}%{{opacity:1;{at_end}}}{arrived + 0.4:.4g}%,100%{{opacity:0;{at_end}}}}}\n"
            )
            yield shape, rule

    def _words(self) -> Iterator[tuple[str, str]]:
        s = self.schedule
        spans = [("adds up", "reduce-scatter", 0, self._adding), ("hands on", "all-gather", self._adding, s.steps)]
        for number, (verb, phase, begin, end) in enumerate(spans):
            first = " f" if begin == 0 else ""
            rule = self._shown(f"w{number}", begin, end)
            lines = f'<text x="200" y="190" font-size="22" font-weight="600">{phase}</text>'
            lines += f'<text class="q" x="200" y="238" font-size="15">each rank {verb} one</text>'
            lines += '<text class="q" x="200" y="257" font-size="15">chunk in every step</text>'
            yield f'<g class="w m{first}" style="animation-name:w{number}">{lines}</g>', rule
        for step in range(s.steps):
            first = " f" if step == 0 else ""
            text = f'<text class="s m{first}" style="animation-name:t{step}" x="200" y="214" font-size="16">'
            yield f"{text}step {step + 1} of {s.steps}</text>", self._shown(f"t{step}", step, step + 1)
        lines = '<text x="200" y="198" font-size="22" font-weight="600">all_reduce done</text>'
        lines += '<text class="q" x="200" y="222" font-size="15">every rank has every sum</text>'
        yield f'<g class="w m" style="animation-name:w9">{lines}</g>', self._shown("w9", s.steps, None)

    def _shown(self, name: str, begin: int, end: int | None) -> str:
        """Keyframes of what is there from one step to another, or to the end."""
        first = self._percent(begin)
        stops = "0%{opacity:1}" if begin == 0 else f"0%,{first}%{{opacity:0}}{first + 0.01:.5g}%{{opacity:1}}"
        if end is None:
            return f"@keyframes {name}{{{stops}100%{{opacity:1}}}}\n"
        last = self._percent(end)
        return f"@keyframes {name}{{{stops}{last}%{{opacity:1}}{last + 0.01:.5g}%,100%{{opacity:0}}}}\n"

    @cached_property
    def shares(self) -> list[list[list[float]]]:
        """By rank and chunk the part of all ranks' data that is summed there: before the first step, and after each."""
        s = self.schedule
        n, chunks = s.world_size, int(s.chunk_bytes.size)
        held = [[frozenset([rank]) for _ in range(chunks)] for rank in range(n)]
        shares = [[[1 / n] for _ in range(chunks)] for _ in range(n)]
        for step in range(s.steps):
            before = [list(row) for row in held]  # rows of one step read what was there before it
            for i in (s.step == step).nonzero()[0].tolist():
                sent = before[int(s.src[i])][int(s.src_chunk[i])]
                there = held[int(s.dst[i])][int(s.dst_chunk[i])]
                held[int(s.dst[i])][int(s.dst_chunk[i])] = there | sent if s.op[i] == Op.REDUCE else sent
            for rank in range(n):
                for chunk in range(chunks):
                    shares[rank][chunk].append(len(held[rank][chunk]) / n)
        return shares

    @cached_property
    def _adding(self) -> int:
        """The number of steps that add."""
        s = self.schedule
        return int(s.step[s.op == Op.REDUCE].max()) + 1

    def _percent(self, step: float) -> float:
        return round(100 * step * _STEP_S / self.seconds, 2)

    def _place(self, rank: int) -> tuple[float, float]:
        angle = 2 * math.pi * rank / self.schedule.world_size - math.pi / 2
        return _CENTRE + _RING * math.cos(angle), _CENTRE + _RING * math.sin(angle)

    def _edge(self, rank: int, towards: int) -> tuple[float, float]:
        """Where the line to another rank leaves the pie, with room for half a chunk."""
        (x1, y1), (x2, y2) = self._place(rank), self._place(towards)
        part = (_PIE + _CHUNK / 2) / math.dist((x1, y1), (x2, y2))
        return x1 + part * (x2 - x1), y1 + part * (y2 - y1)

    def _slice(self, chunk: int) -> str:
        """The slice of a pie whose middle is the origin."""
        count = int(self.schedule.chunk_bytes.size)
        a, b = (2 * math.pi * i / count - math.pi / 2 for i in (chunk, chunk + 1))
        r = _PIE - 1
        return (
            f"M0 0L{r * math.cos(a):.1f} {r * math.sin(a):.1f}"
            f"A{r:g} {r:g} 0 0 1 {r * math.cos(b):.1f} {r * math.sin(b):.1f}Z"
        )

    def _colour(self, chunk: int) -> str:
        return CHUNK_COLOURS[chunk % len(CHUNK_COLOURS)]


def picture() -> str:
    """The ring all_reduce of the registry on 8 ranks."""
    return Moving(build("all_reduce", "ring", world_size=RANKS, nbytes=RANKS)).svg()


def main() -> int:
    """Write the picture."""
    write_atomically(PICTURE, picture())
    return 0


if __name__ == "__main__":
    sys.exit(main())
