"""The kinds of workload: one file each, listed in `registry`."""
