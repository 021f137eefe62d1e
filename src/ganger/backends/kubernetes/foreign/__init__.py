"""Pods that were created by others and are scheduled by ganger."""
