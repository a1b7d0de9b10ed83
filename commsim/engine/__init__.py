"""The engine: a Schedule on a Topology becomes times per row and bytes per link."""
