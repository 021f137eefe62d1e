"""Domain model: frozen values shared by all packages.

Standard library only, no behaviour beyond arithmetic on their own fields.
"""
