"""Other clusters' traces: recorded jobs, nodes, node faults and spot nodes, and the rows that could not be read."""
