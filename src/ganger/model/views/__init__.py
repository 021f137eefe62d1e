"""Answers of the service: the classes that the command line, REST, the SDK and the portal show."""
