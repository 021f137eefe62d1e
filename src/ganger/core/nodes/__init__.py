"""Nodes and devices as arrays: capacity, topology, pools, fragmentation, and the caches kept beside them."""
