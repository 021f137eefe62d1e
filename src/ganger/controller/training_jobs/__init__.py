"""et-operator's objects on the cluster: a TrainingJob runs as a GangJob, ScaleIn and ScaleOut change its size."""
