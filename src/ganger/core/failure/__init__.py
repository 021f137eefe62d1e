"""How a failure is judged: its signature, its attribution, and the retry decision."""
