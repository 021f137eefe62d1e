"""Incidents: failures of jobs joined with faults of their nodes."""
