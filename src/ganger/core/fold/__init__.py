"""The fold of events into the state."""
