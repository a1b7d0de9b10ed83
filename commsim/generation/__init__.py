"""Generation: decode steps and prefill of a model on a machine, and runs of many requests."""
