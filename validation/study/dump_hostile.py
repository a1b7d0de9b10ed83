"""Hostile dumps through the whole of `commsim dump`: what becomes of them, and what it takes."""

from __future__ import annotations

import json
import multiprocessing
import resource
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.queues import SimpleQueue
from pathlib import Path

from commsim.accuracy.diagnosis import diagnose
from commsim.errors import CommsimError
from commsim.report.dump_chart import dump_chart
from commsim.report.dumps import dump_dict, dump_page, dump_tables
from study import dump_forms
from study.dump_forms import Timeline
from study.dump_mutants import bombs, many, mutants, pickles_that_run

NAME = "hostile_rank_3"

Answer = Callable[[Sequence[Path], bool], None]
"""Answers files, and draws what it found where it is told to."""


@dataclass(frozen=True)
class Hostile:
    """Files of one kind: how many were refused, answered, and failed otherwise; seconds of the processor that the
    slowest took, MiB at most."""

    kind: str
    files: int
    refused: int
    answered: int
    failed: int
    longest_s: float
    peak_mib: int


def sound_files(folder: Path) -> dict[str, list[Path]]:
    """Sound dumps to make mutants of, by kind: two ranks each, where a kind has a file for each."""
    job = Timeline(4, ["all_reduce", "all_gather", "reduce_scatter"] * 3, {(1, 4): 0.1})

    def place(name: str) -> Path:
        (folder / name).mkdir(parents=True, exist_ok=True)
        return folder / name

    text = place("text") / "ras.txt"
    text.write_text(dump_forms.RAS_TEXT.format(front=641, behind=640, rank=5))
    return {
        "flight recorder, pickle": dump_forms.write_flight(place("pickle"), job)[:2],
        "flight recorder, JSON": dump_forms.write_flight(place("json"), job, form="json")[:2],
        "Kineto, gzipped": dump_forms.write_kineto(place("packed"), job, host_of=str)[:2],
        "Kineto, plain": dump_forms.write_kineto(place("kineto"), job, host_of=str, packed=False)[:2],
        "inspector": dump_forms.write_inspector(place("inspector"), job, verbose=True)[:2],
        "ncclras, JSON": [dump_forms.write_ras_json(place("ras"), [641, 641, 640, 641], dead=[1])],
        "ncclras, text": [text],
        "nsys export": dump_forms.write_nsys(place("nsys"), job)[:2],
    }


def of_mutants(kind: str, files: list[Path], count: int, folder: Path) -> Hostile:
    """So many mutants of a kind, every second one beside a sound file of another rank."""
    seed = zlib.crc32(kind.encode())
    return _alone(
        kind,
        ((m, files[1:] if i % 2 else []) for i, m in enumerate(mutants(files[0].read_bytes(), count, seed))),
        folder,
    )


def of_bombs(folder: Path) -> Hostile:
    """What is small and would become large, and a million calls; another process makes them than reads them."""
    process = multiprocessing.get_context("fork").Process(target=_write_bombs, args=(folder / "made",))
    process.start()
    process.join()
    return _alone("bombs, a million calls", ((path, []) for path in sorted((folder / "made").iterdir())), folder)


def _write_bombs(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, data in bombs():
        (folder / name).write_bytes(data)
    for kind in ("trace", "flight"):
        (folder / f"many-{kind}").write_bytes(many(1_000_000, kind))


def of_pickles(folder: Path) -> tuple[Hostile, bool]:
    """Pickles that execute, and whether one did."""
    canary = folder / "canary"
    result = _alone("pickles that execute", ((data, []) for _, data in pickles_that_run(canary)), folder)
    return result, canary.exists()


def alone(
    kind: str,
    files: Iterable[tuple[bytes | Path, list[Path]]],
    folder: Path,
    answer: Answer,
    name: str,
) -> Hostile:
    """The files, each under one name, through what answers them in a process of their own, whose memory is counted."""
    context = multiprocessing.get_context("fork")
    answers: SimpleQueue[Hostile] = context.SimpleQueue()
    process = context.Process(target=lambda: answers.put(_all(kind, files, folder, answer, name)))
    process.start()
    process.join()
    return answers.get() if not answers.empty() else Hostile(kind, 0, 0, 0, 1, 0.0, 0)


def _all(
    kind: str, files: Iterable[tuple[bytes | Path, list[Path]]], folder: Path, answer: Answer, name: str
) -> Hostile:
    folder.mkdir(parents=True, exist_ok=True)
    counts: Counter[str] = Counter()
    longest = 0.0
    for number, (data, beside) in enumerate(files):
        path = folder / name
        if isinstance(data, Path):
            data.rename(path)
        else:
            path.write_bytes(data)
        begun = time.process_time()
        outcome = _outcome(answer, [path, *beside], drawn=number % 50 == 0)
        longest = max(longest, time.process_time() - begun)
        counts[outcome] += 1
        if outcome == "failed":
            path.rename(folder / f"failed-{number}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return Hostile(kind, counts.total(), counts["refused"], counts["answered"], counts["failed"], longest, peak)


def _outcome(answer: Answer, paths: list[Path], *, drawn: bool) -> str:
    try:
        answer(paths, drawn)
    except CommsimError as error:
        return "refused" if len(str(error)) < 4000 else "failed"
    except Exception:
        return "failed"
    return "answered"


def _diagnosed(paths: Sequence[Path], drawn: bool) -> None:
    """All that `commsim dump` makes of files; every fiftieth is `drawn`, too."""
    found = diagnose(paths)
    dump_tables(found)
    json.dumps(dump_dict(found), allow_nan=False)
    if drawn:
        dump_chart(found)
        dump_page(found)


_alone = partial(alone, answer=_diagnosed, name=NAME)
