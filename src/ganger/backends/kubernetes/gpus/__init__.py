"""GPUs of nodes beyond their number: links between them, slices, and shares of them in the dialects of others."""
