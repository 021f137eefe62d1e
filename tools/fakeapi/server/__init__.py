"""From a connection to a response: HTTP, TLS, discovery, and the operations on objects."""
