"""Idle jobs: when they are warned, suspended or stopped."""
