"""Many runs of one trace: a grid of parameters with its Pareto front, and the search for the fewest nodes."""
