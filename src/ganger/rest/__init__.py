"""The REST interface: resources under /api/v1, with an OpenAPI document. Asks `engine.service` only."""
