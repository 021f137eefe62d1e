"""Preemption: which running gangs may be stopped for a pending one, and which of them cost least."""
