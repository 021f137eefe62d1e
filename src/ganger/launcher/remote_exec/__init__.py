"""Commands started inside a task by other programs: mpirun's agent, and `ganger exec`."""
