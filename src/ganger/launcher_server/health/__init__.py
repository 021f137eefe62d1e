"""Hangs and stragglers, judged from the reports of all launchers of a gang."""
