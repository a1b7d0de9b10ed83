"""Scores commsim against what was published: NCCL logs, training steps, memory figures. Not part of the package."""
