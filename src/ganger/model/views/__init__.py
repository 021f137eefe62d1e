"""Answers of the services, and the figures of simulations."""
