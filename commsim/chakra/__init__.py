"""Chakra execution traces: read from files, simulated on a machine, and written from steps of our own."""
