"""The health of nodes: from a fault over a repair and a test back into service, or out of it for good."""
