"""Repair of nodes: the marks that nodes get, cordons, and the Jobs that run hooks."""
