"""Lower bounds of collectives on a network."""
