"""Checkpoints in two places: saved on the node (`checkpoint.local`), then copied to the shared directory."""
