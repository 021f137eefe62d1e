"""Published experiments, each with its own rules: the published figures, ganger's, and the difference."""
