"""People and programs outside: REST, the client of it, the command line. All speak through `engine.service`."""
