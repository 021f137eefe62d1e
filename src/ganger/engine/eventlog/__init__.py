"""The event log of a server, its projections, and its retention."""
