"""A scenario file becomes a result: the one place that wires machine, library and workload together."""
