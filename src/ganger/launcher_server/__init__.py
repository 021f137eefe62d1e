"""What launchers say, and what that means, for every world that has real launchers; see
docs/reference/launcher-protocol.md.

Used by backends. Knows the engine's ports and the model, and no disk: what is to be known of a generation besides
messages, a backend has by `records`.
"""
