"""The scheduler's state: gangs, allocations, quota charges, timers, and the scope that undoes a trial."""
