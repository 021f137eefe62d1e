"""Benches of the server of one machine: its loop, its log, its memory and its listeners."""
