"""What runs on registered buffers, as `commsim run --explain-choice` prints it."""

from __future__ import annotations

from pathlib import Path

import pytest

from commsim.report.choice import explain
from commsim.scenario.load import load_scenarios
from commsim.scenario.run import prepare


def explained(tmp_path: Path, library: str, work: str) -> list[str]:
    """The lines that are no table."""
    file = tmp_path / "scenario.yaml"
    file.write_text(f"name: x\ntopology: {{preset: hgx-h100}}\nlibrary: {library}\nworkload: [{work}]\n")
    text = explain(prepare(load_scenarios(file)[0]))
    return [line for line in text.splitlines() if " -> " in line or line.startswith("#")]


def test_kernels_on_symmetric_memory(tmp_path: Path) -> None:
    lines = explained(
        tmp_path, "{version: 2.28.9, registered: window}", "{collective: all_reduce, sizes: [8KiB, 128MiB]}"
    )
    assert lines == [
        "# us that NCCL expects, by thread blocks, each 2.5 % dearer: AGxLL_R 5.7 by 6, AGxLLMC_R 5.7 by 5, "
        "RSxLD_AGxST 8.2 by 1, RSxLDMC_AGxSTMC 8.1 by 1",
        "AllReduce [Symmetric]: 8192 Bytes -> Kernel AllReduce_AGxLLMC_R nchannels 5 nthreads 512",
        "# us that NCCL expects, by thread blocks, each 2.5 % dearer: AGxLL_R 28814.7 by 7, AGxLLMC_R 28475.2 by 7, "
        "RSxLD_AGxST 707.1 by 7, RSxLDMC_AGxSTMC 299.8 by 2",
        "AllReduce [Symmetric]: 134217728 Bytes -> Kernel AllReduce_RSxLDMC_AGxSTMC nchannels 2 nthreads 512",
    ]


def test_copy_engines(tmp_path: Path) -> None:
    library = "{version: 2.28.9, registered: window, env: {NCCL_CTA_POLICY: ZERO}}"
    lines = explained(tmp_path, library, "{collective: all_to_all, sizes: [8MiB]}")
    assert lines[-1] == "AlltoAll [Copy Engine]: 1048576 Bytes -> cudaMemcpy"


def test_fewer_channels_and_the_policy(tmp_path: Path) -> None:
    work = "{collective: all_gather, sizes: [64MiB]}"
    plain = explained(tmp_path, "{version: 2.28.9}", work)
    fewer = explained(tmp_path, "{version: 2.28.9, registered: buffer, env: {NCCL_CTA_POLICY: EFFICIENCY}}", work)
    assert "Algo RING" in plain[-1]
    assert "Algo NVLS proto SIMPLE channel{Lo..Hi}={0..3}" in fewer[-1]
    assert fewer[-1].endswith("(by NCCL_CTA_POLICY=EFFICIENCY)")


@pytest.mark.parametrize("kind", ["buffer", "window"])
def test_what_has_no_effect(tmp_path: Path, kind: str) -> None:
    lines = explained(tmp_path, f"{{version: 2.28.9, registered: {kind}}}", "{collective: broadcast, sizes: [8MiB]}")
    assert lines[0].startswith(f"# library.registered: {kind}")
    assert "Algo RING" in lines[-1]
