"""Reinforcement learning of language models: rollout, scoring, update, weights on their way to the engines."""
