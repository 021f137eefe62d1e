"""The interface of framework plug-ins: a generation with its nodes, and the variables and commands made from it."""
