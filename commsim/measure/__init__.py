"""Data in: measured curves from files, in one form."""
