"""Loads of the size of a large cluster, on a real API server with KWOK nodes, beside Kueue's where it has them."""
