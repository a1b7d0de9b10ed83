"""Exact limits of collectives on a topology, and schedules that reach them."""
