"""Definitions of custom resources, from the structures that the code reads."""
