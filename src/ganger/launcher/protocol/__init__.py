"""The launcher's end of the protocol with the server."""
