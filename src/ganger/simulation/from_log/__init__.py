"""The days of a server's own event log as a simulation."""
