"""A thin client of the Kubernetes API: requests, informers, work queues, leases."""
