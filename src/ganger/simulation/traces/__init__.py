"""Other clusters' traces: recorded jobs, nodes and node faults, and the rows that could not be read."""
