"""Benches of the detection of hangs and stragglers, and the scripts that hang or lag."""
