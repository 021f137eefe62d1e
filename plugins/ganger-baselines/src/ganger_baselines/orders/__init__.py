"""Published queue orders, one module each."""
