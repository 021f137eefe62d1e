"""Published placement scores, one module each."""
