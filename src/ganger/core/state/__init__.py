"""The scheduler's state: gangs, pending gangs in lanes, allocations, quota charges and timers."""
