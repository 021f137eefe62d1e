"""Queues: quota, fair share, and the factors that put pending gangs in order."""
