"""Checks of a start now or ever, and the nodes and devices that a gang gets."""
