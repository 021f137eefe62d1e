"""The loss watch: its settings, its findings, and returns to an older checkpoint."""
