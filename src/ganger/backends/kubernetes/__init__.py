"""The world of a Kubernetes cluster: gangs become pods, and the API server's objects are the truth."""
