"""Parts of a spec in Kubernetes' own terms."""
