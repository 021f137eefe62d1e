"""Chaos on a real API server: faults of every kind at once, and what of gangs of three kinds they may break."""
