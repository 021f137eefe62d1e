"""Several policies on one trace, side by side."""
