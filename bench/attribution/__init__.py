"""Bench of failure attribution, and its corpus of broken scripts."""
