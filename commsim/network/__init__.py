"""Closed forms and lower bounds of collectives on a network."""
