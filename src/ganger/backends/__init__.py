"""Backends, one package each: what carries out a plan, and reports what happens."""
