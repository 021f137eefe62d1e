"""Changes of objects as requests ask for them: creation, updates, patches, applies, deletion, and the rules of pods."""
