"""The page of a laboratory, of folders of which every figure is known."""

from __future__ import annotations

import json
import re
from pathlib import Path

from commsim.lab.findings import conclude
from commsim.lab.page import lab_page
from commsim.report.page import html


def text_of(folder: Path) -> str:
    """What the page of a folder says, without its marks."""
    page = html(lab_page(conclude(folder), "a machine"))
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def test_a_step_without_room_to_compute_alone_has_blanks(tmp_path: Path) -> None:
    (tmp_path / "steps").mkdir()
    item = {
        "name": "zero3 4096 wide", "step_s": 0.25, "compute_s": None, "exposed_comm_s": None, "tokens_per_s": 32768.0,
        "peak_memory_bytes": [3 << 30, 5 << 30], "wrong": 0,
    }  # fmt: skip
    (tmp_path / "steps" / "training.json").write_text(json.dumps({"items": [item]}))
    assert re.search(r"zero3 4096 wide 250(\.0*)? 32,768(\.0*)? 5(\.0*)? 0", text_of(tmp_path))


def test_rates_have_units_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "rates").mkdir()
    (tmp_path / "rates" / "rates.csv").write_text(
        "kind,shape,dtype,amount,median_s,least_s,per_second\n"
        "matmul,8192x8192x8192,bfloat16,1,1,1,6.5e14\n"
        "copy,536870912,uint8,1,1,1,2.9e12\n"
        "launch,1000 small additions,float32,1000,1,1,250000\n"
    )
    text = text_of(tmp_path)
    assert "650 TFLOP/s" in text
    assert "2900 GB/s" in text
    assert "0.25 million/s" in text


def test_bytes_of_ranks_that_share_an_adapter_are_compared_in_sum(tmp_path: Path) -> None:
    """Of a scatter by rank 0 of 2 on one node, the adapter's 1024 bytes are told as 512 of each."""
    (tmp_path / "collectives").mkdir()
    (tmp_path / "collectives" / "measured.csv").write_text(
        "collective,n_ranks,size_bytes,oop_time_us,sent_bytes,expected_sent_bytes\nscatter,2,2048,30,512 512,1024 0\n"
    )
    assert "scatter 2 KiB 1,024 1,024 0.0" in text_of(tmp_path)


def test_what_a_call_of_one_rank_costs_is_said(tmp_path: Path) -> None:
    (tmp_path / "single").mkdir()
    (tmp_path / "single" / "measured.csv").write_text(
        "collective,n_ranks,size_bytes,oop_time_us,ip_time_us\nall_reduce,1,8,6.25,\n"
    )
    assert re.search(r"What a call costs .*all_reduce 8 B 6\.25", text_of(tmp_path))
