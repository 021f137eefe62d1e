"""The engine: the scheduling loop, the event log, and the service over them."""
