"""One scheduling cycle: candidates, decisions, and the pending reasons it publishes."""
