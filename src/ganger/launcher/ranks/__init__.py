"""Processes of a task: starting, stopping, and how each of them ended."""
