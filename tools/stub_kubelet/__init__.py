"""Parts of a node's kubelet, and of what it talks to, without GPUs: played ones for tests and benches."""
