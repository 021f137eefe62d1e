"""Benches of simulations: their speed, their memory and their fidelity."""
