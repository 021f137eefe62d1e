"""Health of the ranks: processes, stacks, stalls, and the removal of left-over processes."""
