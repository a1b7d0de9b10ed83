"""What one step of an engine works at, and what it takes."""

from __future__ import annotations

from dataclasses import dataclass, fields

from commsim.errors import ScenarioError


@dataclass(frozen=True)
class Batch:
    """The tokens of one step over a whole replica: of sequences that decode one each, and of prompts."""

    sequences: int
    cached: float = 0.0  # mean tokens in the cache of each
    prompt_tokens: int = 0  # a chunk of prefill in the same step
    prompt_sequences: int = 0
    prompt_cached: float = 0.0  # mean tokens of those prompts that earlier chunks had done
    prompt_groups: float = 0.0  # groups of attention dp that read them: tokens over those of the busiest; 0: all

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 0:
                raise ScenarioError(f"found {field.name} = {getattr(self, field.name)} in a step, expected 0 or more")
        if self.sequences + self.prompt_tokens <= 0:
            raise ScenarioError("found a step without tokens, expected sequences that decode or tokens of prompts")
        if (self.prompt_tokens > 0) != (self.prompt_sequences > 0):
            text = f"{self.prompt_tokens} tokens of {self.prompt_sequences} prompts"
            raise ScenarioError(f"found {text} in a step, expected both or none")

    @property
    def tokens(self) -> int:
        """All tokens of the step."""
        return self.sequences + self.prompt_tokens


@dataclass(frozen=True)
class StepSeconds:
    """Seconds of a step by cause; those of the host are what the GPU waits for it."""

    products: float = 0.0
    attention: float = 0.0
    experts: float = 0.0
    collectives: float = 0.0
    dispatch: float = 0.0
    elementwise: float = 0.0
    sampling: float = 0.0
    host: float = 0.0

    @property
    def parts(self) -> dict[str, float]:
        """By name of the cause."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def total_s(self) -> float:
        """Of the whole step."""
        return sum(self.parts.values())

    @property
    def gpu_s(self) -> float:
        """Without what the GPU waits for the host."""
        return self.total_s - self.host
