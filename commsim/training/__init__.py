"""The training step: model, mesh, compute, memory, traffic, time."""
