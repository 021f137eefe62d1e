"""Text of answers: tables, messages, live screens."""
