"""A thin client of the Kubernetes API: requests, informers, work queues, leases. Knows nothing of ganger's jobs."""
