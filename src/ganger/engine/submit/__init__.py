"""Submission: from a request to a job in the log."""
