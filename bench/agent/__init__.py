"""Benches of the agent of a node."""
