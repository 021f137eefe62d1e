"""Signatures of failures in log lines, as data: one table for each family of programs."""
