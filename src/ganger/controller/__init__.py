"""The server of a Kubernetes cluster."""
