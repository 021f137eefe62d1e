"""Diagnosis of a failure from log files: the program behind `ganger diagnose`, which needs no server."""
