"""Nodes and devices as arrays: capacity, topology, pools, fragmentation, scores and the caches kept beside them."""
