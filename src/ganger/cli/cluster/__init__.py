"""Commands about the cluster: nodes, queues, policy, capacity."""
