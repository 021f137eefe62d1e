"""Explanations of one gang: why it is pending, until when, and what would start it."""
