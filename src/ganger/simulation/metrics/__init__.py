"""Figures of a run: waiting, use, fairness, goodput, cost."""
