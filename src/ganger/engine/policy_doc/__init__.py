"""The policy document: reading, checks, versions, trial runs."""
