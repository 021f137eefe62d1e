"""Control plane of a test cluster: its command lines, its certificates, and requests to it."""
