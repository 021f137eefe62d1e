"""The nouns: frozen values that every other room speaks in.

Standard library only, no behaviour beyond their own arithmetic."""
