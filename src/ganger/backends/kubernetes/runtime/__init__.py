"""Runtime of gangs in a cluster: pods, launchers, and the ends of generations."""
