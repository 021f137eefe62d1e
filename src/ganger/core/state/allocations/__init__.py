"""Allocations and quota charges of gangs, as columns of integers."""
