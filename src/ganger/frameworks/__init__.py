"""Framework plug-ins, one file each: the variables that tell a process its place in the gang.

A file has NAME (the value of `framework:`), DOC (one line for users), RESERVED (variables that a user's `env` may not
set) and `rank_environment(placed, rank)`. `registry` finds the files, and modules that other packages register under
the entry point `ganger.frameworks`. A user's value of a variable outside RESERVED overrides that of the plug-in.
"""
