"""Forecast of the starts of all pending gangs: the queue in policy order, simulated on the nodes."""
