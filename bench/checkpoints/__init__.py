"""Benches of checkpoints that several ranks save together, and the scripts that save them."""
