"""Sources of a node's sample, one a module. Each reads below a root that can be set, and within a time-out."""
