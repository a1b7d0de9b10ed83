"""Topologies: machines and fabrics as arrays of links, and the route between any two ranks.

`load_topology` (in `presets`) turns a description into a `Topology` (in `graph`). A topology knows nothing of
collectives.
"""
