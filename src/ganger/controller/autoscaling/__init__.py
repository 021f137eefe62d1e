"""Nodes requested from the autoscaler of the cluster for gangs that wait for them."""
