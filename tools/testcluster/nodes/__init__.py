"""Nodes of a test cluster: machines made of namespaces, and nodes that are only objects."""
