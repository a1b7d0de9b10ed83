"""`validation/gpu`: the script for a machine with one GPU on a rehearsed one, and the page of what it leaves."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from gpu.compare import page
from rehearsal.law import COSTS
from rehearsal.settings import Settings, environment

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "validation" / "gpu" / "one_gpu.sh"


def script(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The script with this Python first on PATH, as the one with torch."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        ["bash", str(SCRIPT), *words],
        env=os.environ | {"PATH": path} | env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def wheel(folder: Path, name: str, module: str) -> Path:
    """A wheel of one empty module."""
    folder.mkdir(parents=True, exist_ok=True)
    path, info = folder / f"{name}-99.0-py3-none-any.whl", f"{name}-99.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{module}.py", "")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 99.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def test_help_says_what_is_carried() -> None:
    done = script("--help")
    assert done.returncode == 0
    assert "torch is not carried" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--minutes", "soon"], "found --minutes soon, expected a number"),
        (["--minutes"], "found --minutes without a value"),
        (["--fast"], "found the unknown option --fast"),
        (["simpy"], "expected names of packages after --pack only"),
        (["--python", "/nowhere/python3"], "found no /nowhere/python3"),
        (["--pack", "--python", "python3.12"], "expected a version to pack for, such as 3.12"),
    ],
)
def test_what_it_cannot_begin_is_one_line(words: list[str], said: str) -> None:
    done = script(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_pack_takes_the_packages_that_are_named(tmp_path: Path) -> None:
    wheel(tmp_path / "index", "only_one", "only_one")
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "index")}
    done = script("--pack", "--wheels", str(tmp_path / "wheels"), "only-one", **index)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "wheels").iterdir()] == ["only_one-99.0-py3-none-any.whl"]


@pytest.mark.slow
def test_a_machine_with_one_gpu_from_a_plain_checkout(tmp_path: Path) -> None:
    """Four ranks share it, each a node of its own; what is missing comes from the wheels; a second call goes on."""
    wheel(tmp_path / "wheels", "nvidia_ml_py", "brought_along")
    machine = Settings(folder=str(tmp_path / "machine"), gpus=1, ranks_per_node=1, nics=0, nvlink=False)
    env = environment(machine) | {"GLOO_SOCKET_IFNAME": "lo"}
    venv, lab = tmp_path / "venv", tmp_path / "lab"
    words = ["--python", sys.executable, "--venv", str(venv), "--wheels", str(tmp_path / "wheels"), "--minutes", "4"]
    words += ["--out", str(lab), "--", "--only", "collectives", "--largest", "512 B"]
    done = script(*words, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 nodes of 1 x H100" in done.stdout
    assert subprocess.run([venv / "bin" / "python", "-c", "import brought_along"], check=False).returncode == 0
    assert {"report.html", "comparison.md", "scenario.yaml"} <= {path.name for path in lab.iterdir()}
    assert (tmp_path / "lab.zip").is_file()
    assert str(tmp_path) not in (lab / "report.html").read_text()  # the folder above may name a user
    text = (lab / "comparison.md").read_text()
    assert f"| 1 | all_reduce | 8 B | {1e6 * COSTS['Simple'].start_s + 0.2:.2f} |" in text
    assert "| all_gather | " in text.split("## What NCCL chose")[1].split("##")[0]
    measured = (lab / "collectives" / "measured.csv").read_bytes()
    again = script(*words, **env)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "# making" not in again.stdout
    assert (lab / "collectives" / "measured.csv").read_bytes() == measured


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A folder of which every figure is known."""
    for name in ("collectives", "single", "rates", "steps"):
        (tmp_path / name).mkdir()
    said = {"gpu": "NVIDIA H100 80GB HBM3", "gpu_memory_bytes": 85 * 10**9, "nccl": "2.27.7", "ranks_per_gpu": 4}
    (tmp_path / "collectives" / "run.json").write_text(json.dumps(said))
    rows = [(8, "12.5 12.5 12.5 12.5", "12 12 12 12"), (1024, "1536 1540 1536 1536", "1536 1536 1536 1536")]
    for name, ranks in (("collectives", 4), ("single", 1)):
        with (tmp_path / name / "measured.csv").open("w", newline="") as stream:
            write = csv.writer(stream)
            write.writerow(["collective", "n_ranks", "size_bytes", "oop_time_us", "sent_bytes", "expected_sent_bytes"])
            write.writerows(["all_reduce", ranks, size, 7.25 * ranks, *sent] for size, *sent in rows)
    (tmp_path / "rates" / "rates.csv").write_text(
        "kind,shape,dtype,amount,median_s,least_s,per_second\n"
        "matmul,512x512x512,bfloat16,1,1,1,1e14\n"
        "matmul,8192x8192x8192,bfloat16,1,1,1,494.5e12\n"
        "copy,1048576,uint8,1,1,1,9e12\n"
        "copy,536870912,uint8,1,1,1,3.0e12\n"
        "launch,1000 small additions,float32,1000,1,1,250000\n"
    )
    item = {"name": "ddp 2048 wide", "ranks": 1, "step_s": 0.1}
    (tmp_path / "steps" / "training.json").write_text(json.dumps({"items": [item]}))
    return tmp_path


def test_rates_stand_beside_the_datasheet(lab: Path) -> None:
    """H100 SXM: 989 TFLOP/s of bf16, 3.35 TB/s; of products the best counts, of copies the largest."""
    text = page(lab)
    assert "| matmul | bfloat16 | 8192x8192x8192 | 494.5 TFLOP/s | 50.0 % |" in text
    assert "| copy | uint8 | 536870912 | 3000 GB/s | 89.6 % |" in text
    assert "A launch took 4.00 us" in text


def test_calls_and_bytes_are_those_of_the_table(lab: Path) -> None:
    """Four ranks sent 50 of 48 bytes at 8 B, 6148 of 6144 at 1 KiB."""
    text = page(lab)
    assert "| 1 | all_reduce | 8 B | 7.25 |" in text
    assert "| 4 | all_reduce | 8 B | 29.00 |" in text
    assert "| all_reduce | 2 | 1.0212 | 1.0007 | 1.0417 | 1 KiB | 1.0007 |" in text


def test_a_step_of_one_rank_is_predicted_by_its_products(lab: Path) -> None:
    """4 layers of 12 h^2 weights and the output matrix, 6 FLOP a weight and token, 4096 tokens: 5.4 TFLOP.

    At the datasheet's 989 TFLOP/s they take 5.5 ms, and no step is faster than that; of the eager step most is memory.
    """
    row = next(line for line in page(lab).splitlines() if line.startswith("| ddp 2048 wide"))
    predicted_ms = float(row.split("|")[3])
    flop = 6 * (4 * 12 * 2048**2 + 8192 * 2048) * 4096
    assert 1e3 * flop / 989e12 < predicted_ms < 20 * 1e3 * flop / 989e12
    assert row.split("|")[4].strip() == f"{100 * (predicted_ms / 100 - 1):+.1f} %"


def test_a_part_that_is_missing_is_said(tmp_path: Path) -> None:
    text = page(tmp_path)
    assert text.count("not measured") == 2
    assert "holds no scenario.yaml" in text
    assert "Nothing was counted." in text
