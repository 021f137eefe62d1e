"""Measurements of a node, and its faults."""
