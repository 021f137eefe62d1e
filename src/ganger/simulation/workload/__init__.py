"""Changes to the jobs of a trace before they are simulated: speed by type and number of GPUs, and the load."""
