"""Whether a gang may start now, and on which nodes and devices."""
