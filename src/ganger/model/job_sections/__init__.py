"""Sections of a job as a user writes them."""
