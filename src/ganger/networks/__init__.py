"""Networks of a cluster: what pods on a fabric need, and what keeps a fabric from working."""
