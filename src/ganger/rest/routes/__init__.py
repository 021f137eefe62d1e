"""The routes of the REST interface, one module a resource."""
