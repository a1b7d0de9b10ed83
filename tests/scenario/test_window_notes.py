"""What is said of rows and steps on registered windows that are not measured, or that lose by them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import commsim as cs
from commsim.nccl.registered import MEASURED_TO
from commsim.topology.presets import load_preset

ROOT = Path(__file__).parents[2]
WINDOW = ("library.version=2.28.9", "library.registered=window", "library.env={}")


def warnings(collective: str, sizes: str, preset: str = "hgx-h100", *words: str) -> tuple[str, ...]:
    where = (f"topology.preset={preset}", f"workload.0.collective={collective}", f"workload.0.sizes={sizes}")
    return cs.run("allreduce-8-h100", *(words or WINDOW), *where).warnings


def test_measured_sizes_are_those_of_the_published_points() -> None:
    folder = ROOT / "validation" / "registered"
    with (folder / "INDEX.csv").open(encoding="utf-8") as file:
        curves = {row["slug"]: row for row in csv.DictReader(file) if row["registered"] == "window"}
    most: dict[tuple[str, str], int] = {}
    with (folder / "points.csv").open(encoding="utf-8") as file:
        for point in csv.DictReader(file):
            if point["slug"] in curves:
                curve = curves[point["slug"]]
                key = load_preset(curve["machine"]).gpu.generation, curve["collective"]
                most[key] = max(most.get(key, 0), int(point["size_bytes"]))
    assert most == MEASURED_TO


def test_sizes_that_no_published_time_holds_are_named() -> None:
    said = "no published time on Hopper holds what is predicted"
    assert f"reduce_scatter in windows above 32 MiB: {said}" in warnings("reduce_scatter", "[32 MiB, 64 MiB]")
    assert not [text for text in warnings("reduce_scatter", "[32 MiB]") if "no published time" in text]
    new = warnings("reduce_scatter", "[64 KiB]", "hgx-b200")
    assert "reduce_scatter in windows: no published time on Blackwell holds what is predicted" in new


def test_windows_that_lose_are_named_with_both_times() -> None:
    sizes = ("reduce_scatter", "[256 MiB, 8 GiB]", "hgx-b200")
    (text,) = [text for text in warnings(*sizes) if "longer than" in text]
    window, plain = (
        cs.run("allreduce-8-h100", *words, f"topology.preset={sizes[2]}", "workload.0.collective=reduce_scatter",
               "workload.0.sizes=[8 GiB]").items[0].rows[0]
        for words in (WINDOW, ("library.version=2.28.9", "library.env={}"))
    )  # fmt: skip
    assert f"{1e3 * window.time_s:.4g} ms in windows (LDMC), {100 * (window.time_s / plain.time_s - 1):.0f} %" in text
    assert f"than the {1e3 * plain.time_s:.4g} ms without library.registered (1 more of the sizes lose too)" in text
    assert not [text for text in warnings("all_reduce", "[8 KiB, 1 MiB]") if "longer than" in text]
    assert not [text for text in warnings(*sizes, "library.env={}") if "in windows" in text]


def test_wrong_kernel_names_are_met_with_the_right_ones() -> None:
    words = ("library.version=2.28.9", "library.registered=window", "library.env={NCCL_SYM_KERNEL: RSxLD_AGxST}")
    (text,) = [text for text in warnings("all_reduce", "[1 MiB]", "hgx-h100", *words) if "NCCL_SYM_KERNEL" in text]
    assert "names no kernel of all_reduce in NCCL 2.28.9, expected one of AllReduce_AGxLL_R, " in text
    for name in text.partition("expected one of ")[2].partition(";")[0].split(", "):
        named = (*words[:2], f"library.env={{NCCL_SYM_KERNEL: {name}}}")
        assert not [text for text in warnings("all_reduce", "[1 MiB]", "hgx-h100", *named) if "SYM_KERNEL" in text]


def test_what_nvls_does_not_run_is_not_said_to_run_on_the_buffers() -> None:
    words = (*WINDOW, "workload.0.redop=max")
    (text,) = [text for text in warnings("all_reduce", "[1 GiB]", "hgx-h100", *words) if "registered" in text]
    assert text.endswith("they change nothing: NVLS does not run it, for no NVSwitch does a max of float32")
    whole = (*WINDOW, "workload.0.redop=max", "workload.0.dtype=int32")  # which NVSwitches can
    (text,) = [text for text in warnings("all_reduce", "[1 GiB]", "hgx-h100", *whole) if "registered" in text]
    assert text.endswith("as registered buffers they change the sizes that NVLS runs, and no others")


_STEP = """\
name: step
topology: {{preset: hgx-b200}}
library: {{name: nccl, version: 2.28.9, registered: {registered}}}
workload:
  - training: {{model: llama3-8b, global_batch_size: 8, mesh: {{dp: 8}}, zero_stage: 1}}
"""


@pytest.mark.parametrize(("registered", "loses"), [("none", False), ("window", True)])
def test_step_that_windows_make_longer_says_so(tmp_path: Path, registered: str, loses: bool) -> None:
    path = tmp_path / "step.yaml"
    path.write_text(_STEP.format(registered=registered))
    notes = cs.run(str(path)).trainings[0].notes
    assert any("without library.registered: window the step takes" in note for note in notes) == loses
