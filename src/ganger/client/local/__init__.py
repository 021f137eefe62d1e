"""The transport to a server of ganger's own: a unix socket or TCP."""
