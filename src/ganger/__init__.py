"""ganger runs distributed AI training: a whole gang starts or nothing, and comes back when something breaks.

Importing this package costs nothing on purpose: the command line and the rank runtime start from it.
"""

__version__ = "0.1.0"
