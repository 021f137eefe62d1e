"""The server of one machine: state directory, assembly, entry point."""
