"""Benches of what a user at the command line waits for, from the installation on."""
