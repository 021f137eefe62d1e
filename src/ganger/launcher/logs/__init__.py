"""Output of the ranks: records on the disk, redaction, tracebacks."""
