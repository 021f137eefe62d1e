"""The scheduler's state: gangs, the pending ones in lines, allocations, quota charges, and timers."""
