"""Benches of the Kubernetes API client, on the fake API server in a process of its own."""
