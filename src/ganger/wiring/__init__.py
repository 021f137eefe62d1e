"""Puts a server together, and the errands that need all of it. The only room that imports everything.

`python -m ganger.wiring serve|replay|doctor|sim` is what `faces.client` and `faces.cli` start; see the modules.
"""
