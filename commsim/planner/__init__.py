"""Sweeps, searches, cost and goodput."""
