"""Published queue orders that simulations compare with: plug-ins of ganger, one module each."""

__version__ = "0.1.0"
