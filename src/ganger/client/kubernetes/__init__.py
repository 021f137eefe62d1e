"""Transport to a Kubernetes cluster: GangJob objects, and the controller through the API server."""
