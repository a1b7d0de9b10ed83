"""``commsim gpu``: everything worth measuring of the machine at hand, in one folder, by one command."""
