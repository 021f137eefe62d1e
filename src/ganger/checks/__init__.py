"""Checks of nodes, one module each, found by the registry. The interface: `ganger.check_api.check_interface`."""
