"""Published queue orders and placement scores that simulations compare with: plug-ins of ganger, one module each."""

__version__ = "0.1.0"
