"""Which node, card, link or leaf of a cluster is slow: measurements to suspects, and the test to run next."""
