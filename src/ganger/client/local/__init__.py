"""The transport to a ganger server: a unix socket or TCP."""
