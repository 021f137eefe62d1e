"""The server of one machine: its state directory, its assembly, its entry point."""
