"""The verbs: a deterministic state machine, events in, decisions out. No clock, randomness, files or logging."""
