"""Placement: whether a gang can start now or ever, and the nodes and devices it gets."""
