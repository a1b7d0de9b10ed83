"""Which choices of a plan are ties with the best, by the error of a difference, and what speaks for one of them."""

from __future__ import annotations

from commsim.planner.plan import Configuration
from commsim.planner.published import Published, best_published
from commsim.training.uncertainty import StepSpread, step_spread
from commsim.units import GIB

LEANER = 0.05
"""Share of a GPU's memory from which on a difference is one: memory figures are off by as much in the median."""

_PLAINEST = "1f1b"
_CUTS = {"tp": "tp", "pp": "pp", "cp": "cp", "ep": "ep", "virtual_stages": "chunks"}


def spread(choice: Configuration) -> StepSpread:
    """How far times like the choice's were off: of simulated steps, or of closed forms."""
    return step_spread(choice.simulated)


def tied(choice: Configuration, best: Configuration) -> bool:
    """Whether which of two is quicker per token is open.

    Of one machine the errors are common and the margin of differences decides; of two kinds of GPU the bands do.
    """
    ratio = (choice.seconds / choice.ranked.tokens) / (best.seconds / best.ranked.tokens)
    margin = tie_margin(choice, best)
    return ratio <= margin and (ratio >= 1 / margin or choice.step.accelerator.name != best.step.accelerator.name)


def tie_margin(choice: Configuration, best: Configuration) -> float:
    """The time per token, over the best one's, up to which a choice on its machine is a tie."""
    own = spread(choice)
    return own.margin if choice.step.accelerator.name == best.step.accelerator.name else own.high / own.low


def favours(choice: Configuration, best: Configuration) -> list[str]:
    """What a choice has that the best has not: memory left, fewer axes, the plain schedule, fewer GPUs."""
    out = []
    gained = best.memory.peak - choice.memory.peak
    if gained > LEANER * best.memory.capacity:
        out.append(f"{gained / GIB:.0f} GiB leaner")
    mine, theirs = ({a for a in _CUTS if getattr(c.step, a) > 1} for c in (choice, best))
    out += [f"no {_CUTS[axis]}" for axis in _CUTS if axis in theirs - mine and mine < theirs]
    if choice.step.schedule == _PLAINEST != best.step.schedule:
        out.append(_PLAINEST)
    if choice.step.world_size < best.step.world_size:
        out.append(f"{best.step.world_size - choice.step.world_size:,} GPUs fewer")
    return out


def tflops_per_gpu(choice: Configuration) -> float:
    """Model TFLOP/s of one GPU, attention counted without its mask."""
    return choice.mfu * float(choice.step.gemm_peak) / 1e12


def above_published(choice: Configuration) -> tuple[Published | None, float]:
    """The best published step of the choice's kind, and the choice's rate over its; 1 where none was published."""
    best = best_published(choice.step)
    return best, tflops_per_gpu(choice) / best.tflops_per_gpu if best is not None else 1.0
