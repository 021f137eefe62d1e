"""Runtime of gangs, the same for every backend whose jobs are processes, over a port that says where they run."""
