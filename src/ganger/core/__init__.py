"""The scheduling core: a deterministic state machine, events in, decisions out. No clock, chance, files or logging."""
