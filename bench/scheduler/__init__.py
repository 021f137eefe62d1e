"""Benches of the scheduling cycle and of what the core answers, and the load that they share."""
