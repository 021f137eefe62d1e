"""The REST interface over the service."""
