"""Bench of the tests: the number of small faults that they miss."""
