"""Commands that other programs start inside a task: mpirun through its agent, and `ganger exec`."""
