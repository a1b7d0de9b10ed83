"""Steps of reinforcement learning: rollout, scoring, updates, new weights for engines."""
