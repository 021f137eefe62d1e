"""Hangs and stragglers, judged from what all launchers of a gang report."""
