"""Queries: what the service answers from the state and the log."""
