"""Backend for a Kubernetes cluster: gangs become pods, and the API server's objects are the source of truth."""
