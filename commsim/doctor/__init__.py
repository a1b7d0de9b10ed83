"""What of a cluster is slow, and the next test."""
