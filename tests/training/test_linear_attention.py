"""Layers of linear attention and Mamba-2: parameters, products, and what they cost, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from steps import step

from commsim.errors import ScenarioError
from commsim.training.activations import layer_kept
from commsim.training.columns import Columns
from commsim.training.compute import gemm_passes
from commsim.training.linear_attention import LinearAttention
from commsim.training.model import Model, model
from commsim.training.operators import Gemm, linear_gemms, moe_layer
from commsim.training.parameters import shipped_values
from commsim.training.spec import Step
from commsim.training.step_time import step_time
from commsim.training.utilisation import forward_flops

NEXT, NANO = model("qwen3-next-80b-a3b"), model("nemotron3-nano-30b-a3b")


def _one(of: Model, **changes: object) -> Step:
    return step(model=of, **{"tp": 1, "ep": 1, **changes})


def _flops(g: Gemm) -> float:
    return float(2.0 * g.m * g.n * g.k * g.groups)


def test_parameters_of_a_mixer_by_hand() -> None:
    """Qwen3-Next's `Qwen3NextGatedDeltaNet` and Nemotron's `NemotronHMamba2Mixer`, tensor by tensor."""
    assert NEXT.linear is not None
    assert NANO.linear is not None
    qkvz, ba, conv, out = 2048 * (2 * 2048 + 2 * 4096), 2048 * 64, 4 * 8192, 4096 * 2048
    assert NEXT.linear.parameters(2048) == qkvz + ba + conv + out + 32 + 32 + 128
    in_proj, conv, out = 2688 * (2 * 4096 + 2 * 1024 + 64), (4 + 1) * 6144, 4096 * 2688
    assert NANO.linear.parameters(2688) == in_proj + conv + out + 3 * 64 + 4096


@pytest.mark.parametrize("of", [NEXT, NANO])
def test_projections_multiply_every_weight_by_every_token(of: Model) -> None:
    assert of.linear is not None
    outer = [g for g in linear_gemms(_one(of)) if not g.inner]
    small = of.linear.parameters(of.hidden) - sum(_flops(g) for g in outer) / (2 * 4096)
    assert 0 < small < 0.01 * of.linear.parameters(of.hidden)  # convolution, norm, decays


def test_products_of_a_chunk_by_hand() -> None:
    """Of 64 tokens and a head with keys and values of 128; Mamba-2 of 128 tokens, 8 heads for a group of keys."""
    assert NEXT.linear is not None
    assert NANO.linear is not None
    delta = sum(_flops(g) for g in linear_gemms(_one(NEXT)) if g.inner) / (4096 / 64 * 32)
    c, d = 64, 128
    scores, solved, read, added = 2 * 2 * c * c * d, 3 * 2 * c * c * d, 2 * 2 * c * d * d, 2 * c * d * d
    assert delta == scores + solved + read + added
    mamba = sum(_flops(g) for g in linear_gemms(_one(NANO)) if g.inner) / (4096 / 128 * 64)
    c, n, d = 128, 128, 64
    assert mamba == 2 * c * c * n / 8 + 2 * c * c * d + 2 * 2 * c * n * d


@pytest.mark.parametrize("of", [NEXT, NANO])
def test_chunks_of_a_token_are_the_recurrence(of: Model) -> None:
    """Taken token by token a scan does what its convention counts, or a score of every key more."""
    assert of.linear is not None
    one = _one(replace(of, linear=replace(of.linear, chunk=1)))
    each = sum(_flops(g) for g in linear_gemms(one) if g.inner) / 4096
    assert each == pytest.approx(of.linear.scan_flops, rel=0.5)
    assert forward_flops(of, 4096) > forward_flops(replace(of, linear=None, attention_layers=0), 4096)


def test_what_attends_and_what_scans_share_a_layer() -> None:
    layer = moe_layer(_one(NEXT))
    shares = {g.name: g.share for g in layer.gemms}
    assert shares["qkv"] == 12 / 48
    assert shares["linear_in"] == 36 / 48
    assert shares["experts_up"] == 1.0
    whole = moe_layer(_one(replace(NEXT, linear=None)))
    assert layer.attention.flops * 4 == pytest.approx(whole.attention.flops)
    assert {g.name: g.n for g in whole.gemms}["qkv"] == 2 * 4096 + 2 * 512  # its gate is as wide as the queries


def test_a_product_of_two_inputs_has_no_weight_gradient() -> None:
    one, v = _one(NEXT), shipped_values()
    inner = next(g for g in linear_gemms(one) if g.name == "scan_values")
    forward, backward, weight = gemm_passes(inner, one, v)
    assert weight == 0.0
    assert backward == pytest.approx(3 * forward, rel=0.5)  # both factors' gradients, and itself again
    frozen = gemm_passes(inner, replace(one, frozen_weights=True), v)
    assert frozen == (forward, backward, 0.0)


def test_what_a_scan_keeps_by_hand() -> None:
    """Convolution in and out (8192 channels), gate, scan and gated norm (4096 each), two fp32 of 32 heads."""
    whole = replace(NEXT, linear=replace(NEXT.linear, layers=48)) if NEXT.linear else NEXT
    none = replace(NEXT, linear=None, attention_layers=0)
    kept = [layer_kept(_one(of), 0, dropout=False).nbytes for of in (whole, none)]
    assert kept[0] - kept[1] == pytest.approx(4096 * (2 * (2 * 8192 + 3 * 4096) + 8 * 32))


def test_long_sequences_cost_a_scan_no_more_per_token() -> None:
    """In micro-batches of 32,768 tokens."""

    def seconds(of: Model, seq_len: int) -> float:
        sizes = {"micro_batch_size": 32768 // seq_len, "global_batch_size": 2**18 // seq_len}
        return float(step_time(_one(of, seq_len=seq_len, **sizes), shipped_values()).compute)

    scans, attends = replace(NEXT, attention_layers=0), replace(NEXT, linear=None)
    assert seconds(scans, 32768) == pytest.approx(seconds(scans, 4096))
    assert seconds(attends, 32768) > 1.2 * seconds(attends, 4096)


def test_a_table_of_models_takes_the_time_of_each() -> None:
    v, models = shipped_values(), (NEXT, NANO, model("qwen3-30b-a3b"))
    table = replace(_one(NEXT), model=Columns(models), tp=np.array([1, 2, 4]))  # type: ignore[arg-type]
    each = [step_time(_one(m, tp=tp), v).total for m, tp in zip(models, (1, 2, 4), strict=True)]
    assert step_time(table, v).total == pytest.approx(each)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"tp": 16, "dp": 1}, "tp = 16, expected a divisor of key heads"), ({"cp": 2}, "cp = 2, expected 1")],
)
def test_cuts_that_a_state_does_not_take_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        _one(NANO, **changes)


def test_a_kind_that_is_not_known_is_refused() -> None:
    with pytest.raises(ScenarioError, match="expected one of gated_delta_net, mamba2"):
        replace(NEXT, linear=LinearAttention("rwkv", 36, 16, 128, 32, 128))
