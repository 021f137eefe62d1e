"""Benches of the waits of gangs in recorded queues, and of forecasts of them."""
