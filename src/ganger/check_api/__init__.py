"""The interface of checks, the tables of their rules, and the driver that runs them over samples of a node."""
