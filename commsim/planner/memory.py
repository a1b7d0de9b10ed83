"""Memory of many configurations at once: the terms of `commsim.training.memory`, on columns.

What an operator keeps is asked of `commsim.training` itself, once per shape of a layer; here stands only what grows
with the mesh. The fullest of the first two stages and the last one counts, as in the step model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from commsim.planner.space import Block, Space
from commsim.training.activations import layer_kept, recomputed
from commsim.training.memory import Framework, software
from commsim.training.spec import Step
from commsim.training.stages import chunks_of, layer_weights

Float64 = npt.NDArray[np.float64]

_SHAPE = ("precision", "seq_len", "recompute", "ep", "micro_batch_size", "cp", "tp", "sequence_parallel")
"""Axes on which the bytes that a layer keeps depend."""


class MemoryColumns:
    """Bytes of the fullest GPU of configurations of a space; what depends on few axes is computed once."""

    def __init__(self, space: Space, framework: Framework) -> None:
        self.space, self.framework = space, framework
        self._shape = tuple(len(space.axes[n]) for n in _SHAPE)
        table = np.zeros((6, *self._shape))
        for places in np.ndindex(*self._shape):
            table[(slice(None), *places)] = self._layer(dict(zip(_SHAPE, places, strict=True)))
        self._table = table.reshape(6, -1)
        self._layers = self._stage_layers()
        self._software = [software(space.one_gpu(name), framework) for name in space.axes["precision"]]

    def _step(self, places: dict[str, int]) -> Step | None:
        """A step of a layer's shape, on as few ranks as that takes; None where there is none."""
        from commsim.errors import CommsimError

        space, axes = self.space, self.space.axes
        values: dict[str, Any] = {n: axes[n][i] for n, i in places.items()}
        precision = space.precisions[values.pop("precision")]
        micro, ep = values["micro_batch_size"], values["ep"]
        model = space.model
        if values["seq_len"] != model.seq_len and model.positions != "learned":
            model = replace(model, seq_len=values["seq_len"])
        try:
            return Step(
                model, space.accelerator, precision, dp=ep, global_batch_size=micro * ep,
                expert_tp=values["tp"] if model.moe else 1, gpus_per_node=space.gpus_per_node, **values, **space.fixed,
            )  # fmt: skip
        except CommsimError:
            return None

    def _layer(self, places: dict[str, int]) -> tuple[float, ...]:
        """(kept dense, kept MoE, recomputed, weights dense, weights beside experts, weights of experts) of a layer."""
        step = self._step(places)
        if step is None:
            return (np.inf,) * 6
        model, masks = step.model, not step.flash_attention
        last = model.layers - 1
        gathered = self.framework == "fsdp2"
        kinds = {"dense": 0 if model.moe_layers < model.layers else last, "moe": last if model.moe else 0}
        kept = {k: layer_kept(step, layer, masks, gathered) for k, layer in kinds.items()}
        here = {k: recomputed(of, step) for k, of in kept.items()}
        none = replace(step, recompute="none")
        again = max(recomputed(kept[k], none) - here[k] for k in kept) if step.recompute != "none" else 0.0
        dense, moe = layer_weights(step, kinds["dense"]), layer_weights(step, kinds["moe"])
        return (here["dense"], here["moe"], max(0.0, again), dense.dense, moe.dense, moe.expert)

    def _stage_layers(self) -> Float64:
        """Dense and MoE layers of stages 0, 1 and last, shape (2, 3, pp values, chunk values)."""
        space = self.space
        found = np.full((2, 3, len(space.axes["pp"]), len(space.axes["virtual_stages"])), np.nan)
        base = space.one_gpu(space.axes["precision"][0])
        first_moe = space.model.layers - space.model.moe_layers
        for i, pp in enumerate(space.axes["pp"]):
            for j, v in enumerate(space.axes["virtual_stages"]):
                if pp * v > space.model.layers or (v > 1 and pp == 1):
                    continue
                step = replace(base, pp=pp, virtual_stages=v)
                counts = np.zeros((2, pp))
                for c in chunks_of(step):
                    dense = max(0, min(c.last, first_moe) - c.first)
                    counts[:, c.stage] += (dense, c.layers - dense)
                for k, stage in enumerate((0, min(1, pp - 1), pp - 1)):
                    found[:, k, i, j] = counts[:, stage]
        return found

    def peak(self, block: Block) -> Float64:
        """Bytes of the fullest GPU, shape (length,)."""
        fullest: Float64 = np.max([self._stage(block, k) for k in range(3)], axis=0) * np.ones(block.length)
        return fullest

    def _stage(self, block: Block, which: int) -> Float64:
        space, model = self.space, self.space.model
        index = np.ravel_multi_index([block.at[n] for n in _SHAPE], self._shape, mode="raise")
        dense_kept, moe_kept, again, dense_w, beside_w, expert_w = self._table[:, index]
        dense, moe = (self._layers[kind, which][block.at["pp"], block.at["virtual_stages"]] for kind in (0, 1))
        tp, pp, cp = (block.number(n) for n in ("tp", "pp", "cp"))
        micro, seq, sp = (block.number(n) for n in ("micro_batch_size", "seq_len", "sequence_parallel"))
        tokens = micro * seq // cp
        first, last = which == 0, which == 2
        embeds, outputs = first | (pp == 1), last | (pp == 1)
        in_flight = _in_flight(block, np.array([0, 1, 0])[which] if which < 2 else pp - 1)

        positions = model.seq_len * model.hidden if model.positions == "learned" else 0
        word = model.vocab * model.hidden / tp
        weights = dense * dense_w + moe * beside_w + embeds * (word + positions)
        copied = model.tied_embeddings & ~np.asarray(embeds)
        output = np.where(copied, word, model.output_parameters / tp) + model.norm_parameters
        weights = weights + outputs * output
        experts = moe * expert_w * tp / np.maximum(block.expert_tp, 1)  # the table has expert_tp = tp

        soft = self._pick(block)
        total = self._states(block, soft, weights, experts, float(model.layers) / pp)
        a = np.array([space.precisions[p].activation_bytes for p in space.axes["precision"]])[block.at["precision"]]
        hidden = tokens * model.hidden * a
        cut = np.where(sp > 0, tp, 1)
        activations = in_flight * (dense * dense_kept + moe * moe_kept)
        moving = activations + np.where(dense + moe > 0, again, 0.0)
        moving = moving + outputs * (soft["logits"] * tokens * model.vocab / tp + 2 * hidden / cut)
        moving = moving + np.where(pp > 1, 4 * hidden / cut, 0.0) + np.where((tp > 1) & (sp > 0), hidden, 0.0)
        matrix = model.hidden * max(model.ffn_hidden, 1) * (2 if model.gated_mlp else 1) / tp
        live = 0.0 if space.fixed.get("frozen_weights") else 1.0
        allocated = total + moving + live * 4.0 * matrix
        backward = allocated * (1.0 + soft["fragmentation"]) + soft["base"]
        update = backward - moving + live * 4.0 * word
        return np.where(np.isnan(dense), np.inf, np.maximum(backward, update))

    def _pick(self, block: Block) -> dict[str, Float64]:
        names = ("weight", "gradient", "owned", "base", "fragmentation", "logits")
        return {n: np.array([getattr(s, n) for s in self._software])[block.at["precision"]] for n in names}

    def _states(
        self, block: Block, soft: dict[str, Float64], weights: Float64, experts: Float64, layers: Any
    ) -> Float64:
        """`commsim.training.memory.states`, summed."""
        zero, pp = block.number("zero_stage"), block.number("pp")
        live = 0.0 if self.space.fixed.get("frozen_weights") else 1.0
        width = np.array([self.space.precisions[p].weight_bytes for p in self.space.axes["precision"]])
        width = width[block.at["precision"]]
        cp, tp = block.number("cp"), block.number("tp")
        expert_dp = tp * cp * block.dp / np.maximum(block.number("ep") * block.expert_tp, 1)
        total: Any = 0.0
        for parameters, ranks in ((weights, np.maximum(block.dp * cp, 1)), (experts, np.maximum(expert_dp, 1))):
            cuts = [np.where(zero >= stage, 1.0 / ranks, 1.0) for stage in (3, 2, 1)]
            total = total + parameters * (
                soft["weight"] * cuts[0] + live * (soft["gradient"] * cuts[1] + soft["owned"] * cuts[2])
            )
            whole = parameters * (width + 4.0) if self.framework == "fsdp2" else np.nan
            gathered = np.where(
                (pp > 1) & (self.framework == "fsdp2"), whole, 2.0 * parameters / np.maximum(1.0, layers) * width
            )
            total = total + np.where(zero == 3, gathered, 0.0)
        copies = np.where(block.is_("schedule", "dualpipe"), 2.0, 1.0)
        result: Float64 = copies * total
        return result


def _in_flight(block: Block, stage: Any) -> Float64:
    """Activations that a stage keeps at most, in those of the whole stage: `Order.in_flight` in closed form."""
    pp, v, m = block.number("pp"), block.number("virtual_stages"), block.micro_batches
    plain = np.minimum(m, pp - stage)
    warmup = np.minimum(m * v, 2 * (pp - stage - 1) + (v - 1) * pp + 1)
    interleaved = np.where(m == pp, m * v, warmup) / np.maximum(v, 1)
    dual = np.minimum(m, pp + 1)
    schedule = block.is_
    found: Float64 = np.where(
        schedule("schedule", "gpipe"),
        m,
        np.where(
            schedule("schedule", "interleaved_1f1b"),
            interleaved,
            np.where(schedule("schedule", "dualpipe"), dual, plain),
        ),
    )
    return found
