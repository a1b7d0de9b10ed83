"""What it costs to generate: a step of a serving engine on a model, a batch and a mesh of GPUs, and its memory."""
