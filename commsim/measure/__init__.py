"""Measured curves: read from logs and tables, or measured on real ranks."""
