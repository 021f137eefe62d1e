"""The backend of one machine: real processes on this machine, as one node or several virtual ones."""
