"""The event log, the one truth of a server: rows, snapshots, projections, retention and repair."""
