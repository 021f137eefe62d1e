"""Quota and fair share of queues and of the users in them."""
