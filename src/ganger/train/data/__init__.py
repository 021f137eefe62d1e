"""Data of a training script: which rank reads which samples."""
