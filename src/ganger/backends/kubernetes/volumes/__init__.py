"""Volumes of GangJobs: the nodes that their PersistentVolumeClaims allow, and binding the claims to a node."""
