"""Benches of the time until a gang steps again, and the script whose recovery is measured."""
