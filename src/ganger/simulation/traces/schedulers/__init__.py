"""Records of other schedulers, as their own commands print them: Slurm's accounting, and pods of Kubernetes."""
