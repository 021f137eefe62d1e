"""Benches of node health: checks, repair, and tests of nodes."""
