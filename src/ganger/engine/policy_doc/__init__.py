"""The policy document: text, versions, checks and trial runs."""
