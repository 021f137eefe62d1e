"""What surrounds the core: the loop, the log, the ports a backend fills, and the service every face talks to."""
