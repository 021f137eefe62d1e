"""Output of the ranks: records on disk, redaction, tracebacks."""
