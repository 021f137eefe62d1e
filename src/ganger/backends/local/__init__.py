"""The embedded engine's world: real processes on this machine, on one node or on several virtual ones."""
