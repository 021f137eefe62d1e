"""Simulated clusters: recorded jobs, or the days of ganger's own log, in virtual time."""
