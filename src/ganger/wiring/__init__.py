"""Puts a server together, and the two errands that need all of it. The only room that imports everything.

`python -m ganger.wiring serve|replay|doctor` is what `faces.client` and `faces.cli` start; see the modules.
"""
