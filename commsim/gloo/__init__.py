"""Gloo's own algorithm for each collective and size, lowered to schedules."""
