"""Answers of the service: jobs, queues, nodes, events, usage."""
