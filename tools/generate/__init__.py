"""Generators of pages, schemas and definitions from the code: `python -m tools.generate`."""
