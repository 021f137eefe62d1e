"""How each event changes the state."""
