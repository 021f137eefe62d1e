"""Programs of each node beside its jobs."""
