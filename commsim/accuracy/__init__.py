"""How far a prediction is from a measurement."""
