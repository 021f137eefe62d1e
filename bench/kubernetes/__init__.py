"""Benches of the controller on a fake or a real API server, and the faults and nodes that they share."""
