"""Changes to the jobs of a trace before they are simulated: speed by type of GPU, and the load."""
