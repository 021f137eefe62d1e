"""Access to a server on another machine: HTTP over TLS, with a token."""
