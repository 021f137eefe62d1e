"""Published experiments, each with its own rules: what was published, what comes out here, and the difference."""
