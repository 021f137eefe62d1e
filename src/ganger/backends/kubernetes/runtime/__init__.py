"""The pods of a cluster as a place of the gang runtime."""
