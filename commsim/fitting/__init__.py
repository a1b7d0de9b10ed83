"""Fits the physical parameters of a library's model to measured times of one machine."""
