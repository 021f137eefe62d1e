"""Agents of the cluster's nodes: what they send, a short history of it, and the checks over it."""
