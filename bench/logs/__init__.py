"""Benches of reading and following the output of jobs, and the scripts that write it."""
