"""The server's end of the launcher protocol, for every backend with real launchers.

See docs/reference/launcher-protocol.md. It knows the engine's ports and the model, but no disk: a backend provides
everything besides messages through `rank_records.Records`."""
