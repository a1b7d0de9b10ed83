"""Other programs that ask commsim what a collective costs, in the place of their own formulas."""
