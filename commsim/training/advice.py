"""What to change so that a step fits: every change is tried, its memory and its time computed; single ones come first.

Times are those of the closed form, over the step's own, with what offload adds by the rules of the simulated step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np

from commsim.errors import CommsimError
from commsim.training.accelerator import PCIE_BYTES_PER_S
from commsim.training.copies import beside_copies, copied_bytes
from commsim.training.finetune import NF4_DOUBLE_BYTES, FineTune, beside_base, finetune_step_memory
from commsim.training.memory import Framework, StepMemory, step_memory, whole_gradients
from commsim.training.offload import Offload
from commsim.training.parameters import shipped_values
from commsim.training.spec import Step, StepPlan
from commsim.training.stages import chunks_of
from commsim.training.step_run import host_updates
from commsim.training.step_time import optimizer_seconds, step_time
from commsim.training.traffic import refuse_sharded_gradients
from commsim.training.work import compute_time, offload_exchanges
from commsim.units import GIB

MOST_TOGETHER = 3
"""Changes that are tried together."""

MOST_LINES = 10
"""Of the cheapest."""

LOSS_CHUNKS = 8
"""Pieces of the loss that are tried: torchtune's default (`LinearCrossEntropyLoss`, ``num_output_chunks``)."""


@dataclass(frozen=True)
class Remedy:
    """Fields of a step that a change sets; ``offload``: those of the offload beside it, as a scenario names them."""

    fields: dict[str, Any]
    offload: dict[str, bool] = field(default_factory=dict)
    quantised: bool = False  # a fine-tuning's base, which makes it QLoRA

    @property
    def words(self) -> str:
        """As a scenario would say it."""
        parts = _pairs(self.fields)
        parts += [f"offload: {{{', '.join(_pairs(self.offload))}}}"] if self.offload else []
        return ", ".join([*parts, *(["kind: qlora"] if self.quantised else [])])

    def applied(self, step: Step, offload: Offload | None) -> tuple[Step, Offload | None]:
        """The step and its offload after the change."""
        if not self.offload:
            return replace(step, **self.fields), offload
        return replace(step, **self.fields), replace(offload or Offload(), **self.offload)


@dataclass(frozen=True)
class Fitting:
    """A change after which a step fits: what it then needs, and its seconds over those of before."""

    change: Remedy
    peak: float
    slower: float

    @property
    def text(self) -> str:
        """In one phrase."""
        percent = round(100 * (self.slower - 1))
        lasts = f"{abs(percent)} % {'longer' if percent > 0 else 'shorter'}" if percent else "as long"
        return f"{self.change.words} ({self.peak / GIB:.1f} GiB, the step {lasts})"


def _pairs(fields: Mapping[str, Any]) -> list[str]:
    return [f"{name}: {str(value).lower()}" for name, value in fields.items()]


def advice(
    step: Step,
    memory: StepMemory,
    framework: Framework = "megatron",
    *,
    layers: Sequence[int] | None = None,
    offload: Offload | None = None,
    pcie: float | None = None,
    beside: Callable[[StepMemory], StepMemory] = lambda memory: memory,
) -> list[str]:
    """Changes after which the step fits, single ones first, of as many the cheapest in time; empty where it fits.

    ``pcie``: bytes/s between a GPU and its host; left out: those of a slot of its own. ``beside`` adds to a step's
    memory what `memory` has beside it.
    """
    if memory.fits:
        return []

    def tried(change: Remedy) -> tuple[StepMemory, float]:
        other, moved = change.applied(step, offload)
        needs = beside(step_memory(other, framework, layers=layers, offload=moved))
        return needs, _seconds(other, framework, layers, moved, pcie) if needs.fits else 0.0

    own = _seconds(step, framework, layers, offload, pcie)
    return [one.text for one in _fitting(list(_changes(step, offload, framework)), tried, own)]


def finetune_advice(
    step: Step,
    tune: FineTune,
    offload: Offload | None = None,
    pcie: float | None = None,
    beside: Callable[[StepMemory], StepMemory] = lambda memory: memory,
) -> list[str]:
    """The same for few weights beside a frozen base."""
    if beside(finetune_step_memory(step, tune, offload)).fits:
        return []

    def tried(change: Remedy) -> tuple[StepMemory, float]:
        other, moved = change.applied(step, offload)
        part = replace(tune, base_bytes=NF4_DOUBLE_BYTES) if change.quantised else tune
        needs = beside(finetune_step_memory(other, part, moved))
        return needs, _seconds(other, "ddp", None, moved, pcie, part)

    return [one.text for one in _fitting(list(_changes_of_tune(step, tune, offload)), tried, tried(Remedy({}))[1])]


def _fitting(single: list[Remedy], tried: Callable[[Remedy], tuple[StepMemory, float]], own: float) -> list[Fitting]:
    """What fits of the changes, then of few together, none of which would do without another; the cheapest first."""
    fits: dict[frozenset[int], Fitting] = {}
    for number in range(1, MOST_TOGETHER + 1):
        for some in combinations(range(len(single)), number):
            change = None if any(less <= set(some) for less in fits) else _together([single[i] for i in some])
            if change is None:
                continue
            try:
                needs, seconds = tried(change)
            except CommsimError:  # the change does not go with the rest of the step
                continue
            if needs.fits:
                fits[frozenset(some)] = Fitting(change, needs.peak, seconds / own)
    ranked = sorted(fits.items(), key=lambda item: (len(item[0]), item[1].slower))
    return [one for _, one in ranked[:MOST_LINES]]


def _together(changes: Sequence[Remedy]) -> Remedy | None:
    """Several changes as one; None where two of them set the same field."""
    names = [name for change in changes for name in change.fields]
    if len(set(names)) < len(names):
        return None
    merged = {name: value for change in changes for name, value in change.fields.items()}
    moved = sorted({pair for change in changes for pair in change.offload.items()})  # what one offloads, both do
    return Remedy(merged, dict(moved), any(change.quantised for change in changes))


# -- seconds ---------------------------------


def _seconds(
    step: Step,
    framework: Framework,
    layers: Sequence[int] | None,
    offload: Offload | None,
    pcie: float | None,
    tune: FineTune | None = None,
) -> float:
    """Seconds of a step: the closed form, and what a base that is quantised and what is offloaded add to it.

    They add to the passes by the rules of the simulated step: those of the slowest stage set the pace, those of the
    others count while a pipeline fills and drains. The slowest update on the host stands in place of the GPU's.
    """
    values = shipped_values()
    seconds = float(step_time(step, values).total)
    plan = StepPlan(layers, offload=offload, pcie_bytes_per_s=pcie or PCIE_BYTES_PER_S[step.accelerator.pcie_gen or 4])
    plain = compute_time(step, values)
    compute = plain
    if tune is not None:
        compute = beside_base(compute, step, tune, values)
    if offload is not None and offload.activations:
        compute = beside_copies(compute, step, plan, copied_bytes(step, plan, framework, tune))
    chunks = chunks_of(step, layers)
    before, after = np.zeros(step.pp), np.zeros(step.pp)
    for chunk in chunks:
        old, new = plain(chunk), compute(chunk)
        before[chunk.stage] += old.forward + old.backward_input + old.backward_weight
        for window in (new.forward, new.backward_input + new.backward_weight):
            moved = offload_exchanges(step, chunk, window, new.copies, plan)
            after[chunk.stage] += window + sum(one.exposed() for one in moved)
    filling = step.num_microbatches - 1 / step.virtual_stages
    seconds += float(filling * (after.max() - before.max()) + (after - before).sum() / step.virtual_stages)
    if offload is not None and offload.optimizer:
        seconds += max(host_updates(step, chunks, plan)) - float(optimizer_seconds(step, values))
    return seconds


# -- changes ---------------------------------


def _most_cut(step: Step, framework: Framework) -> int:
    """The highest ZeRO stage that saves memory without more traffic."""
    if step.pp == 1:
        return 3
    early = whole_gradients(step) < 1.0 and refuse_sharded_gradients(2, step.pp, framework) is None
    return 2 if early else 1


def _changes(step: Step, offload: Offload | None, framework: Framework) -> Iterator[Remedy]:
    """Single changes that may help."""
    if step.tp > 1 and not step.sequence_parallel:
        yield Remedy({"sequence_parallel": True})
    if step.dp * step.cp > 1:
        stages = range(step.zero_stage + 1, _most_cut(step, framework) + 1)
        yield from (Remedy({"zero_stage": stage}) for stage in stages)
    yield from _changes_of_pass(step, offload)
    if step.recompute == "none":
        yield Remedy({"recompute": "selective"})
    if step.dp % 2 == 0:
        if step.tp * 2 <= step.gpus_per_node:
            yield Remedy({"tp": step.tp * 2, "dp": step.dp // 2})
        yield Remedy({"pp": step.pp * 2, "dp": step.dp // 2})
    if (offload is None or not offload.optimizer) and not step.frozen_weights and step.optimizer != "muon":
        yield Remedy({}, {"optimizer": True})


def _changes_of_tune(step: Step, tune: FineTune, offload: Offload | None) -> Iterator[Remedy]:
    alone = step.tp * step.pp == 1
    if step.zero_stage < 3 and step.dp > 1 and step.pp == 1:
        yield Remedy({"zero_stage": 3})
    yield from _changes_of_pass(step, offload)
    if not tune.quantised and alone:
        yield Remedy({}, quantised=True)


def _changes_of_pass(step: Step, offload: Offload | None) -> Iterator[Remedy]:
    """Less kept for the backward, or elsewhere."""
    if step.recompute != "full":
        yield Remedy({"recompute": "full"})
    if step.micro_batch_size > 1:
        yield Remedy({"micro_batch_size": 1})
    if step.loss_chunks == 1:
        yield Remedy({"loss_chunks": LOSS_CHUNKS})
    if offload is None or not offload.activations:
        yield Remedy({}, {"activations": True} | ({"optimizer": False} if offload is None else {}))
