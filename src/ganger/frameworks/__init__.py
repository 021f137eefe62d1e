"""Frameworks, one file each: which variables tell a process its place in the gang.

A file has NAME (what `framework:` says), DOC (one line for people), RESERVED (names that a user's `env` may not set)
and `rank_environment(placed, rank)`. `registry` finds the files by itself; so does a package that registers a
module under the entry point `ganger.frameworks`. A variable outside RESERVED gives way to the user's own.
"""
