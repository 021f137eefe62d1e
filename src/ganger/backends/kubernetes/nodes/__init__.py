"""Nodes of a Kubernetes cluster: capacity, health, topology."""
