"""Training steps on ranks: what they must send, that slices of a model are the model, and real steps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ranks import measure

from commsim.measure.small_transformer import batch, loss, stage, tensor_slice, whole
from commsim.measure.tasks import SCHEMES, TrainingTask
from commsim.measure.training_steps import expected_sent

TASK = TrainingTask("small", "ddp", 2, 2, 32, 64, 4, 2, 50, 8, gated_mlp=True, micro_batch_size=2, micro_batches=3)
HIDDEN = 2 * 8 * 32 * 4  # bytes of one micro-batch's hidden states


@pytest.mark.parametrize(
    ("scheme", "rank", "by_hand"),
    [
        ("ddp", 0, 2 * 1000 * 3 / 4),  # 2(n-1)/n of the gradients, once
        ("zero3", 0, 3 * (2 + 2) * 1000 * 3 / 4),  # parameters twice, and gloo's reduce_scatter, per micro-batch
        ("zero2", 0, (1 + 3 * 2) * 1000 * 3 / 4),
        ("tp", 0, 2 * 4 * 3 * HIDDEN * 2 * 3 / 4),  # 2 layers, 4 sums each
        ("pp", 0, 3 * HIDDEN),  # forward only
        ("pp", 1, 3 * HIDDEN * 2),
        ("pp", 3, 3 * HIDDEN),  # backward only
    ],
)
def test_bytes_by_hand(scheme: str, rank: int, by_hand: float) -> None:
    assert expected_sent(replace(TASK, scheme=scheme, ranks=4), rank, 1000) == pytest.approx(by_hand)


def test_nccl_scatters_what_gloo_sums() -> None:
    over_nccl = replace(TASK, scheme="zero3", over_gloo=False)
    assert expected_sent(over_nccl, 0, 1000) == pytest.approx(3 * (2 + 1) * 1000 / 2)


def test_the_slices_of_tensor_parallelism_add_up_to_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention and MLP of two slices, added, are those of the whole, for gated and plain MLPs."""
    for task in (replace(TASK, scheme="tp"), replace(TASK, scheme="tp", gated_mlp=False)):
        x = torch.randn(2, 8, 32)
        model, parts = whole(task), [tensor_slice(task, rank) for rank in range(2)]
        for part in ("_attention", "_mlp"):
            total = sum(getattr(p.blocks[0], part)(x) for p in parts)
            assert torch.allclose(total, getattr(model.blocks[0], part)(x), atol=1e-5)


def test_the_stages_one_after_the_other_are_the_model() -> None:
    task = replace(TASK, scheme="pp")
    tokens, targets = batch(task, 0)
    x = tokens
    for rank in range(2):
        x = stage(task, rank)(x)
    assert float(loss(x, targets).detach()) == pytest.approx(float(loss(whole(task)(tokens), targets).detach()))


def test_sums_are_left_out_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda t: calls.append(t.numel()))
    model = tensor_slice(replace(TASK, scheme="tp"), 0)
    tokens, targets = batch(TASK, 0)
    loss(model(tokens), targets).backward()
    assert calls == [HIDDEN // 4] * (4 * TASK.layers)
    for block in model.blocks:
        block.alone = True
    loss(model(tokens), targets).backward()
    assert len(calls) == 4 * TASK.layers


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"scheme": "zero1"}, "found zero1, expected one of ddp"),
        ({"scheme": "tp", "ranks": 4}, "tp = 4 does not divide kv_heads 2"),
        ({"scheme": "pp", "ranks": 4}, "pp = 4 does not divide 2 layers"),
        ({"heads": 3}, "expected whole heads"),
    ],
)
def test_what_cannot_be_built(changes: dict[str, int | str], fault: str) -> None:
    assert any(fault in text for text in replace(TASK, **changes).faults())  # type: ignore[arg-type]


@pytest.mark.slow
def test_real_steps_send_what_the_schedules_say(tmp_path: Path, checkout: Path) -> None:
    scenario = checkout / "validation" / "runs" / "training" / "steps.yaml"
    status, _, said = measure(str(scenario), "--backend", "gloo", "-i", "2", "--out", str(tmp_path))
    assert status == 0, said
    items = json.loads((tmp_path / "training.json").read_text())["items"]
    assert [item["scheme"] for item in items] == list(SCHEMES)
    for item in items:
        assert item["wrong"] == 0
        assert item["sent_bytes"] == pytest.approx(item["expected_sent_bytes"], rel=0.01), item["scheme"]
        # Computing alone is timed apart; on a busy machine it may take longer than the step: nothing is exposed then.
        assert item["compute_s"] > 0
        assert item["exposed_comm_s"] == pytest.approx(max(0.0, item["step_s"] - item["compute_s"]))
