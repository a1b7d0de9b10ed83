"""The moving picture of the landing page: the registry's schedule, small, still where motion is not wanted."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import animation
import pytest

from commsim.collectives.registry import build


def test_the_picture_is_that_of_the_schedule_today() -> None:
    assert animation.PICTURE.read_text(encoding="utf-8") == animation.picture(), "run `make animation`"


def test_it_is_a_small_file_that_loads_and_runs_nothing() -> None:
    text = animation.picture()
    assert len(text.encode()) < 60_000
    root = ET.fromstring(text)
    assert {element.tag.rpartition("}")[2] for element in root.iter()}.isdisjoint({"script", "image", "foreignObject"})
    assert set(re.findall(r'href="(.)', text)) == {"#"}


def test_every_move_of_the_schedule_is_a_chunk_on_its_way() -> None:
    schedule = build("all_reduce", "ring", world_size=animation.RANKS, nbytes=animation.RANKS)
    text = animation.picture()
    assert len(re.findall(r'<circle class="c m', text)) == len(schedule.step)
    names = set(re.findall(r"animation-name:(\w+)", text))
    assert names == set(re.findall(r"@keyframes (\w+)", text))


def test_only_readers_who_want_motion_get_it() -> None:
    before, after = animation.picture().split("@media (prefers-reduced-motion:no-preference){")
    assert "@keyframes" not in before
    assert "animation-duration" not in before
    assert "@keyframes" not in after.split("@media (prefers-reduced-motion:reduce)")[1]


@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling", "direct_two_shot"])
def test_every_slice_is_full_in_the_end(algorithm: str) -> None:
    moving = animation.Moving(build("all_reduce", algorithm, world_size=4, nbytes=4096))
    assert all(shares[0] == 0.25 and shares[-1] == 1 for rank in moving.shares for shares in rank)
